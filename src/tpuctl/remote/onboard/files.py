"""Both ends of a copy: one sends a list of files and then their bytes, the other keeps each under another name until it is whole.

On a worker this is the program that `bootstrap` starts; on this side it is imported. It knows no ssh and never deletes.

A frame is a letter, a length (4 bytes, big-endian) and a payload, JSON but for D. The sender says S: what is coming; L:
entries, with their numbers; F: a file's number and where its bytes begin; D: bytes; E: the file's number and what went wrong;
Z: the end. The receiver says P: where it puts them; H: of which files it has a beginning, how long, its digest; R: a file's
number and what went wrong; Z: the end. X, from either, is why it gives up. Paths are bytes, as UTF-8 with surrogates.
"""
# ruff: noqa: PTH, PLC0415  # bytes are paths here, which pathlib has not; it and glob would cost each start 10 ms

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence
    from typing import BinaryIO

MARK = b"\0tpuctl copies\0\n"
STEP = 1 << 20  # what is there counts in whole steps of so many bytes, so that one pass over a file serves all workers
BLOCK = 1 << 18
_BATCH = 512
_UNSAID = 8 << 20  # so many bytes arrive before the sender is told which files are whole
_HEAD = struct.Struct(">cI")
_LONGEST = 1 << 26
# With these no other file has a better chance.
_HOPELESS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_UNFINISHED = re.compile(rb"\..+\.tpuctl-[0-9a-f]{12}")


class LostError(Exception):
    """The other end is gone."""


class RefusedError(Exception):
    """The copy cannot be made. The arguments are a word for the kind of obstacle, and a message."""


class Entry(NamedTuple):
    """A file or a folder (`is_folder`). `path` begins with the name that was asked for; `key` tells it from other versions."""

    is_folder: bool
    path: str
    size: int
    mode: int
    mtime: int  # nanoseconds
    key: str


class Listing(NamedTuple):
    """What is to be sent: where each file is, the entry for it; what is left out, and what cannot be read."""

    files: list[tuple[bytes, Entry]]
    notes: list[str]
    failed: list[str]
    count: int  # of what was asked for


class Place(NamedTuple):
    """Where entries go: below `root`, with (`is_into`) or without the name that was asked for; then `root` becomes `final`."""

    root: str
    is_into: bool
    final: str | None


def to_bytes(text: str) -> bytes:
    """Return the path that a text of the wire stands for."""
    return text.encode("utf-8", "surrogateescape")


def to_text(path: bytes) -> str:
    """Return what stands for a path on the wire."""
    return path.decode("utf-8", "surrogateescape")


def shown(path: bytes | str) -> str:
    """Return a path for people."""
    return (path if isinstance(path, bytes) else to_bytes(path)).decode("utf-8", "replace")


def reason(error: OSError) -> str:
    """Return what the system says of a failure."""
    return (error.strerror or str(error)).lower()


