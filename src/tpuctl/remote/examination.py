"""One look into a worker: what the program there tells of disks, memory, processes, variables, Pythons and its clock.

A worker is asked in one ssh session, under the Python that is there. What it tells is read strictly: a part that is not as it
should be is unknown, and the others count.
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
# What runs on the worker has less, so that what hangs there is heard of.
_INSIDE = timedelta(seconds=8)
_MARK = "tpuctl-examination "
_HOLDERS_MARK = "tpuctl-holders "
_NO_PYTHON = 127
_MOST = 1 << 20
_MEMORY = re.compile(r"^(\w{1,40}): +([0-9]{1,15}) kB$", re.MULTILINE | re.ASCII)
_LATEST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
# What the program on a worker sends at most of each (remote/onboard/examination.py, python_packages.py); twice that.
_MOST_JOBS, _MOST_ENVIRONMENTS, _MOST_VALUES, _MOST_LINES = 10, 16, 100, 20
_LONGEST_REQUIREMENT = 300
_DF = re.compile(
    r"^\S.* (?P<size>[0-9]{1,15}|-) +(?:[0-9]{1,15}|-) +(?P<free>-?[0-9]{1,15}|-) +(?P<used>[0-9]{1,3}%|-) +(?P<mount>/.*)$"
)
_SYNCHRONIZED = re.compile(r"^NTPSynchronized=(yes|no)$", re.MULTILINE)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
# Both go into commands that are advised.
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,60}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Examined:
    """What came of asking one worker: `text` is its JSON as it came, nothing where it told none, and `why` then.

    `ssh_said` is what ssh printed where it did not get in, or its link broke, and `waited` how long it had where it was ended.
    `sent` and `received` are by the clock given.
    """

    member: Member
    text: str | None
    why: str = ""
    ssh_said: str | None = None
    sent: datetime | None = None
    received: datetime | None = None
    waited: timedelta | None = None

    @property
    def told(self) -> Known[Examination] | Unknown:
        """What it told, read."""
        if self.text is None or self.sent is None or self.received is None:
            return Unknown(self.why, is_passing=True)
        return read(self.text, self.sent, self.received)


def examine(member: Member, clock: Clock, *, patience: timedelta = PATIENCE) -> Examined:
    """Ask a worker. `clock` is the real one: workers know no other. Raises `SshProgramMissingError`."""
    command, program = bootstrapped(min(_INSIDE, patience / 2))
    sent = clock.now()
    try:
        ended = run(member.way, command, text=program, timeout=patience)
    except UnexpectedAnswerError as error:
        return Examined(member, None, f"unexpected answer: {error.what}")
    received = clock.now()
    for told in reversed(ended.output.splitlines()):
        if told.startswith(_MARK) and len(told) < _MOST:
            return Examined(member, told.removeprefix(_MARK), sent=sent, received=received)
    if ended.code is None:
        why = f"no answer within {patience.total_seconds():g} s"
        # What printed something had let us in.
        has_begun = bool(inspection.last_line(ended.output))
        return Examined(member, None, why) if has_begun else Examined(member, None, why, ended.errors, waited=patience)
    if ended.code == SSH_FAILED:
        return Examined(member, None, telling_line(ended.errors) or "ssh failed", ended.errors)
    if ended.code == _NO_PYTHON:
        return Examined(member, None, "it has no `python3`, with which it is looked into")
    said = inspection.last_line(ended.errors) or inspection.last_line(ended.output)
    return Examined(member, None, f"it could not be looked into: {said or f'exit {ended.code}'}")


def bootstrapped(patience: timedelta) -> tuple[str, str]:
    """Return the line for the worker's shell and what its stdin must hold; what runs on the worker has this much time."""
    _, holders = bootstrap("holders", f"main({[ACCEL_FILES, VFIO_FILES]!r}, {LOCK_FILE!r})")
    inspecting = inspection.script(None, patience)
    call = f"examine({inspecting!r}, {holders.decode()!r}, {patience.total_seconds()!r})"
    command, program = bootstrap("examination", call)
    return command, program.decode()


