"""Files on their way: what both ends of a copy and of a sync share. Must run under Python 3.8.

Both ends send JSON values. For a file, the sender sends its entry with an offset, its bytes from there on in blocks, and why it
is not whole, or null. The receiver writes them to a part, whose name stands for this version of the file: a later connection
continues where an earlier one ended. A file gets its own name only when it is whole.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.ssh.agent.link import frame_head, make_folder, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

BLOCK = 1 << 18
# The size of a pipe for large files, if the system allows it. With the usual 64 KiB a copy costs half as much CPU again; for
# more than 64 MiB in all pipes of a user, Linux makes further pipes very small [pipe(7)], and 64 copies may run at once.
PIPE = 1 << 19
# Of Linux; Python 3.8 has no name for it.
F_SETPIPE_SZ = 1031
# The most bytes of a file in one frame: so many zeros follow if a file can no longer be read.
LONGEST_BYTES = 1 << 26
# A computer that crashes may lose the end of a part, so this many bytes of it are sent again.
REPEATED = 1 << 16
CHANGED = "it changed during the copy"
# After these errors every other file would fail too.
HOPELESS = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "read-only", errno.EIO: "disk"}


class PeerLostError(Exception):
    """The other end has gone."""


class RefusedError(Exception):
    """The transfer is impossible. The arguments: a word for the kind of obstacle, and a message."""


class UnsentFileError(Exception):
    """The sender could not send all of a file. The argument: why."""


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
    """JSON values and bytes of files, to and from the client, in frames. The client's end is a subclass."""

    # The letters of the frames that this end sends.
    value_letter, bytes_letter = b"x", b"o"
    # Seconds without data after which the other end counts as gone.
    patience = 600

    def __init__(self, reader: BinaryIO, output: int) -> None:
        self._reader, self._output = reader, output
        self._room = memoryview(bytearray(BLOCK))

    def send(self, value: Any) -> None:  # JSON
        """Send a value."""
        self.send_encoded(encode(value))

    def send_encoded(self, payload: bytes) -> None:
        """Send an encoded value, in blocks: it may be large, and many workers may get it at the same time."""
        self.write(frame_head(self.value_letter, len(payload)) + payload[:BLOCK])
        for at in range(BLOCK, len(payload), BLOCK):
            self.write(payload[at : at + BLOCK])

    def write(self, data: bytes) -> None:
        """Send bytes."""
        write_all(self._output, data)

    def write_from(self, file: int, offset: int, size: int) -> int:
        """Send up to so many bytes of a file. Return how many; 0 at its end. Raises `OSError`.

        The kernel moves all but the last `PIPE` of them, if it can. When these are in the pipe, no page of the file is in it
        any more: a later change of the file cannot reach the other end.
        """
        if size > PIPE:
            try:
                return os.sendfile(self._output, file, offset, size - PIPE)
            except (BlockingIOError, BrokenPipeError):
                raise
            except OSError:  # impossible on this system, or for this file system
                pass
        return os.write(self._output, os.pread(file, min(size, BLOCK), offset))

    def receive(self) -> Any:  # JSON
        """Return the next value. Raises `PeerLostError`."""
        signal.alarm(self.patience)
        payload = self.read(self.next_head()[1])
        signal.alarm(0)
        return json.loads(payload)

    def receive_problem(self) -> str | None:
        """Return why a file is not whole; None if it is. Raises `PeerLostError`."""
        problem: str | None = self.receive()
        return problem

    def next_head(self) -> tuple[bytes, int]:
        """Return the letter of the next frame, and its length. Raises `PeerLostError`."""
        head = self.read(5)
        return head[:1], int.from_bytes(head[1:], "big")

    def next_bytes(self, longest: int) -> int:  # noqa: ARG002  # the client may be trusted
        """Return how many bytes of a file follow. Raises `PeerLostError`."""
        return self.next_head()[1]

    def read(self, size: int) -> bytes:
        """Return so many bytes. Raises `PeerLostError`."""
        data = self._reader.read(size)
        if len(data) < size:
            raise PeerLostError
        return data

    def read_into(self, room: memoryview) -> int:
        """Read into a buffer, and return how many bytes."""
        signal.alarm(self.patience)
        count: int = self._reader.readinto1(room)  # type: ignore[attr-defined]  # `BufferedReader` has it
        signal.alarm(0)
        return count

    def blocks(self, size: int) -> Iterator[memoryview]:
        """Yield so many bytes of a file, or fewer if the sender gives up. A block lasts until the next one.

        Raises `PeerLostError`.
        """
        while size:
            left = self.next_bytes(size)
            if not left:
                return
            size -= left
            while left:
                count = self.read_into(self._room[:left])
                if not count:
                    raise PeerLostError
                left -= count
                yield self._room[:count]

    def send_file(self, path: bytes, entry: FileEntry, offset: int, *, follow: bool = True) -> str | None:
        """Send a file as it is now, from an offset on if it is still that version. Return why it is not whole."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        try:
            file = os.open(path, flags)
        except OSError as error:
            self.send([*entry, 0, "`%s`: %s" % (path_text(path), reason(error))])
            return reason(error)
        try:
            found = os.fstat(file)
            version = (found.st_size, found.st_mtime_ns)
            if version != (entry.size, entry.mtime):
                entry, offset = FileEntry(entry.path, found.st_mode, *version), 0
            problem = None if stat.S_ISREG(found.st_mode) else "it is no longer a file"
            self.send([*entry, offset, problem])
            if problem is None:
                enlarge_pipe(self._output, entry.size - offset)
                problem = self._send_bytes(file, offset, entry.size)
                now = os.fstat(file)
                if problem is None and (now.st_size, now.st_mtime_ns) != version:
                    problem = CHANGED
                self.send(problem and "`%s`: %s" % (path_text(path), problem))
        finally:
            os.close(file)
        return problem

    def _send_bytes(self, file: int, offset: int, end: int) -> str | None:
        """Send bytes of a file. After an error an empty frame says that the last one is padded and that no other follows."""
        while offset < end:
            limit = min(end, offset + LONGEST_BYTES)
            self.write(frame_head(self.bytes_letter, limit - offset))
            while offset < limit:
                try:
                    count, problem = self.write_from(file, offset, limit - offset), CHANGED
                except BrokenPipeError as error:
                    raise PeerLostError from error
                except OSError as error:
                    count, problem = 0, reason(error)
                if not count:
                    self._give_up(limit - offset, is_last=limit == end)
                    return problem
                offset += count
        return None

    def _give_up(self, announced: int, *, is_last: bool) -> None:
        while announced:
            count = min(BLOCK, announced)
            self.write(bytes(count))
            announced -= count
        if not is_last:
            self.write(frame_head(self.bytes_letter, 0))

    def receive_file(self, part: bytes, entry: FileEntry, offset: int) -> os.stat_result:
        """Write a file to its part, which must hold `offset` bytes, and return its status.

        Raises `UnsentFileError`, and `OSError` if it cannot be stored, after its last byte, or at once if no other file can be.
        """
        status: os.stat_result | None = None
        failure, end, blocks = None, offset, self.blocks(entry.size - offset)
        enlarge_pipe(self._reader, entry.size - offset)
        try:
            flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if offset else os.O_CREAT)
            file = os.open(part, flags, 0o600)
            try:
                if os.fstat(file).st_size < offset:
                    raise changed_part_error(part)
                os.ftruncate(file, offset)
                os.lseek(file, offset, os.SEEK_SET)
                for block in blocks:
                    end += len(block)
                    written = 0
                    while written < len(block):
                        written += os.write(file, block[written:])
                status = os.fstat(file)
            finally:
                os.close(file)
        except OSError as error:
            if error.errno in HOPELESS:
                raise
            failure = error
            for _ in blocks:
                pass
        problem = self.receive_problem()
        if problem is None and status is not None and end == status.st_size == entry.size:
            return status
        with suppress(FileNotFoundError):
            os.unlink(part)
        if failure is not None:
            raise failure
        raise UnsentFileError(problem or CHANGED)


def enlarge_pipe(pipe: BinaryIO | int, size: int) -> None:
    """Enlarge a pipe for so many bytes, if that helps, the system supports it (Linux) and the user's limit allows it."""
    with suppress(OSError):
        if size > PIPE:
            fcntl.fcntl(pipe, F_SETPIPE_SZ, PIPE)


