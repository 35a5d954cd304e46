"""The names of hosts that the user's own configuration of ssh has, with its Includes. Nothing in it is run or changed."""

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
_DEEPEST = 16
_LINE = re.compile(r"\s*(?P<keyword>[A-Za-z]+)(?:\s*=\s*|\s+)(?P<rest>\S.*)")
_BLOCK = re.compile(r"^# tpuctl \{.*?^# tpuctl end$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is said, and in which words."""

    path: Path
    line: int
    words: str


@dataclass(frozen=True, slots=True)
class _Rule:
    """Patterns of one `Host` line, or of `host` in a `Match` line."""

    place: Place
    patterns: tuple[str, ...]

    def names(self, host: str) -> bool:
        """Tell whether the rule is about this host, rather than about all: patterns of wildcards alone do not count."""
        host = host.lower()
        if any(_matches(host, pattern[1:]) for pattern in self.patterns if pattern.startswith("!")):
            return False
        return any(_matches(host, pattern) and pattern.strip("*?.") != "" for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class TakenNames:
    """The user's names of hosts. tpuctl's own entries do not count, in whichever file they are met."""

    _rules: tuple[_Rule, ...] = ()
    _known: dict[str, Place | None] = field(default_factory=dict, compare=False, hash=False)

    @classmethod
    def read(cls, *paths: Path, folder: Path) -> TakenNames:
        """Read files of ssh's configuration, and what they include. `folder` is the `~/.ssh` of relative names.

        A file that is not there, or cannot be read, has no names: ssh itself will say so.
        """
        return cls(tuple(rule for path in paths for rule in _rules_of(path, folder, depth=0)))

    def get(self, host: str) -> Place | None:
        """Return where a host is named, or nothing."""
        if host not in self._known:
            self._known[host] = next((rule.place for rule in self._rules if rule.names(host)), None)
        return self._known[host]


def lines_of(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, keyword in lower case and the rest of each line that says something; tpuctl's own entries say nothing."""
    text = _BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _LINE.fullmatch(line.rstrip()):
            yield number, match["keyword"].lower(), match["rest"]


def words_of(text: str) -> list[str]:
    """Return the arguments of a line, quotes removed as ssh does."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an odd quote: ssh will refuse the line
        return text.split()


def included(text: str, folder: Path) -> list[Path]:
    """Return the files that the arguments of an `Include` line stand for, in ssh's order."""
    found: list[Path] = []
    for word in words_of(text):
        pattern = folder.parent / word[2:] if word.startswith("~/") else folder / word
        found += [Path(path) for path in sorted(glob(str(pattern)))]  # noqa: PTH207  # the pattern may be absolute
    return found


def _rules_of(path: Path, folder: Path, *, depth: int) -> Iterator[_Rule]:
    try:
        text = read_bytes(path).decode("utf-8", errors="replace")
    except InvalidInputError:
        return
    for number, keyword, rest in lines_of(text):
        place = Place(path, number, f"{keyword.capitalize()} {rest}")
        if keyword == "host":
            yield _Rule(place, tuple(word.lower() for word in words_of(rest)))
        elif keyword == "match":
            yield from (_Rule(place, patterns) for patterns in _hosts_of_match(words_of(rest)))
        elif keyword == "include" and depth < _DEEPEST:
            for file in included(rest, folder):
                yield from _rules_of(file, folder, depth=depth + 1)


def _hosts_of_match(words: list[str]) -> Iterator[tuple[str, ...]]:
    for criterion, argument in pairwise(words):
        if criterion.lower() in {"host", "originalhost"}:
            yield tuple(argument.lower().split(","))


def _matches(host: str, pattern: str) -> bool:
    # ssh's patterns know `*` and `?` only.
    return fnmatchcase(host, pattern.replace("[", "[[]"))
