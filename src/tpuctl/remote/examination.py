"""One look into a worker: what the program there tells of disks, memory, processes, variables, Pythons and its clock.

A worker is asked in one ssh session, under the Python that is there. What it tells is read strictly: a part that is not as it
should be is unknown, and the others count.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
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
from tpuctl.remote.devices import ACCEL_FILES, LOCK_FILE, VFIO_FILES
from tpuctl.remote.failures import telling_line
from tpuctl.remote.onboard import bootstrap
from tpuctl.remote.session import SSH_FAILED, run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.clock import Clock
    from tpuctl.remote.member import Member

PATIENCE = timedelta(seconds=30)
# What runs on the worker has less, so that what hangs there is heard of.
_INSIDE = timedelta(seconds=8)
_MARK = "tpuctl-examination "
_HOLDERS_MARK = "tpuctl-holders "
_NO_PYTHON = 127
_MOST = 1 << 20
_DF = re.compile(r"^\S.* (?P<size>[0-9]+|-) +(?:[0-9]+|-) +(?P<free>-?[0-9]+|-) +(?P<used>[0-9]+%|-) +(?P<mount>/.*)$")
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
    line, program = bootstrapped(min(_INSIDE, patience / 2))
    sent = clock.now()
    ended = run(member.way, line, text=program, timeout=patience)
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
    line, program = bootstrap("examination", call)
    return line, program.decode()


def read(text: str, sent: datetime, received: datetime) -> Known[Examination] | Unknown:
    """Return what a worker's JSON says. `sent` and `received` bound, by our clock, when that was."""
    try:
        told = json.loads(text)
        if told["version"] != 1:
            return Unknown(f"its answer is of version {told['version']}, which this tpuctl does not know")
        began, ended = float(told["began"]), float(told["ended"])
        offset = Offset(timedelta(seconds=ended - received.timestamp()), timedelta(seconds=began - sent.timestamp()))
        kernel, python = _line(told["kernel"]), _line(told["python"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return Unknown(f"its answer makes no sense: {type(error).__name__}")
    return Known(
        Examination(
            offset=offset,
            kernel=kernel,
            python=python,
            uptime=_part(told, "uptime", lambda value: timedelta(seconds=float(value))),
            disks=_reading(lambda: _disks(told["said"])),
            logs=_part(told, "logs", _logs),
            memory=_part(told, "memory", _memory),
            kills=_part(told, "killed", _kills),
            hold=_reading(lambda: _hold(told["said"]["holders"])),
            chips=_reading(lambda: Known(_inspected(told).chips)),
            ended=_reading(lambda: Known(Ended(_inspected(told).startup, _inspected(told).detail))),
            variables=_reading(lambda: _variables(told)),
            environments=_part(told, "environments", lambda value: tuple(map(_environment, value))),
            is_synchronized=_reading(lambda: _synchronized(told["said"]["synchronized"])),
        )
    )


class _UntoldError(ValueError):
    """A part was not told; the text says why."""


def _part(told: Mapping[str, Any], name: str, take: Callable[[Any], _T]) -> Fact[_T]:
    def find() -> Fact[_T]:
        part = told[name]
        if "ok" not in part:
            raise _UntoldError(_line(part["error"]))
        return Known(take(part["ok"]))

    return _reading(find)


def _reading(find: Callable[[], Fact[_T]]) -> Fact[_T]:
    try:
        return find()
    except _UntoldError as error:
        return Unknown(str(error))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        return Unknown(f"that part of the answer makes no sense: {type(error).__name__}")


def _printed(said: Mapping[str, Any], name: str) -> str:
    """Return what a program printed. Raises where it did not come to its end, or is not there."""
    out, code = str(said["out"]), said["code"]
    if code is None:
        raise _UntoldError(f"`{name}` did not end in time")
    if code != 0:
        raise _UntoldError(f"`{name}` failed: {inspection.last_line(out) or f'exit {int(code)}'}")
    return out


def _disks(said: Mapping[str, Any]) -> Fact[tuple[Disk, ...]]:
    # `df` fails where one of several folders is missing, and tells of the others all the same.
    found = {row["mount"]: row for row in map(_DF.match, str(said["space"]["out"]).splitlines()) if row}
    if not found:
        _printed(said["space"], "df")
        raise _UntoldError("`df` tells of no file system")
    inodes = {row["mount"]: row["used"] for row in map(_DF.match, str(said["inodes"]["out"]).splitlines()) if row}
    return Known(
        tuple(
            Disk(
                mount=_line(mount),
                size=int(row["size"]) * 1024,
                available=int(row["free"]) * 1024,
                used=int(row["used"].rstrip("%")),
                inodes=_percent(inodes.get(mount)),
            )
            for mount, row in found.items()
            if row["used"] != "-"
        )
    )


def _percent(text: str | None) -> int | None:
    return int(text.rstrip("%")) if text and text != "-" else None


def _logs(value: Mapping[str, Any]) -> LogFolder:
    return LogFolder(
        _line(value["path"]),
        LogState(value["state"]),
        int(value["bytes"]),
        int(value["files"]),
        bool(value["isComplete"]),
    )


def _memory(text: str) -> Memory:
    lines = dict(re.findall(r"^(\w+): +([0-9]+) kB$", text, re.MULTILINE))
    return Memory(int(lines["MemTotal"]) * 1024, int(lines["MemAvailable"]) * 1024)


def _kills(value: Mapping[str, Any]) -> Kills:
    lines = [_line(line) for line in value["lines"]]
    return Kills(int(value["count"]), lines[-1] if lines else "")


def _hold(said: Mapping[str, Any]) -> Fact[Hold]:
    lines = [line for line in str(said["out"]).splitlines() if line.startswith(_HOLDERS_MARK)]
    if not lines:
        _printed(said, "python3")
        raise _UntoldError("the worker does not tell what holds its TPU")
    told = json.loads(lines[-1].removeprefix(_HOLDERS_MARK))
    all_of_them = [one for one in told["holders"] if one["devices"] or one["hasLockFile"]]
    holders = tuple(
        HolderSeen(
            pid=int(one["pid"]),
            user=_line(one["user"]),
            name=_line(one["name"]),
            age=timedelta(seconds=float(one["age"])),
            is_waiting_in_kernel=one["state"] == "D",
        )
        for one in all_of_them
    )
    return Known(
        Hold(
            holders,
            _line(told["lockFile"]["user"]) if told["lockFile"] else None,
            any(one["hasLockFile"] for one in all_of_them),
            0 if told["isRoot"] else int(told["hidden"]),
        )
    )


def _inspected(told: Mapping[str, Any]) -> inspection.Report:
    said = told["said"]["inspection"]
    report = inspection.parse(str(said["out"]), probe=None, timeout=_INSIDE)
    if report is None:
        _printed(said, "sh")
        raise _UntoldError("the worker does not tell of its startup and its chips")
    return report


def _variables(told: Mapping[str, Any]) -> Fact[Variables]:
    login, why = told["login"].get("ok"), told["login"].get("error")
    return Known(
        Variables(
            session=_named(told["session"]),
            login=_named(login or {}),
            jobs=tuple(map(_named, told["jobs"])),
            login_unread=None if login is not None else _line(why),
        )
    )


def _named(values: Mapping[str, Any]) -> dict[str, str]:
    return {_line(name): _line(value) for name, value in values.items()}


def _environment(value: Mapping[str, Any]) -> PythonEnvironment:
    packages = {
        name: Package(_line(package["version"]), tuple(map(_line, package["requires"])))
        for name, package in value["packages"].items()
        if _PACKAGE.fullmatch(name) and _VERSION.fullmatch(package["version"])
    }
    return PythonEnvironment(_line(value["kind"]), _line(value["path"]), _line(value["python"]), packages)


def _synchronized(said: Mapping[str, Any]) -> Fact[bool]:
    if said["code"] == _NO_PYTHON:
        return Absent("there is no `timedatectl`")
    found = _SYNCHRONIZED.search(_printed(said, "timedatectl"))
    if found is None:
        return Unknown("`timedatectl` does not tell")
    return Known(found[1] == "yes")


def _line(value: Any) -> str:
    """Return a text of a worker's without what a terminal would obey. Raises `TypeError` for what is none."""
    if not isinstance(value, str):
        raise TypeError(value)
    return "".join(char if char.isprintable() else " " for char in value[:1000])
