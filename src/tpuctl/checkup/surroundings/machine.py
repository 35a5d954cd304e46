"""Rules about this machine: Python, tpuctl, its folders, the terminal, gcloud, ssh, the ssh key and the settings."""

from __future__ import annotations

import re
import shlex
from datetime import date, timedelta
from typing import TYPE_CHECKING

from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, SetMode, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.surroundings.facts import Surroundings
    from tpuctl.preflight.findings import Rule

_OLDEST_PYTHON = (3, 11)
# The last day of the month in which security fixes end [PEP 664, 693, 719, 745].
_ENDS = {
    (3, 11): date(2027, 10, 31),
    (3, 12): date(2028, 10, 31),
    (3, 13): date(2029, 10, 31),
    (3, 14): date(2030, 10, 31),
}
_SOON = timedelta(days=182)
_UPGRADES = {
    "pipx": "pipx upgrade tpuctl",
    "uv tool": "uv tool upgrade tpuctl",
    "pip": "python -m pip install --upgrade tpuctl",
    "uv": "uv pip install --upgrade tpuctl",
}
_PIP = ("-m", "pip", "install", "--upgrade")
_MIB = 2**20
_LITTLE, _TOO_LITTLE = 500 * _MIB, 20 * _MIB


@rule("TPU901", "Python")
def python(environment: Surroundings) -> Iterator[Found]:
    """Check the Python that runs tpuctl: 3.11 or later.

    A warning if it gets no security fixes any more, a note half a year before. Source: Python's release schedules.
    """
    machine, today = environment.machine, environment.now.date()
    version = ".".join(map(str, machine.python))
    where = f"`{machine.executable}`" + (
        f", in the virtual environment `{machine.environment}`" if machine.environment else ""
    )
    facts = {"version": version, "executable": machine.executable, "environment": machine.environment}
    ends = _ENDS.get(machine.python[:2])
    level, text = Level.OK, f"Python {version}: {where}"
    remedy = Remedy("install a newer Python, and tpuctl with it")
    if machine.python[:2] < _OLDEST_PYTHON:
        level, text = Level.ERROR, f"Python {version} is older than 3.11: {where}"
    elif ends and today > ends:
        level, text = Level.WARNING, f"Python {version} gets no security fixes since {ends}: {where}"
    elif ends and today > ends - _SOON:
        level, text = Level.NOTE, f"Python {version} gets no security fixes after {ends}: {where}"
    yield Found(level=level, subject="Python", text=text, remedies=() if level is Level.OK else (remedy,), facts=facts)


@rule("TPU902", "tpuctl")
def tpuctl(environment: Surroundings) -> Iterator[Found]:
    """Show the version of tpuctl, how it was installed, and the command that updates it. No package index is queried."""
    machine, by = environment.machine, environment.machine.installed_by
    update = f"; update it with `{_UPGRADES[by]}`" if by in _UPGRADES else ""
    yield Found(
        level=Level.OK,
        subject="tpuctl",
        text=f"tpuctl {machine.tpuctl}, " + (f"installed by {by}{update}" if by else "installed in an unknown way"),
        facts={"version": machine.tpuctl, "installedBy": by},
    )


@rule("TPU903", "packages that tpuctl imports")
def packages(environment: Surroundings) -> Iterator[Found]:
    """Check that the packages that tpuctl imports are installed, in the versions that its metadata requires."""
    machine, fine = environment.machine, []
    for name, fact in machine.packages.items():
        least = machine.required.get(name)
        match fact:
            case Known(version) if least is None or not is_older(version, least):
                fine.append(f"{name} {version}")
                continue
            case Known(version):
                level, text = Level.WARNING, f"{name} {version} is older than {least}"
            case Absent():
                level, text = Level.ERROR, f"the package `{name}` cannot be imported"
            case Unknown(reason):
                level, text = Level.UNKNOWN, f"the version of `{name}` is not known: {reason}"
        remedy = Remedy("reinstall it", shlex.join([machine.executable, *_PIP, name]))
        yield Found(level=level, subject=name, text=text, remedies=(remedy,), facts={"package": name, "least": least})
    if fine:
        yield Found(level=Level.OK, subject="packages", text=", ".join(fine), facts={"packages": fine})


