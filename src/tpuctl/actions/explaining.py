"""Read logs as they arrive, and the state of the node that they belong to."""

from __future__ import annotations

import errno
import gzip
import os
from typing import IO, TYPE_CHECKING, Final

from tpuctl.actions.changes import was_preempted
from tpuctl.diagnosis.node_evidence import NodeEvidence
from tpuctl.diagnosis.reader import LogReader
from tpuctl.errors import InvalidInputError
from tpuctl.model import Health

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from gzip import GzipFile
    from pathlib import Path

    from tpuctl.diagnosis.sightings import Seen
    from tpuctl.model import Node, QueuedResource

# Bytes read at once; a pipe gives fewer.
_PIECE: Final = 256 * 1024


def read_file(path: Path, name: str) -> Seen:
    """Return the content of a log file; `.gz` is decompressed. `name` is the user's name for it.

    Raises `InvalidInputError` if it cannot be read.
    """
    try:
        _reject_endless_device(path)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return read(stream)
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = f"name the files in it, such as `{name}/*`" if path.is_dir() else "name a log file, or `-` for stdin"
        raise InvalidInputError(f"cannot read `{name}`: {why.lower()}", hint=hint) from error


def _reject_endless_device(path: Path) -> None:
    """Raise `OSError` for a device such as `/dev/zero`; a terminal and `/dev/null` have an end."""
    if path.is_char_device() and not path.samefile(os.devnull):
        with path.open("rb") as stream:
            if stream.isatty():
                return
        raise OSError(errno.EINVAL, "it is a device")


def read(stream: IO[bytes] | GzipFile) -> Seen:
    """Return the content of a stream, once it has ended."""
    reader = LogReader()
    for piece in pieces(stream):
        reader.feed(piece)
    return reader.so_far()


def read_text(text: str) -> Seen:
    """Return the content of a message on the command line."""
    reader = LogReader()
    reader.feed(text.encode("utf-8", "surrogateescape"))
    return reader.so_far()


def follow(stream: IO[bytes], found: Callable[[Seen], None]) -> tuple[Seen, bool]:
    """Return the content of a stream until it ended or the user pressed Ctrl-C, and whether the user did.

    Calls `found` with the content so far after each piece.
    """
    reader = LogReader()
    try:
        for piece in pieces(stream):
            reader.feed(piece)
            found(reader.so_far())
    except KeyboardInterrupt:
        return reader.so_far(), True
    return reader.so_far(), False


def pieces(stream: IO[bytes] | GzipFile) -> Iterator[bytes]:
    """Yield the bytes of a stream as they arrive, without waiting for a full piece."""
    read_available = getattr(stream, "read1", stream.read)
    while piece := read_available(_PIECE):
        yield piece


def evidence_of(name: str, node: Node | None, request: QueuedResource | None = None) -> NodeEvidence:
    """Return what the API says of a node; a preempted node is PREEMPTED, however the API shows that."""
    if was_preempted(node, request):
        return NodeEvidence(name, "PREEMPTED", created=node.created if node else None)
    if node is None:
        return NodeEvidence(name, None)
    health = None if node.health is Health.HEALTH_UNSPECIFIED else str(node.health)
    return NodeEvidence(name, str(node.state), health, node.created)
