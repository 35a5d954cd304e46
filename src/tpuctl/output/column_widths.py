"""How a table fits the width of a terminal: which columns become narrower, which are left out, how texts are shortened. Pure.

Rows never wrap. What people look for first (name, state, type) gives way last:

1. Columns without any text are left out.
2. Sentences are cut at their ends, then other words are shortened, then type and state, and at last names.
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
    VALUE = "value"  # a zone, a version, a path
    TIME = "time"  # an age, a duration, a moment
    NUMBER = "number"  # right-aligned
    TYPE = "type"
    STATE = "state"
    NAME = "name"


# The least width of a column that may be shortened.
_LEAST = {Kind.TEXT: 16, Kind.WORD: 7, Kind.VALUE: 8, Kind.TYPE: 10, Kind.STATE: 8, Kind.NAME: 12}
# These become narrower together, the widest first.
_NARROWED_TOGETHER = ({Kind.TEXT}, {Kind.WORD, Kind.VALUE}, {Kind.TYPE, Kind.STATE}, {Kind.NAME})
_LEFT_OUT_FIRST = (Kind.WORD, Kind.TEXT, Kind.TIME, Kind.NUMBER, Kind.VALUE, Kind.TYPE, Kind.STATE, Kind.NAME)
# The end of these says as much as their beginning: `long-na…-17`.
_CUT_IN_MIDDLE = {Kind.NAME, Kind.TYPE, Kind.VALUE}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Its name is a contract with scripts: `--columns`, `--sort`, the header of `-o tsv`."""

    name: str
    kind: Kind = Kind.VALUE
    title: str = ""  # on a terminal, if it is not the name in capitals
    is_wide: bool = False  # shown with `-o wide`, or if it is named

    @property
    def heading(self) -> str:
        """The title on a terminal."""
        return self.title or self.name.replace("-", " ").upper()

    def shortener(self, width: int) -> Callable[[str], str]:
        """Return the function that shortens a text of this column to a width, if it is wider."""
        cut = shorten_middle if self.kind in _CUT_IN_MIDDLE else shorten_end
        return lambda text: cut(text, width)


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
    # At last the first column alone, on a terminal that is narrower than its least width.
    least[0] = min(least[0], max(room, 1))
    for kinds in _NARROWED_TOGETHER:
        group = [index for index in wide if columns[index].kind in kinds or len(wide) == 1]
        while _total(wide) > room and (wider := [index for index in group if wide[index] > least[index]]):
            wide[max(wider, key=wide.__getitem__)] -= 1
    return list(wide.items())


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + COLUMN_GAP * (len(widths) - 1)


def shorten_end(text: str, width: int) -> str:
    """Return the text, cut at its end if it is wider: `preempted: `up` recr…`."""
    return text if text_width(text) <= width else _beginning(text, width - 1) + _ELLIPSIS


def shorten_middle(text: str, width: int) -> str:
    """Return the text, without its middle if it is wider: `long-na…-17`."""
    if text_width(text) <= width:
        return text
    end = _beginning(text[::-1], (width - 1) // 3)[::-1]
    return _beginning(text, width - 1 - text_width(end)) + _ELLIPSIS + end


def _beginning(text: str, width: int) -> str:
    """Return as much of the text as fits."""
    shown = text[: max(width, 0)]
    while text_width(shown) > width and shown:
        shown = shown[:-1]
    return shown


def text_width(text: str) -> int:
    """Return how many columns of a terminal the text occupies."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.east_asian_width(char) in "WF":
        return 2
    return 0 if unicodedata.category(char) in _WITHOUT_WIDTH else 1
