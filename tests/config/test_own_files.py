"""Damaged or foreign files in place of tpuctl's own: one error, a warning, or none; never a traceback."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tpuctl.check.gate import CheckCache
from tpuctl.clock import ManualClock
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.journal import Journal, JournalError
from tpuctl.nodes.journal import LocalJournalStore as LocalJournal
from tpuctl.nodes.lease import LeaseError, LocalLeaseStore
from tpuctl.sandbox.request_log import log_event, log_path, read_log
from tpuctl.ssh.keys import OsLoginCache
from tpuctl.ssh.ssh_config import parse_ssh_config

NAME = NodeName("sandbox", "us-central2-b", "trainer")
JOURNAL = "state/sandbox/journal/sandbox/us-central2-b/trainer.jsonl"
AT = "2026-01-01T00:00:00Z"
DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "not json": b"\x00\xff\x7f",
    "not utf-8": b'{"at": "\xff"}',
    "a number": b"5",
    "null": b"null",
    "a list": b"[[[]]]",
    "text": b'"x"',
    "of another kind": b'{"k": 5, "at": [], "owner": {}}',
    "nested": b'{"at": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "digits": b'{"at": %s}' % (b"7" * 5000),
    "no number": b'{"at": NaN}',
}
LINES: dict[str, object] = {
    "time": {"at": 5, "event": "state"},
    "year": {"at": "9999-12-31T23:59:59-12:00", "event": "usable"},
    "event": {"at": AT, "event": ["state"]},
    "id": {"at": AT, "event": "restart", "id": {}},
    "endless": {"at": AT, "event": "usable", "took": 1e300},
    "spec of text": {"at": AT, "event": "create", "spec": "x"},
    "labels": {"at": AT, "event": "create", "spec": {"accelerator_type": "v4-8", "runtime_version": "v", "labels": 5}},
    "disks": {
        "at": AT,
        "event": "create",
        "spec": {"accelerator_type": "v4-8", "runtime_version": "v", "data_disks": [1]},
    },
    "kept": {"at": AT, "event": "create", "spec": {"accelerator_type": "v4-8", "runtime_version": "v", "kept": [1]}},
}


@pytest.mark.parametrize("line", LINES)
def test_journal_damaged_line_is_skipped_with_a_warning(
    line: str, tpuctl: Console, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.add_node("trainer")
    path = next(iter(journal_of(tpuctl, tmp_path)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"at": AT, "event": "note", "text": "kept"}) + "\n" + json.dumps(LINES[line]) + "\n")

    out, err, code = tpuctl("history", "trainer", "--zone", "us-central2-b")

    assert (out.count("\n"), code) == (1, 0)
    assert f"skipped line 2 of the journal, damaged or not written by tpuctl: {path}\n" in err


def test_journal_null_in_a_spec_is_an_absent_field(tpuctl: Console, sandbox: Sandbox, tmp_path: Path) -> None:
    """No command fails, and the node is recreated without the field."""
    sandbox.add_node("trainer")
    path = next(iter(journal_of(tpuctl, tmp_path)))
    given: dict[str, Any] = {"accelerator_type": "v4-8", "runtime_version": "tpu-ubuntu2204-base"}
    nulls = dict.fromkeys(entry.name for entry in fields(NodeSpec) if entry.name not in given)
    path.write_text(json.dumps({"at": AT, "event": "create", "by": "t", "spec": {**nulls, **given}}) + "\n")
    assert NodeSpec.from_json({**nulls, **given}) == NodeSpec.from_json(given) == NodeSpec(**given)

    place = ("trainer", "--zone", "us-central2-b")
    commands = (("history", *place), ("status", *place), ("cost",), ("up", *place, "--no-wait"))
    codes = [tpuctl(*words)[2] for words in commands]
    assert codes == [0] * len(commands)


def journal_of(tpuctl: Console, tmp_path: Path) -> list[Path]:
    """Return the file of the journal, at the path that the program uses."""
    tpuctl("wait", "trainer", "--zone", "us-central2-b", "--for", "ready")
    return [*tmp_path.glob("state/**/trainer.jsonl")] or [tmp_path / JOURNAL]


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_cache_damaged_file_is_empty_and_written_again(content: bytes, tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "memory"
    path.write_bytes(content)
    checked, switches = CheckCache(path, clock), OsLoginCache(path, clock)

    assert (checked.get("k"), switches.of("p")) == (None, None)
    checked.put("k", ["x"])
    assert checked.get("k") == ["x"]
    path.write_bytes(content)
    assert switches.remember("p", {"enable-oslogin": "TRUE", "x": "y"}) == {"enable-oslogin": "TRUE"}
    assert switches.of("p") == {"enable-oslogin": "TRUE"}


RECORD = {"owner": "h-1-t", "who": "up on h pid 1", "purpose": "up", "ttl": 120.0, "acting": None, "ended": None}


@pytest.mark.parametrize(
    "content",
    [
        *(pytest.param(content, id=name) for name, content in DAMAGED.items()),
        *(
            pytest.param(
                json.dumps({"version": "1", "written": AT, "record": {**RECORD, field: value}}).encode(),
                id=f"{field} {value}",
            )
            for field, value in (
                ("owner", "a\0b"),
                ("owner", 5),
                ("ttl", -1),
                ("ttl", "x"),
                ("acting", 5),
                ("ended", {"by": 5}),
            )
        ),
    ],
)
def test_lease_damaged_file_is_one_error_and_not_free(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / NAME.project / NAME.zone / f"{NAME.node_id}.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)

    with pytest.raises(LeaseError) as raised:
        LocalLeaseStore(tmp_path, ManualClock()).read(NAME)

    assert (
        raised.value.message == f"cannot read `{file}`: not a lease of this version of tpuctl; the change was not sent"
    )


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_request_log_damaged_lines_are_skipped(content: bytes, tmp_path: Path) -> None:
    state_file = tmp_path / "world"
    odd = [
        b'[1, "GET", "/", 200, "c"]',
        b'[1e300, "GET", "/", 200, "c", ""]',
        b'[1, 5, "/", 200, "c", ""]',
        b'[1, "GET", "/", "200", "c", ""]',
    ]
    good = b'[1767225600.0, "GET", "/v2", 200, "curl", ""]'
    log_path(state_file).write_bytes(b"\n".join([content, *odd, good, b""]))

    assert [entry.path for entry in read_log(state_file)] == ["/v2"]


@pytest.mark.parametrize(
    "mark",
    [
        pytest.param("{", id="cut off"),
        pytest.param('{"node": 5}', id="type"),
        pytest.param('{"node": "x"}', id="name"),
        pytest.param(
            '{"node": "projects/p/locations/z/nodes/n", "id": "", "cloud": "", "prefix": "", "options": 5}',
            id="options",
        ),
        pytest.param('{"a":' * 100_000, id="nested"),
    ],
)
def test_ssh_config_damaged_mark_names_the_line(mark: str) -> None:
    with pytest.raises(Exception, match="line 2 of `config`: damaged entry"):
        parse_ssh_config(f"Host x\n# tpuctl {mark}\n# tpuctl end\n", source="config")


def test_journal_too_large_is_empty_with_a_warning(tmp_path: Path) -> None:
    warnings: list[str] = []
    path = tmp_path / "sandbox" / "us-central2-b" / "trainer.jsonl"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)

    assert Journal(tmp_path, warn=warnings.append).entries(NAME) == []
    assert warnings == [f"cannot read the journal: {path}: it is larger than 64 MiB"]


def test_append_to_a_pipe_does_not_block(tmp_path: Path) -> None:
    state_file, now = tmp_path / "world", ManualClock().now()
    os.mkfifo(log_path(state_file))
    log_event(state_file, "x", now)
    store = LocalJournal(tmp_path / "journal")
    store.append(NAME, b"{}\n", durable=False)
    (file,) = (tmp_path / "journal").rglob("trainer.jsonl")
    file.unlink()
    os.mkfifo(file)

    with pytest.raises(JournalError):
        store.append(NAME, b"{}\n", durable=False)


SETTINGS = {
    "zone": "us-central2-b",
    "type": "v4-8",
    "version": "v",
    "tier": "spot",
    "labels": "a=b",
    "tags": "t",
    "network": "n",
    "description": "d",
    "output": "json",
    "timeout": "1h",
    "max_reboots": "2",
    "project": "p",
}


@pytest.mark.parametrize("place", [(), ("--here",)], ids=["user", "project"])
def test_settings_changed_at_once_are_all_kept(offline: Console, place: tuple[str, ...]) -> None:
    """Commands that change one file wait for each other; no file of a lock stays, and a trusted project stays trusted."""
    with ThreadPoolExecutor(len(SETTINGS)) as pool:
        results = list(pool.map(lambda pair: offline("config", "set", *pair, *place)[1:], SETTINGS.items()))

    folder = offline.folder if place else Path(offline.environ["HOME"]) / ".config" / "tpuctl"
    (file,) = folder.iterdir()
    assert [code for _, code in results] == [0] * len(SETTINGS), results
    assert sorted(line.partition(":")[0] for line in file.read_text().splitlines()) == sorted(SETTINGS)
    assert not place or offline("trust")[1].startswith(f"warning: {file} is trusted; it sets")
