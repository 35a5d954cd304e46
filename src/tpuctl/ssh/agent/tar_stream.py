"""Files on their way: the tar stream that both ends of a copy and of a sync share. Must run under Python 3.8.

Both ends send JSON values in frames. Files travel between two values as a tar stream [POSIX, pax]: files and folders only, with
an extended header only for what an old header cannot express. The value behind the stream names the files that are not whole.
The receiver writes them to a fresh folder; they get their names when the stream has ended.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import re
import shutil
import signal
import stat
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.ssh.agent.link import frame_head, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import BinaryIO

BLOCK = 1 << 18
# The size of a pipe for large files, if the system allows it. With the usual 64 KiB a copy costs half as much CPU again; for
# more than 64 MiB in all pipes of a user, Linux makes further pipes very small [pipe(7)], and 64 copies may run at once.
PIPE = 1 << 19
# A number of Linux, for which Python 3.8 has no name.
F_SETPIPE_SZ = 1031
# Seconds without data after which a worker gives up its client: which may send to other workers first.
PATIENCE = 24 * 3600
CHANGED = "it changed during the copy"
# After these errors every other file would fail too.
FATAL_ERRNOS = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "read-only", errno.EIO: "disk"}


class PeerLostError(Exception):
    """The other end has gone."""


class RefusedError(Exception):
    """The transfer is impossible. The arguments: a word for the kind of obstacle, and a message."""


class TarStreamError(ValueError):
    """What arrived is no tar stream of files and folders."""


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


_RECORD, _SMALL = 512, 1 << 15
END_OF_TAR = bytes(2 * _RECORD)
_TAIL = bytes(100) + b"ustar\x0000" + bytes(247)
_MAX_NAME, _MAX_SIZE, _MAX_SECONDS = 100, 0o77777777777, 0o77777777777
# For the extended header of one file: its path, its size and its time.
_MAX_EXTENDED = 16 * 1024
_TYPES = {b"0": stat.S_IFREG, b"5": stat.S_IFDIR}
_DIGITS, _TIME = re.compile(rb"[0-9]{1,19}"), re.compile(rb"(-?)([0-9]{1,11})(?:\.([0-9]{1,9}))?")


def member_head(entry: FileEntry, *, exact: bool = False) -> bytes:
    """Return what comes before the bytes of a file, or stands for a folder. `exact`: with nanoseconds."""
    name, seconds, extended = to_bytes(entry.path), entry.mtime // 10**9, b""
    if len(name) > _MAX_NAME:
        extended += _extended(b"path", name)
    if entry.size > _MAX_SIZE:
        extended += _extended(b"size", b"%d" % entry.size)
    if exact or not 0 <= seconds <= _MAX_SECONDS:
        sign = b"-" if entry.mtime < 0 else b""
        extended += _extended(b"mtime", b"%s%d.%09d" % (sign, *divmod(abs(entry.mtime), 10**9)))
    head = b""
    if extended:
        head = _header(b"PaxHeader", b"x", 0o644, len(extended), 0) + extended + bytes(-len(extended) % _RECORD)
    size = entry.size if entry.size <= _MAX_SIZE else 0
    seconds = seconds if 0 <= seconds <= _MAX_SECONDS else 0
    return head + _header(name[:_MAX_NAME], b"5" if entry.is_folder else b"0", entry.mode & 0o7777, size, seconds)


def _header(name: bytes, kind: bytes, mode: int, size: int, seconds: int) -> bytes:
    before = name.ljust(100, b"\0") + b"%07o\x000000000\x000000000\0%011o\0%011o\0" % (mode, size, seconds)
    after = kind + _TAIL
    # The checksum is that of a header with spaces in its place.
    return before + b"%06o\0 " % (sum(before) + sum(after) + 8 * 32) + after


def _extended(key: bytes, value: bytes) -> bytes:
    """Return a record of an extended header, which begins with its own length."""
    rest = b" %s=%s\n" % (key, value)
    size = len(rest) + 1
    while size != len(rest) + len(str(size)):
        size = len(rest) + len(str(size))
    return b"%d%s" % (size, rest)


def _parse_extended(data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    while data:
        digits, _, _ = data[:8].partition(b" ")
        size = int(digits) if _DIGITS.fullmatch(digits) else 0
        key, equals, value = data[len(digits) + 1 : size].partition(b"=")
        if not len(digits) < size <= len(data) or not equals or value[-1:] != b"\n":
            raise TarStreamError("an extended header that is cut")
        if key not in {b"path", b"size", b"mtime"} or key in found:
            raise TarStreamError("an extended header with other records than path, size and mtime")
        found[key], data = value[:-1], data[size:]
    return found


def _parse_time(text: bytes) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise TarStreamError("a time that is no number")
    sign, seconds, fraction = match.groups()
    return (-1 if sign else 1) * (int(seconds) * 10**9 + int((fraction or b"").ljust(9, b"0")))


def _parse_octal(field: bytes) -> int:
    digits = field.rstrip(b"\0 ")
    try:
        return int(digits if digits.isdigit() else b"x", 8)
    except ValueError as error:
        raise TarStreamError("a header with a field that is no number") from error


class Stream:
    """JSON values in frames and a tar stream, to and from the client. The client's end is a subclass."""

    # The letter of the frames that this end sends.
    letter = b"x"

    def __init__(self, reader: BinaryIO, output: int) -> None:
        self._reader, self._output = reader, output
        self._block = memoryview(bytearray(BLOCK))

    def send(self, value: Any) -> None:  # JSON
        """Send a value."""
        self.write(encode(value, self.letter))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        write_all(self._output, data)

    def receive(self) -> Any:  # JSON
        """Return the next value. Raises `PeerLostError`."""
        payload = self.read(self.next_head()[1])
        signal.alarm(0)
        return json.loads(payload)

    def next_head(self) -> tuple[bytes, int]:
        """Return the letter of the next frame, and its length. Raises `PeerLostError`."""
        head = self.read(5)
        return head[:1], int.from_bytes(head[1:], "big")

    def read(self, size: int) -> bytes:
        """Return so many bytes. Raises `PeerLostError`."""
        signal.alarm(PATIENCE)
        data = self._reader.read(size)
        if len(data) < size:
            raise PeerLostError
        return data

    def read_into(self, block: memoryview) -> int:
        """Read bytes of a file into a buffer, and return how many."""
        signal.alarm(PATIENCE)
        count: int = self._reader.readinto1(block)  # type: ignore[attr-defined]  # `BufferedReader` has it
        return count

    def read_small(self, size: int, padding: int) -> memoryview:
        """Return the bytes of a small file. Raises `PeerLostError`."""
        return memoryview(self.read(size + padding))[:size]

    def next_member(self) -> FileEntry | None:
        """Return the next file or folder of a tar stream; None at its end. Its bytes must be read then.

        Raises `PeerLostError` and `TarStreamError`.
        """
        extended: dict[bytes, bytes] = {}
        header = self._read_header()
        if header is not None and header[1] == b"x":
            size = header[3]
            if not 0 < size <= _MAX_EXTENDED:
                raise TarStreamError("an extended header of %d bytes" % size)
            extended = _parse_extended(self.read(size + -size % _RECORD)[:size])
            header = self._read_header()
            if header is None:
                raise TarStreamError("an extended header at the end")
        if header is None:
            return None
        name, kind, mode, size, seconds = header
        if kind not in _TYPES:
            raise TarStreamError("`%s` is neither a file nor a folder" % path_text(name))
        if b"size" in extended:
            if not _DIGITS.fullmatch(extended[b"size"]):
                raise TarStreamError("a size that is no number")
            size = int(extended[b"size"])
        if size and kind == b"5":
            raise TarStreamError("`%s` is a folder with bytes" % path_text(name))
        mtime = _parse_time(extended[b"mtime"]) if b"mtime" in extended else seconds * 10**9
        return FileEntry(to_text(extended.get(b"path", name)), mode | _TYPES[kind], size, mtime)

    def _read_header(self) -> tuple[bytes, bytes, int, int, int] | None:
        block = self.read(_RECORD)
        if not any(block):
            if any(self.read(_RECORD)):
                raise TarStreamError("an end that is cut")
            return None
        checksum = b"%06o\0 " % (sum(block) - sum(block[148:156]) + 8 * 32)
        if block[157:] != _TAIL or block[148:156] != checksum:
            raise TarStreamError("%d bytes that are no header" % _RECORD)
        mode, size, seconds = map(_parse_octal, (block[100:108], block[124:136], block[136:148]))
        return block[:100].rstrip(b"\0"), block[156:157], mode & 0o7777, size, seconds

    def blocks(self, size: int) -> Iterator[memoryview]:
        """Yield the bytes of a file. A block lasts until the next one. Raises `PeerLostError`."""
        padding = -size % _RECORD
        if 0 < size <= _SMALL:
            yield self.read_small(size, padding)
            return
        while size:
            count = self.read_into(self._block[:size])
            if not count:
                raise PeerLostError
            size -= count
            yield self._block[:count]
        self.read(padding)

    def receive_file(self, path: bytes, size: int) -> None:
        """Write the bytes of a file to a new file.

        Raises `PeerLostError`, and `OSError` if it cannot be stored: after its last byte, or at once if no other file can be.
        """
        blocks = self.blocks(size)
        if size > PIPE:
            enlarge_pipe(self._reader)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                for block in blocks:
                    written = 0
                    while written < len(block):
                        written += os.write(file, block[written:])
            finally:
                os.close(file)
        except OSError as error:
            if error.errno not in FATAL_ERRNOS:
                for _ in blocks:
                    pass
            raise


