"""Files on their way: what both ends of a copy and of a sync share. Must run under Python 3.8.

Both ends send JSON, one value on each line. For a file, the sender sends its entry with an offset, its bytes from there on,
and a line that says why it is not whole, or null. The receiver writes them to a part, whose name stands for this version of
the file: a later connection continues where an earlier one ended. A file gets its own name only when it is whole.
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A login shell may print before it.
MARK = b"\0tpuctl-files\n"
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
    """Lines of JSON and bytes of files, from a buffered reader and to a buffered writer."""

    # Seconds without data after which the other end counts as gone; 0: no limit.
    patience = 0

    def __init__(self, reader: Any, writer: Any, on_bytes: Callable[[int], None] = lambda size: None) -> None:  # noqa: ARG005
        self.reader, self.writer, self.on_bytes = reader, writer, on_bytes

    def send(self, value: Any) -> None:  # JSON
        """Send a value. Raises `PeerLostError`."""
        self.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Send bytes, perhaps together with later ones. Raises `PeerLostError`."""
        try:
            self.writer.write(data)
        except OSError as error:
            raise PeerLostError from error

    def flush(self) -> None:
        """Send what is waiting. Raises `PeerLostError`."""
        try:
            self.writer.flush()
        except OSError as error:
            raise PeerLostError from error

    def receive(self) -> Any:  # JSON
        """Return the next value. Raises `PeerLostError`."""
        self.flush()
        signal.alarm(self.patience)
        line = self.reader.readline()
        if not line.endswith(b"\n"):
            raise PeerLostError
        return json.loads(line)

    def receive_problem(self) -> str | None:
        """Return why a file is not whole; None if it is. Raises `PeerLostError`."""
        problem: str | None = self.receive()
        return problem

    def blocks(self, size: int) -> Iterator[bytes]:
        """Yield so many bytes. Raises `PeerLostError`."""
        while size:
            if self.patience:
                signal.alarm(self.patience)
            block = self.reader.read(min(BLOCK, size))
            if not block:
                raise PeerLostError
            size -= len(block)
            self.on_bytes(len(block))
            yield block

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
                self.write(block)
                left -= len(block)
                self.on_bytes(len(block))
        except OSError as error:
            problem = reason(error)
        while left:  # the announced size must follow
            self.write(bytes(min(BLOCK, left)))
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


def serve(copy: Callable[[Stream], None]) -> None:
    """Serve the client on stdin and stdout: the main program on a worker."""
    stream = Stream(sys.stdin.buffer, sys.stdout.buffer)
    stream.patience = 600
    try:
        stream.write(MARK)
        try:
            copy(stream)
        except RefusedError as error:
            stream.send({"refused": error.args})
        except OSError as error:
            name = os.fsdecode(error.filename) if error.filename else ""
            stream.send({"refused": ["refused", reason(error) + (": " + name if name else "")]})
        stream.flush()
    except PeerLostError:
        os._exit(1)  # stdout cannot be flushed


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
