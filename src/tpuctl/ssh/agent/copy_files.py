"""The worker's end of `tpuctl scp`: receives files, or sends them. Python 3.8, the standard library.

A received file has a temporary name until it is complete. Nothing is ever deleted.
"""

from __future__ import annotations

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
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence


def receive(target: str, place: Sequence[Any] | None, *, preserve: bool) -> None:
    """Receive files into `target`, with `~` expanded; `place`: the decision of an earlier connection."""

    def copy(channel: FrameChannel) -> None:
        umask = os.umask(0o077)
        os.umask(umask)
        path = os.path.expanduser(to_bytes(target) or b".")
        keeper = FileReceiver(path, umask=umask, preserve=preserve, place=CopyTarget(*place) if place else None)
        receive_files(channel, keeper)

    _serve(copy)


def fetch(patterns: Sequence[str], *, recurse: bool, names: Mapping[str, str], hidden: bool) -> None:
    """Send the files that match the patterns. `names`: of home folders; `hidden`: see `list_files`."""

    def copy(channel: FrameChannel) -> None:
        def answer(kind: bytes) -> Any:  # JSON
            found, value = channel.receive()
            if found != kind:
                raise PeerLostError
            return value

        homes = {os.path.expanduser(to_bytes(path)): to_bytes(name) for path, name in names.items()}
        listing = list_files(expand(patterns), recurse=recurse, names=homes, hidden=hidden)
        FileSender(channel, listing).send(answer)
        answer(b"Z")  # the receiver may still report an error

    _serve(copy)


def _serve(copy: Any) -> None:
    channel = FrameChannel(sys.stdin.buffer, 1)
    os.write(1, COPY_MARK)
    try:
        try:
            copy(channel)
        except CopyRefusedError as error:
            channel.send(b"X", error.args)
        channel.flush()
    except PeerLostError:
        sys.exit(1)


# A frame is a letter, a length (4 bytes, big-endian) and a payload, JSON except for D. The sender sends S: an overview; L:
# entries, with their numbers; K: digests of beginnings; F: a file's number; D: bytes; E: the file's number and its error;
# Z: the end. The receiver sends P: the target; H: the files of which it has a beginning, and its length; A: which of these it
# keeps, so that the bytes of F follow them; R: a file's number and its error; Z: the end. X, from either side: a fatal error.
# Only the sender describes its files: a receiver answers no question about its own. Paths are bytes, as UTF-8 with surrogates.
# Part of a program for workers: Python 3.8, the standard library.
COPY_MARK = b"\0tpuctl copies\0\n"
BLOCK = 1 << 18
STEP = 1 << 20  # a beginning counts in whole steps, so that one pass over a file serves all workers
_HEAD = struct.Struct(">cI")
_LONGEST = 1 << 26
_SAMPLES, _SAMPLE = 16, 4096


class PeerLostError(Exception):
    """The other end has gone."""


class CopyRefusedError(Exception):
    """The copy is impossible. The arguments: a word for the kind of obstacle, and a message."""


class CopyEntry(NamedTuple):
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


class CopyTarget(NamedTuple):
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


def path_text(path: bytes) -> str:
    """Return a path for people."""
    return path.decode("utf-8", "replace")


def reason(error: OSError) -> str:
    """Return the message of a system error."""
    return (error.strerror or str(error)).lower()


def digest_of_beginning(path: bytes, length: int) -> str:
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


class FrameRules:
    """Which frames the other end may send. This class trusts it, as a worker trusts its client; the client's does not."""

    def check(self, kind: bytes, length: int) -> None:
        """Reject a frame before it is read. Raises `PeerLostError`."""
        if length > (BLOCK if kind == b"D" else _LONGEST):
            raise PeerLostError

    def parse(self, kind: bytes, payload: bytes) -> Any:  # noqa: ARG002  # the same for all kinds
        """Parse the payload of a frame other than D."""
        return json.loads(payload)


