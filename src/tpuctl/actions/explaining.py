"""What `explain` reads: logs, as they come, and the node that they are about."""

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

# What is read at once; a pipe gives less.
_PIECE: Final = 256 * 1024


def read_file(path: Path, name: str) -> Seen:
    """Return what a log file holds; `.gz` is unpacked on the way. `name` is how the user calls it.

    Raises `InvalidInputError` where it cannot be read.
    """
    try:
        _refuse_endless(path)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            return read(stream)
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = f"name the files in it, as `{name}/*`" if path.is_dir() else "name a log file, or `-` for stdin"
        raise InvalidInputError(f"`{name}` cannot be read: {why.lower()}", hint=hint) from error


def _refuse_endless(path: Path) -> None:
    """Raise `OSError` for a device such as `/dev/zero`; a terminal and `/dev/null` have an end."""
    if path.is_char_device() and not path.samefile(os.devnull):
        with path.open("rb") as stream:
            if stream.isatty():
                return
        raise OSError(errno.EINVAL, "it is a device")


def read(stream: IO[bytes] | GzipFile) -> Seen:
    """Return what a stream holds, once it has ended."""
    reader = LogReader()
    for piece in pieces(stream):
        reader.feed(piece)
    return reader.so_far()


def read_text(text: str) -> Seen:
    """Return what a message holds that was given as such."""
    reader = LogReader()
    reader.feed(text.encode("utf-8", "surrogateescape"))
    return reader.so_far()


def follow(stream: IO[bytes], found: Callable[[Seen], None]) -> tuple[Seen, bool]:
    """Return what a stream held until it ended or the user pressed Ctrl-C, and whether he did; `found` is told on the way."""
    reader = LogReader()
    try:
        for piece in pieces(stream):
            reader.feed(piece)
            found(reader.so_far())
    except KeyboardInterrupt:
        return reader.so_far(), True
    return reader.so_far(), False


def pieces(stream: IO[bytes] | GzipFile) -> Iterator[bytes]:
    """Yield what a stream holds as it comes, without waiting for more than there is."""
    take = getattr(stream, "read1", stream.read)
    while piece := take(_PIECE):
        yield piece


def evidence_of(name: str, node: Node | None, request: QueuedResource | None = None) -> NodeEvidence:
    """Return what the API says of a node; one that the service took back is PREEMPTED, however the API shows that."""
    if was_preempted(node, request):
        return NodeEvidence(name, "PREEMPTED", created=node.created if node else None)
    if node is None:
        return NodeEvidence(name, None)
    return NodeEvidence(name, str(node.state), _health(node), node.created)


def _health(node: Node) -> str | None:
    return None if node.health is Health.HEALTH_UNSPECIFIED else str(node.health)
