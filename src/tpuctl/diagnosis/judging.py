"""Tells of each occurrence of a message whether it is a quotation, from the lines round it and from how the text began."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.diagnosis.quoting import Surroundings, is_quoted, looks_like_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.diagnosis.pieces import Lines
    from tpuctl.diagnosis.windows import Found, Row

_FENCES, _MARKS = (b"```", b"~~~"), (b"`", b"~")
# Lines before a message, and characters of each line, that are looked at.
_CONTEXT, _NEAR = 24, 500
_BEGINNING = 60
# The same line with other numbers, behind the same line, is quoted as well, or is not.
_DIGITS = b"0123456789"
_MOST_REMEMBERED = 5000


@dataclass(slots=True)
class Judge:
    """Lines are counted from the start of the log."""

    _began_as_page: bool | None = None
    _fences: list[int] = field(default_factory=list)
    _is_open: bool = False
    _remembered: dict[int, bool] = field(default_factory=dict)

    def copy(self) -> Judge:
        """Return one that goes on independently."""
        return Judge(self._began_as_page, list(self._fences), self._is_open, dict(self._remembered))

    def read(self, lines: Lines, first: int) -> None:
        """Take the next lines, of which the first is that one: their fences, and how the text begins."""
        if self._began_as_page is None and len(lines):
            start = b"\n".join(line[:_NEAR] for line in lines.texts[:_BEGINNING])
            self._began_as_page = looks_like_page(start.decode("utf-8", "replace"))
        text = b"\n".join(lines.texts)
        # One byte is found much quicker than three.
        if any(mark in text and fence in text for mark, fence in zip(_MARKS, _FENCES, strict=True)):
            texts = enumerate(lines.texts, first)
            self._fences.extend(index for index, line in texts if line.lstrip(b" \t>").startswith(_FENCES))

    def forget(self, first: int) -> None:
        """Forget the fences before a line."""
        gone = bisect_right(self._fences, first - 1)
        self._is_open ^= gone % 2 == 1
        del self._fences[:gone]

    def is_quoted(self, found: Found, rows: Sequence[Row], first: int) -> bool:
        """Tell whether a message that was found in rows is a quotation; `first` is the line that rows are counted from."""
        at, column = found.start
        row = rows[at]
        if self._fences and self._is_fenced(first + row.position):
            return True
        near = row.data if len(row.data) <= _NEAR else row.text[max(0, column - _NEAR) : column + _NEAR].encode()
        previous = rows[at - 1].data[:_NEAR] if at else b""
        # The text of a pattern: the hash of the pattern itself is computed anew each time.
        key = hash((near.translate(None, _DIGITS), previous.translate(None, _DIGITS), found.match.re.pattern))
        if key not in self._remembered:
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            line, start = row.near(column)
            end = min(len(line), start + found.end[1] + 1 - column) if found.end[0] == at else len(line)
            around = Surroundings(
                before=[one.said[:_NEAR] for one in rows[max(0, at - _CONTEXT) : at]],
                after=rows[at + 1].said[:_NEAR] if at + 1 < len(rows) else "",
                began_as_page=bool(self._began_as_page),
            )
            self._remembered[key] = is_quoted(line, start, end, around, has_header=row.has_header)
        return self._remembered[key]

    def _is_fenced(self, line: int) -> bool:
        """Tell whether a line stands between two fences. A fence that is never closed is none."""
        before = bisect_right(self._fences, line)
        return (before % 2 == 1) != self._is_open and before < len(self._fences)