def read(text: str, sent: datetime, received: datetime) -> Known[Examination] | Unknown:
    """Return what a worker's JSON says. `sent` and `received` bound, by our clock, when that was."""
    try:
        told = Fields(parse_json(text), "the answer")
        version = told.get("version", integer)
        if version != 1:
            return Unknown(f"its answer is of version {version}, which this tpuctl does not know")
        began, ended = (told.get(name, number, low=0, high=_LATEST) for name in ("began", "ended"))
        offset = Offset(timedelta(seconds=ended - received.timestamp()), timedelta(seconds=began - sent.timestamp()))
        kernel, python = told.get("kernel", line), told.get("python", line)
    except UnexpectedAnswerError as error:
        return Unknown(f"unexpected answer: {error.what}")

    def said(name: str) -> Fields:
        return told.get("said", Fields).get(name, Fields)

    return Known(
        Examination(
            offset=offset,
            kernel=kernel,
            python=python,
            uptime=_part(told, "uptime", _uptime),
            disks=_reading(lambda: _disks(said("space"), said("inodes"))),
            logs=_part(told, "logs", _logs),
            memory=_part(told, "memory", _memory),
            kills=_part(told, "killed", _kills),
            hold=_reading(lambda: _hold(said("holders"))),
            chips=_reading(lambda: Known(_inspected(said("inspection")).chips)),
            ended=_reading(lambda: Known(_ended(said("inspection")))),
            variables=_reading(lambda: _variables(told)),
            environments=_reading(lambda: _environments(told.get("environments", Fields))),
            is_synchronized=_reading(lambda: _synchronized(said("synchronized"))),
        )
    )


class _UntoldError(ValueError):
    """A part was not told; the text says why."""


def _part(told: Fields, name: str, parse: Callable[[Any, str], _T]) -> Fact[_T]:
    return _reading(lambda: Known(_ok(told.get(name, Fields)).get("ok", parse)))


def _ok(part: Fields) -> Fields:
    """Return a part of the answer that was told. Raises where it has an error instead."""
    if "ok" not in part:
        raise _UntoldError(part.get("error", line))
    return part


def _reading(find: Callable[[], Fact[_T]]) -> Fact[_T]:
    try:
        return find()
    except _UntoldError as error:
        return Unknown(str(error))
    except UnexpectedAnswerError as error:
        return Unknown(f"unexpected answer: {error.what}")


def _out(said: Fields) -> str:
    return said.get("out", string, longest=_MOST)


def _code(said: Fields) -> int | None:
    return said.optional("code", integer, low=-64, high=255)


def _printed(said: Fields, name: str) -> str:
    """Return what a program printed. Raises where it did not come to its end, or is not there."""
    out, code = _out(said), _code(said)
    if code is None:
        raise _UntoldError(f"`{name}` did not end in time")
    if code != 0:
        raise _UntoldError(f"`{name}` failed: {inspection.last_line(out) or f'exit {code}'}")
    return out


def _uptime(value: Any, where: str) -> timedelta:
    """Return what the kernel writes as text."""
    try:
        return seconds(float(string(value, where, longest=40)), where)
    except ValueError as error:
        raise UnexpectedAnswerError(f"{where}: no number") from error


def _disks(space: Fields, inodes: Fields) -> Fact[tuple[Disk, ...]]:
    # `df` fails where one of several folders is missing, and tells of the others all the same.
    found = {row["mount"]: row for row in map(_DF.match, _out(space).splitlines()) if row}
    if not found:
        _printed(space, "df")
        raise _UntoldError("`df` tells of no file system")
    used = {row["mount"]: row["used"] for row in map(_DF.match, _out(inodes).splitlines()) if row}
    return Known(
        tuple(
            Disk(
                mount=one_line(mount),
                size=int(row["size"]) * 1024,
                available=int(row["free"]) * 1024,
                used=int(row["used"].rstrip("%")),
                inodes=_percent(used.get(mount)),
            )
            for mount, row in found.items()
            if "-" not in {row["used"], row["size"], row["free"]}
        )
    )


