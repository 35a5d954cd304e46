"""Neighbouring lines of one worker, joined so that a wrapped message is whole, and searched for known messages."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.diagnosis.lines import NO_HEADER, read_header
from tpuctl.diagnosis.sightings import LONGEST_EVIDENCE, Place

if TYPE_CHECKING:
    from tpuctl.diagnosis.lines import Header
    from tpuctl.diagnosis.pieces import Lines, Origin

# Characters. A longer text is searched in parts of this size that overlap.
_MOST_SEARCHED = 64 * 1024
_SHARED = 4096
# A line that a terminal wrapped is as long as the terminal is wide.
_NARROWEST = 40
_NEIGHBOURS = 12
_MOST_FOLLOWING = 16 * 1024
# Characters of a long line that decide whether a message in it is a quotation.
_NEAR = 600
# Characters of a long line before the message in the evidence.
_EVIDENCE_BEFORE = 120


class Row(NamedTuple):
    """A parsed line."""

    position: int
    data: bytes
    raw: str
    is_indented: bool
    text: str  # of `raw`, without the header and with single spaces
    header: Header
    origin: Origin | None
    number: int

    def near(self, column: int) -> tuple[str, int]:
        """Return the line without its header, in part if it is long, and where a column of its text is in that."""
        start = max(0, column - _NEAR)
        if start or len(self.raw) > column + 2 * _NEAR:
            return self.text[start : column + 2 * _NEAR], column - start
        body = self.body
        before = column - self.text.count(" ", 0, column)
        at = 0
        while at < len(body) and (before or body[at].isspace()):
            before -= not body[at].isspace()
            at += 1
        return body, at

    @property
    def body(self) -> str:
        """The line without its header, otherwise unchanged."""
        return self.raw[self.header.end :]

    @property
    def worker(self) -> str | None:
        """The worker that wrote the line."""
        return self.header.worker or (self.origin.worker if self.origin else None)

    @property
    def has_header(self) -> bool:
        """Whether a logging program wrote something before it, or a record held it."""
        return (
            self.header.form is not None
            or (self.header.end > 0 and self.header.worker is None)
            or self.origin is not None
        )

    def place(self, column: int, *, worker: str | None) -> Place:
        """Return the place of the line; a long line in part, around the column."""
        text = self.text
        if len(text) > LONGEST_EVIDENCE:
            start = max(0, min(column - _EVIDENCE_BEFORE, len(text) - LONGEST_EVIDENCE))
            text = text[start : start + LONGEST_EVIDENCE]
        time = self.header.time or (self.origin.read_time() if self.origin else None)
        return Place(self.number, text, self.worker or worker, time)


def row_of(lines: Lines, index: int, *, counted: bool) -> Row:
    """Return one parsed line."""
    raw, origin = lines.texts[index], lines.origins[index]
    header = (
        NO_HEADER if origin is not None and origin.is_glued else read_header(raw, counted=counted and origin is None)
    )
    text = raw.decode("utf-8", "replace")
    body = text[header.end :]
    return Row(index, raw, text, body[:1].isspace(), " ".join(body.split()), header, origin, lines.numbers[index])


class Found(NamedTuple):
    """A match of a pattern. `start` and `end` are the index of a row in the window and a column of its text."""

    match: re.Match[str]
    start: tuple[int, int]
    end: tuple[int, int]


@dataclass(slots=True)
class Window:
    """Rows joined by spaces; rows that may be wrapped in the middle of a word are joined without a space as well."""

    rows: Sequence[Row]
    _spaced: _Joined = field(init=False)
    _wrapped: _Joined | None = field(init=False)
    _taken: bytearray = field(init=False)

    def __post_init__(self) -> None:
        glued = [row.origin is not None and row.origin.is_glued for row in self.rows]
        self._spaced = _join(self.rows, glued)
        cut = _cut_rows(self.rows)
        self._wrapped = _join(self.rows, [a or b for a, b in zip(glued, cut, strict=True)]) if any(cut) else None
        self._taken = bytearray(len(self._spaced.text) + 1)

    def take_until(self, row: int, column: int) -> None:
        """Exclude the text before this position, which was searched already."""
        end = self._spaced.starts[row] + column
        self._taken[:end] = b"\1" * end

    def search(self, pattern: re.Pattern[str]) -> Iterator[Found]:
        """Yield all matches that do not overlap an earlier match, and mark them as taken."""
        spaced, wrapped, taken = self._spaced, self._wrapped, self._taken
        if wrapped is not None:
            for match in _matches(pattern, wrapped.text):
                if not wrapped.crosses(*match.span()):
                    continue
                found = wrapped.found(match)
                start = spaced.starts[found.start[0]] + found.start[1]
                end = spaced.starts[found.end[0]] + found.end[1] + 1
                if taken.find(1, start, end) < 0:
                    taken[start:end] = b"\1" * (end - start)
                    yield found
        for match in _matches(pattern, spaced.text):
            start, end = match.span()
            if end > start and taken.find(1, start, end) < 0:
                taken[start:end] = b"\1" * (end - start)
                yield spaced.found(match)

    def following(self, found: Found, behind: Sequence[Row]) -> str:
        """Return the text from the start of a match, with line ends except in the middle of words."""
        rows = [*self.rows, *behind]
        row, column = found.start
        parts = [rows[row].text[column:]]
        cut = _cut_rows(rows[row:])
        for index, one in enumerate(rows[row + 1 :], 1):
            parts.append(("" if cut[index] else "\n") + one.text)
        return "".join(parts)[:_MOST_FOLLOWING]


@dataclass(frozen=True, slots=True)
class _Joined:
    """The text of joined rows."""

    text: str
    starts: list[int]  # of each row
    seams: list[int]  # starts of rows that are joined without a space

    def found(self, match: re.Match[str]) -> Found:
        starts, (start, end) = self.starts, match.span()
        first = bisect_right(starts, start) - 1
        last = bisect_right(starts, end - 1, first) - 1
        return Found(match, (first, start - starts[first]), (last, end - 1 - starts[last]))

    def crosses(self, start: int, end: int) -> bool:
        index = bisect_right(self.seams, start)
        return index < len(self.seams) and self.seams[index] < end


def _join(rows: Sequence[Row], glued: Sequence[bool]) -> _Joined:
    """Join rows; a glued row follows without a space. Empty rows add no text."""
    parts: list[str] = []
    starts: list[int] = []
    seams: list[int] = []
    offset = 0
    for row, is_glued in zip(rows, glued, strict=True):
        text = row.text
        if text and offset:
            if is_glued:
                seams.append(offset)
            else:
                parts.append(" ")
                offset += 1
        starts.append(offset)
        parts.append(text)
        offset += len(text)
    return _Joined("".join(parts), starts, seams)


def _cut_rows(rows: Sequence[Row]) -> list[bool]:
    """Tell for each row whether it may continue a word: the row before it is as wide as any of its neighbours."""
    widths = [len(row.raw) for row in rows]
    cut = [False] * len(rows)
    widest = max(widths, default=0)
    if widest < _NARROWEST:
        return cut
    for index in range(1, len(rows)):
        width = widths[index - 1]
        if width < _NARROWEST or rows[index].origin is not None or rows[index].is_indented or not rows[index].text:
            continue
        if rows[index - 1].raw[-1:].isspace() or widths[index] > width:
            continue
        if width == widest or width >= max(widths[max(0, index - _NEIGHBOURS) : index + _NEIGHBOURS]):
            cut[index] = True
    return cut


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches in a text; a long text is searched in parts."""
    if len(text) <= _MOST_SEARCHED:
        yield from pattern.finditer(text)
        return
    step = _MOST_SEARCHED - _SHARED
    for start in range(0, len(text), step):
        for match in pattern.finditer(text, start, start + _MOST_SEARCHED):
            if match.start() < start + step:
                yield match
