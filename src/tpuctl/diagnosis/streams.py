"""The lines of a log by worker, so that messages of several workers that interleave are read one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.diagnosis.anchors import BREAK, letters_by_line
from tpuctl.diagnosis.lines import ANY_HEADER, is_counted, read_header, read_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.diagnosis.pieces import Lines

# Lines of a block that are examined for workers, or numbers, before each line.
_SAMPLE = 32
# Bytes. No header is longer.
_LONGEST_HEADER = 600
# Per block. The lines of further workers are read as one stream.
_MOST_WORKERS = 512
_MOST_KNOWN = 1000


@dataclass(frozen=True, slots=True)
class Stream:
    """The lines of one worker."""

    worker: str | None
    indices: Sequence[int]  # of the lines in the block
    texts: Sequence[bytes]  # some without a part of their headers

    @property
    def by_line(self) -> list[bytes]:
        """The letters of each line, including its header."""
        return letters_by_line(b"\n".join(self.texts)).split(b"\n")

    def without_headers(self, parts: Sequence[tuple[int, int]]) -> bytes:
        """Return ranges of lines without headers. The first line is 1: 0 is the end of the previous block."""
        text = BREAK.join(b"\n".join(self.texts[max(0, start - 1) : max(0, end - 1)]) for start, end in parts)
        return ANY_HEADER.sub(b"\n", b"\n" + text)[1:]

    def end(self, size: int, count: int) -> bytes:
        """Return the last `size` bytes of the last `count` lines, without their headers."""
        return ANY_HEADER.sub(b"\n", b"\n".join([b"", *self.texts[-count:]]))[-size:]

    @property
    def messages_by_line(self) -> list[bytes]:
        """The letters of each line, without its header."""
        return letters_by_line(ANY_HEADER.sub(b"\n", b"\n".join([b"", *self.texts]))[1:]).split(b"\n")


@dataclass(frozen=True, slots=True)
class Streams:
    """The lines of a block by worker."""

    each: Sequence[Stream]
    counted: bool  # a number before a line is a worker


def split(lines: Lines, *, last_worker: str | None = None) -> Streams:
    """Return the lines by worker. A first line that continues the previous block belongs to `last_worker`."""
    sample = [line[:_LONGEST_HEADER] for line in lines.texts[:: max(1, len(lines) // _SAMPLE)]]
    counted = is_counted(sample)
    if any(read_header(line, counted=counted).worker for line in sample) or any(
        origin.worker for origin in lines.origins if origin is not None
    ):
        return Streams(_group_by_worker(lines, counted=counted, last_worker=last_worker), counted)
    return Streams([Stream(None, range(len(lines)), lines.texts)] if len(lines) else [], counted)


def _group_by_worker(lines: Lines, *, counted: bool, last_worker: str | None) -> list[Stream]:
    gathered: dict[str | None, tuple[list[int], list[bytes]]] = {}
    known: dict[bytes, tuple[list[int], list[bytes]]] = {}
    worker = last_worker
    for index, (text, origin) in enumerate(zip(lines.texts, lines.origins, strict=True)):
        if origin is not None:
            if not origin.is_glued:
                worker = origin.worker if origin.worker in gathered or len(gathered) < _MOST_WORKERS else None
        else:
            name, end = read_worker(text, counted=counted)
            # A log repeats a few names: their full headers are parsed once.
            if name and (place := known.get(name)):
                place[0].append(index)
                place[1].append(text[end:])
                continue
            header = read_header(text, counted=counted)
            worker = header.worker if header.worker in gathered or len(gathered) < _MOST_WORKERS else None
            if worker and name and len(known) < _MOST_KNOWN:
                known[name] = gathered.setdefault(worker, ([], []))
        place = gathered.get(worker) or gathered.setdefault(worker, ([], []))
        place[0].append(index)
        place[1].append(text)
    return [Stream(name, *place) for name, place in gathered.items()]
