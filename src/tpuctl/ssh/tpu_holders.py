"""The processes that hold the TPU of workers: find and terminate them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.ssh.answers import (
    JsonFields,
    UnexpectedAnswerError,
    parse_answer,
    parse_boolean,
    parse_choice,
    parse_integer,
    parse_line,
    parse_seconds,
)
from tpuctl.ssh.channel import open_agent
from tpuctl.ssh.tpu_devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.ssh.connection import Target

_TIMEOUT = timedelta(seconds=30)
# pids are below 2^22 on every kernel; processes that hold a TPU are few.
_HIGHEST_PID = 1 << 22
_MOST_HOLDERS = 4096
_MOST_DEVICES = 256
_OUTCOMES = ("ended", "killed", "survives", "refused", "gone")
_LOCK_OUTCOMES = ("removed", "absent", "held", "refused")


@dataclass(frozen=True, slots=True)
class HolderProcess:
    """A process with the TPU's device files or libtpu's lock file open, or with libtpu mapped.

    `pid` and `start` (the kernel's ticks since boot) identify it; `devices` are below `/dev/`; `state` is the kernel's letter
    (`D`: blocked inside the kernel, where no signal reaches it); `container` is the shortened id of its container. A protected
    process is never terminated: init, sshd, the session that asks.
    """

    pid: int
    start: int
    user: str
    age: timedelta
    state: str
    name: str
    command: str
    devices: tuple[str, ...]
    has_lock_file: bool
    maps_library: bool
    is_protected: bool
    container: str | None

    @property
    def holds(self) -> bool:
        """Whether it keeps other processes from the TPU; mapping the library does not."""
        return bool(self.devices) or self.has_lock_file


@dataclass(frozen=True, slots=True)
class LockFile:
    """libtpu's lock file: its path, its owner and its age."""

    path: str
    user: str
    age: timedelta


@dataclass(frozen=True, slots=True)
class HoldersFound:
    """The report of a worker. `hidden`: number of processes that could not be examined, because `is_root` is false.

    After a termination `outcomes` has the outcome of each process by pid and start (`ended`, `killed`, `survives`, `refused`,
    `gone`), and `lock_outcome` that of the lock file (`removed`, `absent`, `held`, `refused`).
    """

    holders: tuple[HolderProcess, ...]
    lock_file: LockFile | None
    hidden: int
    is_root: bool
    outcomes: Mapping[tuple[int, int], str] = field(default_factory=dict)
    lock_outcome: str | None = None

    @property
    def is_free(self) -> bool:
        """Whether the next program can use the TPU."""
        return self.lock_file is None and not any(holder.holds for holder in self.holders)


def fetch_holders(target: Target) -> HoldersFound:
    """Ask a worker what holds its TPU. Raises `AgentError`, `UnexpectedAnswerError` and `SshProgramMissingError`."""
    return _ask(target, {}, _TIMEOUT)


def end_holders(target: Target, holders: Sequence[HolderProcess], *, signal: str, grace: timedelta) -> HoldersFound:
    """Send a signal to these processes of a worker, and KILL to those that remain after `grace`.

    A pid that now belongs to another process is not signaled. The lock file is removed if no process holds it then.
    Returns what holds the TPU afterwards. Raises as `fetch_holders`.
    """
    order = {
        "processes": [[holder.pid, holder.start] for holder in holders],
        "signal": signal,
        "grace": grace.total_seconds(),
    }
    return _ask(target, {"end": order}, grace + _TIMEOUT)


def _ask(target: Target, request: Mapping[str, Any], timeout: timedelta) -> HoldersFound:
    files = {"devices": [ACCEL_FILES, VFIO_FILES], "lockFile": LOCK_FILE}
    with open_agent(target, "holders", {**files, **request}, as_root=True, connect_within=timeout) as channel:
        return read_holders(channel.read(timeout), request["end"]["processes"] if request else None)


def parse_holders(text: str) -> HoldersFound:
    """Parse the report that the program prints. Raises `UnexpectedAnswerError`."""
    return read_holders(parse_answer(text))


def read_holders(value: Any, ordered: Sequence[Sequence[int]] | None = None) -> HoldersFound:
    """Parse the report of a worker; `ordered` are the processes that were terminated. Raises `UnexpectedAnswerError`."""
    fields = JsonFields(value, "the answer")
    outcomes: dict[tuple[int, int], str] = {}
    if ordered is not None:
        outcomes = dict(fields.each("outcomes", _outcome, most=len(ordered)))
        if set(outcomes) != {(pid, start) for pid, start in ordered}:
            raise UnexpectedAnswerError("the outcomes are not those of the requested processes")
    return HoldersFound(
        holders=fields.each("holders", _holder, most=_MOST_HOLDERS),
        lock_file=fields.optional("lockFile", _lock_file),
        hidden=fields.get("hidden", parse_integer, high=_HIGHEST_PID),
        is_root=fields.get("isRoot", parse_boolean),
        outcomes=outcomes,
        lock_outcome=None if ordered is None else fields.get("lockOutcome", parse_choice, allowed=_LOCK_OUTCOMES),
    )


def _outcome(value: Any, where: str) -> tuple[tuple[int, int], str]:
    fields = JsonFields(value, where)
    process = fields.get("pid", parse_integer, low=1, high=_HIGHEST_PID), fields.get("start", parse_integer)
    return process, fields.get("outcome", parse_choice, allowed=_OUTCOMES)


def _lock_file(value: Any, where: str) -> LockFile:
    fields = JsonFields(value, where)
    return LockFile(
        fields.get("path", parse_line), fields.get("user", parse_line, longest=100), fields.get("age", parse_seconds)
    )


def _holder(value: Any, where: str) -> HolderProcess:
    fields = JsonFields(value, where)
    return HolderProcess(
        pid=fields.get("pid", parse_integer, low=1, high=_HIGHEST_PID),
        start=fields.get("start", parse_integer),
        user=fields.get("user", parse_line, longest=100),
        age=fields.get("age", parse_seconds),
        state=fields.get("state", parse_line, longest=1),
        name=fields.get("name", parse_line, longest=100),
        command=fields.get("command", parse_line),
        devices=fields.each("devices", parse_line, most=_MOST_DEVICES, longest=100),
        has_lock_file=fields.get("hasLockFile", parse_boolean),
        maps_library=fields.get("mapsLibrary", parse_boolean),
        is_protected=fields.get("isProtected", parse_boolean),
        container=fields.optional("container", parse_line, longest=100),
    )