@rule("TPU908", "folders of tpuctl")
def folders(environment: Surroundings) -> Iterator[Found]:
    """Check that tpuctl can write to its own folders, and that only their owner may read them.

    An error for the state folder: without it tpuctl records no change, and refuses destructive ones. Specs and metadata in it
    may be secret.
    """
    for what, entry in environment.machine.folders.items():
        facts = {"path": str(entry.path), "mode": entry.octal}
        subject = str(entry.path)
        if entry.problem:
            level = Level.ERROR if what == "state" else Level.WARNING
            text = f"the {_FOLDERS[what]} folder cannot be used: {entry.problem}"
            advice = "make it writable for your user"
            advice += "" if what != "state" else ", or set another one: `TPUCTL_STATE_DIR`"
            yield Found(level=level, subject=subject, text=text, remedies=(Remedy(advice),), facts=facts)
        elif what == "state" and entry.is_open():
            text = f"other users may read the {_FOLDERS[what]} folder (mode {entry.octal})"
            # A folder that was named may be there for others too: `--fix` leaves it alone.
            remedy = Remedy("restrict it to your user, or set a private one: `TPUCTL_STATE_DIR`")
            if environment.configuration.is_sandbox or "TPUCTL_STATE_DIR" not in environment.configuration.variables:
                remedy = Remedy.by(SetMode(subject, 0o700), "restrict it to your user")
            yield Found(level=Level.NOTE, subject=subject, text=text, remedies=(remedy,), facts=facts)
        else:
            state = "is writable" if entry.is_there else "is created when needed"
            yield Found(level=Level.OK, subject=subject, text=f"the {_FOLDERS[what]} folder {state}", facts=facts)


@rule("TPU909", "free disk space")
def room(environment: Surroundings) -> Iterator[Found]:
    """Check the free space of the disk that tpuctl writes to: less than 500 MiB is a warning, less than 20 MiB an error."""
    for place, left in environment.machine.bytes_left.items():
        level = Level.ERROR if left < _TOO_LITTLE else Level.WARNING if left < _LITTLE else Level.OK
        yield Found(
            level=level,
            subject=place,
            text=f"its disk has {left // _MIB} MiB left",
            why="changes of nodes could not be recorded" if level is Level.ERROR else None,
            remedies=(Remedy("free some space, or set another folder: `TPUCTL_STATE_DIR`"),)
            if level is not Level.OK
            else (),
            facts={"bytesLeft": left},
        )


@rule("TPU910", "journal")
def journal(environment: Surroundings) -> Iterator[Found]:
    """Check that the journal of past changes can be read: tpuctl recreates nodes from it."""
    match environment.machine.journal:
        case Known(count):
            text = f"the journal has {count} node{'' if count == 1 else 's'}"
            yield Found(level=Level.OK, subject="journal", text=text, facts={"nodes": count})
        case Unknown(reason):
            remedy = Remedy("make its files readable for your user")
            text = f"the journal cannot be read: {reason}"
            why = "the spec of a deleted node could not be looked up"
            yield Found(level=Level.WARNING, subject="journal", text=text, why=why, remedies=(remedy,))
        case _:
            return


@rule("TPU911", "terminal and locale")
def terminal(environment: Surroundings) -> Iterator[Found]:
    """Check the terminal and the locale of this machine.

    Any language works: tpuctl reads exit codes, JSON, files, and messages of OpenSSH, which are never translated. A note if the
    encoding cannot represent all characters.
    """
    machine = environment.machine
    words = f"TERM is {machine.term or 'not set'}, the locale is {machine.locale or 'not set'}, the encoding {machine.encoding}"
    facts = {"term": machine.term, "locale": machine.locale, "encoding": machine.encoding}
    if machine.encoding.lower().replace("-", "").replace("_", "") == "utf8":
        yield Found(level=Level.OK, subject="terminal", text=words, facts=facts)
        return
    yield Found(
        level=Level.NOTE,
        subject="terminal",
        text=words,
        why="other characters are printed as question marks or escapes",
        remedies=(Remedy("set a UTF-8 locale", "export LC_ALL=C.UTF-8"),),
        facts=facts,
    )


_FOLDERS = {"state": "state", "config": "configuration"}


def is_older(version: str, than: str) -> bool:
    """Return whether a version is older than another one, by their first three numbers."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> tuple[int, ...]:
    found = [int(part) for part in re.findall(r"\d{1,9}", version)[:3]]
    return tuple(found + [0] * (3 - len(found)))


RULES: tuple[Rule[Surroundings], ...] = (python, tpuctl, packages, folders, room, journal, terminal)