class FrameChannel:
    """Frames from a buffered reader and to a descriptor. One thread may send while another receives."""

    def __init__(self, reader: Any, writer: int) -> None:  # a BufferedReader; for typeshed stdin's is a BinaryIO
        self._reader, self._writer = reader, writer
        self.frames = FrameRules()
        self._waiting = bytearray()
        self._block = memoryview(bytearray(BLOCK))
        self._sends_files = hasattr(os, "sendfile")

    def send(self, kind: bytes, value: Any) -> None:  # JSON
        """Queue a frame, to be sent with the following ones. Raises `PeerLostError`."""
        payload = json.dumps(value, separators=(",", ":")).encode()
        self._waiting += _HEAD.pack(kind, len(payload)) + payload
        if len(self._waiting) > BLOCK:
            self.flush()

    def send_block(self, block: memoryview) -> None:
        """Send bytes of a file. Raises `PeerLostError`."""
        self._waiting += _HEAD.pack(b"D", len(block))
        if len(block) >= BLOCK // 4:
            self.flush(block)
            return
        self._waiting += block
        if len(self._waiting) > BLOCK:
            self.flush()

    def send_part(self, file: int, offset: int, length: int) -> int:
        """Send a block of a file from an offset on; return its size, 0 at the end of the file. Raises `PeerLostError`.

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
                raise PeerLostError from error
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
        """Send the queued frames. Raises `PeerLostError`."""
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
            raise PeerLostError from error

    def receive(self) -> tuple[bytes, Any]:  # JSON, or a view that is good until the next call
        """Return the next frame. Raises `PeerLostError`, and `CopyRefusedError` for the fatal error of the other end."""
        kind, length = _HEAD.unpack(self._exactly(_HEAD.size))
        self.frames.check(kind, length)
        if kind == b"D":
            return kind, self._exactly(length)
        payload = self._reader.read(length)
        if len(payload) < length:
            raise PeerLostError
        value = self.frames.parse(kind, payload)
        if kind == b"X":
            raise CopyRefusedError(*value)
        return kind, value

    def _exactly(self, length: int) -> memoryview:
        view = self._block[:length]
        # A buffered reader reads on until the view is full.
        if self._reader.readinto(view) < length:
            raise PeerLostError
        return view


_UNSAID = 8 << 20  # bytes that may arrive before the sender is informed which files are complete
_LONGEST_NAME = 200  # of 255 bytes; the rest is for prefix and suffix
# After these errors every other file would fail too.
_HOPELESS = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "read-only", errno.EIO: "disk"}


def receive_files(
    channel: FrameChannel, keeper: FileReceiver, *, on_overview: Callable[[list[Any]], None] | None = None
) -> None:
    """Receive files until the end of the copy. Without `on_overview`, report the result of each file to the sender.

    `on_overview` gets the sender's overview. The client passes it, and sends a worker nothing about its own paths. Raises
    `PeerLostError`, and `CopyRefusedError` if no further file can be stored.
    """
    reported, unsaid = 0, 0
    while True:
        kind, value = channel.receive()
        if kind == b"D":
            keeper.write(value)
            unsaid += len(value)
        elif kind == b"S" and on_overview:
            on_overview(value)
            keeper.settle(value[0], value[1])
            channel.send(b"P", None)
        else:
            _obey(channel, keeper, kind, value)
        news = keeper.reports[reported:] if on_overview is None else []
        reported += len(news)
        for report in news:
            channel.send(b"R", report)
        if kind in {b"S", b"L", b"K"} or unsaid > _UNSAID or any(problem for _, problem in news):
            channel.flush()
            unsaid = 0
        if kind == b"Z":
            channel.send(b"Z", None)
            channel.flush()
            return


def _obey(channel: FrameChannel, keeper: FileReceiver, kind: bytes, value: Any) -> None:  # JSON
    if kind == b"F":
        keeper.begin(value)
    elif kind == b"E":
        keeper.end(*value)
    elif kind == b"S":
        channel.send(b"P", keeper.settle(value[0], value[1]))
    elif kind == b"L":
        kept_beginnings = [(number, keeper.expect(number, CopyEntry(*entry))) for number, *entry in value]
        channel.send(b"H", [one for one in kept_beginnings if one[1]])
    elif kind == b"K":
        channel.send(b"A", [number for number, known in value if keeper.confirm(number, known)])
    elif kind == b"Z":
        keeper.finish()
    else:
        raise PeerLostError


class FileReceiver:
    """Stores entries in a target: into it if it is a folder, else in its place.

    `reports` gets the number and the error of each finished entry. `place`: the decision of an earlier connection, because an
    incomplete copy must not be mistaken for a folder to copy into. `is_confined`: follow no symlink out of the target.
    """

    def __init__(
        self,
        target: bytes,
        *,
        umask: int,
        preserve: bool,
        place: CopyTarget | None = None,
        is_confined: bool = False,
        on_bytes: Callable[[int, int], None] = lambda skipped, arrived: None,  # noqa: ARG005  # no listener
    ) -> None:
        self._target, self._umask, self._preserve, self._on_bytes = target, umask, preserve, on_bytes
        self.place, self._is_confined = place, is_confined
        self.reports: list[tuple[int, str | None]] = []
        self.files, self.size = 0, 0  # complete files, and their bytes
        self._failed = False
        self._coming: dict[int, tuple[CopyEntry, bytes, bytes, os.stat_result | None]] = {}
        self._folders: list[tuple[bytes, CopyEntry, bool]] = []
        self._whole: set[int] = set()
        self._offered: dict[int, int] = {}  # bytes stored of a file, if the sender's file is the same
        self._agreed: dict[int, int] = {}  # bytes of it that are the same
        self._number = -1
        self._file = -1
        self._arrived = 0

    def settle(self, count: int, tree: str | None) -> CopyTarget:
        """Decide where entries go. `tree`: the key if a single folder is copied. Raises `CopyRefusedError`."""
        if self.place is None:
            self.place = self._decide(count, tree)
        return self.place

    def _decide(self, count: int, tree: str | None) -> CopyTarget:
        target = self._target
        if os.path.isdir(target):
            return CopyTarget(to_text(target), True, None)  # noqa: FBT003  # a row
        is_folder, target = target.endswith(b"/") and not tree, target.rstrip(b"/")
        if count > 1 and not is_folder:
            is_new = not os.path.lexists(target)
            raise CopyRefusedError(
                "new folder" if is_new else "target", f"`{path_text(target)}` is not an existing folder"
            )
        parent = os.path.dirname(os.path.realpath(target))
        if not os.path.isdir(parent):
            raise CopyRefusedError("target", f"there is no folder `{path_text(os.path.dirname(target) or parent)}`")
        if is_folder:
            try:
                os.mkdir(target)
            except OSError as error:
                raise CopyRefusedError("target", f"cannot create `{path_text(target)}`: {reason(error)}") from error
            return CopyTarget(to_text(target), True, None)  # noqa: FBT003  # as above
        if tree and os.path.lexists(target):
            raise CopyRefusedError("target", f"`{path_text(target)}` exists and is not a folder")
        if tree:
            return CopyTarget(to_text(_beside(target, tree)), False, to_text(target))  # noqa: FBT003  # as above
        return CopyTarget(to_text(target), False, None)  # noqa: FBT003  # as above

    def expect(self, number: int, entry: CopyEntry) -> int:
        """Prepare for an entry; return how many bytes of it may be stored already."""
        path = self._path(entry)
        try:
            if self._is_confined and self._leads_out(path):
                problem = f"`{path_text(path)}` is a symlink that leads out of the target"
                if entry.is_folder:
                    raise CopyRefusedError("target", problem)
                self._report(number, problem)
            elif entry.is_folder:
                is_new = not os.path.isdir(path)
                if is_new:
                    os.mkdir(path, (entry.mode & 0o777 & ~self._umask) | 0o700)
                self._folders.append((path, entry, is_new))
                self._report(number, None)
            elif length := self._kept_length(number, entry, os.path.realpath(path) if os.path.islink(path) else path):
                self._offered[number] = length
        except OSError as error:
            self._fail(number, path, error)
        return self._offered.get(number, 0)

    def _leads_out(self, path: bytes) -> bool:
        """Return whether a path below the target is a symlink out of it; the target itself may be a symlink."""
        place = self.place
        if place is None or not os.path.islink(path) or (path == to_bytes(place.root) and place.final is None):
            return False
        root = os.path.realpath(to_bytes(place.root) if place.is_into else self._target)
        return not os.path.realpath(path).startswith(root.rstrip(b"/") + b"/")

    def _kept_length(self, number: int, entry: CopyEntry, path: bytes) -> int:
        found = os.stat(path) if os.path.lexists(path) else None
        if found and not stat.S_ISREG(found.st_mode):
            what = "is a folder there" if stat.S_ISDIR(found.st_mode) else "is not a plain file there"
            self._report(number, f"`{path_text(path)}` {what}")
            return 0
        unfinished = _beside(path, entry.key)
        self._coming[number] = (entry, path, unfinished, found)
        if os.path.lexists(unfinished):
            part = os.lstat(unfinished)
            # A part that is longer than the file belongs to another one.
            if not stat.S_ISREG(part.st_mode) or part.st_size > entry.size:
                return 0
            return part.st_size if part.st_size == entry.size else part.st_size - part.st_size % STEP
        # The same command again: complete files are not sent again.
        if found and found.st_size == entry.size and (not entry.sample or sample(path, entry.size) == entry.sample):
            self._whole.add(number)
            return entry.size
        return 0

    def confirm(self, number: int, known: str) -> bool:
        """Return whether the stored bytes of a file match the sender's digest; then they are kept."""
        length = self._offered.pop(number, 0)
        if not length or number not in self._coming:
            return False
        _, path, unfinished, _ = self._coming[number]
        try:
            is_same = digest_of_beginning(path if number in self._whole else unfinished, length) == known
        except OSError:
            return False
        if is_same:
            self._agreed[number] = length
        return is_same

    def begin(self, number: int) -> None:
        """Begin a file, after its kept bytes."""
        offset = self._agreed.pop(number, 0)
        self._offered.pop(number, None)
        self._file, self._number, self._arrived = -1, number, offset
        if number not in self._coming:
            return
        entry, path, unfinished, _ = self._coming[number]
        self._on_bytes(offset, 0)
        if number in self._whole and offset == entry.size > 0:
            return
        self._whole.discard(number)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(unfinished, flags, 0o600)
            os.lseek(self._file, offset, os.SEEK_SET)
        except OSError as error:
            self._fail(number, path, error)

    def write(self, block: memoryview) -> None:
        """Write bytes of the current file. Raises `CopyRefusedError` if no other file can be stored either."""
        if self._file < 0:
            return
        try:
            left = block
            while left:
                left = left[os.write(self._file, left) :]
            self._arrived += len(block)
            self._on_bytes(0, len(block))
        except OSError as error:
            self.close()
            self._fail(self._number, self._coming[self._number][1], error)

    def end(self, number: int, problem: str | None) -> None:
        """Give a file its name and mode if it is complete and the sender reports no error."""
        coming = self._coming.pop(number, None)
        if coming is None:
            return  # already reported
        entry, path, unfinished, found = coming
        try:
            if problem is not None or self._arrived != entry.size:
                self._report(number, problem or f"`{path_text(path)}` is incomplete")
                return
            if number not in self._whole:
                os.ftruncate(self._file, entry.size)
                os.fchmod(self._file, found.st_mode & 0o777 if found else entry.mode & 0o777 & ~self._umask)
                if self._preserve:
                    _preserve(unfinished, entry)
                try:
                    os.rename(unfinished, path)
                except FileNotFoundError:
                    # An abandoned connection may have been faster: the file that it renamed is this one.
                    if not os.path.samestat(os.stat(path), os.fstat(self._file)):
                        raise
            elif self._preserve:
                _preserve(path, entry)
            self._report(number, None)
            self.files += 1
            self.size += entry.size
        except OSError as error:
            self._fail(number, path, error)
        finally:
            self.close()

    def finish(self) -> None:
        """Give folders their modes, and a complete tree its name. Raises `CopyRefusedError`."""
        for path, entry, is_new in reversed(self._folders):
            try:
                if self._preserve:
                    _preserve(path, entry)
                elif is_new:
                    os.chmod(path, entry.mode & 0o777 & ~self._umask)
            except OSError as error:
                self._failed = True
                raise CopyRefusedError("target", f"`{path_text(path)}`: {reason(error)}") from error
        place = self.place
        if place and place.final is not None and not self._failed:
            root, final = to_bytes(place.root), to_bytes(place.final)
            try:
                if os.path.lexists(root):
                    os.rename(root, final)
            except OSError as error:
                raise CopyRefusedError(
                    "target", f"`{path_text(root)}` cannot be renamed to `{path_text(final)}`: {reason(error)}"
                ) from error

    def _path(self, entry: CopyEntry) -> bytes:
        first, _, rest = entry.path.partition("/")
        # A worker is trusted about its files, not about their target on this machine.
        parts = [first, *rest.split("/")] if rest else [first]
        if {"", ".."} & {*parts} or "." in parts[1:] or "\0" in entry.path or self.place is None:
            raise CopyRefusedError("wrong", f"`{entry.path!a}` is not a valid path")
        return os.path.join(to_bytes(self.place.root), *map(to_bytes, parts if self.place.is_into else parts[1:]))

    def _report(self, number: int, problem: str | None) -> None:
        self.reports.append((number, problem))

    def _fail(self, number: int, path: bytes, error: OSError) -> None:
        self._failed = True
        self._coming.pop(number, None)
        problem = f"`{path_text(path)}`: {reason(error)}"
        if error.errno in _HOPELESS:
            raise CopyRefusedError(_HOPELESS[error.errno], problem) from error
        self._report(number, problem)

    def close(self) -> None:
        """Close the current file as it is."""
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)


