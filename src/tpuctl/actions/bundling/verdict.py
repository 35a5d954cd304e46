"""The verdict on the logs of a bundle, read as one log; each line is marked with its worker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.diagnosis.conclusion import conclude
from tpuctl.diagnosis.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpuctl.actions.bundling.contents import Entry
    from tpuctl.diagnosis.explanation import Explanation

_LOG = re.compile(
    r"workers/(?P<worker>\d+)/(?:jobs/[^/]+/(?:out|err)|tpu_logs/.+|tpu_log_dir/.+|dmesg\.txt|startup-script\.log)"
)
_BLOCK = 256 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """A log file, and its range of lines in the whole."""

    path: str
    first_line: int
    lines: int


@dataclass(frozen=True, slots=True)
class Read:
    """The verdict on the logs, and the range of lines of each."""

    explanation: Explanation
    parts: tuple[Part, ...]

    def place(self, line: int) -> tuple[str, int] | None:
        """Return the file, and the line in it, of a line of the whole."""
        for part in self.parts:
            if part.first_line <= line < part.first_line + part.lines:
                return part.path, line - part.first_line + 1
        return None


def explain(entries: Sequence[Entry], known: Mapping[str, str]) -> Read:
    """Read the logs among the files; `known` are facts for the remedies, such as the node's name."""
    reader, parts, line = LogReader(), [], 1
    for entry in entries:
        match = _LOG.fullmatch(entry.path)
        if match is None or not entry.size:
            continue
        lines = 0
        for piece in _mark_lines(entry, b"[%s] " % match["worker"].encode()):
            lines += piece.count(b"\n")
            reader.feed(piece)
        parts.append(Part(entry.path, line, lines))
        line += lines
    return Read(conclude(reader.so_far(), known=known), tuple(parts))


def _mark_lines(entry: Entry, mark: bytes) -> Iterator[bytes]:
    """Yield the bytes of a file with a mark before each line, and a line end after the last one."""
    is_begin = True
    with entry.file.open("rb") as file:
        while block := file.read(_BLOCK):
            ends = block.endswith(b"\n")
            body = block[:-1] if ends else block
            yield (mark if is_begin else b"") + body.replace(b"\n", b"\n" + mark) + (b"\n" if ends else b"")
            is_begin = ends
    if not is_begin:
        yield b"\n"
