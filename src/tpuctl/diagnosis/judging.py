"""Decides for each occurrence of a message whether it is a quotation, from the lines around it and the start of the text."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.diagnosis.quoting import Surroundings, is_quoted, looks_like_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.diagnosis.pieces import Lines
    from tpuctl.diagnosis.windows import Found, Row

_FENCES = (b"```", b"~~~")
_MARKS = (b"`", b"~")
# Lines before a message that count, and characters of each line.
_CONTEXT = 24
_NEAR = 500
# Lines at the start of the log that decide whether it is a document.
_BEGINNING = 60
# The same line with other numbers, behind the same line, gets the same decision.
_DIGITS = b"0123456789"
_MOST_REMEMBERED = 5000


@dataclass(slots=True)
class Judge:
    """Keeps the fences of code blocks and earlier decisions. Lines are counted from the start of the log."""

    _began_as_page: bool | None = None
    _fences: list[int] = field(default_factory=list)
    _is_open: bool = False
    _remembered: dict[int, bool] = field(default_factory=dict)

    def copy(self) -> Judge:
        """Return an independent copy."""
        return Judge(self._began_as_page, list(self._fences), self._is_open, dict(self._remembered))

    def read(self, lines: Lines, first: int) -> None:
        """Take the next lines, of which the first has the number `first`: their fences, and the start of the text."""
        if self._began_as_page is None and len(lines):
            start = b"\n".join(line[:_NEAR] for line in lines.texts[:_BEGINNING])
            self._began_as_page = looks_like_page(start.decode("utf-8", "replace"))
        text = b"\n".join(lines.texts)
        # To find one byte is much faster than to find three.
        if any(mark in text and fence in text for mark, fence in zip(_MARKS, _FENCES, strict=True)):
            texts = enumerate(lines.texts, first)
            self._fences.extend(index for index, line in texts if line.lstrip(b" \t>").startswith(_FENCES))

    def forget(self, first: int) -> None:
        """Forget the fences before a line."""
        gone = bisect_right(self._fences, first - 1)
        self._is_open ^= gone % 2 == 1
        del self._fences[:gone]

    def is_quoted(self, found: Found, rows: Sequence[Row], first: int) -> bool:
        """Tell whether a message in some rows is a quotation; `first` is the number of the line that rows are counted from."""
        at, column = found.start
        row = rows[at]
        if self._fences:
            before = bisect_right(self._fences, first + row.position)
            # A fence that is never closed does not count.
            if (before % 2 == 1) != self._is_open and before < len(self._fences):
                return True
        near = row.data if len(row.data) <= _NEAR else row.text[max(0, column - _NEAR) : column + _NEAR].encode()
        previous = rows[at - 1].data[:_NEAR] if at else b""
        # The text of the pattern: the hash of a compiled pattern is computed each time.
        key = hash((near.translate(None, _DIGITS), previous.translate(None, _DIGITS), found.match.re.pattern))
        if key not in self._remembered:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            line, start = row.near(column)
            end = min(len(line), start + found.end[1] + 1 - column) if found.end[0] == at else len(line)
            around = Surroundings(
                before=[one.body[:_NEAR] for one in rows[max(0, at - _CONTEXT) : at]],
                after=rows[at + 1].body[:_NEAR] if at + 1 < len(rows) else "",
                began_as_page=bool(self._began_as_page),
            )
            self._remembered[key] = is_quoted(line, start, end, around, has_header=row.has_header)
        return self._remembered[key]