class Channel:
    """Frames over two pipes. One thread may send while another receives."""

    def __init__(self, reader: BinaryIO, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._waiting = bytearray()
        self._block = memoryview(bytearray(BLOCK))

    def send(self, kind: bytes, value: Any) -> None:  # JSON
        """Send a frame, together with others soon to come. Raises `LostError`."""
        payload = json.dumps(value, separators=(",", ":")).encode()
        self._waiting += _HEAD.pack(kind, len(payload)) + payload
        if len(self._waiting) > BLOCK:
            self.flush()

    def send_block(self, block: memoryview) -> None:
        """Send bytes of a file. Raises `LostError`."""
        self._waiting += _HEAD.pack(b"D", len(block))
        if len(block) < BLOCK // 4:
            self._waiting += block
            if len(self._waiting) < BLOCK:
                return
            block = block[:0]
        self.flush(block)

    def flush(self, last: memoryview = memoryview(b"")) -> None:
        """Send what waits. Raises `LostError`."""
        parts = [memoryview(bytes(self._waiting)), last]
        self._waiting.clear()
        try:
            while parts:
                written = os.writev(self._writer, parts)
                while parts and written >= len(parts[0]):
                    written -= len(parts.pop(0))
                if parts:
                    parts[0] = parts[0][written:]
        except OSError as error:
            raise LostError from error

    def receive(self) -> tuple[bytes, Any]:  # JSON, or a memoryview that is good until the next call
        """Return the next frame. Raises `LostError`, and `RefusedError` where the other end gives up."""
        kind, length = _HEAD.unpack(self._exactly(_HEAD.size))
        if kind == b"D" and length <= BLOCK:
            return kind, self._exactly(length)
        if length > _LONGEST or kind == b"D":
            raise LostError("what comes is no frame")
        payload = self._reader.read(length)
        if len(payload) < length:
            raise LostError
        value = json.loads(payload)
        if kind == b"X":
            raise RefusedError(*value)
        return kind, value

    def _exactly(self, length: int) -> memoryview:
        view = self._block[:length]
        # A buffered reader reads until the view is full.
        if self._reader.readinto(view) < length:  # type: ignore[attr-defined]  # typeshed's BinaryIO has no readinto
            raise LostError
        return view


def list_files(sources: Sequence[bytes], *, recurse: bool) -> Listing:
    """Return all files to send, links followed. Raises `RefusedError` for a source that is not there, or a folder unasked for."""
    listing = Listing([], [], [], len(sources))
    for source in sources:
        name = os.path.basename(source.rstrip(b"/")) or b"."
        name = os.path.basename(os.path.abspath(source)) if name == b".." else name
        try:
            found = os.stat(source)
        except OSError as error:
            kind = "missing" if error.errno in {errno.ENOENT, errno.ENOTDIR} else "refused"
            raise RefusedError(kind, f"`{shown(source)}`: {reason(error)}") from error
        if stat.S_ISDIR(found.st_mode) and not recurse:
            raise RefusedError("folder", f"`{shown(source)}` is a folder")
        _walk(listing, source, name)
    return listing


def _walk(listing: Listing, top: bytes, name: bytes) -> None:
    left: list[tuple[bytes, bytes, frozenset[tuple[int, int]]]] = [(top, name, frozenset())]
    while left:
        path, name, above = left.pop()
        try:
            found = os.stat(path)
            here = (found.st_dev, found.st_ino)
            if path != top and _UNFINISHED.fullmatch(os.path.basename(path)):
                listing.notes.append(f"`{shown(path)}` is left out: it belongs to a copy that has not ended")
            elif stat.S_ISDIR(found.st_mode) and here in above:
                listing.notes.append(f"`{shown(path)}` is left out: this link leads back to a folder that it is in")
            elif stat.S_ISDIR(found.st_mode):
                listing.files.append((path, _entry(path, name, found)))
                inside = sorted(os.listdir(path), reverse=True)
                left += [(os.path.join(path, one), os.path.join(name, one), above | {here}) for one in inside]
            elif not stat.S_ISREG(found.st_mode):
                listing.notes.append(f"`{shown(path)}` is left out: it is no file")
            elif not os.access(path, os.R_OK):
                listing.failed.append(f"`{shown(path)}`: permission denied")
            else:
                listing.files.append((path, _entry(path, name, found)))
        except OSError as error:
            if os.path.islink(path):
                listing.notes.append(f"`{shown(path)}` is left out: this link leads nowhere")
            else:
                listing.failed.append(f"`{shown(path)}`: {reason(error)}")


def _entry(path: bytes, name: bytes, found: os.stat_result) -> Entry:
    is_folder = stat.S_ISDIR(found.st_mode)
    version = b"" if is_folder else b"%d %d " % (found.st_size, found.st_mtime_ns)
    key = hashlib.blake2b(version + os.path.abspath(path), digest_size=6).hexdigest()
    return Entry(is_folder, to_text(name), 0 if is_folder else found.st_size, found.st_mode, found.st_mtime_ns, key)


def digest(path: bytes, length: int) -> str:
    """Return what tells the first bytes of a file from others; nothing where it is shorter. Raises `OSError`."""
    made, left = hashlib.blake2b(digest_size=20), length
    with open(path, "rb", buffering=0) as file:
        while left and (block := file.read(min(STEP, left))):
            made.update(block)
            left -= len(block)
    return "" if left else made.hexdigest()


def send(
    channel: Channel,
    listing: Listing,
    answer: Callable[[bytes], Any],
    *,
    done: Container[int] = (),
    refused: Container[int] = (),
    digest_of: Callable[[bytes, int], str] = digest,
    tell: Callable[[int, int], None] = lambda kept, sent: None,  # noqa: ARG005  # nobody listens
) -> None:
    """Send all files but those that are `done`, stopping with one as soon as it is `refused`.

    `answer` waits for a frame of this kind; `tell` gets how many bytes need not be sent, and how many were. Raises `LostError`.
    """
    entries = [entry for _, entry in listing.files]
    sizes = sum(entry.size for entry in entries)
    tree = entries[0].key if listing.count == 1 and entries and entries[0].is_folder else None
    channel.send(b"S", [listing.count, tree, len(entries), sizes, listing.notes, listing.failed])
    channel.flush()
    answer(b"P")
    for start in range(0, len(entries), _BATCH):
        batch = [number for number in range(start, min(start + _BATCH, len(entries))) if number not in done]
        channel.send(b"L", [[number, *entries[number]] for number in batch])
        channel.flush()
        held = {number: (length, known) for number, length, known in answer(b"H")}
        for number in batch:
            if not entries[number].is_folder and number not in refused:
                path, entry = listing.files[number]
                skipped = _agreed(path, held.get(number), digest_of)
                channel.send(b"F", [number, skipped])
                tell(skipped, 0)
                channel.send(b"E", [number, _send_bytes(channel, path, entry, skipped, lambda: number in refused, tell)])
    channel.send(b"Z", None)
    channel.flush()


def _agreed(path: bytes, held: tuple[int, str] | None, digest_of: Callable[[bytes, int], str]) -> int:
    """Return how much of a file the other end has."""
    with contextlib.suppress(OSError):
        if held and digest_of(path, held[0]) == held[1]:
            return held[0]
    return 0


def _send_bytes(
    channel: Channel,
    path: bytes,
    entry: Entry,
    skipped: int,
    is_refused: Callable[[], bool],
    tell: Callable[[int, int], None],
) -> str | None:
    """Send a file's bytes and return what went wrong."""
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(skipped)
            block, left = memoryview(bytearray(min(BLOCK, entry.size - skipped))), entry.size - skipped
            while left and not is_refused() and (length := file.readinto(block[:left])):
                channel.send_block(block[:length])
                tell(0, length)
                left -= length
            now = os.fstat(file.fileno())
        changed = left or (now.st_size, now.st_mtime_ns) != (entry.size, entry.mtime)
        return f"`{shown(path)}` was changed while it was copied" if changed else None
    except OSError as error:
        return f"`{shown(path)}`: {reason(error)}"
