"""The objects and prefixes of a list. Pure: names in, names out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Selection:
    """The parameters of a list. Source: API field texts of objects.list."""

    prefix: str = ""
    delimiter: str = ""
    start: str = ""
    end: str = ""
    glob: str = ""
    shows_marker: bool = False

    def matches(self, name: str) -> bool:
        """Return whether an object's name is selected, before names are grouped into prefixes."""
        return (
            name.startswith(self.prefix)
            and name >= self.start
            and (not self.end or name < self.end)
            and (not self.glob or _expression(self.glob).fullmatch(name) is not None)
        )

    def grouped(self, names: Iterable[str]) -> list[tuple[str, bool]]:
        """Return the entries of the list in order, each with whether it is a prefix.

        With `shows_marker` an object whose name ends at the delimiter is listed beside its prefix.
        """
        entries: dict[tuple[str, bool], None] = {}
        for name in sorted(filter(self.matches, names)):
            head, found, tail = name[len(self.prefix) :].partition(self.delimiter or "\0")
            if not found:
                entries[name, False] = None
                continue
            entries[self.prefix + head + found, True] = None
            if self.shows_marker and not tail:
                entries[name, False] = None
        return sorted(entries)


@cache
def _expression(glob: str) -> re.Pattern[str]:
    """Return the regular expression of a glob: `**` crosses slashes, `*` and `?` do not; `{a,b}` is either."""
    parts = re.split(r"(\*\*|\*|\?|\[[^\]]+\]|[{},])", glob)
    depth, expression = 0, ""
    for part in parts:
        match part:
            case "**":
                expression += ".*"
            case "*":
                expression += "[^/]*"
            case "?":
                expression += "[^/]"
            case "{":
                expression, depth = expression + "(?:", depth + 1
            case "}" if depth:
                expression, depth = expression + ")", depth - 1
            case "," if depth:
                expression += "|"
            case _ if part.startswith("[") and len(part) > 2:
                expression += "[" + part[1:-1].replace("\\", r"\\").replace("!", "^", 1 if part[1] == "!" else 0) + "]"
            case _:
                expression += re.escape(part)
    try:
        return re.compile(expression + ")" * depth, re.DOTALL)
    except re.error:
        return re.compile(re.escape(glob))
