"""How a table fits the width of a terminal: which columns are left out, which are shortened, and how. Pure.

Rows never wrap, and a word is whole while a less important column can give way:

1. Columns without any text are left out.
2. Sentences are cut after a word, down to 24 columns.
3. The least important column is left out, then the next; those of `KEPT` or more stay.
4. Sentences are cut further, and values longer than 24 columns are shortened in the middle, names last.
5. The columns that stayed are left out, the least important first; the first column stays, and is shortened at last.

Numbers and times are never shortened: a part of a number is a wrong number.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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


# From this priority on columns stay while others can be shortened.
KEPT = 20
# The importance of a column whose `Column.priority` says nothing else.
_PRIORITY = {
    kind: priority
    for priority, kind in enumerate(
        (Kind.WORD, Kind.VALUE, Kind.HEALTH, Kind.TIME, Kind.NUMBER, Kind.ZONE, Kind.TYPE, Kind.STATE), start=1
    )
} | {Kind.TEXT: KEPT, Kind.NAME: KEPT + 1}
# A sentence is cut down to the first width before columns are left out, and to the second after that.
_SENTENCE, _SHORT_SENTENCE = 24, 12
# One long value must not displace everything else.
_LONG = 24
_NEVER_SHORTENED = frozenset({Kind.NUMBER, Kind.TIME})
# Of these the end is kept too: a part of the width, as `long-na…-17`; of zones half of it: `asia-n…ast1-b`.
_KEPT_END = {Kind.NAME: 3, Kind.TYPE: 3, Kind.VALUE: 2, Kind.ZONE: 2}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Its name is a contract with scripts: `--columns`, `--sort`, the header of `-o tsv`."""

    name: str
    kind: Kind = Kind.VALUE
    title: str = ""  # on a terminal, if it is not the name in capitals
    is_wide: bool = False  # shown with `-o wide`, or if it is named
    on_terminal: bool = False  # a wide one that a terminal shows without `-o wide` too
    is_on_request: bool = False  # shown only if it is named: its values take time
    unit: str = ""  # of plain numbers, in the header of `-o tsv`
    priority: int = 0  # the columns with the least are left out first; 0 is that of its kind

    @property
    def heading(self) -> str:
        """The title on a terminal."""
        return self.title or self.name.replace("-", " ").upper()

    def shortener(self, width: int) -> Callable[[str], str]:
        """Return the function that shortens a text of this column to a width, if it is wider."""
        part = _KEPT_END.get(self.kind)
        kept = width // part if part else 0
        cut = shorten_sentence if self.kind is Kind.TEXT else partial(shorten, kept_end=kept)
        return lambda text: cut(text, width)

    @property
    def importance(self) -> int:
        """The number by which columns are left out, the least first."""
        return self.priority or _PRIORITY[self.kind]


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
    order = sorted((index for index in wide if index), key=lambda index: (columns[index].importance, -index))
    least = {index: _least(columns[index].kind, width, sentence=_SENTENCE) for index, width in wide.items()}
    _leave_out((index for index in order if columns[index].importance < KEPT), wide, least, room)
    least = {index: _least(columns[index].kind, wide[index], sentence=_SHORT_SENTENCE, long=_LONG) for index in wide}
    _leave_out((index for index in order if index in wide), wide, least, room)
    for kinds in ({Kind.TEXT}, set(Kind) - {Kind.TEXT, Kind.NAME}, {Kind.NAME}):
        group = [index for index in wide if columns[index].kind in kinds]
        while _total(wide) > room and (wider := [index for index in group if wide[index] > least[index]]):
            wide[max(wider, key=wide.__getitem__)] -= 1
    wide[0] = max(1, wide[0] - max(0, _total(wide) - room))
    return list(wide.items())


def _least(kind: Kind, width: int, *, sentence: int, long: int | None = None) -> int:
    """Return the width down to which a column may be shortened; without `long` only sentences are."""
    if kind is Kind.TEXT:
        return min(width, sentence)
    return width if long is None or kind in _NEVER_SHORTENED else min(width, long)


def _leave_out(order: Iterable[int], wide: dict[int, int], least: dict[int, int], room: int) -> None:
    """Remove columns in this order until the least widths fit."""
    for index in order:
        if _total(least) <= room:
            return
        del wide[index], least[index]


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


def shorten_sentence(text: str, width: int) -> str:
    """Return the text, cut after a word if it is wider: `preempted: `up`…`. A word that is too long alone is cut."""
    if text_width(text) <= width:
        return text
    beginning = _beginning(text, width - 1)
    if not text[len(beginning) :].startswith((" ", ",")) and (end := max(map(beginning.rfind, " ,"))) > 0:
        beginning = beginning[:end]
    return beginning.rstrip(" ,;:(") + _ELLIPSIS


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