def serve(transfer: Callable[[Stream], None]) -> None:
    """Serve the client: say that the program runs, and why the transfer is impossible."""
    stream = Stream(sys.stdin.buffer, 1)
    stream.send(None)
    try:
        transfer(stream)
    except RefusedError as error:
        stream.send({"refused": error.args})
    except PeerLostError:
        pass


def encode(value: Any) -> bytes:  # JSON
    """Encode a value for a frame."""
    return json.dumps(value, separators=(",", ":")).encode()


def changed_part_error(part: bytes) -> OSError:
    """Return the error for a part that another program has changed or moved."""
    return OSError(errno.ESTALE, "its received part was changed by another program: repeat the command", part)


def lock_file(path: bytes, token: str | None, patience: float) -> int:
    """Create and lock a file, and return its descriptor. Raises `BlockingIOError` after `patience` in seconds.

    A program with the same token that holds the lock has lost its client, and is terminated.
    """
    until = time.monotonic() + patience
    while True:
        make_folder(os.path.dirname(path))
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the last holder has removed the folder
            continue
        if _is_locked(lock, path, token):
            os.ftruncate(lock, 0)
            os.pwrite(lock, ("%d %s" % (os.getpid(), token or "-")).encode(), 0)
            return lock
        os.close(lock)
        if time.monotonic() > until:
            raise BlockingIOError(errno.EWOULDBLOCK, "it is locked", path)
        time.sleep(0.05)


