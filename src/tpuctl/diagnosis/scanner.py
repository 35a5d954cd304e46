"""Searches blocks of lines for known messages. What starts at the end of a block is left for the next one."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.diagnosis.anchors import BREAK, Anchors, letters, squeezed
from tpuctl.diagnosis.judging import Judge
from tpuctl.diagnosis.novelty import Novel, Novelty
from tpuctl.diagnosis.passages import Passage, passages
from tpuctl.diagnosis.pieces import Lines
from tpuctl.diagnosis.streams import Stream, Streams, split
from tpuctl.diagnosis.suspects import Suspects
from tpuctl.diagnosis.tallies import Tally
from tpuctl.diagnosis.windows import Found, Window, row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.diagnosis.messages import Message

# Bytes of a log that wait for the next block: of one worker, and of all together.
_HELD, _MOST_HELD = 16 * 1024, 128 * 1024
# Bytes before that, which decide whether a message is a quotation.
_CONTEXT = 2 * 1024
_MOST_STREAMS = 4096
# Bytes, and lines, of a worker's last output that its next line may continue.
_LAST = (500, 4)


@dataclass(slots=True)
class Scanner:
    """Searches a log for messages. Of two that overlap the first wins. Lines are counted from the start of the log."""

    messages: Sequence[Message]
    anchors: Anchors
    suspects: Suspects = field(default_factory=Suspects)
    tallies: dict[int, Tally] = field(default_factory=dict)
    _patterns: dict[int, re.Pattern[str]] = field(default_factory=dict)
    # The lines that wait, the number of the first, how many of them are finished and only context of the others, and the
    # literals in them, each with its last line.
    _held: Lines = field(default_factory=Lines)
    _first: int = 0
    _start: int = 0
    _hits: list[tuple[int, frozenset[bytes]]] = field(default_factory=list)
    # Of each worker: its last output, and up to where the waiting lines were searched: line, column.
    _ends: dict[str | None, bytes] = field(default_factory=dict)
    _covered: dict[str | None, tuple[int, int]] = field(default_factory=dict)
    _last_worker: str | None = None
    _judge: Judge = field(default_factory=Judge)
    _novelty: Novelty = field(default_factory=Novelty)

    def copy(self) -> Scanner:
        """Return an independent copy."""
        return Scanner(
            self.messages,
            self.anchors,
            self.suspects.copy(),
            {index: tally.copy() for index, tally in self.tallies.items()},
            self._patterns,
            self._held,
            self._first,
            self._start,
            list(self._hits),
            dict(self._ends),
            dict(self._covered),
            self._last_worker,
            self._judge.copy(),
            self._novelty.copy(),
        )

    def scan(self, lines: Lines, *, is_last: bool = False) -> None:
        """Take the next lines; with `is_last` nothing comes after them."""
        streams = split(lines, last_worker=self._last_worker)
        hits = self._hits_in(streams, lines)
        everything = self._held + lines if len(self._held) else lines
        end = self._first + len(everything)
        self._judge.read(lines, end - len(lines))
        keep = 0
        if not is_last:
            # The last line always waits, and at most half of the lines.
            keep = _count_back(everything.texts, min(_MOST_HELD, _HELD * max(1, len(streams.each))))
            keep = max(1, keep) if keep < len(everything) else (len(everything) + 1) // 2
        boundary = max(self._start, len(everything) - keep)
        if wanted := hits.union(*(anchors for _, anchors in self._hits)):
            all_streams = split(everything)
            for stream in all_streams.each:
                for passage in passages(stream, everything, self.anchors, wanted, counted=all_streams.counted):
                    self._search(passage, boundary)
            for tally in self.tallies.values():
                tally.settle()
        if hits:
            self._hits.append((end, hits))
        self._hits = [(until, anchors) for until, anchors in self._hits if until > self._first + boundary]
        self._start = min(boundary, _count_back(everything.texts[:boundary], _CONTEXT * max(1, len(streams.each))))
        self._held, self._first = everything.since(boundary - self._start), self._first + boundary - self._start
        self._covered = {worker: end for worker, end in self._covered.items() if end[0] >= self._first}
        self._judge.forget(self._first)

    def _hits_in(self, streams: Streams, lines: Lines) -> frozenset[bytes]:
        """Return the literals in the lines, or across the end of the previous block. Keep lines that look like an error."""
        found: list[tuple[Stream, Novel]] = []
        texts: list[bytes] = []
        for stream in streams.each:
            before = self._ends.pop(stream.worker, b"")
            # The first line is the end of the previous block.
            novel = self._novelty.of(len(stream.texts) + 1, partial(_letters_by_line, before, stream))
            found.append((stream, novel))
            start = b""
            if novel.parts and novel.parts[0][0] == 0:
                origin = lines.origins[stream.indices[0]]
                start = before if origin is not None and origin.is_glued else before + b"\n"
            texts.append(start + stream.without_headers(novel.parts))
            self._ends[stream.worker] = stream.end(*_LAST)
            if len(self._ends) > _MOST_STREAMS:
                del self._ends[next(iter(self._ends))]
        if streams.each:
            self._last_worker = max(streams.each, key=lambda stream: stream.indices[-1]).worker
        hits, text = self.anchors.found(BREAK.join(filter(None, texts)))
        is_one = sum(len(novel.parts) for _, novel in found) == 1
        for stream, novel in found:
            self._novelty.remember(novel, (lambda _: text) if is_one else partial(_letters_of, stream), hits)
        if self.suspects.may_be_in(text):
            by_line = b"\n".join(b"\n".join(stream.by_line) for stream in streams.each)
            if places := self.suspects.candidates(by_line):
                indices = [(index, stream.worker) for stream in streams.each for index in stream.indices]
                for index, worker in sorted((indices[place] for place in places), key=lambda known: known[0]):
                    self.suspects.take(row_of(lines, index, counted=streams.counted).place(0, worker=worker))
        if self.anchors.exact:
            hits += self.anchors.found_exactly(squeezed(b"\n".join([*self._held.texts[-1:], *lines.texts])))
        return frozenset(hits)

    def _search(self, passage: Passage, boundary: int) -> None:
        """Search a passage with patterns; count the messages that start before the boundary."""
        rows = passage.rows()
        worker = passage.stream.worker
        window = Window(rows)
        line, column = self._covered.get(worker, (-1, 0))
        if line >= self._first + rows[0].position:
            row = bisect_right([row.position for row in rows], line - self._first) - 1
            window.take_until(row, column if rows[row].position == line - self._first else len(rows[row].text))
        for order in sorted(passage.owners):
            pattern = self._patterns.get(order)
            if pattern is None:
                pattern = self._patterns[order] = re.compile(self.messages[order].match)
            for found in window.search(pattern):
                if self._start <= rows[found.start[0]].position < boundary:
                    self._count(order, found, window, passage)
                    end = rows[found.end[0]].position
                    if end >= boundary:
                        self._covered[worker] = max(
                            self._covered.get(worker, (-1, 0)), (self._first + end, found.end[1] + 1)
                        )

    def _count(self, order: int, found: Found, window: Window, passage: Passage) -> None:
        tally = self.tallies.get(order) or self.tallies.setdefault(order, Tally(self.messages[order]))
        row, column = window.rows[found.start[0]], found.start[1]
        worker = row.worker or passage.stream.worker
        tally.add(
            found.match,
            is_quoted=self._judge.is_quoted(found, window.rows, self._first),
            worker=worker,
            place=lambda: row.place(column, worker=worker),
            following=lambda: window.following(found, passage.rows_behind()),
        )


def _letters_by_line(before: bytes, stream: Stream) -> list[bytes]:
    return [letters(before), *stream.by_line]


def _letters_of(stream: Stream, part: tuple[int, int]) -> bytes:
    return letters(stream.without_headers([part]))


def _count_back(texts: Sequence[bytes], most: int) -> int:
    """Return how many of the last lines fit into `most` bytes."""
    size = 0
    for count, text in enumerate(reversed(texts)):
        size += len(text) + 1
        if size > most:
            return count
    return len(texts)
