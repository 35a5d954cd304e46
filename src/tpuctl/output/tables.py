"""Tables that the user shapes by `--columns`, `--sort` and `-o wide`. The order of the rows is also that of JSON and names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tpuctl.errors import InvalidInputError
from tpuctl.names import natural_key
from tpuctl.output.terminal import lay_out_columns
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.output.column_widths import Column
    from tpuctl.output.terminal import Cell, Terminal

_UNKNOWN = frozenset({"", "?"})
T = TypeVar("T")
# A cell for each column.
Row = tuple["Cell", ...]
# The word for all columns.
ALL_COLUMNS = "all"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The columns of a table, the indices of those that are shown, and the columns that rows are sorted by."""

    columns: tuple[Column, ...]
    shown: tuple[int, ...]
    # Index of a column, and whether its largest value comes first.
    keys: tuple[tuple[int, bool], ...] = ()
    # Whether lines may be longer than the screen: no column is left out or shortened.
    scrolls: bool = False

    @property
    def has_wide(self) -> bool:
        """Return whether a wide column is shown or sorted by."""
        return any(self.columns[index].is_wide for index in self._used)

    @property
    def _used(self) -> set[int]:
        return {*self.shown, *(index for index, _ in self.keys)}

    def needs(self, name: str) -> bool:
        """Return whether a column is shown or sorted by; cells of other columns may be empty."""
        return name in {self.columns[index].name for index in self._used}

    def sort(self, items: Sequence[T], rows: Sequence[Row]) -> tuple[list[T], list[Row]]:
        """Return items and their rows, sorted by the rows. Those whose value is unknown come last."""
        order = list(range(len(rows)))
        for column, is_reversed in reversed(self.keys):
            cells = [row[column] for row in rows]
            keys = [(cell.rank is None, cell.rank or 0, natural_key(cell.as_plain)) for cell in cells]
            order.sort(key=keys.__getitem__, reverse=is_reversed)
            is_unknown = [cell.as_plain in _UNKNOWN for cell in cells]
            order.sort(key=is_unknown.__getitem__)
        return [items[index] for index in order], [rows[index] for index in order]

    def write(self, terminal: Terminal, rows: Sequence[Row]) -> None:
        """Write the shown columns of rows with all columns."""
        terminal.table(*self._narrowed(rows), scrolls=self.scrolls)

    def note(self, terminal: Terminal, rows: Sequence[Row]) -> None:
        """Write the shown columns of rows with all columns on stderr, unless quiet."""
        terminal.note_table(*self._narrowed(rows))

    def lines(self, rows: Sequence[Row], *, width: int, colored: bool) -> list[str]:
        """Return a line of headings and a line for each row, in columns that fit the width."""
        return lay_out_columns(*self._narrowed(rows), width=width, colored=colored)[0]

    def _narrowed(self, rows: Sequence[Row]) -> tuple[list[Column], list[Row]]:
        shown = [tuple(row[index] for index in self.shown) for row in rows]
        return [self.columns[index] for index in self.shown], shown


def choose_columns(
    columns: Sequence[Column], named: str | None, *, sort: str | None, is_wide: bool, is_terminal: bool = False
) -> TableLayout:
    """Return the layout of a table: the columns that are named, else all if it is wide, else those that are not wide.

    With `is_terminal` also those that a terminal always shows.
    Raises `InvalidInputError` for a name that no column has.
    """
    indices = {column.name: index for index, column in enumerate(columns)}

    def index_of(name: str, option: str) -> int:
        if name in indices:
            return indices[name]
        near = closest_match(name, indices)
        suggestion = f"did you mean `{near}`? " if near else ""
        raise InvalidInputError(
            f"`{option}`: there is no column `{name}`", hint=f"{suggestion}columns: {', '.join(indices)}"
        )

    shown = tuple(
        index
        for index, column in enumerate(columns)
        if not column.is_on_request and (is_wide or not column.is_wide or (is_terminal and column.on_terminal))
    )
    if named == ALL_COLUMNS:
        shown = tuple(indices.values())
    elif named is not None:
        if not _words(named):
            raise InvalidInputError(f"`--columns {named}` names no column", hint=f"columns: {', '.join(indices)}")
        shown = tuple(dict.fromkeys(index_of(name, "--columns") for name in _words(named)))
    if sort is not None and not _words(sort):
        raise InvalidInputError(f"`--sort {sort}` names no column", hint=f"columns: {', '.join(indices)}")
    keys = tuple((index_of(word.removeprefix("-"), "--sort"), word.startswith("-")) for word in _words(sort or ""))
    return TableLayout(tuple(columns), shown, keys, scrolls=is_wide)


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip().lower())]
