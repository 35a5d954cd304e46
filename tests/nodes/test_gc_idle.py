"""`tpuctl gc --idle`: what counts as use of a worker, and what is unknown. The agent runs on files that stand for a worker."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, put
from tests.tpu_files import Machine, running
from tpuctl.errors import RemoteCommandError, TpuctlError
from tpuctl.models.node import Node
from tpuctl.nodes.expiry import owner_label
from tpuctl.nodes.garbage import Idleness
from tpuctl.nodes.usage import WorkerIdleness, combine_idleness
from tpuctl.sandbox.worker_lookup import OS_LOGIN_ACCOUNT
from tpuctl.ssh.agent.worker_use import last_login
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
JOB = {"kind": "job", "name": "train", "command": "./train.sh", "user": "ann", "age": 60}
MINE = {"tpuctl-owner": owner_label(OS_LOGIN_ACCOUNT)}


def age_file(path: Path, age: timedelta) -> None:
    at = time.time() - age.total_seconds()
    os.utime(path, (at, at))


class Worker(Machine):
    """A worker that was last used ten days ago."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.wtmp = self.root / "var" / "log" / "wtmp"
        self.wtmp.parent.mkdir(parents=True)
        self.wtmp.touch()
        age_file(self.wtmp, timedelta(days=10))

    def job(self, age: timedelta) -> None:
        folder = self.root / ".tpuctl" / "jobs" / "train.0"
        folder.mkdir(parents=True)
        for path in (folder / "token", folder / "exit"):
            path.touch()
            age_file(path, age)
        age_file(folder, age)
        age_file(folder.parent, 10 * DAY)


@pytest.fixture
def worker(tmp_path: Path, fake_ssh: Callable[[str], None]) -> Worker:
    """The only worker, whose commands run on this machine with its root."""
    found = Worker(tmp_path / "root")
    fake_ssh(f"for line; do :; done\nTPUCTL_DEVICE_ROOT='{found.root}' HOME='{found.root}' exec sh -c \"$line\"")
    return found


def gc_idle(tpuctl: Console) -> tuple[str, str]:
    out, err, code = tpuctl("gc", "--idle", "1m", "-o", "name")
    assert code == 0
    return out, err


def test_idle_node_is_deleted(tpuctl: Console, sandbox: Sandbox, worker: Worker) -> None:
    put(sandbox, labels=MINE, age=DAY)

    assert gc_idle(tpuctl)[0] == f"{ZONE}/demo\n"
    assert tpuctl("gc", "--yes")[2] == 0
    assert sandbox.changes() == []
    assert tpuctl("gc", "--idle", "1m", "--yes")[2] == 0
    assert sandbox.changes() == ["delete"]
    assert "idle" in tpuctl("history", "demo")[0]


def hold(worker: Worker) -> Any:
    return running("sleep", "60", path=worker.root / "dev" / "accel0")


@pytest.mark.parametrize("flag", [pytest.param("--older-than=1h", id="old"), pytest.param("--expired", id="expired")])
def test_node_of_others_that_is_in_use_is_shown_and_left_alone_if_idle(
    tpuctl: Console, sandbox: Sandbox, worker: Worker, flag: str
) -> None:
    put(sandbox, labels={"tpuctl-owner": "ann", "tpuctl-expires": "1700000000"}, age=DAY)
    words = ("gc", flag, "--everyones")

    with hold(worker):
        out, err, _ = tpuctl(*words)
        found = json.loads(tpuctl(*words, "-o", "json")[0])
        left = tpuctl(*words, "--if-idle", "--yes")[1]

    use = r"worker 0: process \d+ \(sleep\) holds the TPU"
    assert re.search(rf"\tann\t[^\t]+; {use}\n$", out), out
    shown = f"`{ZONE}/demo`, created by ann, is or may be in use: {use}; `--if-idle` leaves it alone"
    assert re.match(shown, err), err
    assert [(item["delete"], bool(item["inUse"])) for item in found] == [(True, True)]
    assert re.search(f"left alone: `{ZONE}/demo` .*: it is not known to be idle: {use}", left), left
    assert sandbox.changes() == []
    assert tpuctl(*words, "--if-idle", "--yes")[2] == 0
    assert sandbox.changes() == ["delete"]


