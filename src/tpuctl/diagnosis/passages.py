"""Which lines of a worker are searched with patterns, and for which messages."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING

from tpuctl.diagnosis.anchors import squeezed
from tpuctl.diagnosis.windows import Row, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuctl.diagnosis.anchors import Anchors
    from tpuctl.diagnosis.pieces import Lines
    from tpuctl.diagnosis.streams import Stream

# How much is searched around a literal: bytes and lines before and after it.
_BYTES_BEFORE, _LINES_BEFORE = 2048, 24
_BYTES_AFTER, _LINES_AFTER = 6144, 48
_MOST_FOLLOWING = 16 * 1024


@dataclass(frozen=True, slots=True)
class Passage:
    """Some lines of a stream that hold an anchor."""

    stream: Stream
    lines: Lines
    counted: bool  # a number before a line is a worker
    first: int
    last: int  # exclusive
    owners: frozenset[int]  # the messages to search for, by their index

    def rows(self) -> list[Row]:
        """Return its lines, parsed."""
        texts, numbers, origins = self.lines.texts, self.lines.numbers, self.lines.origins
        known: dict[bytes, Row] = {}
        rows: list[Row] = []
        for index in self.stream.indices[self.first : self.last]:
            # Repeated lines are often identical.
            row = known.get(texts[index]) if origins[index] is None else None
            if row is None:
                row = row_of(self.lines, index, counted=self.counted)
                if origins[index] is None:
                    known[texts[index]] = row
            else:
                row = Row(index, row.data, row.raw, row.is_indented, row.text, row.header, None, numbers[index])
            rows.append(row)
        return rows

    def rows_behind(self) -> list[Row]:
        """Return the lines of the stream that follow, as many as may explain a message."""
        rows: list[Row] = []
        size = 0
        for index in self.stream.indices[self.last :]:
            rows.append(row_of(self.lines, index, counted=self.counted))
            size += len(rows[-1].text)
            if size > _MOST_FOLLOWING:
                break
        return rows


# The line of the stream in which a literal begins, and the messages that have it.
_Hit = tuple[int, frozenset[int]]


def passages(
    stream: Stream, lines: Lines, anchors: Anchors, wanted: frozenset[bytes], *, counted: bool
) -> list[Passage]:
    """Return the passages of a stream that hold any of the wanted literals."""
    exact = wanted.intersection(anchors.exact)
    hits = [*_find_anchors(stream.messages_by_line, anchors, wanted - exact)]
    if exact:
        hits += _find_anchors([squeezed(lines.texts[index]) for index in stream.indices], anchors, exact)
    hits.sort(key=itemgetter(0))
    return [Passage(stream, lines, counted, *span) for span in (_spans(hits, stream, lines) if hits else ())]


def _find_anchors(by_line: Sequence[bytes], anchors: Anchors, wanted: frozenset[bytes]) -> Iterator[_Hit]:
    flat = b"".join(by_line)
    starts: list[int] = []
    for anchor in wanted:
        at = flat.find(anchor)
        if at >= 0 and not starts:
            starts = [0, *accumulate(map(len, by_line))]
        line, owners = 0, anchors.owners[anchor]
        while at >= 0:
            line = bisect_right(starts, at, line)
            yield line - 1, owners
            at = flat.find(anchor, at + 1)


def _spans(hits: Sequence[_Hit], stream: Stream, lines: Lines) -> list[tuple[int, int, frozenset[int]]]:
    """Return the ranges of lines to search, and for which messages: one around each hit, merged if they overlap."""
    spans: list[tuple[int, int, frozenset[int]]] = []
    most = len(stream.indices)
    # Where each line ends, in bytes.
    ends = list(accumulate(len(lines.texts[index]) + 1 for index in stream.indices))
    first, last, done = 0, 0, -1
    owners: frozenset[int] = frozenset()
    for line, new_owners in hits:
        at = min(line, most - 1)
        if at != done:
            if at >= last:
                before = ends[at - 1] if at else 0
                start = max(0, at - _LINES_BEFORE, min(at, bisect_right(ends, before - _BYTES_BEFORE)))
                if start >= last:
                    if owners:
                        spans.append((first, last, owners))
                    first, owners = start, frozenset()
            last = min(most, at + _LINES_AFTER, bisect_right(ends, ends[at] + _BYTES_AFTER, at) + 1)
            done = at
        if not new_owners <= owners:
            owners |= new_owners
    if owners:
        spans.append((first, last, owners))
    return spans
