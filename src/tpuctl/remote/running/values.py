"""What is to be run on a worker, within which limits, and how it ended there."""

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

# How a command ended, as its supervisor writes it down (remote/onboard/supervisor.py).
_END = re.compile(rb"(exit|signal) ([0-9]{1,3}) ([0-9]{1,9}(?:\.[0-9]{1,6})?)((?: [a-z]{1,9}){0,4})")
_REMARKS = frozenset({"abandoned", "late", "full", "outlived"})
_HIGHEST_CODE, _HIGHEST_SIGNAL = 255, 64
_WHYS = {
    "abandoned": "ended by its worker: nobody followed it any more",
    "late": "ended by its worker: its time was up",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one worker is to run, or which job of it is to be followed.

    `job` names the job's folder there; `token` tells this order from all others, and is empty where any job of that name is
    meant. `line` goes to the login shell as it is. `about` is kept with the job. With `must_exist` nothing is started.
    `linger` is how long the command goes on when nobody follows it, `limit` how long it may take until its worker ends it;
    nothing is for ever. `merged` puts stdout and stderr into
    one file, in the order in which they were written. Output is wanted from `start` on: bytes of stdout and of stderr.
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
    """How a run is paced. `batch` is how many workers run the command at a time, nothing for all at once.

    `connect_within` is how long a worker is tried before it counts as unreachable; `attach_within` the same for one whose
    command has begun.
    """

    fanout: int = 64
    batch: int | None = None
    partial: bool = False
    fail_fast: bool = False
    timeout: timedelta | None = None
    connect_within: timedelta = timedelta(seconds=45)
    attach_within: timedelta = timedelta(minutes=5)


class Phase(Enum):
    """Where a worker is on its way."""

    WAITING = auto()  # for its turn to connect, or to connect again
    CONNECTING = auto()
    READY = auto()  # it waits for the word
    RUNNING = auto()
    ENDED = auto()


class Outcome(StrEnum):
    """What became of the command on one worker."""

    EXITED = "exited"
    SIGNALED = "signaled"
    DETACHED = "detached"
    NOT_STARTED = "not-started"  # it could have been
    UNREACHABLE = "unreachable"  # and so it was not started
    REFUSED = "refused"  # by the worker
    MISSING = "missing"  # it was to be followed, and no such job is there
    LOST = "lost"  # it was started, and its end is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How it ended on one worker. `code` is what a shell would report, where it is known; sizes are in bytes.

    `ssh_said` is ssh's stderr, where that is what kept the command from being started or followed. The worker may tell that it
    ended the command, for nobody followed it (`was_abandoned`) or its time was up (`was_late`); that its disk was full; and
    that processes which the command left behind can still print. With `is_unexpected` the worker broke the protocol, and `why`
    says how.
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
        """Tell whether the command did what it should."""
        return (self.code == 0 and not self.was_late) or self.outcome is Outcome.DETACHED

    def explain(self, workers: str) -> str:
        """Return why it ended, in a line about these workers, which share the reason."""
        if self.is_unexpected:
            return f"unexpected answer from worker {workers}: {self.why}"
        return f"worker {workers}: {self.why or self.outcome}"


class Audience(Protocol):
    """Who is told what goes on."""

    def output(self, member: Member, data: bytes, *, is_error: bool) -> None:
        """Take what a command printed, in pieces as they come."""

    def ended(self, ending: Ending) -> None:
        """Take how it ended on one worker."""

    def gathering(self, there: int, total: int) -> None:
        """Take how many workers answer so far, while the command waits for all of them."""

    def pressed(self) -> None:
        """Take that Ctrl-C was pressed, which a terminal shows as `^C`."""

    def note(self, member: Member | None, text: str) -> None:
        """Take what the user should know."""


def parse_end(member: Member, payload: bytes, sizes: tuple[int, int]) -> Ending:
    """Return what the worker wrote down: `exit CODE SECONDS` or `signal NUMBER SECONDS`, and words about what else happened.

    Raises `UnexpectedAnswerError`.
    """
    match = _END.fullmatch(payload)
    rest = match[4].decode().split() if match else []
    if match is None or not _REMARKS.issuperset(rest) or len(set(rest)) < len(rest):
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
        why=next((why for word, why in _WHYS.items() if word in rest), ""),
        was_abandoned="abandoned" in rest,
        was_late="late" in rest,
        disk_was_full="full" in rest,
        is_outlived="outlived" in rest,
    )
