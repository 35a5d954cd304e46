"""How a table fits the width of a terminal: which columns become narrower, which are left out, how texts are shortened. Pure.

Rows never wrap. What people look for first (name, state, type) gives way last:

1. Columns without any text are left out.
2. Sentences are cut at their ends, then very long names, other words, type and state, and at last names are shortened.
3. If the columns do not fit at their least widths, the least important is left out, then the next; the first one stays.

Numbers and times are never shortened: a part of a number is a wrong number.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COLUMN_GAP = 2
_ELLIPSIS = "…"
# Categories of marks that are drawn over the character before.
_WITHOUT_WIDTH = frozenset({"Mn", "Me"})


class Kind(Enum):
    """What a column holds."""

    TEXT = "text"  # sentences, commands
    WORD = "word"  # tier, health
    VALUE = "value"  # a version, a path, an owner
    ZONE = "zone"
    TIME = "time"  # an age, a duration, a moment
    NUMBER = "number"  # right-aligned
    TYPE = "type"
    STATE = "state"
    HEALTH = "health"
    NAME = "name"


# The least width of a column that may be shortened.
_LEAST = {
    Kind.TEXT: 12,
    Kind.WORD: 7,
    Kind.VALUE: 8,
    Kind.HEALTH: 7,
    Kind.NAME: 10,
    # `us-central1-a`, `v5litepod-256`, `TERMINATED`: less important columns are left out before these are cut.
    Kind.ZONE: 13,
    Kind.TYPE: 13,
    Kind.STATE: 10,
}
# These become narrower in turn, of several the widest first, down to a width: a single long name or state must not shorten
# everything else.
_NARROWED = (
    ({Kind.TEXT}, 24),
    ({Kind.NAME}, 24),
    ({Kind.STATE, Kind.HEALTH}, 12),
    ({Kind.WORD, Kind.VALUE}, 10),
    ({Kind.TEXT}, _LEAST[Kind.TEXT]),
    ({Kind.WORD, Kind.VALUE}, 0),
    ({Kind.TYPE, Kind.STATE, Kind.HEALTH}, 0),
    ({Kind.ZONE}, 0),
    ({Kind.NAME}, 0),
)
_LEFT_OUT_FIRST = (
    *(Kind.WORD, Kind.TEXT, Kind.VALUE, Kind.HEALTH, Kind.TIME, Kind.NUMBER),
    *(Kind.ZONE, Kind.TYPE, Kind.STATE, Kind.NAME),
)
# Of these the end is kept too: a part of the width, as `long-na…-17`; of zones half of it: `asia-n…ast1-b`.
_KEPT_END = {Kind.NAME: 3, Kind.TYPE: 3, Kind.VALUE: 2, Kind.ZONE: 2}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Its name is a contract with scripts: `--columns`, `--sort`, the header of `-o tsv`."""

    name: str
    kind: Kind = Kind.VALUE
    title: str = ""  # on a terminal, if it is not the name in capitals
    is_wide: bool = False  # shown with `-o wide`, or if it is named
    is_on_request: bool = False  # shown only if it is named: its values take time

    @property
    def heading(self) -> str:
        """The title on a terminal."""
        return self.title or self.name.replace("-", " ").upper()

    def shortener(self, width: int) -> Callable[[str], str]:
        """Return the function that shortens a text of this column to a width, if it is wider."""
        part = _KEPT_END.get(self.kind)
        kept = width // part if part else 0
        return lambda text: shorten(text, width, kept_end=kept)


def fit_columns(
    columns: Sequence[Column], widths: Sequence[int], used: Sequence[bool], room: int
) -> list[tuple[int, int]]:
    """Return index and width of each column that is shown, so that no row is wider than `room`.

    `widths` are those of the widest texts and headings; `used` says whether a column has any text below its heading.
    """
    wide = dict(enumerate(widths))
    if _total(wide) <= room:
        return list(wide.items())
    wide = {index: min(width, max(room, 1)) for index, width in wide.items() if used[index] or index == 0}
    least = {index: min(width, _LEAST.get(columns[index].kind, width)) for index, width in wide.items()}
    for kind in _LEFT_OUT_FIRST:
        for index in [index for index in reversed(wide) if index and columns[index].kind is kind]:
            if _total(least) > room:
                del wide[index], least[index]
    for kinds, floor in _NARROWED:
        group = [index for index in wide if columns[index].kind in kinds]
        while _total(wide) > room and (wider := [index for index in group if wide[index] > max(least[index], floor)]):
            wide[max(wider, key=wide.__getitem__)] -= 1
    wide[0] = max(1, wide[0] - max(0, _total(wide) - room))
    return list(wide.items())


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + COLUMN_GAP * (len(widths) - 1)


def shorten(text: str, width: int, *, kept_end: int = 0) -> str:
    """Return the text, without its end if it is wider: `preempted: `up` recr…`.

    With `kept_end` so much of the end is kept, and the middle is left out: `long-na…-17`.
    """
    if text_width(text) <= width:
        return text
    end = _beginning(text[::-1], min(kept_end, width - 1))[::-1]
    while end and not _char_width(end[0]):  # a mark without its character
        end = end[1:]
    return _beginning(text, width - 1 - text_width(end)) + _ELLIPSIS + end


def _beginning(text: str, width: int) -> str:
    """Return as much of the text as fits."""
    if text.isascii():
        return text[:width]
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[:index]
    return text


def text_width(text: str) -> int:
    """Return how many columns of a terminal the text occupies."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.east_asian_width(char) in "WF":
        return 2
    return 0 if unicodedata.category(char) in _WITHOUT_WIDTH else 1