def _is_locked(lock: int, path: bytes, token: str | None) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(lock, 200, 0).decode().split()
        if token and len(holder) == 2 and holder[1] == token:
            with suppress(ProcessLookupError):
                os.kill(int(holder[0]), signal.SIGTERM)
        return False
    except OSError as error:
        if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:  # of a file system without locks
            raise
    # The last holder may have removed it.
    found = status_or_none(path)
    return found is not None and os.path.samestat(found, os.fstat(lock))


def part_length(folder: bytes, entry: FileEntry) -> int:
    """Return how many bytes of a file an earlier connection has stored and are not sent again."""
    found = status_or_none(os.path.join(folder, entry.part))
    return resume_offset(found.st_size, entry.size) if found and stat.S_ISREG(found.st_mode) else 0


def resume_offset(stored: int, size: int) -> int:
    """Return where to continue a file of which a part is stored: at its end if it is whole."""
    return stored if stored == size else max(0, stored - REPEATED) if stored < size else 0


def move(part: bytes, path: bytes) -> None:
    """Give a part its name, which shows the whole file at once, also on another file system."""
    try:
        os.replace(part, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = os.path.join(os.path.dirname(path), b".tpuctl-" + os.path.basename(part))
        shutil.copy2(part, beside, follow_symlinks=False)
        os.replace(beside, path)
        os.unlink(part)


def digest(path: bytes, length: int | None = None) -> str:
    """Return a digest of the contents of a file, or of its beginning. Raises `OSError`."""
    found, left = hashlib.blake2b(digest_size=16), float("inf") if length is None else length
    with open(path, "rb", buffering=0) as file:
        while left:
            block = file.read(int(min(left, 1 << 20)))
            if not block:
                break
            found.update(block)
            left -= len(block)
    return found.hexdigest()


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
