"""The processes that hold the TPU of workers: find and terminate them, in one ssh session for each worker."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.ssh.agent import bootstrap
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
from tpuctl.ssh.connection import SSH_FAILED, last_printed_line, run_ssh_command
from tpuctl.ssh.ssh_errors import significant_line
from tpuctl.ssh.tpu_devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.ssh.connection import Target

# Handshakes in progress at the same time.
_AT_ONCE = 32
_PATIENCE = timedelta(seconds=30)
_MARK = "tpuctl-holders "
# Only root can examine and terminate processes of other users and of containers. sudo drops the environment.
_AS_ROOT = """\
if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null 2>&1 && sudo -n true </dev/null >/dev/null 2>&1; then
    exec sudo -n env TPUCTL_DEVICE_ROOT="${TPUCTL_DEVICE_ROOT-}" "$@"
fi
exec "$@"
"""
# pids are below 2^22 on every kernel; processes that hold a TPU are few.
_HIGHEST_PID = 1 << 22
_MOST_HOLDERS = 4096
_MOST_DEVICES = 256
_OUTCOMES = ("ended", "killed", "survives", "refused", "gone")
_LOCK_OUTCOMES = ("removed", "absent", "held", "refused")
_T = TypeVar("_T")


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


@dataclass(frozen=True, slots=True)
class NoHoldersAnswer:
    """Why a worker did not report. `ssh_stderr`: the stderr of ssh if it failed, or if its connection broke.

    `error`: why an answer was rejected.
    """

    why: str
    ssh_stderr: str | None = None
    error: UnexpectedAnswerError | None = None


def fetch_holders(target: Target) -> HoldersFound | NoHoldersAnswer:
    """Ask a worker what holds its TPU; times out after 30 seconds. Raises `SshProgramMissingError`."""
    return _ask(target, None, _PATIENCE)


def end_holders(
    target: Target, holders: Sequence[HolderProcess], *, signal: str, grace: timedelta
) -> HoldersFound | NoHoldersAnswer:
    """Send a signal to these processes of a worker, and KILL to those that remain after `grace`.

    A pid that now belongs to another process is not signaled. The lock file is removed if no process holds it then.
    Returns what holds the TPU afterwards. Raises `SshProgramMissingError`.
    """
    request = {
        "processes": [[holder.pid, holder.start] for holder in holders],
        "signal": signal,
        "grace": grace.total_seconds(),
    }
    return _ask(target, request, grace + _PATIENCE)


def on_each_target(targets: Sequence[Target], act: Callable[[Target], _T]) -> list[_T]:
    """Call `act` for each worker, at most 32 at a time; return the results in their order."""
    with ThreadPoolExecutor(min(_AT_ONCE, len(targets)) or 1) as pool:
        return list(pool.map(act, targets))


def _ask(target: Target, request: dict[str, Any] | None, patience: timedelta) -> HoldersFound | NoHoldersAnswer:
    line, program = bootstrap("holders", f"main({[ACCEL_FILES, VFIO_FILES]!r}, {LOCK_FILE!r}, {request!r})")
    _, *words = shlex.split(line)  # it begins with `exec`
    command = "exec " + shlex.join(["sh", "-c", _AS_ROOT, "tpuctl", *words])
    try:
        ended = run_ssh_command(target.connection, command, text=program.decode(), timeout=patience)
        for text in reversed(ended.output.splitlines()):
            if text.startswith(_MARK):
                return parse_holders(text.removeprefix(_MARK), request["processes"] if request else None)
    except UnexpectedAnswerError as error:
        return NoHoldersAnswer(error.what, error=error.of(target.label))
    if ended.code is None:
        return NoHoldersAnswer(f"no answer within {patience.total_seconds():g} s")
    if ended.code == SSH_FAILED:
        return NoHoldersAnswer(significant_line(ended.errors) or "ssh failed", ended.errors)
    message = last_printed_line(ended.errors) or last_printed_line(ended.output)
    return NoHoldersAnswer(f"examination failed: {message}" if message else f"examination failed: exit {ended.code}")


def parse_holders(text: str, ordered: Sequence[Sequence[int]] | None = None) -> HoldersFound:
    """Parse the report of a worker; `ordered` are the processes that were terminated. Raises `UnexpectedAnswerError`."""
    fields = JsonFields(parse_answer(text), "the answer")
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
