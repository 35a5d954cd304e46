"""The lines of a log by the worker that says them, so that what several say at once is read one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.diagnosis.anchors import BREAK, letters_by_line
from tpuctl.diagnosis.lines import ANY_HEADER, is_counted, read_header, read_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.diagnosis.pieces import Lines

# So many lines tell whether there are workers, or numbers, before the lines of a block.
_SAMPLE = 32
# No header is longer.
_LONGEST_HEADER = 600
# Of more than that in one block, the others are read as one.
_MOST_WORKERS = 512
_MOST_KNOWN = 1000


@dataclass(frozen=True, slots=True)
class Stream:
    """What one worker says: the places of its lines among all, and the lines, maybe without a part of their headers."""

    worker: str | None
    indices: Sequence[int]
    texts: Sequence[bytes]

    @property
    def by_line(self) -> list[bytes]:
        """The letters of each line, those of its header as well."""
        return letters_by_line(b"\n".join(self.texts)).split(b"\n")

    def said(self, parts: Sequence[tuple[int, int]]) -> bytes:
        """Return some parts, each from one line to another, without headers. The first line is 1: 0 is what came before."""
        text = BREAK.join(b"\n".join(self.texts[max(0, start - 1) : max(0, end - 1)]) for start, end in parts)
        return ANY_HEADER.sub(b"\n", b"\n" + text)[1:]

    def end(self, size: int, count: int) -> bytes:
        """Return so many bytes of the last lines, without their headers."""
        return ANY_HEADER.sub(b"\n", b"\n".join([b"", *self.texts[-count:]]))[-size:]

    @property
    def said_by_line(self) -> list[bytes]:
        """The letters of each line without those of its header."""
        return letters_by_line(ANY_HEADER.sub(b"\n", b"\n".join([b"", *self.texts]))[1:]).split(b"\n")


@dataclass(frozen=True, slots=True)
class Streams:
    """All streams of some lines. `counted`: a number before a line is a worker here."""

    each: Sequence[Stream]
    counted: bool


def split(lines: Lines, *, last_worker: str | None = None) -> Streams:
    """Return the lines by worker. What goes on in the first line, where it is no whole one, is `last_worker`'s."""
    sample = [line[:_LONGEST_HEADER] for line in lines.texts[:: max(1, len(lines) // _SAMPLE)]]
    counted = is_counted(sample)
    if any(read_header(line, counted=counted).worker for line in sample) or any(
        origin.worker for origin in lines.origins if origin is not None
    ):
        return Streams(_by_worker(lines, counted=counted, last_worker=last_worker), counted)
    return Streams([Stream(None, range(len(lines)), lines.texts)] if len(lines) else [], counted)


def _by_worker(lines: Lines, *, counted: bool, last_worker: str | None) -> list[Stream]:
    gathered: dict[str | None, tuple[list[int], list[bytes]]] = {}
    known: dict[bytes, tuple[list[int], list[bytes]]] = {}
    worker = last_worker
    for index, (text, origin) in enumerate(zip(lines.texts, lines.origins, strict=True)):
        if origin is not None:
            if not origin.is_glued:
                worker = origin.worker if origin.worker in gathered or len(gathered) < _MOST_WORKERS else None
        else:
            name, end = read_worker(text, counted=counted)
            # The same few workers again and again.
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
