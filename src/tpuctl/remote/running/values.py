"""What to run on a worker, the limits of a run, and its result on one worker."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, Protocol

from tpuctl.remote.answers import UnexpectedAnswerError, decimal, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.remote.member import Member

# How a command ended, as its supervisor on the worker writes it (ssh/agent/job.py).
_END = re.compile(rb"(exit|signal) ([0-9]{1,3}) ([0-9]{1,9}(?:\.[0-9]{1,6})?)((?: [a-z]{1,9}){0,4})")
_REMARKS = frozenset({"abandoned", "late", "full", "outlived"})
_HIGHEST_CODE, _HIGHEST_SIGNAL = 255, 64
_WHYS = {
    "abandoned": "terminated by its worker: no client followed it any more",
    "late": "terminated by its worker: timed out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command for one worker, or a job of that worker to follow.

    `job` names the job's folder on the worker. `token` distinguishes this request from all others; empty: any job of that name.
    `line` goes to the login shell unchanged. `about` is stored with the job. `must_exist`: only follow, start nothing.
    `linger`: how long the command continues after its last client has gone. `limit`: how long it may run until its worker
    terminates it. None means no limit. `merged` writes stdout and stderr to one file, in the order of the writes.
    `start`: the first bytes of stdout and of stderr to send.
    """

    job: str
    token: str
    line: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    about: str = ""
    detach: bool = False
    merged: bool = False
    stdin: bool = False
    must_exist: bool = False
    linger: timedelta | None = None
    limit: timedelta | None = None
    start: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a run. `batch`: how many workers run the command at a time, None for all.

    `connect_within`: how long a worker may be unreachable before the run gives it up; `attach_within`: the same after its
    command has started. `partial`: start the command although some workers cannot be reached.
    """

    fanout: int = 64
    batch: int | None = None
    partial: bool = False
    fail_fast: bool = False
    timeout: timedelta | None = None
    connect_within: timedelta = timedelta(seconds=45)
    attach_within: timedelta = timedelta(minutes=5)


class Phase(Enum):
    """What a worker is doing in this run."""

    WAITING = auto()  # for its turn to connect, or to reconnect
    CONNECTING = auto()
    READY = auto()  # connected, waiting for the signal to start
    RUNNING = auto()
    ENDED = auto()


class Outcome(StrEnum):
    """The result of the command on one worker."""

    EXITED = "exited"
    SIGNALED = "signaled"
    DETACHED = "detached"
    NOT_STARTED = "not-started"  # although the worker could have run it
    UNREACHABLE = "unreachable"  # and therefore not started
    REFUSED = "refused"  # by the worker
    MISSING = "missing"  # the job to follow does not exist
    LOST = "lost"  # started, and how it ended is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The result on one worker. `code`: the exit code as a shell reports it, None if unknown. Sizes are in bytes.

    `ssh_said` is the stderr of ssh if a failure of ssh prevented the command from starting or from being followed. A worker
    may report that it terminated the command because no client followed it (`was_abandoned`) or because it timed out
    (`was_late`), that its disk was full, and that processes left behind by the command can still print (`is_outlived`).
    `is_unexpected`: the worker broke the protocol; `why` says how.
    """

    member: Member
    outcome: Outcome
    code: int | None = None
    signal: int | None = None
    duration: timedelta | None = None
    out_size: int = 0
    err_size: int = 0
    why: str = ""
    ssh_said: str | None = None
    was_abandoned: bool = False
    was_late: bool = False
    disk_was_full: bool = False
    is_outlived: bool = False
    is_unexpected: bool = False

    @property
    def is_good(self) -> bool:
        """Whether the command succeeded."""
        return (self.code == 0 and not self.was_late) or self.outcome is Outcome.DETACHED

    def explain(self, workers: str) -> str:
        """Return the reason, in one line about `workers`, which share it."""
        if self.is_unexpected:
            return f"unexpected answer from worker {workers}: {self.why}"
        return f"worker {workers}: {self.why or self.outcome}"


class Audience(Protocol):
    """Receives the output and the events of a run."""

    def output(self, member: Member, data: bytes, *, is_error: bool) -> None:
        """Receive output of a command, in pieces of any size."""

    def ended(self, ending: Ending) -> None:
        """Receive the result of one worker."""

    def gathering(self, there: int, total: int) -> None:
        """Receive how many workers are connected while the command waits for all of them."""

    def pressed(self) -> None:
        """Receive a Ctrl-C, which a terminal shows as `^C`."""

    def note(self, member: Member | None, text: str) -> None:
        """Receive a note for the user."""


def parse_end(member: Member, payload: bytes, sizes: tuple[int, int]) -> Ending:
    """Parse what the worker wrote: `exit CODE SECONDS` or `signal NUMBER SECONDS`, then remarks (`late`, `full`, …).

    Raises `UnexpectedAnswerError`.
    """
    match = _END.fullmatch(payload)
    remarks = match[4].decode().split() if match else []
    if match is None or not _REMARKS.issuperset(remarks) or len(set(remarks)) < len(remarks):
        raise UnexpectedAnswerError(f"no exit code: {shown(payload)}")
    was_signal = match[1] == b"signal"
    number = (
        decimal(match[2], "a signal", low=1, high=_HIGHEST_SIGNAL)
        if was_signal
        else decimal(match[2], "an exit code", high=_HIGHEST_CODE)
    )
    return Ending(
        member=member,
        outcome=Outcome.SIGNALED if was_signal else Outcome.EXITED,
        code=128 + number if was_signal else number,
        signal=number if was_signal else None,
        duration=timedelta(seconds=float(match[3])),
        out_size=sizes[0],
        err_size=sizes[1],
        why=next((why for word, why in _WHYS.items() if word in remarks), ""),
        was_abandoned="abandoned" in remarks,
        was_late="late" in remarks,
        disk_was_full="full" in remarks,
        is_outlived="outlived" in remarks,
    )
