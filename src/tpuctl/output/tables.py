"""Tables: columns for a terminal, tabs for a pipe. Fast for thousands of rows, unlike rich's Table."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.escaping import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text on a terminal, its text in a pipe if that differs, and its style on a terminal."""

    text: str
    plain: str | None = None
    style: str = ""


def tabs(rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Yield a line for each row, with tabs between the cells. Tabs and newlines in a cell are escaped."""
    for row in rows:
        yield "\t".join(visible(cell.text if cell.plain is None else cell.plain) for cell in row)


def columns(
    header: Sequence[str], rows: Sequence[Sequence[Cell]], *, width: int | None, colored: bool
) -> Iterator[str]:
    """Yield a header and a line for each row, in columns.

    Columns that are empty in every row are omitted. The last column is truncated at `width`; the others never are.
    """
    used = (
        [index for index in range(len(header)) if any(row[index].text for row in rows)] if rows else range(len(header))
    )
    texts = [[visible(row[index].text) for index in used] for row in rows]
    titles = [header[index] for index in used]
    widths = [max(map(text_width, column)) for column in zip(titles, *texts, strict=True)]
    yield styled(_line(titles, widths, width), "bold", colored=colored)
    for row, cells in zip(rows, texts, strict=True):
        if not colored:
            yield _line(cells, widths, width)
            continue
        styles = [row[index].style for index in used]
        yield _line(cells, widths, width, styles)


def _line(cells: Sequence[str], widths: Sequence[int], width: int | None, styles: Sequence[str] = ()) -> str:
    parts = []
    room = width
    for index, cell in enumerate(cells):
        is_last = index == len(cells) - 1
        shown = cell
        # Only the last column is truncated. The terminal wraps a column that would be too narrow to read.
        if is_last and room is not None and room >= 12 and text_width(cell) > room:
            beginning = cell[: room - 1]
            while text_width(beginning) > room - 1:
                beginning = beginning[:-1]
            shown = beginning + "…"
        padding = "" if is_last else " " * (widths[index] - text_width(cell)) + _GAP
        parts.append((styled(shown, styles[index], colored=True) if styles else shown) + padding)
        if room is not None:
            room -= widths[index] + len(_GAP)
    return "".join(parts).rstrip()


_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


def styled(text: str, style: str, *, colored: bool) -> str:
    """Return the text in a style (`bold`, `red`, …) if colored; control characters and newlines in it are escaped."""
    return f"\x1b[{_CODES[style]}m{visible(text)}\x1b[0m" if colored and style and text else visible(text)


def text_width(text: str) -> int:
    """Return how many columns of a terminal the text occupies."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char) for char in text)
