"""The parts of a bundle: paths, documents, the program on workers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tpuctl.redaction import hide_metadata, hide_suspicious_values
from tpuctl.ssh.agent.link import AGENT_MARK
from tpuctl.ssh.channel import bootstrap
from tpuctl.support.bundle import explain_logs, hide_guest_attributes
from tpuctl.support.bundle_contents import RESERVED_BYTES, BundleContents, UniquePaths, safe_path


@given(st.text())
@example("x" + " " * 118 + "..")
@example("x" + "." * 120)
def test_every_path_is_safe(text: str) -> None:
    path = safe_path(text)
    parts = path.split("/")

    assert parts
    assert not {"", ".", ".."} & set(parts)
    assert path.isprintable()
    assert (len(path.encode()) <= 1300, "\\" in path) == (True, False)


@given(st.lists(st.text("aAb/.", max_size=5), max_size=30))
def test_paths_are_unique_and_no_file_is_a_folder(texts: list[str]) -> None:
    paths = UniquePaths()
    given_out = [paths.make_unique(text).lower() for text in texts]

    assert len(set(given_out)) == len(texts)
    assert not [one for one in given_out if any(other.startswith(one + "/") for other in given_out)]


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        (
            {"metadata": {"enable-oslogin": "TRUE", "x": "abc"}},
            {"metadata": {"enable-oslogin": "TRUE", "x": "[hidden: 3 characters]"}},
        ),
        ({"metadata": {"ssh-keys": "no key\nada:x"}}, {"metadata": {"ssh-keys": "[hidden: not a key]\n[hidden: not a key]"}}),
        ({"metadata": {"@type": "OfOperation", "verb": "stop"}}, {"metadata": {"@type": "OfOperation", "verb": "stop"}}),
        ([{"response": {"metadata": {"x": "ab"}}}], [{"response": {"metadata": {"x": "[hidden: 2 characters]"}}}]),
        ({"tpu": ({"metadata": {"startup-script": "echo"}},)}, {"tpu": [{"metadata": {"startup-script": "echo"}}]}),
        ("text", "text"),
    ],
)  # fmt: skip
def test_metadata_keeps_harmless_values(document: Any, shown: Any) -> None:
    assert hide_metadata(document) == shown


def test_values_with_suspicious_names_are_hidden() -> None:
    assert hide_suspicious_values({"password": 12, "a": [{"token": None, "b": 1}], "secrets": {"c": 2}}) == {
        "password": "[hidden]",
        "a": [{"token": "[hidden]", "b": 1}],
        "secrets": {"c": 2},
    }


def test_guest_attributes_keep_public_values() -> None:
    assert hide_guest_attributes([{"hostkeys/ssh-rsa": "AAAA", "own/key": "abc"}, {}]) == {
        "0": {"hostkeys/ssh-rsa": "AAAA", "own/key": "[hidden: 3 characters]"},
        "1": {},
    }


def test_redacted_documents_stay_json(tmp_path: Path) -> None:
    contents = BundleContents(tmp_path, max_bytes=10**7)

    contents.add_json("a.json", {"password": 12345, "n": 1, "text": 'PASSWORD=a"b\n', "token": {"x": None}})

    (entry,) = contents.entries
    assert json.loads(entry.file.read_text()) == {
        "password": "[hidden]", "n": 1, "text": "PASSWORD=[redacted password]", "token": {"x": None},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        pytest.param(b"exit 1 2.0", ["hbm-oom-running"], id="failed"),
        pytest.param(b"signal 9 2.0", ["hbm-oom-running"], id="killed"),
        pytest.param(b"exit 0 2.0", [], id="succeeded"),
        pytest.param(b"", [], id="no-end"),
    ],
)
def test_failure_in_the_log_of_a_failed_job_is_not_over(tmp_path: Path, end: bytes, expected: list[str]) -> None:
    contents = BundleContents(tmp_path, max_bytes=10**7)
    error = b"XlaRuntimeError: RESOURCE_EXHAUSTED: Attempting to allocate 4.50G. That was not possible.; (0x0x0_HBM0)\n"
    contents.add("workers/0/jobs/train/exit", end)
    contents.add("workers/0/jobs/train/out", error + b"step 3 loss 2.1\n")

    explanation = explain_logs(contents.entries, {})

    assert [one.id for one in explanation.conclusions] == expected


def test_data_beyond_the_limit_is_omitted_and_recorded(tmp_path: Path) -> None:
    contents = BundleContents(tmp_path, max_bytes=RESERVED_BYTES + 100)
    for name in ("first", "second"):
        writing = contents.begin(name)
        for _ in range(5):
            writing.write(b"x" * 30)
        writing.end()
    contents.add("vital", b"y" * 50)

    entries = [(one.path, one.size, one.original_size, one.is_truncated) for one in contents.entries]
    assert entries == [("first", 100, 150, True), ("second", 0, 150, True), ("vital", 50, 50, False)]


def test_program_on_worker_respects_limits(tmp_path: Path) -> None:
    logs = tmp_path / "root" / "tmp" / "tpu_logs"
    logs.mkdir(parents=True)
    for number in range(5):
        (logs / f"{number}.log").write_bytes(b"%d\n" % number * 50_000)
        os.utime(logs / f"{number}.log", (1000 + number, 1000 + number))
    request: dict[str, Any] = {
        "worker": 0, "room": 300_000, "each": 60_000, "since": None, "seconds": 20.0,
    }  # fmt: skip
    line, program = bootstrap("worker_evidence", f"run_agent(serve_worker_evidence, {request!r})")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TPUCTL_DEVICE_ROOT": str(tmp_path / "root")}
    done = subprocess.run(["sh", "-c", line], input=program, env=environ, capture_output=True, check=True)

    frames = list(_frames(done.stdout.partition(AGENT_MARK)[2]))
    begun = [json.loads(text)["path"] for kind, text in frames if kind == b"f"]
    # The newest first, as far as there is room.
    taken = [path for path in begun if path.startswith("tpu_logs/")]
    assert taken == [f"tpu_logs/{number}.log" for number in range(4, 4 - len(taken), -1)]
    assert sum(len(text) for kind, text in frames if kind == b"o") <= 300_000
    assert all(int(text) > 0 for kind, text in frames if kind == b"O")
    assert frames[-1] == (b"x", b"")
    missing = {json.loads(text)["path"]: json.loads(text)["why"] for kind, text in frames if kind == b"m"}
    assert missing["tpu_logs"] == f"{5 - len(taken)} older files are left out: the limit of size or time was reached"


def _frames(data: bytes) -> Any:
    while data:
        size = int.from_bytes(data[1:5], "big")
        yield data[:1], data[5 : 5 + size]
        data = data[5 + size :]
