"""This machine: Python, tpuctl, the folders that it writes to, and the terminal."""

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
def python(seen: Surroundings) -> Iterator[Found]:
    """Look at the Python that runs tpuctl: 3.11 or later.

    It is a warning where no security fixes come any more, and a note half a year before. Source: the release schedules of
    Python.
    """
    machine, today = seen.machine, seen.now.date()
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
def tpuctl(seen: Surroundings) -> Iterator[Found]:
    """Look at tpuctl itself: its version, how it was installed, and which command brings a newer one. It asks no registry."""
    machine, by = seen.machine, seen.machine.installed_by
    update = f"; update it with `{_UPGRADES[by]}`" if by in _UPGRADES else ""
    yield Found(
        level=Level.OK,
        subject="tpuctl",
        text=f"tpuctl {machine.tpuctl}, "
        + (f"installed by {by}{update}" if by else "how it was installed is not known"),
        facts={"version": machine.tpuctl, "installedBy": by},
    )


@rule("TPU903", "what tpuctl imports")
def packages(seen: Surroundings) -> Iterator[Found]:
    """Look at the packages that tpuctl needs: that they can be imported, and are as new as tpuctl's metadata asks for."""
    machine, fine = seen.machine, []
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
        remedy = Remedy("install it anew", shlex.join([machine.executable, *_PIP, name]))
        yield Found(level=level, subject=name, text=text, remedies=(remedy,), facts={"package": name, "least": least})
    if fine:
        yield Found(level=Level.OK, subject="packages", text=", ".join(fine), facts={"packages": fine})


@rule("TPU908", "the folders of tpuctl")
def folders(seen: Surroundings) -> Iterator[Found]:
    """Look whether tpuctl can write its own folders, and whether only the owner may read them.

    Without the folder of what it remembers no change is written down, and those that destroy are refused: an error. Specs
    and metadata in it may be secret.
    """
    for what, entry in seen.machine.folders.items():
        facts = {"path": str(entry.path), "mode": entry.octal}
        subject = str(entry.path)
        if entry.problem:
            level = Level.ERROR if what == "state" else Level.WARNING
            text = f"the folder of {_FOLDERS[what]} cannot be used: {entry.problem}"
            advice = "make it yours and writable"
            advice += "" if what != "state" else ", or name another: `TPUCTL_STATE_DIR`"
            yield Found(level=level, subject=subject, text=text, remedies=(Remedy(advice),), facts=facts)
        elif what == "state" and entry.is_open():
            text = f"others may look into the folder of {_FOLDERS[what]} (mode {entry.octal})"
            # A folder that was named may be there for others too: `--fix` leaves it alone.
            remedy = Remedy("keep it to yourself, or name one that is yours alone: `TPUCTL_STATE_DIR`")
            if seen.configuration.is_sandbox or "TPUCTL_STATE_DIR" not in seen.configuration.variables:
                remedy = Remedy.by(SetMode(subject, 0o700), "keep it for yourself")
            yield Found(level=Level.NOTE, subject=subject, text=text, remedies=(remedy,), facts=facts)
        else:
            state = "is writable" if entry.is_there else "is made when it is needed"
            yield Found(level=Level.OK, subject=subject, text=f"the folder of {_FOLDERS[what]} {state}", facts=facts)


@rule("TPU909", "room on the disk")
def room(seen: Surroundings) -> Iterator[Found]:
    """Look how much room is left where tpuctl writes: less than 500 MiB is a warning, less than 20 MiB an error."""
    for place, left in seen.machine.bytes_left.items():
        level = Level.ERROR if left < _TOO_LITTLE else Level.WARNING if left < _LITTLE else Level.OK
        yield Found(
            level=level,
            subject=place,
            text=f"{left // _MIB} MiB are left on its disk",
            why="what was done to nodes could not be written down" if level is Level.ERROR else None,
            remedies=(Remedy("make room, or name another folder: `TPUCTL_STATE_DIR`"),)
            if level is not Level.OK
            else (),
            facts={"bytesLeft": left},
        )


@rule("TPU910", "the journal")
def journal(seen: Surroundings) -> Iterator[Found]:
    """Look whether the journal of past changes can be read: from it a node comes back as it was."""
    match seen.machine.journal:
        case Known(count):
            text = f"the journal knows {count} node{'' if count == 1 else 's'}"
            yield Found(level=Level.OK, subject="journal", text=text, facts={"nodes": count})
        case Unknown(reason):
            remedy = Remedy("make its files readable for you")
            text = f"the journal cannot be read: {reason}"
            why = "what a deleted node was could not be looked up"
            yield Found(level=Level.WARNING, subject="journal", text=text, why=why, remedies=(remedy,))
        case _:
            return


@rule("TPU911", "terminal and language")
def terminal(seen: Surroundings) -> Iterator[Found]:
    """Look at the terminal and the language of this machine.

    Any language will do: what tpuctl reads of other programs are exit codes, JSON, files, and messages of OpenSSH, which has no
    translations. It is a note where the encoding cannot write all that a service may say.
    """
    machine = seen.machine
    words = f"TERM is {machine.term or 'not set'}, the language {machine.locale or 'not set'}, written in {machine.encoding}"
    facts = {"term": machine.term, "locale": machine.locale, "encoding": machine.encoding}
    if machine.encoding.lower().replace("-", "").replace("_", "") == "utf8":
        yield Found(level=Level.OK, subject="terminal", text=words, facts=facts)
        return
    yield Found(
        level=Level.NOTE,
        subject="terminal",
        text=words,
        why="what has other characters is written with question marks or escapes",
        remedies=(Remedy("set a language in UTF-8", "export LC_ALL=C.UTF-8"),),
        facts=facts,
    )


_FOLDERS = {"state": "what is remembered", "config": "your settings"}


def is_older(version: str, than: str) -> bool:
    """Compare two versions by their first three numbers."""
    return _numbers(version) < _numbers(than)


def _numbers(version: str) -> tuple[int, ...]:
    found = [int(part) for part in re.findall(r"\d{1,9}", version)[:3]]
    return tuple(found + [0] * (3 - len(found)))


RULES: tuple[Rule[Surroundings], ...] = (python, tpuctl, packages, folders, room, journal, terminal)
