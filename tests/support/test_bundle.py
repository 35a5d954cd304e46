"""`tpuctl bundle`: its files, what is missing in it, and the output of the command."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import time

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, put
from tests.support.conftest import ROOT, Site
from tests.support.secrets_planted import NAMED, PASSWORD, PEM, TOKENS
from tpuctl.ssh.agent.link import AGENT_MARK

_GARBLED = "unexpected answer from worker 0: "
IN_USE = "RuntimeError: The TPU is already in use by process with pid 1234. Not attempting to load libtpu.so in this process.\n"
ALL = "\n".join([*(text for text, _ in TOKENS.values()), *(one.text.decode() for one in NAMED.values())]) + "\n"
# Parts of the secrets above, each long enough not to stand anywhere by chance.
TRACES = sorted(
    {text[8:24].encode() for text, kind in TOKENS.values() if kind != "private-key"}
    | {line.encode() for line in PEM.split("\n")[1:-1]}
    | {PASSWORD.encode()}
)


def test_bundle_contains_all_evidence(site: Site) -> None:
    (site.logs(0) / "tpu_driver.INFO").write_text("I1121 all is well\n")
    site.job(1, "train", about='{"command": "train"}', exit="exit 1 2.0", out=IN_USE)

    made = site.bundle()

    assert (made.out, made.code) == (f"{site.tpuctl.folder}/made.tar.gz\n", 0)
    of_workers = {path for path in made.files if path.startswith("workers/")}
    assert set(made.files) - of_workers == {
        *("README.txt", "doctor.json", "explanation.json", "explanation.txt", "guest-attributes.json", "manifest.json"),
        *("node.json", "settings.json", "versions.json"),
    }
    assert {"workers/0/tpu_logs/tpu_driver.INFO", "workers/0/processes.txt", "workers/0/holders.json"} < of_workers
    assert made.files["workers/1/jobs/train/out"] == IN_USE.encode()
    assert made.json("node.json")["state"] == "READY"
    assert all(json.loads(data) is not None for path, data in made.files.items() if path.endswith(".json"))
    # The verdict on all of it, with its worker.
    (first, *_) = made.json("explanation.json")["verdicts"]
    assert (first["file"], first["first_line"], first["worker"]) == ("workers/1/jobs/train/out", 1, "1")
    assert "workers/1/jobs/train/out, line 1" in made.err
    assert first["remedy"][0] in made.err
    assert b"workers/1/jobs/train/out" in made.files["README.txt"]


def test_manifest_lists_all_other_files(one_worker: Site) -> None:
    (one_worker.logs(0) / "a.log").write_text(f"key {TOKENS['api key'][0]}\n")

    made = one_worker.bundle()

    listed = {one["path"]: one for one in made.json("manifest.json")["files"]}
    assert set(listed) == set(made.files) - {"manifest.json"}
    for path, one in listed.items():
        assert (one["size"], one["sha256"]) == (len(made.files[path]), hashlib.sha256(made.files[path]).hexdigest())
    log = listed["workers/0/tpu_logs/a.log"]
    assert (log["originalSize"], log["redactions"], log["truncated"]) == (44, {"api-key": 1}, False)
    assert made.json("manifest.json")["redactions"] == {"api-key": 1}
    assert (made.json("manifest.json")["node"], made.json("manifest.json")["sandbox"]) == ("demo", True)


def test_bundle_contains_no_secret(site: Site, sandbox: Sandbox) -> None:
    name = f"{TOKENS['github'][0]}.log"
    (site.logs(0) / name).write_text("x\n")
    (site.logs(0) / "all.log").write_text(ALL)
    (site.logs(1) / "other.log").write_text(ALL)
    site.job(0, "train", out=ALL, err=ALL, about=json.dumps({"command": ALL}))
    script = f"curl -H 'Authorization: Bearer {TOKENS['oauth'][0]}' x"
    put(sandbox, "other", metadata={"startup-script": script, "any": PASSWORD, "ssh-keys": "ada:ssh-rsa AAAA ada"})
    site.ssh(f"{ROOT}; (sleep 20; true '--password={PASSWORD}') >/dev/null 2>&1 & train=$!")

    made, other = site.bundle(), site.bundle("--no-workers", node="other")

    everything = b"\n".join([*made.files.values(), *other.files.values()])
    paths = "\n".join(made.files)
    assert not [trace for trace in TRACES if trace in everything or trace.decode() in paths]
    assert "workers/0/tpu_logs/[redacted github-token].log" in made.files
    metadata = other.json("node.json")["metadata"]
    assert metadata == {
        "startup-script": "curl -H 'Authorization: Bearer [redacted oauth-token]' x",
        "any": f"[hidden: {len(PASSWORD)} characters]",
        "ssh-keys": f"ada:ssh-rsa SHA256:{_fingerprint()}",
    }


def _fingerprint() -> str:
    return base64.b64encode(hashlib.sha256(base64.b64decode("AAAA")).digest()).decode().rstrip("=")


def test_redact_accounts_hides_addresses(site: Site) -> None:
    (site.logs(0) / "a.log").write_text("ada@example.com at 10.1.2.3\n")

    made = site.bundle("--redact-accounts", "--worker", "0")

    log = made.files["workers/0/tpu_logs/a.log"]
    assert re.fullmatch(rb"account-\d+ at address-\d+\n", log)
    assert not [path for path, data in made.files.items() if b"ada@example.com" in data or b"198.18.0.1" in data]


def test_silent_worker_delays_no_other(site: Site) -> None:
    (site.logs(0) / "a.log").write_text("here\n")
    site.ssh(f'case $host in *.2) echo "Permission denied (publickey)." >&2; exit 255;; esac; {ROOT}')

    made = site.bundle()

    assert made.code == 0
    assert made.missing["workers/1"] == "Permission denied (publickey)."
    assert "warning: missing: workers/1: Permission denied (publickey).\n" in made.err
    assert "worker 1 of `demo`: " in made.err
    assert b"\n  workers/1: Permission denied (publickey).\n" in made.files["README.txt"]
    assert made.files["workers/0/tpu_logs/a.log"] == b"here\n"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("exit 127", "collection failed: `python3` is not installed there"),
        ("echo oh no >&2; exit 9", "collection failed: oh no"),
        ("printf '\\n\\0tpuctl-agent\\nrubbish'", _GARBLED),
        ("printf '\\n\\0tpuctl-agent\\nf\\0\\0\\0\\2{}'", _GARBLED),
        ("printf '\\n\\0tpuctl-agent\\nz\\377\\377\\377\\377'", _GARBLED),
        ("printf '\\n\\0tpuctl-agent\\n'; exit 255", "the connection broke"),
        ("printf '%1100000s' x; exit 1", _GARBLED),
    ],
)  # fmt: skip
def test_hostile_worker_output_still_gives_a_bundle(one_worker: Site, line: str, why: str) -> None:
    one_worker.ssh(line)

    made = one_worker.bundle()

    assert made.code == 0
    assert made.missing["workers/0"].startswith(why)
    assert "node.json" in made.files


def test_file_names_from_workers_become_safe(one_worker: Site) -> None:
    frames = [
        *((b"f", json.dumps({"path": path, "source": "x", "size": 1, "modified": None}).encode()) for path in (
            "../../../etc/passwd", "/etc/shadow", "a\x1b[2J\n.log", "a/../../b", "same", "same", "SAME", "same/below", "", "..",
        )),
        (b"x", b""),
    ]  # fmt: skip
    (one_worker.tpuctl.folder / "stream").write_bytes(_stream(frames))
    one_worker.ssh(f"cat '{one_worker.tpuctl.folder}/stream'; exit 0")

    made = one_worker.bundle()

    inside = sorted(path.removeprefix("workers/0/") for path in made.files if path.startswith("workers/0/"))
    assert inside == [
        "SAME~3", "_/_/_/etc/passwd", "_~2", "a%1B[2J%0A.log", "a/_/_/b", "etc/shadow", "same", "same_below",
        "same~2", "unnamed",
    ]  # fmt: skip


def test_sizes_are_limited_and_omissions_recorded(one_worker: Site) -> None:
    lines = b"".join(b"%07d\n" % number for number in range(115_000))
    (one_worker.logs(0) / "big.log").write_bytes(lines)
    (one_worker.logs(0) / "old.log").write_bytes(lines)
    os.utime(one_worker.logs(0) / "old.log", (1e9, 1e9))

    made = one_worker.bundle("--max-size", "2M")

    assert sum(map(len, made.files.values())) < 2_000_000
    big = made.files["workers/0/tpu_logs/big.log"]
    head, note, tail = re.split(rb"\n\n?\[\.\.\. (\d+) bytes omitted \.\.\.\]\n", big)
    assert head + b"\n" == lines[: len(head) + 1]
    assert tail == lines[-len(tail) :]
    assert len(head) + 1 + int(note) + len(tail) == len(lines)
    (entry,) = [one for one in made.json("manifest.json")["files"] if one["path"].endswith("big.log")]
    assert (entry["truncated"], entry["originalSize"], entry["size"]) == (True, len(lines), len(big))


def test_since_skips_old_and_special_files(one_worker: Site) -> None:
    logs = one_worker.logs(0)
    (logs / "new.log").write_text("new\n")
    (logs / "old.log").write_text("old\n")
    os.utime(logs / "old.log", (time.time() - 7200,) * 2)
    (logs / "link.log").symlink_to("/etc/passwd")
    os.mkfifo(logs / "pipe.log")
    (logs / "deep").mkdir()
    (logs / "deep" / "a.log").write_text("deep\n")
    (logs / "away").symlink_to("/etc")

    made = one_worker.bundle("--since", "1h")

    taken = {path.partition("tpu_logs/")[2] for path in made.files if "tpu_logs/" in path}
    assert taken == {"new.log", "deep/a.log"}
    assert made.missing["workers/0/tpu_logs"] == "3 links, pipes or devices are left out"


def test_deleted_node_is_found_in_journal(tpuctl: Console, site: Site) -> None:
    up = ("up", "gone", *UP[2:])
    assert tpuctl(*up)[2] == 0
    assert tpuctl("down", "gone", "--yes")[2] == 0

    for node in ("gone", f"{ZONE}/gone"):
        made = site.bundle(node=node)
        assert made.code == 0
        assert {"journal.json", "operations.json"} < set(made.files)
        assert [one["metadata"]["verb"] for one in made.json("operations.json")] == ["delete", "create"]
        assert made.missing["node.json"] == "the API knows no such node"
        assert "warning: missing: node.json: the API knows no such node\n" in made.err


@pytest.mark.parametrize("node", ["nobody", f"{ZONE}/nobody"])
def test_unknown_node_gives_no_bundle(site: Site, node: str) -> None:
    made = site.bundle(node=node)

    assert (made.out, made.files, made.code) == ("", {}, 3)
    assert made.err.startswith("error: no node `nobody` in ")


def test_unavailable_api_leaves_local_documents(tpuctl: Console, site: Site, sandbox: Sandbox) -> None:
    assert tpuctl("up", "other", *UP[2:])[2] == 0
    sandbox.fault("http-error", status=503, count=0)

    made = site.bundle(node=f"{ZONE}/other")

    assert made.code == 0
    assert {"journal.json", "settings.json"} < set(made.files)
    assert "node.json" in made.missing


def test_node_without_workers_gives_a_bundle(site: Site, sandbox: Sandbox) -> None:
    put(sandbox, "stopped", state="STOPPED")

    made = site.bundle(node="stopped")

    assert (made.code, made.missing["workers"]) == (0, "`stopped` is STOPPED: ssh cannot reach it")
    assert made.json("node.json")["state"] == "STOPPED"


def test_endless_worker_is_limited(one_worker: Site) -> None:
    """Neither files nor missing items of a worker fill this machine."""
    file = json.dumps({"path": "x", "source": "x", "size": 1, "modified": None}).encode()
    missing = [json.dumps({"path": f"y{number}", "why": "z" * 900}).encode() for number in range(700)]
    frames = [*((b"f", file) for _ in range(1100)), *((b"m", item) for item in missing), (b"x", b"")]
    (one_worker.tpuctl.folder / "stream").write_bytes(_stream(frames))
    one_worker.ssh(f"cat '{one_worker.tpuctl.folder}/stream'; exit 0")

    made = one_worker.bundle()

    assert made.missing["workers/0"] == "100 files omitted: the worker sent more than was requested"
    assert len([path for path in made.files if path.startswith("workers/0/x")]) == 1000
    whys = [why for path, why in made.missing.items() if path.startswith("workers/0/y")]
    assert (len(whys), {len(why) for why in whys}) == (500, {500})


def test_doctor_errors_are_reported(site: Site) -> None:
    site.ssh(f'case $host in *.2) echo "Permission denied (publickey)." >&2; exit 255;; esac; {ROOT}')

    made = site.bundle()

    errors = [one["text"] for one in made.json("doctor.json")["findings"] if one["level"] == "error"]
    more = f", and {len(errors) - 1} more: see doctor.json in the bundle" if len(errors) > 1 else ""
    assert f"warning: doctor found {len(errors)} error{'s' if more else ''}: {errors[0]}{more}\n" in made.err


def test_timeout_limits_the_bundle(one_worker: Site) -> None:
    one_worker.ssh("exec sleep 90")
    began = time.monotonic()

    made = one_worker.bundle("--timeout", "1s")

    assert (made.code, time.monotonic() - began < 60) == (0, True)
    assert "workers/0" in made.missing


def test_hanging_worker_leaves_time_for_the_findings_of_doctor(one_worker: Site) -> None:
    one_worker.ssh("exec sleep 90")

    made = one_worker.bundle("--timeout", "8s")

    errors = [one["text"] for one in made.json("doctor.json")["findings"] if one["level"] == "error"]
    assert errors == ["its address does not answer"]
    assert made.missing["workers/0"].startswith("no answer within ")


def test_hanging_api_leaves_time_for_the_rest(tpuctl: Console, site: Site) -> None:
    """It takes the connection, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        began = time.monotonic()
        _, err, code = tpuctl(
            "--no-sandbox", "bundle", f"{ZONE}/x", "--project", "p", "--endpoint", endpoint, "--timeout", "1s"
        )

    assert (code, time.monotonic() - began < 30) == (1, True)
    assert err.startswith("error: no answer within ")


def _stream(frames: list[tuple[bytes, bytes]]) -> bytes:
    return AGENT_MARK + b"".join(kind + len(text).to_bytes(4, "big") + text for kind, text in frames)
