"""Which lines of a worker are worth to be read closely, and for which messages."""

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

# How much is read round a literal: bytes and lines before and after.
_BEFORE, _AFTER = (2048, 24), (6144, 48)
_MOST_FOLLOWING = 16 * 1024


@dataclass(frozen=True, slots=True)
class Passage:
    """The lines of a stream from `first` up to `last`; `owners` are the messages to look for, by their order.

    `counted`: a number before a line is a worker.
    """

    stream: Stream
    lines: Lines
    counted: bool
    first: int
    last: int
    owners: frozenset[int]

    def rows(self) -> list[Row]:
        """Return its lines, read."""
        texts, numbers, origins = self.lines.texts, self.lines.numbers, self.lines.origins
        known: dict[bytes, Row] = {}
        rows: list[Row] = []
        for index in self.stream.indices[self.first : self.last]:
            # What is repeated is often the very same line.
            row = known.get(texts[index]) if origins[index] is None else None
            if row is None:
                row = self._row(index)
                if origins[index] is None:
                    known[texts[index]] = row
            else:
                row = Row(index, row.data, row.raw, row.is_indented, row.text, row.header, None, numbers[index])
            rows.append(row)
        return rows

    def rows_behind(self) -> list[Row]:
        """Return lines of the stream behind it, as many as explain a message."""
        rows: list[Row] = []
        size = 0
        for index in self.stream.indices[self.last :]:
            rows.append(self._row(index))
            size += len(rows[-1].text)
            if size > _MOST_FOLLOWING:
                break
        return rows

    def _row(self, index: int) -> Row:
        return row_of(self.lines, index, counted=self.counted)


# The line of the stream in which a literal begins, and the messages that have it.
_Hit = tuple[int, frozenset[int]]


def passages(
    stream: Stream, lines: Lines, anchors: Anchors, wanted: frozenset[bytes], *, counted: bool
) -> list[Passage]:
    """Return the passages of a stream that hold any of the wanted literals."""
    hits = sorted(_hits(stream, lines, anchors, wanted), key=itemgetter(0))
    return [Passage(stream, lines, counted, *span) for span in (_spans(hits, stream, lines) if hits else ())]


def _hits(stream: Stream, lines: Lines, anchors: Anchors, wanted: frozenset[bytes]) -> Iterator[_Hit]:
    exact = wanted.intersection(anchors.exact)
    yield from _places(stream.said_by_line, anchors, wanted - exact)
    if exact:
        yield from _places([squeezed(lines.texts[index]) for index in stream.indices], anchors, exact)


def _places(by_line: Sequence[bytes], anchors: Anchors, wanted: frozenset[bytes]) -> Iterator[_Hit]:
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
    """Return from where to where to read, and for which messages: round each hit, those that overlap in one."""
    spans: list[tuple[int, int, frozenset[int]]] = []
    most = len(stream.indices)
    # Where each line ends, in bytes.
    ends = list(accumulate(len(lines.texts[index]) + 1 for index in stream.indices))
    first, last, done = 0, 0, -1
    owners: frozenset[int] = frozenset()
    for line, those in hits:
        at = min(line, most - 1)
        if at != done:
            if at >= last:
                before = ends[at - 1] if at else 0
                start = max(0, at - _BEFORE[1], min(at, bisect_right(ends, before - _BEFORE[0])))
                if start >= last:
                    if owners:
                        spans.append((first, last, owners))
                    first, owners = start, frozenset()
            last = min(most, at + _AFTER[1], bisect_right(ends, ends[at] + _AFTER[0], at) + 1)
            done = at
        if not those <= owners:
            owners |= those
    if owners:
        spans.append((first, last, owners))
    return spans
