"""What holds the TPU of workers: asking them, and having them end it. Each worker is asked in one ssh session."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

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
    """Why a worker told nothing. `ssh_said` is what ssh printed where it did not get in, or its link broke."""

    why: str
    ssh_said: str | None = None


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
    ended = run(member.way, command, text=program.decode(), timeout=patience)
    for told in reversed(ended.output.splitlines()):
        if told.startswith(_MARK):
            return _read(told.removeprefix(_MARK))
    if ended.code is None:
        return Silence(f"no answer within {patience.total_seconds():g} s")
    if ended.code == SSH_FAILED:
        return Silence(telling_line(ended.errors) or "ssh failed", ended.errors)
    said = last_line(ended.errors) or last_line(ended.output)
    return Silence(f"it could not look: {said}" if said else f"it could not look: exit {ended.code}")


def _read(text: str) -> Found:
    told = json.loads(text)
    lock = told["lockFile"]
    return Found(
        holders=tuple(map(_holder, told["holders"])),
        lock_file=LockFile(lock["path"], lock["user"], timedelta(seconds=lock["age"])) if lock else None,
        hidden=told["hidden"],
        is_root=told["isRoot"],
        outcomes={(one["pid"], one["start"]): one["outcome"] for one in told.get("outcomes", ())},
        lock_outcome=told.get("lockOutcome"),
    )


def _holder(told: dict[str, Any]) -> Holder:
    return Holder(
        pid=told["pid"],
        start=told["start"],
        user=told["user"],
        age=timedelta(seconds=told["age"]),
        state=told["state"],
        name=told["name"],
        command=told["command"],
        devices=tuple(told["devices"]),
        has_lock_file=told["hasLockFile"],
        maps_library=told["mapsLibrary"],
        is_protected=told["isProtected"],
        container=told["container"],
    )
