"""What workers tell of jobs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tpuctl.errors import InvalidInputError
from tpuctl.names import whole_number
from tpuctl.remote.answers import (
    Fields,
    UnexpectedAnswerError,
    array,
    boolean,
    choice,
    integer,
    number,
    parse_json,
    record,
    seconds,
    shown,
    string,
)
from tpuctl.remote.running.values import Ending, Outcome, parse_end

if TYPE_CHECKING:
    from tpuctl.remote.member import Member

# Linux's numbers: those of this machine may be others.
SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
    "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "CONT": 18, "STOP": 19, "XCPU": 24, "XFSZ": 25, "SYS": 31,
}  # fmt: skip
_HIGHEST_SIGNAL = 64
# It is part of a folder's name, together with the worker's number.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Of what is kept with a job, and of how it ended, a worker sends no more (remote/onboard/small_files.py).
_LONGEST = 64 * 1024
# Clocks of workers may be wrong, but not beyond what a date can be: the year 9000.
_LATEST = 221_845_392_000
_LONGEST_AGE = 100 * 365 * 86400


class State(StrEnum):
    """How a job is on one worker."""

    RUNNING = "running"
    EXITED = "exited"
    SIGNALED = "signaled"
    LOST = "lost"  # it does not run, and nobody wrote down how it ended: the worker was rebooted, or out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A job on one worker. `began` is by the worker's clock; `age`, since it began, depends on nobody else's.

    `code` is what a shell would report, where it has ended. `command` is empty and `is_detached` nothing where the worker's
    record of them cannot be read. `is_followed`: some tpuctl streams its output now. `sizes` and `starts` are bytes of stdout
    and of stderr: how much there is, and where the last lines that were asked for begin.
    """

    member: Member
    job: str
    state: State
    began: datetime
    age: timedelta
    duration: timedelta | None
    code: int | None = None
    signal: int | None = None
    was_abandoned: bool = False
    was_late: bool = False
    disk_was_full: bool = False
    command: str = ""
    is_detached: bool | None = None
    is_followed: bool = False
    sizes: tuple[int, int] = (0, 0)
    starts: tuple[int, int] = (0, 0)

    @property
    def ending(self) -> Ending:
        """What those who are told of endings are told of this one."""
        outcomes = {State.EXITED: Outcome.EXITED, State.SIGNALED: Outcome.SIGNALED, State.LOST: Outcome.LOST}
        return Ending(
            member=self.member,
            outcome=outcomes.get(self.state, Outcome.DETACHED),
            code=self.code,
            signal=self.signal,
            duration=self.duration,
            was_late=self.was_late,
            disk_was_full=self.disk_was_full,
        )


def check_job_name(name: str) -> str:
    """Return the name of a job. Raises `InvalidInputError` where it cannot be one: it becomes part of a folder's name."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"`{name}` cannot be the name of a job",
            hint="a job's name has letters, digits, `.`, `_` and `-`; `tpuctl jobs NODE` shows which there are",
        )
    return name


def parse_signal(text: str) -> int:
    """Return the number that Linux has for a signal: `TERM`, `SIGTERM`, `15`. Raises `InvalidInputError`."""
    number = whole_number(text) or SIGNALS.get(text.upper().removeprefix("SIG"), 0)
    if not 0 < number <= _HIGHEST_SIGNAL:
        raise InvalidInputError(f"there is no signal `{text}`", hint="such as TERM, INT, QUIT, KILL, or a number")
    return number


def signal_name(number: int) -> str:
    """Return what Linux calls a signal, without `SIG`."""
    return next((name for name, known in SIGNALS.items() if known == number), str(number))


def parse_name(value: Any, where: str) -> str:
    """Return the name of a job that a worker tells. Raises `UnexpectedAnswerError`."""
    name = string(value, where, longest=100)
    if not _NAME.fullmatch(name):
        raise UnexpectedAnswerError(f"{where}: {shown(name)} cannot be the name of a job")
    return name


def parse_share(member: Member, value: Any, where: str) -> Share:
    """Return what a worker tells of one job. Raises `UnexpectedAnswerError`."""
    told = Fields(value, where)
    # The clock may have been set back since it began.
    age = max(timedelta(), told.get("age", seconds, low=-_LONGEST_AGE, high=_LONGEST_AGE))
    command, is_detached = _about(told.get("about", string, longest=_LONGEST))
    end = told.get("end", string, longest=_LONGEST)
    word = told.get("state", choice, allowed=("running", "ended", "lost"))
    ending = _ending(member, end) if word == "ended" else None
    state = State(ending.outcome.value) if ending else State.RUNNING if word == "running" else State.LOST
    sizes, starts = told.get("sizes", _two), told.get("starts", _two)
    for at, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        integer(start, f"{where}.starts[{at}]", high=size)
    return Share(
        member=member,
        job=told.get("name", parse_name),
        state=state,
        began=datetime.fromtimestamp(told.get("began", number, low=0, high=_LATEST), UTC),
        age=age,
        duration=ending.duration if ending else age if state is State.RUNNING else None,
        code=ending.code if ending else None,
        signal=ending.signal if ending else None,
        was_abandoned=bool(ending and ending.was_abandoned),
        was_late=bool(ending and ending.was_late),
        disk_was_full=bool(ending and ending.disk_was_full),
        command=command,
        is_detached=is_detached,
        is_followed=told.get("followed", boolean),
        sizes=sizes,
        starts=starts,
    )


def _two(value: Any, where: str) -> tuple[int, int]:
    """Return one number for stdout and one for stderr."""
    if len(both := array(value, where, most=2)) != 2:
        raise UnexpectedAnswerError(f"{where}: {len(both)} values where 2 are expected")
    return integer(both[0], f"{where}[0]"), integer(both[1], f"{where}[1]")


def _about(text: str) -> tuple[str, bool | None]:
    """Return the command, and whether it was detached, as far as that can be read: the disk may have been full."""
    try:
        about = record(parse_json(text), "about")
        command = string(about.get("command"), "command", longest=_LONGEST)
        # Half a surrogate can go to no stream; it stands for a byte that is no UTF-8.
        return command.encode(errors="backslashreplace").decode(), about.get("detached") is True
    except UnexpectedAnswerError:
        return "", None


def _ending(member: Member, text: str) -> Ending | None:
    """Return how it ended; nothing where that cannot be read: the disk was full."""
    try:
        return parse_end(member, text.encode(errors="replace"), (0, 0))
    except UnexpectedAnswerError:
        return None