def _preserve(path: bytes, entry: CopyEntry) -> None:
    # Without setuid and setgid bits: the owner differs here.
    os.chmod(path, entry.mode & 0o777)
    os.utime(path, ns=(entry.mtime, entry.mtime))


def _beside(path: bytes, key: str) -> bytes:
    """Return the temporary name of an incomplete copy, in the folder of its final name."""
    name = os.path.basename(path)[:_LONGEST_NAME]
    return os.path.join(os.path.dirname(path), b".%s.tpuctl-%s" % (name, key.encode()))


BATCH = 512
# The client reads at most 4 MiB at once, and a byte of a name may become six characters.
_BATCH_ROOM, _NOTES_ROOM = 1 << 19, 1 << 18
_UNFINISHED = re.compile(rb"\..+\.tpuctl-[0-9a-f]{12}", re.DOTALL)


class FileListing(NamedTuple):
    """The files to send with their entries, what is left out, what cannot be read, and the number of requested sources."""

    files: list[tuple[bytes, CopyEntry]]
    notes: list[str]
    failed: list[str]
    named: int


def list_files(
    sources: Sequence[bytes], *, recurse: bool, names: Mapping[bytes, bytes] | None = None, hidden: bool = True
) -> FileListing:
    """Return all files to send, following links.

    `names`: of sources whose path does not contain their name. Without `hidden`, hidden files directly in a source `.` are left
    out: it has no folder of its own in the target. Raises `CopyRefusedError` for a source that does not exist, and for a folder
    without `recurse`.
    """
    listing = FileListing([], [], [], len(sources))
    for source in sources:
        name = (names or {}).get(source) or os.path.basename(source.rstrip(b"/")) or b"."
        name = os.path.basename(os.path.realpath(source)) if name == b".." else name
        try:
            found = os.stat(source)
        except OSError as error:
            kind = "missing" if error.errno in {errno.ENOENT, errno.ENOTDIR} else "refused"
            raise CopyRefusedError(kind, f"`{path_text(source)}`: {reason(error)}") from error
        if stat.S_ISDIR(found.st_mode) and not recurse:
            raise CopyRefusedError("folder", f"`{path_text(source)}` is a folder")
        _walk(listing, source, name, hidden=hidden)
    return listing


