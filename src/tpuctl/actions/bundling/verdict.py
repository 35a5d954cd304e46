"""What `explain` says of a bundle's own logs: all of them read as one, each line marked with its worker."""

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
    """A file that was read, and which lines of the whole are its own."""

    path: str
    first_line: int
    lines: int


@dataclass(frozen=True, slots=True)
class Read:
    """What the logs of a bundle say, and where their lines are."""

    explanation: Explanation
    parts: tuple[Part, ...]

    def place(self, line: int) -> tuple[str, int] | None:
        """Return the file, and the line in it, that a line of the whole is."""
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
        for piece in _marked(entry, b"[%s] " % match["worker"].encode()):
            lines += piece.count(b"\n")
            reader.feed(piece)
        parts.append(Part(entry.path, line, lines))
        line += lines
    return Read(conclude(reader.so_far(), known=known), tuple(parts))


def _marked(entry: Entry, mark: bytes) -> Iterator[bytes]:
    """Yield a file's bytes with a mark at the begin of each line, and an end of the last one."""
    is_begin = True
    with entry.file.open("rb") as file:
        while block := file.read(_BLOCK):
            ends = block.endswith(b"\n")
            body = block[:-1] if ends else block
            yield (mark if is_begin else b"") + body.replace(b"\n", b"\n" + mark) + (b"\n" if ends else b"")
            is_begin = ends
    if not is_begin:
        yield b"\n"
