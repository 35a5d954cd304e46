"""Lines of a log: cut from bytes, parsed, joined and searched.

Bytes are cut into blocks at line ends, and into lines. Bounded: a very long line is cut too.
"""

from __future__ import annotations

import codecs
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

# Bytes. A block is searched at once; a line may be longer. A JSON record up to the second size is kept whole.
BLOCK = 128 * 1024
_LONGEST_RECORD = 512 * 1024
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, None),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LONGEST_MARK = 4
# The first bytes of files that are not text: gzip, zstd, xz, bzip2, zip, ELF, an SQLite database, a PNG.
_MAGIC = (
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ",
    b"BZh",
    b"PK\x03\x04",
    b"\x7fELF",
    b"SQLite format 3\0",
    b"\x89PNG",
)
_CONTROLS = bytes({*range(1, 8), *range(14, 27), *range(28, 32)})
# Shares of the bytes in a text.
_MOST_CONTROLS = 0.04
_MOST_NULS = 0.3
_ESCAPES = re.compile(
    rb"\x1b\[[0-?]{0,40}[ -/]{0,4}[@-~]?|\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|\x1b[ -/]{0,4}[0-~]?"
)


class Origin(NamedTuple):
    """Facts about a line that its text does not show."""

    worker: str | None = None
    read_time: Callable[[], datetime | None] = lambda: None
    is_glued: bool = False  # continues the line before it, which was cut


GLUED = Origin(is_glued=True)


@dataclass(slots=True)
class Lines:
    """Lines of a log, in order: their texts, their numbers, and further facts about each."""

    texts: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    origins: list[Origin | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.texts)

    def add(self, text: bytes, number: int, origin: Origin | None = None) -> None:
        """Append a line."""
        self.texts.append(text)
        self.numbers.append(number)
        self.origins.append(origin)

    def extend(self, other: Lines) -> None:
        """Append lines."""
        self.texts += other.texts
        self.numbers += other.numbers
        self.origins += other.origins

    def __add__(self, other: Lines) -> Lines:
        return Lines(self.texts + other.texts, self.numbers + other.numbers, self.origins + other.origins)

    def since(self, start: int) -> Lines:
        """Return the lines from that index."""
        return Lines(self.texts[start:], self.numbers[start:], self.origins[start:])


@dataclass(slots=True)
class Cutter:
    """Cuts bytes into blocks, always at the same places, however the pieces are cut that it gets."""

    size: int = 0
    lines: int = 0
    controls: int = 0
    nuls: int = 0
    start: bytes = b""
    _parts: list[bytes] = field(default_factory=list)
    _waiting: int = 0
    _enough: int = BLOCK
    _decoder: codecs.IncrementalDecoder | None = None
    _is_begun: bool = False
    _is_inside: bool = False

    def copy(self) -> Cutter:
        """Return an independent copy."""
        decoder = copy.copy(self._decoder)
        if decoder is not None and self._decoder is not None:
            decoder.setstate(self._decoder.getstate())
        return replace(self, _parts=list(self._parts), _decoder=decoder)

    @property
    def is_binary(self) -> bool:
        """Whether the log is not text."""
        most = max(self.size, 1)
        return self.start.startswith(_MAGIC) or self.controls > most * _MOST_CONTROLS or self.nuls > most * _MOST_NULS

    def feed(self, data: bytes, *, is_last: bool = False) -> Iterator[Lines]:
        """Yield the lines of each complete block; with `is_last` all remaining lines."""
        self.size += len(data)
        if len(self.start) < 64:
            self.start += data[: 64 - len(self.start)]
        data = self._decode(data, is_last=is_last)
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting < self._enough and not is_last:
            return
        data, offset = b"".join(self._parts), 0
        while end := _end(data, offset, is_last=is_last):
            yield self._split(data[offset:end])
            offset = end
        self._parts, self._waiting = [data[offset:]], len(data) - offset
        self._enough = self._waiting + BLOCK if self._waiting >= BLOCK else BLOCK

    def _decode(self, data: bytes, *, is_last: bool) -> bytes:
        """Return the bytes as UTF-8 if the log begins with the byte order mark of another encoding."""
        if not self._is_begun:
            data = b"".join(self._parts) + data
            self._parts, self._waiting = [], 0
            if len(data) < _LONGEST_MARK and not is_last:
                return data
            self._is_begun = True
            for mark, name in _MARKS:
                if data.startswith(mark):
                    data = data[len(mark) :]
                    self._decoder = codecs.getincrementaldecoder(name)("replace") if name else None
                    break
        return data if self._decoder is None else self._decoder.decode(data, is_last).encode("utf-8", "replace")

    def _split(self, block: bytes) -> Lines:
        first, is_whole = self.lines + (not self._is_inside), block.endswith(b"\n")
        if b"\x1b" in block:
            block = _ESCAPES.sub(b"", block)
        self.controls += len(block) - len(block.translate(None, _CONTROLS))
        if nuls := block.count(b"\0"):
            self.nuls += nuls
            block = block.replace(b"\0", b"")
        texts = block.split(b"\n")
        if is_whole:
            texts.pop()
        numbers = list(range(first, first + len(texts)))
        self.lines = first + len(texts) - 1
        lines = Lines(texts, numbers, [None] * len(texts))
        if self._is_inside and lines.origins:
            lines.origins[0] = GLUED
        self._is_inside = not is_whole
        return _without_returns(lines) if b"\r" in block else lines


def _end(data: bytes, offset: int, *, is_last: bool) -> int:
    """Return where the next block ends, 0 if that is unknown yet."""
    left = len(data) - offset
    if left < BLOCK:
        return len(data) if is_last and left else 0
    if found := data.rfind(b"\n", offset, offset + BLOCK) + 1:
        return found
    if data[offset : offset + 1] == b"{" or b'{"' in data[offset : offset + 200]:
        if found := data.find(b"\n", offset, offset + _LONGEST_RECORD) + 1:
            return found
        if left < _LONGEST_RECORD:
            return len(data) if is_last else 0
    end = offset + BLOCK
    while end > offset + BLOCK - 4 and data[end - 1] & 0xC0 == 0x80:  # not inside a character
        end -= 1
    return end - 1 if data[end - 1] >= 0xC0 else end


def _without_returns(lines: Lines) -> Lines:
    """Return the lines without carriage returns: text that a terminal would overwrite becomes a line with the same number."""
    found = Lines()
    for text, number, origin in zip(lines.texts, lines.numbers, lines.origins, strict=True):
        if b"\r" not in text:
            found.add(text, number, origin)
            continue
        states = [state for state in text.split(b"\r") if state] or [b""]
        for index, state in enumerate(states):
            found.add(state, number, None if index else origin)
    return found
