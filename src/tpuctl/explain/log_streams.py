"""The lines of each worker in a block: parsed, and joined so that a message that a terminal wrapped is whole. Pure."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.explain.log_lines import (
    MAX_EVIDENCE_LENGTH,
    NO_HEADER,
    LogPlace,
    has_worker_numbers,
    line_level,
    parse_header,
    parse_worker,
)
from tpuctl.explain.quotations import framed_lines, is_quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpuctl.explain.log_lines import LineHeader, LineOrigin, LogLines

_LETTERS = bytes(range(ord("a"), ord("z") + 1))
LOWER = bytes(range(256)).lower()
NO_LETTERS = bytes(sorted(set(range(256)) - set(_LETTERS) - set(_LETTERS.upper())))
_NO_LETTERS_OR_ENDS = NO_LETTERS.replace(b"\n", b"")
# A line that a terminal wrapped is as long as the terminal is wide.
_MIN_TERMINAL_WIDTH = 40
_NEIGHBOUR_ROWS = 12
# Characters behind a message that may explain it.
_MAX_FOLLOWING = 16 * 1024


def letters_by_line(text: bytes) -> list[bytes]:
    """Return the letters of each line in lower case."""
    return text.translate(LOWER, _NO_LETTERS_OR_ENDS).split(b"\n")


# Characters of a long line before the message in the evidence.
_EVIDENCE_BEFORE = 120


class ParsedLine(NamedTuple):
    """A parsed line."""

    raw: str
    text: str  # without the header and with single spaces
    header: LineHeader
    origin: LineOrigin | None
    number: int

    @property
    def is_glued(self) -> bool:
        """Whether it continues the line before it, which was cut."""
        return self.origin is not None and self.origin.is_glued

    @property
    def worker(self) -> str | None:
        """The worker that wrote the line, if the line itself names it."""
        return self.header.worker or (self.origin.worker if self.origin else None)

    def place(self, column: int, *, worker: str | None) -> LogPlace:
        """Return the place of the line; a long line in part, around the column."""
        text = self.text
        if len(text) > MAX_EVIDENCE_LENGTH:
            start = max(0, min(column - _EVIDENCE_BEFORE, len(text) - MAX_EVIDENCE_LENGTH))
            text = text[start : start + MAX_EVIDENCE_LENGTH]
        origin = self.origin
        return LogPlace(
            self.number,
            text,
            self.worker or worker,
            self.header.time or (origin.time if origin else None),
            level=line_level(self.raw[: self.header.end], self.raw[self.header.end :])
            or (origin.level if origin else None),
            is_logged=self.header.is_logged,
        )


def parse_line(lines: LogLines, index: int, *, counted: bool) -> ParsedLine:
    """Return one parsed line. `counted`: a number before a line is a worker."""
    raw, origin = lines.texts[index], lines.origins[index]
    parse = _parse_repeated if len(raw) <= _MAX_REPEATED else _parse
    text, collapsed, header = parse(raw, origin is None or not origin.is_glued, counted and origin is None)
    return ParsedLine(text, collapsed, header, origin, lines.numbers[index])


def _parse(raw: bytes, has_header: bool, counted: bool) -> tuple[str, str, LineHeader]:  # noqa: FBT001  # for a cache
    header = parse_header(raw, counted=counted) if has_header else NO_HEADER
    text = raw.decode("utf-8", "replace")
    return text, " ".join(text[header.end :].split()), header


# Logs repeat lines as a whole, too. Longer ones are not remembered.
_MAX_REPEATED = 500
_parse_repeated = functools.lru_cache(maxsize=1024)(_parse)

# Lines of a block that are examined for workers, or numbers, before each line.
_SAMPLE_LINES = 32
# Bytes. No header is longer.
_MAX_HEADER = 600
# Per block. The lines of further workers are read as one stream.
_MAX_WORKER_STREAMS = 512
_MAX_KNOWN_HEADERS = 1000


@dataclass(frozen=True, slots=True)
class LogStream:
    """The lines of one worker in a block of lines."""

    block: LogLines
    worker: str | None
    is_numbered: bool  # a number before a line is a worker
    indices: Sequence[int]  # of the lines in the block
    texts: Sequence[bytes]  # some without a part of their headers

    def line(self, at: int) -> ParsedLine:
        """Return one line of the stream, parsed."""
        return parse_line(self.block, self.indices[at], counted=self.is_numbered)

    def place(self, at: int, column: int = 0) -> LogPlace:
        """Return the place of a line of the stream."""
        return self.line(at).place(column, worker=self.worker)

    def text_from(self, at: int, column: int) -> str:
        """Return the text from a column of a line on, with line ends except in the middle of words."""
        lines: list[ParsedLine] = []
        size = 0
        for index in range(at, len(self.indices)):
            lines.append(self.line(index))
            size += len(lines[-1].text)
            if size > _MAX_FOLLOWING:
                break
        parts = [
            line.text if is_wrapped else "\n" + line.text
            for line, is_wrapped in zip(lines, _find_wrapped(lines), strict=True)
        ]
        return "".join(parts)[1 + column :][:_MAX_FOLLOWING]


def split_by_worker(lines: LogLines) -> list[LogStream]:
    """Return the lines by worker: messages of several workers may interleave."""
    sample = [line[:_MAX_HEADER] for line in lines.texts[:: max(1, len(lines) // _SAMPLE_LINES)]]
    counted = has_worker_numbers(sample)
    gathered: dict[str | None, tuple[Sequence[int], Sequence[bytes]]] = {None: (range(len(lines)), lines.texts)}
    if any(parse_header(line, counted=counted).worker for line in sample) or any(
        origin.worker for origin in lines.origins if origin is not None
    ):
        gathered = {**_group_by_worker(lines, counted=counted)}
    return [LogStream(lines, name, counted, *place) for name, place in gathered.items()]


def _group_by_worker(lines: LogLines, *, counted: bool) -> dict[str | None, tuple[list[int], list[bytes]]]:
    gathered: dict[str | None, tuple[list[int], list[bytes]]] = {}
    known: dict[bytes, tuple[list[int], list[bytes]]] = {}
    worker: str | None = None
    for index, (text, origin) in enumerate(zip(lines.texts, lines.origins, strict=True)):
        if origin is None:
            name, end = parse_worker(text, counted=counted)
            # A log repeats a few names: their full headers are parsed once.
            if name and (place := known.get(name)):
                place[0].append(index)
                place[1].append(text[end:])
                continue
            worker = parse_header(text, counted=counted).worker
        elif not origin.is_glued:
            worker = origin.worker
        if worker not in gathered and len(gathered) >= _MAX_WORKER_STREAMS:
            worker = None
        place = gathered.setdefault(worker, ([], []))
        if origin is None and worker and name and len(known) < _MAX_KNOWN_HEADERS:
            known[name] = place
        place[0].append(index)
        place[1].append(text)
    return gathered


class FoundMessage(NamedTuple):
    """A match of a message in lines of a stream."""

    order: int  # of the message
    match: re.Match[str]
    at: int  # the line in which it starts
    column: int
    last: int  # the line in which it ends
    line: ParsedLine
    is_quoted: bool


def search_lines(
    stream: LogStream, first: int, last: int, patterns: Iterable[tuple[int, re.Pattern[str]]]
) -> list[FoundMessage]:
    """Return the messages in some lines of a stream, in order. Of two that overlap the first pattern wins.

    The lines are joined by spaces; where a terminal may have wrapped a line in the middle of a word, also without.
    """
    lines = [stream.line(at) for at in range(first, last)]
    glued = [line.is_glued for line in lines]
    wrapped = [a or b for a, b in zip(glued, _find_wrapped(lines), strict=True)]
    raw = [line.raw[line.header.end :] for line in lines]
    framed = framed_lines(raw)
    spaced = _joined(lines, glued)
    texts = [spaced] if wrapped == glued else [_joined(lines, wrapped), spaced]
    taken = bytearray(len(spaced[0]) + 1)
    found: list[FoundMessage] = []
    for order, pattern in patterns:
        for text, starts in texts:
            for match in pattern.finditer(text):
                if match.start() == match.end():
                    continue
                at, end = (bisect_right(starts, place) - 1 for place in (match.start(), match.end() - 1))
                if at == end and starts is not spaced[1]:
                    continue  # in one line: not where words are joined
                column = match.start() - starts[at]
                start, stop = spaced[1][at] + column, spaced[1][end] + match.end() - starts[end]
                if taken.find(1, start, stop) < 0:
                    taken[start:stop] = b"\1" * (stop - start)
                    stop = column + stop - start if end == at else len(lines[at].text)
                    quoted = at in framed or is_quoted(raw[at], lines[at].text, column, stop)
                    found.append(FoundMessage(order, match, first + at, column, first + end, lines[at], quoted))
    return sorted(found, key=lambda one: (one.at, one.column))


def _joined(lines: Sequence[ParsedLine], glued: Sequence[bool]) -> tuple[str, list[int]]:
    """Return lines as one text, glued ones without a space before them, and where each begins."""
    parts = [
        line.text if is_glued or not line.text else " " + line.text for line, is_glued in zip(lines, glued, strict=True)
    ]
    ends = accumulate(map(len, parts))
    return "".join(parts), [end - len(line.text) for end, line in zip(ends, lines, strict=True)]


def _find_wrapped(rows: Sequence[ParsedLine]) -> list[bool]:
    """Return for each row whether it may continue a word: the row before it is as wide as any of its neighbours."""
    widths = [len(row.raw) for row in rows]
    found = [False] * len(rows)
    for index in range(1, len(rows)):
        width, before, row = widths[index - 1], rows[index - 1], rows[index]
        is_full = width >= _MIN_TERMINAL_WIDTH and not before.raw[-1:].isspace()
        may_continue = (
            row.text and not row.raw[row.header.end :][:1].isspace() and row.origin is None and widths[index] <= width
        )
        found[index] = bool(
            (is_full and may_continue)
            and width >= max(widths[max(0, index - _NEIGHBOUR_ROWS) : index + _NEIGHBOUR_ROWS])
        )
    return found