def _walk(listing: FileListing, top: bytes, name: bytes, *, hidden: bool) -> None:
    left: list[tuple[bytes, bytes, frozenset[tuple[int, int]]]] = [(top, name, frozenset())]
    while left:
        path, name, above = left.pop()
        try:
            found = os.stat(path)
            here = (found.st_dev, found.st_ino)
            if path != top and _UNFINISHED.fullmatch(os.path.basename(path)):
                listing.notes.append(f"`{path_text(path)}` is left out: it belongs to an unfinished copy")
            elif stat.S_ISDIR(found.st_mode) and here in above:
                listing.notes.append(
                    f"`{path_text(path)}` is left out: this link leads back to a folder that contains it"
                )
            elif stat.S_ISDIR(found.st_mode):
                inside = sorted(os.listdir(path), reverse=True)
                if name == b"." and not hidden:
                    why = "it is hidden, and the target is not empty: name it to copy it"
                    skipped = [os.path.join(path, one) for one in reversed(inside) if one.startswith(b".")]
                    listing.notes.extend(f"`{path_text(one)}` is left out: {why}" for one in skipped)
                    inside = [one for one in inside if not one.startswith(b".")]
                listing.files.append((path, _entry(path, name, found)))
                left += [(os.path.join(path, one), os.path.join(name, one), above | {here}) for one in inside]
            elif not stat.S_ISREG(found.st_mode):
                listing.notes.append(f"`{path_text(path)}` is left out: it is not a plain file")
            elif not os.access(path, os.R_OK):
                listing.failed.append(f"`{path_text(path)}`: permission denied")
            else:
                listing.files.append((path, _entry(path, name, found)))
        except OSError as error:
            if os.path.islink(path):
                listing.notes.append(f"`{path_text(path)}` is left out: this link leads nowhere")
            else:
                listing.failed.append(f"`{path_text(path)}`: {reason(error)}")


