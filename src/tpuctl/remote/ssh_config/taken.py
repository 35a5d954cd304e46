"""Find the host names in the user's own ssh configuration, Includes included. Runs and changes nothing in it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.userfile import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

# ssh's own limit [OpenSSH source, readconf.c].
_MAX_DEPTH = 16
_LINE = re.compile(r"\s*(?P<keyword>[A-Za-z]+)(?:\s*=\s*|\s+)(?P<rest>\S.*)")
_BLOCK = re.compile(r"^# tpuctl \{.*?^# tpuctl end$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a configuration file, and its text."""

    path: Path
    line: int
    words: str


@dataclass(frozen=True, slots=True)
class _HostRule:
    """The patterns of one `Host` line, or of `host` in a `Match` line."""

    place: Place
    patterns: tuple[str, ...]

    def names(self, host: str) -> bool:
        """Tell whether the rule is for this host. Patterns of wildcards only are for all hosts, and do not count."""
        host = host.lower()
        if any(_matches(host, pattern[1:]) for pattern in self.patterns if pattern.startswith("!")):
            return False
        return any(_matches(host, pattern) and pattern.strip("*?.") != "" for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class TakenNames:
    """The host names of the user. tpuctl's own entries do not count, in any file."""

    _rules: tuple[_HostRule, ...] = ()
    _known: dict[str, Place | None] = field(default_factory=dict, compare=False, hash=False)

    @classmethod
    def read(cls, *paths: Path, folder: Path) -> TakenNames:
        """Read configuration files and the files that they include. Relative names are below `folder`, the `~/.ssh`.

        A missing or unreadable file has no names; ssh itself reports it.
        """
        return cls(tuple(rule for path in paths for rule in _rules_of(path, folder, depth=0)))

    def get(self, host: str) -> Place | None:
        """Return the line that names a host. None if there is none."""
        if host not in self._known:
            self._known[host] = next((rule.place for rule in self._rules if rule.names(host)), None)
        return self._known[host]


def lines_of(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, keyword in lower case and arguments of each setting. Skips the entries of tpuctl."""
    text = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _LINE.fullmatch(line.rstrip()):
            yield number, match["keyword"].lower(), match["rest"]


def words_of(text: str) -> list[str]:
    """Return the arguments of a line, without quotes as in ssh."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an unclosed quote: ssh will reject the line
        return text.split()


def included(text: str, folder: Path) -> list[Path]:
    """Return the files that an `Include` line matches, in the order of ssh."""
    found: list[Path] = []
    for word in words_of(text):
        pattern = folder.parent / word[2:] if word.startswith("~/") else folder / word
        found += [Path(path) for path in sorted(glob(str(pattern)))]  # noqa: PTH207  # the pattern may be absolute
    return found


def _rules_of(path: Path, folder: Path, *, depth: int) -> Iterator[_HostRule]:
    try:
        text = read_bytes(path).decode("utf-8", errors="replace")
    except InvalidInputError:
        return
    for number, keyword, rest in lines_of(text):
        place = Place(path, number, f"{keyword.capitalize()} {rest}")
        if keyword == "host":
            yield _HostRule(place, tuple(word.lower() for word in words_of(rest)))
        elif keyword == "match":
            for criterion, argument in pairwise(words_of(rest)):
                if criterion.lower() in {"host", "originalhost"}:
                    yield _HostRule(place, tuple(argument.lower().split(",")))
        elif keyword == "include" and depth < _MAX_DEPTH:
            for file in included(rest, folder):
                yield from _rules_of(file, folder, depth=depth + 1)


def _matches(host: str, pattern: str) -> bool:
    # Patterns of ssh have `*` and `?` only.
    return fnmatchcase(host, pattern.replace("[", "[[]"))
