"""What holds the TPU of workers: asking them, and having them end it. Each worker is asked in one ssh session."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.remote.answers import Fields, UnexpectedAnswerError, boolean, choice, integer, line, parse_json, seconds
from tpuctl.remote.devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES
from tpuctl.remote.failures import telling_line
from tpuctl.remote.inspection import last_line
from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.session import SSH_FAILED, run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.remote.member import Member

# Handshakes under way at once.
_AT_ONCE = 32
_PATIENCE = timedelta(seconds=30)
_MARK = "tpuctl-holders "
# Processes of others, and of containers, are root's to see and to end. sudo keeps nothing of the environment.
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
class Holder:
    """A process with the TPU's device files or libtpu's lock file open, or that has at least mapped libtpu.

    `pid` and `start`, the kernel's ticks since the worker booted, name it; `devices` are below `/dev/`; `state` is the
    kernel's letter (`D`: it waits inside the kernel, and no signal reaches it); `container` is the id of its container, cut.
    Who is protected is never ended: init, sshd, the session that looks.
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
        """Tell whether it keeps others from the TPU; to map the library is not enough."""
        return bool(self.devices) or self.has_lock_file


@dataclass(frozen=True, slots=True)
class LockFile:
    """libtpu's lock file: where it is, whose, and how long ago it was made."""

    path: str
    user: str
    age: timedelta


@dataclass(frozen=True, slots=True)
class Found:
    """What a worker told. `hidden` processes could not be looked into, which happens where `is_root` is false.

    After an order `outcomes` has, by pid and start, what became of each process (`ended`, `killed`, `survives`, `refused`,
    `gone`), and `lock_outcome` what became of the lock file (`removed`, `absent`, `held`, `refused`).
    """

    holders: tuple[Holder, ...]
    lock_file: LockFile | None
    hidden: int
    is_root: bool
    outcomes: Mapping[tuple[int, int], str] = field(default_factory=dict)
    lock_outcome: str | None = None

    @property
    def is_free(self) -> bool:
        """Tell whether nothing is in the way of the next program."""
        return self.lock_file is None and not any(holder.holds for holder in self.holders)


@dataclass(frozen=True, slots=True)
class Silence:
    """Why a worker told nothing. `ssh_said` is what ssh printed where it did not get in, or its link broke.

    `error` is what was wrong with an answer that does not count.
    """

    why: str
    ssh_said: str | None = None
    error: UnexpectedAnswerError | None = None


def look(member: Member) -> Found | Silence:
    """Ask a worker what holds its TPU; it has 30 seconds. Raises `SshProgramMissingError`."""
    return _ask(member, None, _PATIENCE)


def end(member: Member, holders: Sequence[Holder], *, signal: str, grace: timedelta) -> Found | Silence:
    """Have a worker send a signal to these processes, and KILL to those that remain after the grace.

    A pid that has come to mean another process is left alone. The lock file is removed where nobody holds it then.
    Returns what holds the TPU afterwards. Raises `SshProgramMissingError`.
    """
    order = {
        "processes": [[holder.pid, holder.start] for holder in holders],
        "signal": signal,
        "grace": grace.total_seconds(),
    }
    return _ask(member, order, grace + _PATIENCE)


def everywhere(members: Sequence[Member], act: Callable[[Member], _T]) -> list[_T]:
    """Return what an act gives on each worker, in their order; at most 32 are at it at a time."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms

    with ThreadPoolExecutor(min(_AT_ONCE, len(members)) or 1) as pool:
        return list(pool.map(act, members))


def _ask(member: Member, order: dict[str, Any] | None, patience: timedelta) -> Found | Silence:
    line, program = bootstrap("holders", f"main({[ACCEL_FILES, VFIO_FILES]!r}, {LOCK_FILE!r}, {order!r})")
    _, *words = shlex.split(line)  # it begins with `exec`
    command = "exec " + shlex.join(["sh", "-c", _AS_ROOT, "tpuctl", *words])
    try:
        ended = run(member.way, command, text=program.decode(), timeout=patience)
        for told in reversed(ended.output.splitlines()):
            if told.startswith(_MARK):
                return parse(told.removeprefix(_MARK), order["processes"] if order else None)
    except UnexpectedAnswerError as error:
        return Silence(error.what, error=error.of(member.label))
    if ended.code is None:
        return Silence(f"no answer within {patience.total_seconds():g} s")
    if ended.code == SSH_FAILED:
        return Silence(telling_line(ended.errors) or "ssh failed", ended.errors)
    said = last_line(ended.errors) or last_line(ended.output)
    return Silence(f"it could not look: {said}" if said else f"it could not look: exit {ended.code}")


def parse(text: str, ordered: Sequence[Sequence[int]] | None = None) -> Found:
    """Return what a worker told, after an order what became of each process of it. Raises `UnexpectedAnswerError`."""
    told = Fields(parse_json(text), "the answer")
    outcomes: dict[tuple[int, int], str] = {}
    if ordered is not None:
        outcomes = dict(told.each("outcomes", _outcome, most=len(ordered)))
        if set(outcomes) != {(pid, start) for pid, start in ordered}:
            raise UnexpectedAnswerError("the outcomes are not those of the processes that were to be ended")
    return Found(
        holders=told.each("holders", _holder, most=_MOST_HOLDERS),
        lock_file=told.optional("lockFile", _lock_file),
        hidden=told.get("hidden", integer, high=_HIGHEST_PID),
        is_root=told.get("isRoot", boolean),
        outcomes=outcomes,
        lock_outcome=None if ordered is None else told.get("lockOutcome", choice, allowed=_LOCK_OUTCOMES),
    )


def _outcome(value: Any, where: str) -> tuple[tuple[int, int], str]:
    told = Fields(value, where)
    process = told.get("pid", integer, low=1, high=_HIGHEST_PID), told.get("start", integer)
    return process, told.get("outcome", choice, allowed=_OUTCOMES)


def _lock_file(value: Any, where: str) -> LockFile:
    told = Fields(value, where)
    return LockFile(told.get("path", line), told.get("user", line, longest=100), told.get("age", seconds))


def _holder(value: Any, where: str) -> Holder:
    told = Fields(value, where)
    return Holder(
        pid=told.get("pid", integer, low=1, high=_HIGHEST_PID),
        start=told.get("start", integer),
        user=told.get("user", line, longest=100),
        age=told.get("age", seconds),
        state=told.get("state", line, longest=1),
        name=told.get("name", line, longest=100),
        command=told.get("command", line),
        devices=told.each("devices", line, most=_MOST_DEVICES, longest=100),
        has_lock_file=told.get("hasLockFile", boolean),
        maps_library=told.get("mapsLibrary", boolean),
        is_protected=told.get("isProtected", boolean),
        container=told.optional("container", line, longest=100),
    )
