"""Files on their way: what both ends of a copy and of a sync share. Must run under Python 3.8.

Both ends send JSON values. For a file, the sender sends its entry with an offset, its bytes from there on in blocks, and why it
is not whole, or null. The receiver writes them to a part, whose name stands for this version of the file: a later connection
continues where an earlier one ended. A file gets its own name only when it is whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.ssh.agent.link import ClientLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

BLOCK = 1 << 18
# After these errors every other file would fail too.
HOPELESS = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "read-only", errno.EIO: "disk"}


class PeerLostError(Exception):
    """The other end has gone."""


class RefusedError(Exception):
    """The transfer is impossible. The arguments: a word for the kind of obstacle, and a message."""


class FileEntry(NamedTuple):
    """A file, a folder or a symlink."""

    path: str  # relative; surrogates stand for bytes that are not UTF-8
    mode: int  # with the bits of the type
    size: int  # 0 unless it is a file
    mtime: int  # in nanoseconds
    target: str | None = None  # of a symlink

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.mode)

    @property
    def part(self) -> bytes:
        """The name of the part of this version of the file."""
        return hashlib.blake2b(ascii(self[:1] + self[2:4]).encode(), digest_size=12).hexdigest().encode()


class Stream:
    """JSON values and blocks of files, to and from the client. The client's end is a subclass."""

    # Seconds without data after which the other end counts as gone.
    patience = 600

    def __init__(self, link: ClientLink, reader: BinaryIO) -> None:
        self._link, self._reader = link, reader

    def send(self, value: Any) -> None:  # JSON
        """Send a value."""
        self._link.send(b"x", json.dumps(value, separators=(",", ":")).encode())

    def send_block(self, block: bytes) -> None:
        """Send bytes of a file."""
        self._link.send(b"o", block)

    def receive(self) -> Any:  # JSON
        """Return the next value. Raises `PeerLostError`."""
        return json.loads(self._next())

    def receive_problem(self) -> str | None:
        """Return why a file is not whole; None if it is. Raises `PeerLostError`."""
        problem: str | None = self.receive()
        return problem

    def receive_block(self, longest: int) -> bytes:  # noqa: ARG002  # the client may be trusted
        """Return the next bytes of a file. Raises `PeerLostError`."""
        return self._next()

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yield so many bytes of a file. Raises `PeerLostError`."""
        while size:
            block = self.receive_block(size)
            size -= len(block)
            yield block

    def _next(self) -> bytes:
        # `ClientLink.frames` would copy large frames several times.
        signal.alarm(self.patience)
        head = self._reader.read(5)
        payload = self._reader.read(int.from_bytes(head[1:], "big"))
        if len(head) < 5 or len(payload) < int.from_bytes(head[1:], "big"):
            raise PeerLostError
        return payload

    def send_file(self, path: bytes, entry: FileEntry, offset: int, *, follow: bool = True) -> str | None:
        """Send a file as it is now, from an offset on if it is still that version. Return why it is not whole."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        try:
            file = open(os.open(path, flags), "rb", buffering=0)  # noqa: SIM115  # closed below
        except OSError as error:
            self.send([*entry, 0, "`%s`: %s" % (path_text(path), reason(error))])
            return reason(error)
        with file:
            found = os.fstat(file.fileno())
            version = (found.st_size, found.st_mtime_ns)
            if version != (entry.size, entry.mtime):
                entry, offset = FileEntry(entry.path, found.st_mode, *version), 0
            problem = None if stat.S_ISREG(found.st_mode) else "it is no longer a file"
            self.send([*entry, offset, problem])
            if problem is None:
                problem = self._send_bytes(file, entry.size - offset, offset)
                now = os.fstat(file.fileno())
                if problem is None and (now.st_size, now.st_mtime_ns) != version:
                    problem = "it changed during the copy"
                self.send(problem and "`%s`: %s" % (path_text(path), problem))
        return problem

    def _send_bytes(self, file: Any, left: int, offset: int) -> str | None:
        problem = None
        try:
            file.seek(offset)
            while left:
                block = file.read(min(BLOCK, left))
                if not block:
                    break
                self.send_block(block)
                left -= len(block)
        except OSError as error:
            problem = reason(error)
        while left:  # the announced size must follow
            self.send_block(bytes(min(BLOCK, left)))
            left -= min(BLOCK, left)
        return problem

    def receive_file(self, part: bytes, entry: FileEntry, offset: int) -> str | None:
        """Write a file to its part; return why the sender says that it is not whole.

        Raises `OSError` if it cannot be stored, after its last byte, or at once if no other file can be.
        """
        failure, left = None, entry.size - offset
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(part, flags, 0o600), "wb", buffering=0) as file:
                file.seek(offset)
                for block in self.blocks(left):
                    left -= len(block)
                    view = memoryview(block)
                    while view:
                        view = view[file.write(view) or 0 :]
                file.truncate(entry.size)
        except OSError as error:
            if error.errno in HOPELESS:
                raise
            failure = error
            for _ in self.blocks(left):
                pass
        problem = self.receive_problem()
        if (problem or failure) and os.path.lexists(part):
            os.unlink(part)
        if failure:
            raise failure
        return problem


def serve(link: ClientLink, transfer: Callable[[Stream], None]) -> None:
    """Serve the client: say that the program runs, and why the transfer is impossible."""
    stream = Stream(link, sys.stdin.buffer)
    stream.send(None)
    try:
        transfer(stream)
    except RefusedError as error:
        stream.send({"refused": error.args})
    except PeerLostError:
        pass


def part_length(folder: bytes, entry: FileEntry) -> int:
    """Return how many bytes of a file an earlier connection has stored."""
    found = status_or_none(os.path.join(folder, entry.part))
    return found.st_size if found and stat.S_ISREG(found.st_mode) and found.st_size <= entry.size else 0


def move(part: bytes, path: bytes) -> None:
    """Give a part its name at once, also on another file system."""
    try:
        os.replace(part, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = os.path.join(os.path.dirname(path), b".tpuctl-" + os.path.basename(part))
        shutil.copy2(part, beside, follow_symlinks=False)
        os.replace(beside, path)
        os.unlink(part)


def digest(path: bytes) -> str:
    """Return a digest of the contents of a file. Raises `OSError`."""
    found = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:
        while True:
            block = file.read(1 << 20)
            if not block:
                return found.hexdigest()
            found.update(block)


def status_or_none(path: bytes) -> os.stat_result | None:
    """Return the status of a path without following a symlink; None if it does not exist."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def reason(error: OSError) -> str:
    """Return the message of a system error."""
    return (error.strerror or str(error)).lower()


def to_bytes(text: str) -> bytes:
    """Encode a path, independent of the locale."""
    return text.encode("utf-8", "surrogateescape")


def to_text(path: bytes) -> str:
    """Decode a path."""
    return path.decode("utf-8", "surrogateescape")


def path_text(path: bytes) -> str:
    """Return a path for people."""
    return path.decode("utf-8", "replace")