def pack(
    files: Iterable[tuple[bytes, FileEntry]],
    problems: dict[str, str],
    *,
    follow: bool = True,
    exact: bool = False,
    attempts: int = 1,
) -> Iterator[tuple[bytes, int]]:
    """Yield files as they are now as blocks of a tar stream without its end, and how many of these bytes are contents.

    A file that changes meanwhile is sent again, up to so many `attempts`: the last one counts. `problems` gets the files that
    are not whole.
    """
    parts: list[bytes] = []
    size = contents = 0
    for path, entry in files:
        for _ in range(attempts):
            problems.pop(entry.path, None)
            for data, count in _pack_file(path, entry, problems, follow=follow, exact=exact):
                parts.append(data)
                size, contents = size + len(data), contents + count
                if size >= BLOCK:
                    yield b"".join(parts), contents
                    parts, size, contents = [], 0, 0
            if entry.path not in problems:
                break
    if parts:
        yield b"".join(parts), contents


def _pack_file(
    path: bytes, entry: FileEntry, problems: dict[str, str], *, follow: bool, exact: bool
) -> Iterator[tuple[bytes, int]]:
    if entry.is_folder:
        yield member_head(entry, exact=exact), 0
        return
    problem, left = None, 0
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        problems[entry.path] = "`%s`: %s" % (path_text(path), reason(error))
        return
    try:
        status = os.fstat(file)
        if stat.S_ISREG(status.st_mode):
            left = status.st_size
            now = FileEntry(entry.path, status.st_mode, left, status.st_mtime_ns)
            yield member_head(now, exact=exact), 0
            while left and problem is None:
                try:
                    data = os.read(file, min(left, BLOCK))
                except OSError as error:
                    problem = reason(error)
                else:
                    problem = None if data else CHANGED
                    left -= len(data)
                    yield data, len(data)
            after = os.fstat(file)
            if problem is None and (after.st_size, after.st_mtime_ns) != (now.size, now.mtime):
                problem = CHANGED
            # The header has announced them.
            while left:
                yield bytes(min(left, BLOCK)), 0
                left -= min(left, BLOCK)
            yield bytes(-now.size % _RECORD), 0
        else:
            problem = "it is no longer a file"
    finally:
        os.close(file)
    if problem is not None:
        problems[entry.path] = "`%s`: %s" % (path_text(path), problem)