def _entry(path: bytes, name: bytes, found: os.stat_result) -> CopyEntry:
    is_folder = stat.S_ISDIR(found.st_mode)
    version = b"" if is_folder else b"%d %d " % (found.st_size, found.st_mtime_ns)
    key = hashlib.blake2b(version + os.path.abspath(path), digest_size=6).hexdigest()
    size = 0 if is_folder else found.st_size
    known = sample(path, size) if size > STEP else ""
    return CopyEntry(is_folder, to_text(name), size, found.st_mode, found.st_mtime_ns, key, known)


class FileSender:
    """Sends a listing.

    `digest_of` reads the beginning of a file; `on_bytes` gets the bytes that need not be sent, and the bytes sent. `questions`:
    the kinds of the expected answers, in their order; `listed` and `ended`: the files announced to the receiver, and those sent
    completely; each grows before the corresponding frame is sent.
    """

    def __init__(
        self,
        channel: FrameChannel,
        listing: FileListing,
        *,
        digest_of: Callable[[bytes, int], str] = digest_of_beginning,
        on_bytes: Callable[[int, int], None] = lambda skipped, sent: None,  # noqa: ARG005  # no listener
    ) -> None:
        self._channel, self._listing, self._digest_of, self._on_bytes = channel, listing, digest_of, on_bytes
        self.questions: list[bytes] = []
        self.listed: set[int] = set()
        self.ended: set[int] = set()

    def send(self, answer: Callable[[bytes], Any], done: Container[int] = (), refused: Container[int] = ()) -> None:
        """Send all files that are not `done`, and stop with one as soon as it is `refused`.

        `answer` waits for a frame of a kind. Raises `PeerLostError`.
        """
        listing = self._listing
        entries = [entry for _, entry in listing.files]
        tree = entries[0].key if listing.named == 1 and entries and entries[0].is_folder else None
        size = sum(entry.size for entry in entries)
        self._ask(b"P", b"S", [listing.named, tree, len(entries), size, _first(listing.notes), _first(listing.failed)])
        answer(b"P")
        left = [number for number in range(len(entries)) if number not in done]
        for batch in _batches(left, entries):
            self.listed.update(batch)
            self._ask(b"H", b"L", [[number, *entries[number]] for number in batch])
            kept: dict[int, int] = {}
            if kept_beginnings := answer(b"H"):
                # The receiver keeps its beginning of a file if the digests match.
                self._ask(b"A", b"K", [[number, self._digest(number, length)] for number, length in kept_beginnings])
                agreed = set(answer(b"A"))
                kept = {number: length for number, length in kept_beginnings if number in agreed}
            for number in batch:
                if not entries[number].is_folder and number not in refused:
                    self._send_file(number, kept.get(number, 0), refused)
                self.ended.add(number)
        self._ask(b"Z", b"Z", None)

    def _ask(self, answer: bytes, kind: bytes, value: Any) -> None:  # JSON
        self.questions.append(answer)
        self._channel.send(kind, value)
        self._channel.flush()

    def _digest(self, number: int, length: int) -> str | None:
        try:
            return self._digest_of(self._listing.files[number][0], length) or None
        except OSError:
            return None

    def _send_file(self, number: int, skipped: int, refused: Container[int]) -> None:
        path, entry = self._listing.files[number]
        problem = None
        self._channel.send(b"F", number)
        try:
            self._on_bytes(skipped, 0)
            left = entry.size - skipped
            with open(path, "rb", buffering=0) as file:
                at = skipped
                while left and number not in refused and (length := self._channel.send_part(file.fileno(), at, left)):
                    self._on_bytes(0, length)
                    at += length
                    left -= length
                now = os.fstat(file.fileno())
            if left or (now.st_size, now.st_mtime_ns) != (entry.size, entry.mtime):
                problem = f"`{path_text(path)}` changed during the copy"
        except OSError as error:
            problem = f"`{path_text(path)}`: {reason(error)}"
        self.ended.add(number)
        self._channel.send(b"E", [number, problem])


def _batches(numbers: Sequence[int], entries: Sequence[CopyEntry]) -> Iterator[list[int]]:
    """Yield the numbers in batches whose entries fit into a frame."""
    batch: list[int] = []
    room = _BATCH_ROOM
    for number in numbers:
        if len(batch) == BATCH or (batch and len(entries[number].path) > room):
            yield batch
            batch, room = [], _BATCH_ROOM
        batch.append(number)
        room -= len(entries[number].path)
    if batch:
        yield batch


def _first(texts: Sequence[str]) -> list[str]:
    """Return as many texts as fit into a frame, and the number of the others."""
    found: list[str] = []
    room = _NOTES_ROOM
    for text in texts:
        room -= len(text)
        if room < 0:
            found.append(f"{len(texts) - len(found)} more are not listed")
            break
        found.append(text)
    return found


def expand(patterns: Sequence[str]) -> list[bytes]:
    """Expand `~` and wildcards; a pattern without a match stays unchanged."""
    import glob  # noqa: PLC0415  # only where something is fetched

    found = []
    for pattern in patterns:
        path = os.path.expanduser(pattern.encode("utf-8", "surrogateescape"))
        found += [path] if os.path.lexists(path) else sorted(glob.glob(path)) or [path]
    return found