def test_node_in_use_is_left_alone(tpuctl: Console, sandbox: Sandbox, worker: Worker) -> None:
    put(sandbox, labels=MINE, age=DAY)

    with hold(worker):
        out, err = gc_idle(tpuctl)

    assert out == ""
    assert f"left alone: `{ZONE}/demo` (not known to be idle): worker 0: process " in err
    assert err.rstrip().endswith("(sleep) holds the TPU")


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        pytest.param(lambda worker: worker.wtmp.unlink(), "the record of logins", id="no record of logins"),
        pytest.param(lambda worker: worker.wtmp.write_bytes(b"x"), "", id="a user has just logged in"),
        pytest.param(lambda worker: worker.job(timedelta()), "", id="a job has just ended"),
        pytest.param(
            lambda worker: (worker.root / ".tpuctl" / "jobs").mkdir(parents=True),
            "",
            id="a followed job has just ended",
        ),
        pytest.param(lambda worker: worker.lock_file.touch(), "", id="a program has just used the TPU"),
        pytest.param(lambda worker: (worker.root / "tmp" / "tpu_logs").mkdir(), "", id="libtpu has just written a log"),
    ],
)
def test_recent_use_or_unknown_use_is_not_idle(
    tpuctl: Console, sandbox: Sandbox, worker: Worker, prepare: Callable[[Worker], object], expected: str
) -> None:
    put(sandbox, labels=MINE, age=DAY)
    prepare(worker)

    out, err = gc_idle(tpuctl)

    assert out == ""
    assert expected in err


def test_worker_that_does_not_answer_is_not_idle(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None]
) -> None:
    put(sandbox, labels=MINE, age=DAY)
    fake_ssh("echo 'Permission denied (publickey).' >&2; exit 255")

    out, err = gc_idle(tpuctl)

    assert (out, sandbox.changes()) == ("", [])
    assert f"left alone: `{ZONE}/demo` (not known to be idle): " in err


def node(**fields: Any) -> Node:
    created = (NOW - 2 * DAY).isoformat()
    name = f"projects/p/locations/{ZONE}/nodes/a"
    return Node.from_api({"name": name, "acceleratorType": "v4-16", "createTime": created, **fields})


def idle(lasted: timedelta, **fields: Any) -> WorkerIdleness:
    return WorkerIdleness(**{"in_use": (), "unknown": (), "lasted": lasted, "last": "it booted", "uses": (), **fields})


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param(
            {0: idle(DAY), 1: idle(HOUR)}, Idleness(HOUR, "worker 1: it booted 1h ago"), id="the last use counts"
        ),
        pytest.param(
            {0: idle(9 * DAY), 1: idle(9 * DAY)}, Idleness(2 * DAY, "it was created then"), id="since its creation"
        ),
        pytest.param({0: idle(DAY)}, Idleness(None, "worker 1 was not asked"), id="a worker is missing"),
        pytest.param(
            {0: idle(DAY), 1: RemoteCommandError("worker 1: no answer")},
            Idleness(None, "worker 1: no answer"),
            id="an error",
        ),
        pytest.param(
            {0: idle(DAY), 1: idle(DAY, in_use=("a job runs",))}, Idleness(None, "worker 1: a job runs"), id="in use"
        ),
        pytest.param(
            {0: idle(DAY, unknown=("there is no /proc",)), 1: idle(DAY)},
            Idleness(None, "worker 0: there is no /proc"),
            id="unknown",
        ),
    ],
)
def test_node_is_idle_since_the_last_use_of_any_worker(
    answers: dict[int, WorkerIdleness | TpuctlError], expected: Idleness
) -> None:
    assert combine_idleness(node(), answers, NOW) == expected


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(None, id="nothing"),
        pytest.param({"inUse": [], "unknown": [], "uses": [], "last": "x"}, id="no age"),
        pytest.param({"inUse": [], "unknown": [], "uses": [], "last": "x", "age": -1}, id="negative"),
        pytest.param({"inUse": [], "unknown": [], "uses": [], "last": "x", "age": 10**30}, id="beyond the calendar"),
        pytest.param({"inUse": [7], "unknown": [], "uses": [], "last": "x", "age": 1}, id="a number for a text"),
        pytest.param({"inUse": ["x"] * 99, "unknown": [], "uses": [], "last": "x", "age": 1}, id="too many"),
        pytest.param({"inUse": [], "unknown": [], "last": "x", "age": 1}, id="no uses"),
        pytest.param(
            {"inUse": [], "unknown": [], "uses": [{**JOB, "kind": "x"}], "last": "", "age": 1}, id="another kind of use"
        ),
        pytest.param({"inUse": [], "unknown": [], "uses": [JOB] * 65, "last": "", "age": 1}, id="too many uses"),
    ],
)
def test_wrong_answer_is_an_error(answer: Any) -> None:
    with pytest.raises(UnexpectedAnswerError):
        decode_answer(WorkerIdleness, answer)


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        pytest.param({"wtmp": 5, "wtmp.1": 9}, 5, id="the newer record"),
        pytest.param({"wtmp": 9, "wtmp.1": 7}, 7, id="a copy was written later"),
        pytest.param({"wtmp": 9}, 9, id="only one record"),
        pytest.param({"wtmp.1": 7}, None, id="only the older record"),
        pytest.param({}, None, id="no record"),
    ],
)
def test_last_login_is_that_of_both_records(tmp_path: Path, ages: dict[str, int], expected: int | None) -> None:
    for name, age in ages.items():
        (tmp_path / name).touch()
        age_file(tmp_path / name, timedelta(hours=age))

    found = last_login(str(tmp_path / "wtmp"))

    assert (None if found is None else round((time.time() - found) / 3600)) == expected