def enlarge_pipe(pipe: BinaryIO | int) -> None:
    """Enlarge a pipe for large files, if the system supports it (Linux) and the user's limit allows it."""
    with suppress(OSError):
        fcntl.fcntl(pipe, F_SETPIPE_SZ, PIPE)


def serve(transfer: Callable[[Stream], None]) -> None:
    """Serve the client: say that the program runs, and why the transfer is impossible."""
    # Many entries and no cycles: searching for cycles costs a fifth of the time.
    gc.disable()
    stream = Stream(sys.stdin.buffer, 1)
    stream.send(None)
    try:
        transfer(stream)
    except RefusedError as error:
        stream.send({"refused": error.args})
    except PeerLostError:
        pass


def encode(value: Any, letter: bytes) -> bytes:  # JSON
    """Encode a value as a frame."""
    payload = json.dumps(value, separators=(",", ":")).encode()
    return frame_head(letter, len(payload)) + payload


def move(source: bytes, path: bytes) -> None:
    """Give a file its name, which shows the whole file at once, also on another file system."""
    try:
        os.replace(source, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        beside = os.path.join(os.path.dirname(path), b".tpuctl-" + os.urandom(8).hex().encode())
        shutil.copy2(source, beside, follow_symlinks=False)
        os.replace(beside, path)
        os.unlink(source)


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
