"""Jobs as workers report them. Pure."""

from __future__ import annotations

import re
from contextlib import suppress
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

# Linux's numbers: those of this machine may differ.
SIGNALS = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
    "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15, "CONT": 18, "STOP": 19, "XCPU": 24, "XFSZ": 25, "SYS": 31,
}  # fmt: skip
_HIGHEST_SIGNAL = 64
# With the worker's number it forms the name of a folder.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The longest record of a job that a worker sends (ssh/agent/job_files.py).
_LONGEST = 64 * 1024
# Clocks of workers may be wrong, but a date ends at the year 9000.
_LATEST = 221_845_392_000
_LONGEST_AGE = 100 * 365 * 86400


class State(StrEnum):
    """The state of a job on one worker."""

    RUNNING = "running"
    EXITED = "exited"
    SIGNALED = "signaled"
    LOST = "lost"  # it does not run and has no recorded exit code: the worker was rebooted, or out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A job on one worker. `began` is by the worker's clock; `age` depends on no other clock.

    `code`: the exit code as a shell reports it, None before the end. `command` is empty and `is_detached` None if the worker's
    record of them cannot be read. `is_followed`: a client streams its output now. `sizes` and `starts` are bytes of stdout and
    of stderr: their sizes, and the positions of the last lines that were requested.
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
        """The job as the result of a worker."""
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
    """Return the name of a job. Raises `InvalidInputError` for an invalid name: it becomes part of a folder's name."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"`{name}` cannot be the name of a job",
            hint="a job's name has letters, digits, `.`, `_` and `-`; list the jobs: `tpuctl jobs NODE`",
        )
    return name


def parse_signal(text: str) -> int:
    """Return the Linux number of a signal: `TERM`, `SIGTERM`, `15`. Raises `InvalidInputError`."""
    number = whole_number(text) or SIGNALS.get(text.upper().removeprefix("SIG"), 0)
    if not 0 < number <= _HIGHEST_SIGNAL:
        raise InvalidInputError(f"no signal `{text}`", hint="give TERM, INT, QUIT, KILL, …, or a number")
    return number


def signal_name(number: int) -> str:
    """Return the Linux name of a signal, without `SIG`."""
    return next((name for name, known in SIGNALS.items() if known == number), str(number))


def parse_name(value: Any, where: str) -> str:
    """Parse the name of a job. Raises `UnexpectedAnswerError`."""
    name = string(value, where, longest=100)
    if not _NAME.fullmatch(name):
        raise UnexpectedAnswerError(f"{where}: {shown(name)} cannot be the name of a job")
    return name


def parse_share(member: Member, value: Any, where: str) -> Share:
    """Parse a worker's report of one job. Raises `UnexpectedAnswerError`."""
    fields = Fields(value, where)
    # The clock may have been set back since the start.
    age = max(timedelta(), fields.get("age", seconds, low=-_LONGEST_AGE, high=_LONGEST_AGE))
    command, is_detached = _parse_about(fields.get("about", string, longest=_LONGEST))
    end = fields.get("end", string, longest=_LONGEST)
    word = fields.get("state", choice, allowed=("running", "ended", "lost"))
    ending = None
    if word == "ended":
        with suppress(UnexpectedAnswerError):  # unreadable, because the disk was full
            ending = parse_end(member, end.encode(errors="replace"), (0, 0))
    state = State(ending.outcome.value) if ending else State.RUNNING if word == "running" else State.LOST
    sizes, starts = fields.get("sizes", _two), fields.get("starts", _two)
    for at, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        integer(start, f"{where}.starts[{at}]", high=size)
    return Share(
        member=member,
        job=fields.get("name", parse_name),
        state=state,
        began=datetime.fromtimestamp(fields.get("began", number, low=0, high=_LATEST), UTC),
        age=age,
        duration=ending.duration if ending else age if state is State.RUNNING else None,
        code=ending.code if ending else None,
        signal=ending.signal if ending else None,
        was_abandoned=bool(ending and ending.was_abandoned),
        was_late=bool(ending and ending.was_late),
        disk_was_full=bool(ending and ending.disk_was_full),
        command=command,
        is_detached=is_detached,
        is_followed=fields.get("followed", boolean),
        sizes=sizes,
        starts=starts,
    )


def _two(value: Any, where: str) -> tuple[int, int]:
    """Return one number for stdout and one for stderr."""
    if len(both := array(value, where, most=2)) != 2:
        raise UnexpectedAnswerError(f"{where}: {len(both)} values where 2 are expected")
    return integer(both[0], f"{where}[0]"), integer(both[1], f"{where}[1]")


def _parse_about(text: str) -> tuple[str, bool | None]:
    """Parse the command and whether it was detached; empty and None if unreadable, because the disk was full."""
    try:
        about = record(parse_json(text), "about")
        command = string(about.get("command"), "command", longest=_LONGEST)
        # A lone surrogate, which stands for a byte that is no UTF-8, cannot be encoded.
        return command.encode(errors="backslashreplace").decode(), about.get("detached") is True
    except UnexpectedAnswerError:
        return "", None
