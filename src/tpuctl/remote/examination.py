"""Examine a worker: its disks, memory, processes, variables, Python environments and clock.

One ssh session runs a program with the worker's own Python. Its answer is parsed strictly: an invalid part becomes unknown, and
the other parts count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.checkup.workers.facts import (
    Disk,
    Ended,
    Examination,
    Hold,
    HolderSeen,
    Kills,
    LogFolder,
    LogState,
    Memory,
    Offset,
    Package,
    PythonEnvironment,
    Variables,
)
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown
from tpuctl.remote import inspection
from tpuctl.remote.answers import (
    Fields,
    UnexpectedAnswerError,
    boolean,
    choice,
    integer,
    line,
    number,
    one_line,
    parse_json,
    record,
    seconds,
    string,
)
from tpuctl.remote.devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES
from tpuctl.remote.failures import telling_line
from tpuctl.remote.holders import parse as parse_holders
from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.session import SSH_FAILED, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.clock import Clock
    from tpuctl.remote.member import Member

PATIENCE = timedelta(seconds=30)
# The programs on the worker get less time, so that it can report one that hangs.
_PROGRAM_TIMEOUT = timedelta(seconds=8)
_MARK = "tpuctl-examination "
_HOLDERS_MARK = "tpuctl-holders "
_NO_PYTHON = 127
_MAX_ANSWER = 1 << 20
_MEMORY = re.compile(r"^(\w{1,40}): +([0-9]{1,15}) kB$", re.MULTILINE | re.ASCII)
_LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
# Twice the limits of the program on a worker (remote/onboard/examination.py, python_packages.py).
_MAX_JOBS, _MAX_ENVIRONMENTS, _MAX_VALUES, _MAX_LINES = 10, 16, 100, 20
_MAX_REQUIREMENT = 300
_DF = re.compile(
    r"^\S.* (?P<size>[0-9]{1,15}|-) +(?:[0-9]{1,15}|-) +(?P<free>-?[0-9]{1,15}|-) +(?P<used>[0-9]{1,3}%|-) +(?P<mount>/.*)$"
)
_SYNCHRONIZED = re.compile(r"^NTPSynchronized=(yes|no)$", re.MULTILINE)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
# Both become part of suggested commands.
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,60}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Examined:
    """The answer of one worker, or why there is none."""

    member: Member
    # The JSON of the worker; None without an answer.
    text: str | None
    # Why there is no answer.
    why: str = ""
    # The stderr of an ssh that could not log in, or lost its connection; else None.
    ssh_said: str | None = None
    # When the program was sent and the answer received, by the given clock.
    sent: datetime | None = None
    received: datetime | None = None
    # The timeout after which ssh was terminated; None if it ended on its own.
    waited: timedelta | None = None

    @property
    def facts(self) -> Known[Examination] | Unknown:
        """The parsed answer."""
        if self.text is None or self.sent is None or self.received is None:
            return Unknown(self.why, is_passing=True)
        return read(self.text, self.sent, self.received)


def examine(member: Member, clock: Clock, *, patience: timedelta = PATIENCE) -> Examined:
    """Run the program on a worker. `clock` must be the real clock, as on workers. Raises `SshProgramMissingError`."""
    command, program = bootstrapped(min(_PROGRAM_TIMEOUT, patience / 2))
    sent = clock.now()
    try:
        ended = run(member.way, command, text=program, timeout=patience)
    except UnexpectedAnswerError as error:
        return Examined(member, None, f"unexpected answer: {error.what}")
    received = clock.now()
    for output in reversed(ended.output.splitlines()):
        if output.startswith(_MARK) and len(output) < _MAX_ANSWER:
            return Examined(member, output.removeprefix(_MARK), sent=sent, received=received)
    if ended.code is None:
        why = f"no answer within {patience.total_seconds():g} s"
        # Output means that the login succeeded.
        has_begun = bool(inspection.last_line(ended.output))
        return Examined(member, None, why) if has_begun else Examined(member, None, why, ended.errors, waited=patience)
    if ended.code == SSH_FAILED:
        return Examined(member, None, telling_line(ended.errors) or "ssh failed", ended.errors)
    if ended.code == _NO_PYTHON:
        return Examined(member, None, "it has no `python3`, which the examination needs")
    said = inspection.last_line(ended.errors) or inspection.last_line(ended.output)
    return Examined(member, None, f"the examination failed: {said or f'exit {ended.code}'}")


def bootstrapped(patience: timedelta) -> tuple[str, str]:
    """Return the shell line and the stdin that run the program on a worker. Each step there times out after `patience`."""
    _, holders = bootstrap("holders", f"main({[ACCEL_FILES, VFIO_FILES]!r}, {LOCK_FILE!r})")
    inspecting = inspection.script(None, patience)
    call = f"examine({inspecting!r}, {holders.decode()!r}, {patience.total_seconds()!r})"
    command, program = bootstrap("examination", call)
    return command, program.decode()


def read(text: str, sent: datetime, received: datetime) -> Known[Examination] | Unknown:
    """Parse the JSON of a worker. `sent` and `received` are the times before and after, by the clock of this machine."""
    try:
        answer = Fields(parse_json(text), "the answer")
        version = answer.get("version", integer)
        if version != 1:
            return Unknown(f"its answer has version {version}, which this tpuctl does not support")
        began, ended = (answer.get(name, number, low=0, high=_LATEST) for name in ("began", "ended"))
        offset = Offset(timedelta(seconds=ended - received.timestamp()), timedelta(seconds=began - sent.timestamp()))
        kernel, python = answer.get("kernel", line), answer.get("python", line)
    except UnexpectedAnswerError as error:
        return Unknown(f"unexpected answer: {error.what}")

    def printed_by(name: str) -> Fields:
        return answer.get("said", Fields).get(name, Fields)

    def startup_result() -> Fact[Ended]:
        report = _inspected(printed_by("inspection"))
        return Known(Ended(report.startup, report.detail))

    def environments() -> Fact[tuple[PythonEnvironment, ...]]:
        part = _require_ok(answer.get("environments", Fields))
        return Known(part.each("ok", _environment, most=_MAX_ENVIRONMENTS))

    return Known(
        Examination(
            offset=offset,
            kernel=kernel,
            python=python,
            uptime=_part(answer, "uptime", _uptime),
            disks=_fact(lambda: _disks(printed_by("space"), printed_by("inodes"))),
            logs=_part(answer, "logs", _logs),
            memory=_part(answer, "memory", _memory),
            kills=_part(answer, "killed", _kills),
            hold=_fact(lambda: _hold(printed_by("holders"))),
            chips=_fact(lambda: Known(_inspected(printed_by("inspection")).chips)),
            ended=_fact(startup_result),
            variables=_fact(lambda: _variables(answer)),
            environments=_fact(environments),
            is_synchronized=_fact(lambda: _synchronized(printed_by("synchronized"))),
        )
    )


class _PartMissingError(ValueError):
    """A part of the answer is missing; the text is the reason."""


def _part(answer: Fields, name: str, parse: Callable[[Any, str], _T]) -> Fact[_T]:
    return _fact(lambda: Known(_require_ok(answer.get(name, Fields)).get("ok", parse)))


def _require_ok(part: Fields) -> Fields:
    """Return a part of the answer. Raises if it has an error instead."""
    if "ok" not in part:
        raise _PartMissingError(part.get("error", line))
    return part


def _fact(find: Callable[[], Fact[_T]]) -> Fact[_T]:
    try:
        return find()
    except _PartMissingError as error:
        return Unknown(str(error))
    except UnexpectedAnswerError as error:
        return Unknown(f"unexpected answer: {error.what}")


def _output(printed: Fields) -> str:
    return printed.get("out", string, longest=_MAX_ANSWER)


def _code(printed: Fields) -> int | None:
    return printed.optional("code", integer, low=-64, high=255)


def _printed(printed: Fields, name: str) -> str:
    """Return the output of a program. Raises if it failed, timed out, or is missing."""
    out, code = _output(printed), _code(printed)
    if code is None:
        raise _PartMissingError(f"`{name}` did not end in time")
    if code != 0:
        raise _PartMissingError(f"`{name}` failed: {inspection.last_line(out) or f'exit {code}'}")
    return out


def _uptime(value: Any, where: str) -> timedelta:
    """Parse the uptime that the kernel prints as text."""
    try:
        return seconds(float(string(value, where, longest=40)), where)
    except ValueError as error:
        raise UnexpectedAnswerError(f"{where}: not a number") from error


def _disks(space: Fields, inodes: Fields) -> Fact[tuple[Disk, ...]]:
    # `df` fails if one of several folders is missing, but still prints the others.
    found = {row["mount"]: row for row in map(_DF.match, _output(space).splitlines()) if row}
    if not found:
        _printed(space, "df")
        raise _PartMissingError("`df` printed no file system")
    used = {row["mount"]: row["used"] for row in map(_DF.match, _output(inodes).splitlines()) if row}
    return Known(
        tuple(
            Disk(
                mount=one_line(mount),
                size=int(row["size"]) * 1024,
                available=int(row["free"]) * 1024,
                used=int(row["used"].rstrip("%")),
                inodes=int(inodes_used.rstrip("%")) if (inodes_used := used.get(mount, "-")) != "-" else None,
            )
            for mount, row in found.items()
            if "-" not in {row["used"], row["size"], row["free"]}
        )
    )


def _logs(value: Any, where: str) -> LogFolder:
    fields = Fields(value, where)
    return LogFolder(
        fields.get("path", line),
        LogState(fields.get("state", choice, allowed=tuple(LogState))),
        fields.get("bytes", integer),
        fields.get("files", integer),
        fields.get("isComplete", boolean),
    )


def _memory(value: Any, where: str) -> Memory:
    lines = dict(_MEMORY.findall(string(value, where, longest=_MAX_ANSWER)))
    if not {"MemTotal", "MemAvailable"} <= set(lines):
        raise UnexpectedAnswerError(f"{where}: no memory")
    return Memory(int(lines["MemTotal"]) * 1024, int(lines["MemAvailable"]) * 1024)


def _kills(value: Any, where: str) -> Kills:
    fields = Fields(value, where)
    lines = fields.each("lines", line, most=_MAX_LINES)
    return Kills(fields.get("count", integer), lines[-1] if lines else "")


def _hold(printed: Fields) -> Fact[Hold]:
    lines = [one for one in _output(printed).splitlines() if one.startswith(_HOLDERS_MARK)]
    if not lines:
        _printed(printed, "python3")
        raise _PartMissingError("the worker did not report which processes hold its TPU")
    found = parse_holders(lines[-1].removeprefix(_HOLDERS_MARK))
    all_of_them = [one for one in found.holders if one.holds]
    holders = tuple(
        HolderSeen(
            pid=one.pid,
            user=one.user,
            name=one.name,
            age=one.age,
            is_waiting_in_kernel=one.state == "D",
        )
        for one in all_of_them
    )
    return Known(
        Hold(
            holders,
            found.lock_file.user if found.lock_file else None,
            any(one.has_lock_file for one in all_of_them),
            0 if found.is_root else found.hidden,
        )
    )


def _inspected(printed: Fields) -> inspection.Report:
    report = inspection.parse(_output(printed), probe=None, timeout=_PROGRAM_TIMEOUT)
    if report is None:
        _printed(printed, "sh")
        raise _PartMissingError("the worker did not report its startup and its chips")
    return report


def _variables(answer: Fields) -> Fact[Variables]:
    login = answer.get("login", Fields)
    has_login = "ok" in login
    return Known(
        Variables(
            session=answer.get("session", _text_values),
            login=login.get("ok", _text_values) if has_login else {},
            jobs=answer.each("jobs", _text_values, most=_MAX_JOBS),
            login_unread=None if has_login else login.get("error", line),
        )
    )


def _text_values(value: Any, where: str) -> dict[str, str]:
    values = record(value, where)
    if len(values) > _MAX_VALUES:
        raise UnexpectedAnswerError(f"{where}: {len(values)} values where at most {_MAX_VALUES} are expected")
    return {one_line(name): line(one, f"{where}.{one_line(name)}") for name, one in values.items()}


def _environment(value: Any, where: str) -> PythonEnvironment:
    fields = Fields(value, where)
    packages = {}
    for name, one in fields.get("packages", record).items():
        package = Fields(one, f"{where}.packages.{one_line(name)}")
        version = package.get("version", line)
        requires = package.each("requires", line, most=_MAX_VALUES, longest=_MAX_REQUIREMENT)
        if _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version):
            packages[name] = Package(version, requires)
    return PythonEnvironment(fields.get("kind", line), fields.get("path", line), fields.get("python", line), packages)


def _synchronized(printed: Fields) -> Fact[bool]:
    if _code(printed) == _NO_PYTHON:
        return Absent("`timedatectl` is missing")
    found = _SYNCHRONIZED.search(_printed(printed, "timedatectl"))
    if found is None:
        return Unknown("`timedatectl` printed no state")
    return Known(found[1] == "yes")
