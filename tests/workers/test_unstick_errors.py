"""The end of `tpuctl unstick`: the error and exit code of each remaining problem, and what is left alone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tpuctl.errors import AccessError, BrokenNodeError, ConflictError, RemoteCommandError, TpuctlError
from tpuctl.models.node import Node
from tpuctl.ssh.channel import AgentError
from tpuctl.ssh.connection import Connection, Target
from tpuctl.ssh.tpu_holders import HolderProcess, HoldersFound, LockFile
from tpuctl.workers.tpu_release import HolderReport, release_errors, release_notes

_FILES = (Path("/k"), Path("/g"))
_CONNECTION = Connection(login="ada", address="h", host_alias="a", known_hosts=_FILES, identity=Path("/id"))
TARGET = Target(Node.from_api({"name": "projects/p/locations/z/nodes/demo"}), 3, _CONNECTION, "3")


def report(seen: HoldersFound | TpuctlError, after: HoldersFound | TpuctlError | None = None) -> HolderReport:
    return HolderReport(TARGET, seen, after)


def holder(pid: int, **fields: object) -> HolderProcess:
    values: dict[str, Any] = {
        "start": 5,
        "user": "bob",
        "age": timedelta(hours=1),
        "state": "S",
        "name": "python3",
        "command": "python3 train.py",
        "devices": ("accel0",),
        "has_lock_file": False,
        "maps_library": True,
        "is_protected": False,
        "container": None,
    }
    return HolderProcess(pid=pid, **(values | fields))


def found(*holders: HolderProcess, lock: bool = False, **fields: object) -> HoldersFound:
    values: dict[str, Any] = {"hidden": 0, "is_root": True} | fields
    lock_file = LockFile("/tmp/libtpu_lockfile", "bob", timedelta(hours=2)) if lock else None
    return HoldersFound(holders, lock_file, **values)


REBOOT = "reboot all workers: `tpuctl reset demo --mode reboot`"
SEVEN = holder(7)


@pytest.mark.parametrize(
    ("one", "kind", "message"),
    [
        (
            report(found(SEVEN), found(holder(7, state="D"), outcomes={(7, 5): "survives"}, lock_outcome="held")),
            BrokenNodeError,
            "no signal terminates 7 python3 of bob on worker 3 (blocked inside the kernel)",
        ),
        (
            report(found(SEVEN), found(SEVEN, outcomes={(7, 5): "refused"}, lock_outcome="absent")),
            AccessError,
            "no permission to terminate, and `sudo -n` does not work: 7 python3 of bob on worker 3",
        ),
        (
            report(found(lock=True), found(lock=True, lock_outcome="refused")),
            AccessError,
            "no permission to remove the lock file: worker 3",
        ),
        (
            report(found(SEVEN), found(holder(9), outcomes={(7, 5): "ended"}, lock_outcome="absent")),
            ConflictError,
            "the TPU is held again, by 9 python3 of bob on worker 3",
        ),
        (
            report(found(lock=True), found(lock=True, lock_outcome="held")),
            ConflictError,
            "the lock file is held, and was not removed: worker 3",
        ),
        (
            report(AgentError(TARGET, "no answer within 30 s")),
            RemoteCommandError,
            "worker 3 of `demo` did not report what holds its TPU: no answer within 30 s",
        ),
        (
            report(found(SEVEN), AgentError(TARGET, "no answer within 40 s")),
            RemoteCommandError,
            "worker 3 of `demo` did not report the result of the termination: no answer within 40 s",
        ),
    ],
)
def test_unstick_problem_has_its_error_and_exit_code(one: HolderReport, kind: type[TpuctlError], message: str) -> None:
    (error,) = release_errors("demo", [one])

    assert (type(error), error.message) == (kind, message)
    if kind is BrokenNodeError:
        assert (error.exit_code, error.hint) == (10, REBOOT)


def test_unstick_protected_or_library_only_process_is_kept() -> None:
    init, loaded = holder(1, name="systemd", is_protected=True), holder(8, devices=())
    one = report(found(init, loaded))

    assert (one.to_end, one.is_stuck) == ((), False)
    assert list(release_notes("demo", [one])) == ["left 1 systemd on worker 3 alone: a system process"]
    assert list(release_notes("demo", [report(found(loaded, is_root=False, hidden=4))])) == [
        "cannot examine processes of other users on worker 3: `sudo -n` does not work there",
        "no visible process holds the TPU of `demo`",
    ]