def _percent(text: str | None) -> int | None:
    return int(text.rstrip("%")) if text and text != "-" else None


def _logs(value: Any, where: str) -> LogFolder:
    told = Fields(value, where)
    return LogFolder(
        told.get("path", line),
        LogState(told.get("state", choice, allowed=tuple(LogState))),
        told.get("bytes", integer),
        told.get("files", integer),
        told.get("isComplete", boolean),
    )


def _memory(value: Any, where: str) -> Memory:
    lines = dict(_MEMORY.findall(string(value, where, longest=_MOST)))
    if not {"MemTotal", "MemAvailable"} <= set(lines):
        raise UnexpectedAnswerError(f"{where}: no memory")
    return Memory(int(lines["MemTotal"]) * 1024, int(lines["MemAvailable"]) * 1024)


def _kills(value: Any, where: str) -> Kills:
    told = Fields(value, where)
    lines = told.each("lines", line, most=_MOST_LINES)
    return Kills(told.get("count", integer), lines[-1] if lines else "")


def _hold(said: Fields) -> Fact[Hold]:
    lines = [one for one in _out(said).splitlines() if one.startswith(_HOLDERS_MARK)]
    if not lines:
        _printed(said, "python3")
        raise _UntoldError("the worker does not tell what holds its TPU")
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


def _inspected(said: Fields) -> inspection.Report:
    report = inspection.parse(_out(said), probe=None, timeout=_INSIDE)
    if report is None:
        _printed(said, "sh")
        raise _UntoldError("the worker does not tell of its startup and its chips")
    return report


def _ended(said: Fields) -> Ended:
    report = _inspected(said)
    return Ended(report.startup, report.detail)


def _variables(told: Fields) -> Fact[Variables]:
    login = told.get("login", Fields)
    has_login = "ok" in login
    return Known(
        Variables(
            session=told.get("session", _named),
            login=login.get("ok", _named) if has_login else {},
            jobs=told.each("jobs", _named, most=_MOST_JOBS),
            login_unread=None if has_login else login.get("error", line),
        )
    )


def _named(value: Any, where: str) -> dict[str, str]:
    values = record(value, where)
    if len(values) > _MOST_VALUES:
        raise UnexpectedAnswerError(f"{where}: {len(values)} values where at most {_MOST_VALUES} are expected")
    return {one_line(name): line(one, f"{where}.{one_line(name)}") for name, one in values.items()}


def _environments(part: Fields) -> Fact[tuple[PythonEnvironment, ...]]:
    return Known(_ok(part).each("ok", _environment, most=_MOST_ENVIRONMENTS))


def _environment(value: Any, where: str) -> PythonEnvironment:
    told = Fields(value, where)
    packages = {}
    for name, one in told.get("packages", record).items():
        package = Fields(one, f"{where}.packages.{one_line(name)}")
        version = package.get("version", line)
        requires = package.each("requires", line, most=_MOST_VALUES, longest=_LONGEST_REQUIREMENT)
        if _PACKAGE.fullmatch(name) and _VERSION.fullmatch(version):
            packages[name] = Package(version, requires)
    return PythonEnvironment(told.get("kind", line), told.get("path", line), told.get("python", line), packages)


def _synchronized(said: Fields) -> Fact[bool]:
    if _code(said) == _NO_PYTHON:
        return Absent("there is no `timedatectl`")
    found = _SYNCHRONIZED.search(_printed(said, "timedatectl"))
    if found is None:
        return Unknown("`timedatectl` does not tell")
    return Known(found[1] == "yes")
