"""The protocol of a copy: frames over two pipes.

A frame is a letter, a length (4 bytes, big-endian) and a payload, JSON except for D. The sender sends S: an overview; L:
entries, with their numbers; K: digests of beginnings; F: a file's number; D: bytes; E: the file's number and its error;
Z: the end. The receiver sends P: the target; H: the files of which it has a beginning, and its length; A: which of these it
keeps, so that the bytes of F follow them; R: a file's number and its error; Z: the end. X, from either side, is a fatal error.
Only the sender describes its files: a receiver answers no question about its own. Paths are bytes, as UTF-8 with surrogates.
Part of a program for workers: Python 3.8, the standard library.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from typing import Any, NamedTuple

MARK = b"\0tpuctl copies\0\n"
BLOCK = 1 << 18
STEP = 1 << 20  # a beginning counts in whole steps, so that one pass over a file serves all workers
_HEAD = struct.Struct(">cI")
_LONGEST = 1 << 26
_SAMPLES, _SAMPLE = 16, 4096


class LostError(Exception):
    """The other end has gone."""


class RefusedError(Exception):
    """The copy is impossible. The arguments: a word for the kind of obstacle, and a message."""


class Entry(NamedTuple):
    """A file or a folder.

    `path` begins with the requested name; `key` identifies this version of the file; `sample`: the result of `sample` for a
    large file, else empty.
    """

    is_folder: bool
    path: str
    size: int
    mode: int
    mtime: int  # nanoseconds
    key: str
    sample: str


class Place(NamedTuple):
    """Where entries go: below `root`, with (`is_into`) or without the requested name; at the end `root` becomes `final`."""

    root: str
    is_into: bool
    final: str | None


def to_bytes(text: str) -> bytes:
    """Decode a path from its form in a frame."""
    return text.encode("utf-8", "surrogateescape")


def to_text(path: bytes) -> str:
    """Encode a path for a frame."""
    return path.decode("utf-8", "surrogateescape")


def shown(path: bytes) -> str:
    """Return a path for people."""
    return path.decode("utf-8", "replace")


def reason(error: OSError) -> str:
    """Return the message of a system error."""
    return (error.strerror or str(error)).lower()


def digest(path: bytes, length: int) -> str:
    """Return a digest of the first `length` bytes of a file, empty if it is shorter. Raises `OSError`."""
    made, left = hashlib.blake2b(digest_size=20), length
    with open(path, "rb", buffering=0) as file:
        while left and (block := file.read(min(STEP, left))):
            made.update(block)
            left -= len(block)
    return "" if left else made.hexdigest()


def sample(path: bytes, size: int) -> str:
    """Return a digest of samples of a file, which distinguishes most files of equal size. Raises `OSError`."""
    made = hashlib.blake2b(digest_size=20)
    with open(path, "rb", buffering=0) as file:
        for part in range(_SAMPLES):
            file.seek((size - _SAMPLE) * part // (_SAMPLES - 1))
            made.update(file.read(_SAMPLE))
    return made.hexdigest()


class Frames:
    """Which frames the other end may send. This class trusts it, as a worker trusts its client; the client's does not."""

    def check(self, kind: bytes, length: int) -> None:
        """Reject a frame before it is read. Raises `LostError`."""
        if length > (BLOCK if kind == b"D" else _LONGEST):
            raise LostError

    def parse(self, kind: bytes, payload: bytes) -> Any:  # noqa: ARG002  # the same for all kinds
        """Parse the payload of a frame other than D."""
        return json.loads(payload)


class Channel:
    """Frames from a buffered reader and to a descriptor. One thread may send while another receives."""

    def __init__(self, reader: Any, writer: int) -> None:  # a BufferedReader; for typeshed stdin's is a BinaryIO
        self._reader, self._writer = reader, writer
        self.frames = Frames()
        self._waiting = bytearray()
        self._block = memoryview(bytearray(BLOCK))
        self._sends_files = hasattr(os, "sendfile")

    def send(self, kind: bytes, value: Any) -> None:  # JSON
        """Queue a frame, to be sent with the following ones. Raises `LostError`."""
        payload = json.dumps(value, separators=(",", ":")).encode()
        self._waiting += _HEAD.pack(kind, len(payload)) + payload
        if len(self._waiting) > BLOCK:
            self.flush()

    def send_block(self, block: memoryview) -> None:
        """Send bytes of a file. Raises `LostError`."""
        self._waiting += _HEAD.pack(b"D", len(block))
        if len(block) >= BLOCK // 4:
            self.flush(block)
            return
        self._waiting += block
        if len(self._waiting) > BLOCK:
            self.flush()

    def send_part(self, file: int, offset: int, length: int) -> int:
        """Send a block of a file from an offset on; return its size, 0 at the end of the file. Raises `LostError`.

        If the system supports it, the data goes from the disk cache into the pipe without passing through this process.
        """
        length = min(length, BLOCK, os.fstat(file).st_size - offset)
        # A small block is sent together with the following frames.
        if length < BLOCK // 4 or not self._sends_files:
            block = os.pread(file, max(0, length), offset)
            if block:
                self.send_block(memoryview(block))
            return len(block)
        self._waiting += _HEAD.pack(b"D", length)
        self.flush()
        sent = 0
        while sent < length:
            try:
                moved = os.sendfile(self._writer, file, offset + sent, length - sent)
            except BrokenPipeError as error:
                raise LostError from error
            except OSError:
                # Unsupported for this kind of pipe or file: read and write the rest of this block, and all others.
                self._sends_files = False
                moved = 0
            if moved == 0:
                # The announced size must be sent. A file that has become shorter is rejected at its end.
                rest = os.pread(file, length - sent, offset + sent)
                self.flush(memoryview(rest.ljust(length - sent, b"\0")))
                return sent + len(rest)
            sent += moved
        return sent

    def flush(self, last: memoryview = memoryview(b"")) -> None:  # noqa: B008  # it is constant
        """Send the queued frames. Raises `LostError`."""
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

    def receive(self) -> tuple[bytes, Any]:  # JSON, or a view that is good until the next call
        """Return the next frame. Raises `LostError`, and `RefusedError` for the fatal error of the other end."""
        kind, length = _HEAD.unpack(self._exactly(_HEAD.size))
        self.frames.check(kind, length)
        if kind == b"D":
            return kind, self._exactly(length)
        payload = self._reader.read(length)
        if len(payload) < length:
            raise LostError
        value = self.frames.parse(kind, payload)
        if kind == b"X":
            raise RefusedError(*value)
        return kind, value

    def _exactly(self, length: int) -> memoryview:
        view = self._block[:length]
        # A buffered reader reads on until the view is full.
        if self._reader.readinto(view) < length:
            raise LostError
        return view
