"""The processes that hold the TPU of workers: find and terminate them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.decoding import Line, Most, OneOf, Pid, Range
from tpuctl.ssh.answers import UnexpectedAnswerError, decode_answer, parse_answer
from tpuctl.ssh.channel import open_agent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.ssh.connection import Target

_TIMEOUT = timedelta(seconds=30)
# Processes that hold a TPU are few.
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

    pid: Pid
    start: int
    user: Annotated[str, Line(100)]
    age: timedelta
    state: Annotated[str, Line(1)]
    name: Annotated[str, Line(100)]
    command: str
    devices: Annotated[tuple[Annotated[str, Line(100)], ...], Most(_MOST_DEVICES)]
    has_lock_file: bool
    maps_library: bool
    is_protected: bool
    container: Annotated[str | None, Line(100)]

    @property
    def holds(self) -> bool:
        """Whether it keeps other processes from the TPU; mapping the library does not."""
        return bool(self.devices) or self.has_lock_file


@dataclass(frozen=True, slots=True)
class LockFile:
    """libtpu's lock file: its path, its owner and its age."""

    path: str
    user: Annotated[str, Line(100)]
    age: timedelta


@dataclass(frozen=True, slots=True)
class HoldersFound:
    """The report of a worker. `hidden`: number of processes that could not be examined, because `is_root` is false.

    After a termination `outcomes` has the outcome of each process by pid and start (`ended`, `killed`, `survives`, `refused`,
    `gone`), and `lock_outcome` that of the lock file (`removed`, `absent`, `held`, `refused`).
    """

    holders: Annotated[tuple[HolderProcess, ...], Most(_MOST_HOLDERS)]
    lock_file: LockFile | None
    hidden: Annotated[int, Range(0, 2**22)]
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


def end_holders(target: Target, holders: Sequence[HolderProcess], *, grace: timedelta) -> HoldersFound:
    """Send TERM to these processes of a worker, and KILL to those that remain after `grace`.

    A pid that now belongs to another process is not signaled. The lock file is removed if no process holds it then.
    Returns what holds the TPU afterwards. Raises as `fetch_holders`.
    """
    request = {
        "processes": [[holder.pid, holder.start] for holder in holders],
        "grace": grace.total_seconds(),
    }
    return _ask(target, {"end": request}, grace + _TIMEOUT)


def _ask(target: Target, request: Mapping[str, Any], timeout: timedelta) -> HoldersFound:
    with open_agent(target, "holders", request, as_root=True, connect_within=timeout) as channel:
        return read_holders(channel.read(timeout), request["end"]["processes"] if request else None)


def parse_holders(text: str) -> HoldersFound:
    """Parse the report that the program prints. Raises `UnexpectedAnswerError`."""
    return read_holders(parse_answer(text))


def read_holders(value: Any, ordered: Sequence[Sequence[int]] | None = None) -> HoldersFound:
    """Parse the report of a worker; `ordered` are the processes that were terminated. Raises `UnexpectedAnswerError`."""
    found = decode_answer(HoldersFound, value, outcomes={}, lock_outcome=None)
    if ordered is None:
        return found
    ended = decode_answer(_Ended, value)
    outcomes = {(one.pid, one.start): one.outcome for one in ended.outcomes}
    if set(outcomes) != {(pid, start) for pid, start in ordered}:
        raise UnexpectedAnswerError("the outcomes are not those of the requested processes")
    return replace(found, outcomes=outcomes, lock_outcome=ended.lock_outcome)


@dataclass(frozen=True, slots=True)
class _EndedProcess:
    pid: Pid
    start: int
    outcome: Annotated[str, OneOf(_OUTCOMES)]


@dataclass(frozen=True, slots=True)
class _Ended:
    outcomes: Annotated[tuple[_EndedProcess, ...], Most(_MOST_HOLDERS)]
    lock_outcome: Annotated[str, OneOf(_LOCK_OUTCOMES)]
