"""The receiving end of a copy: every file has a temporary name until it is complete. Nothing is ever deleted.

Part of a program for workers: Python 3.8, the standard library.
"""
# ruff: noqa: PTH  # paths are bytes here, which pathlib does not know

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from tpuctl.remote.onboard.copy_frames import (
    STEP,
    Channel,
    Entry,
    LostError,
    Place,
    RefusedError,
    digest,
    reason,
    sample,
    shown,
    to_bytes,
    to_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_UNSAID = 8 << 20  # bytes that may arrive before the sender is informed which files are complete
_LONGEST_NAME = 200  # of 255 bytes; the rest is for prefix and suffix
# After these errors every other file would fail too.
_HOPELESS = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EROFS: "read-only", errno.EIO: "disk"}


def keep(channel: Channel, keeper: Keeper, *, hear: Callable[[list[Any]], None] | None = None) -> None:
    """Receive files until the end of the copy. Without `hear`, report the result of each file to the sender.

    `hear` gets the sender's overview. The client passes it, and sends a worker nothing about its own paths. Raises `LostError`,
    and `RefusedError` if no further file can be stored.
    """
    reported, unsaid = 0, 0
    while True:
        kind, value = channel.receive()
        if kind == b"D":
            keeper.write(value)
            unsaid += len(value)
        elif kind == b"S" and hear:
            hear(value)
            keeper.settle(value[0], value[1])
            channel.send(b"P", None)
        else:
            _obey(channel, keeper, kind, value)
        news = keeper.reports[reported:] if hear is None else []
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


def _obey(channel: Channel, keeper: Keeper, kind: bytes, value: Any) -> None:  # JSON
    if kind == b"F":
        keeper.begin(value)
    elif kind == b"E":
        keeper.end(*value)
    elif kind == b"S":
        channel.send(b"P", keeper.settle(value[0], value[1]))
    elif kind == b"L":
        held = [(number, keeper.expect(number, Entry(*entry))) for number, *entry in value]
        channel.send(b"H", [one for one in held if one[1]])
    elif kind == b"K":
        channel.send(b"A", [number for number, known in value if keeper.confirm(number, known)])
    elif kind == b"Z":
        keeper.finish()
    else:
        raise LostError


class Keeper:
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
        place: Place | None = None,
        is_confined: bool = False,
        tell: Callable[[int, int], None] = lambda skipped, arrived: None,  # noqa: ARG005  # no listener
    ) -> None:
        self._target, self._umask, self._preserve, self._tell = target, umask, preserve, tell
        self.place, self._is_confined = place, is_confined
        self.reports: list[tuple[int, str | None]] = []
        self.files, self.size = 0, 0  # complete files, and their bytes
        self._failed = False
        self._coming: dict[int, tuple[Entry, bytes, bytes, os.stat_result | None]] = {}
        self._folders: list[tuple[bytes, Entry, bool]] = []
        self._whole: set[int] = set()
        self._offered: dict[int, int] = {}  # bytes stored of a file, if the sender's file is the same
        self._agreed: dict[int, int] = {}  # bytes of it that are the same
        self._number = -1
        self._file = -1
        self._arrived = 0

    def settle(self, count: int, tree: str | None) -> Place:
        """Decide where entries go. `tree`: the key if a single folder is copied. Raises `RefusedError`."""
        if self.place is None:
            self.place = self._decide(count, tree)
        return self.place

    def _decide(self, count: int, tree: str | None) -> Place:
        target = self._target
        if os.path.isdir(target):
            return Place(to_text(target), True, None)  # noqa: FBT003  # a row
        is_folder, target = target.endswith(b"/") and not tree, target.rstrip(b"/")
        if count > 1 and not is_folder:
            is_new = not os.path.lexists(target)
            raise RefusedError("new folder" if is_new else "target", f"`{shown(target)}` is not an existing folder")
        parent = os.path.dirname(os.path.realpath(target))
        if not os.path.isdir(parent):
            raise RefusedError("target", f"there is no folder `{shown(os.path.dirname(target) or parent)}`")
        if is_folder:
            try:
                os.mkdir(target)
            except OSError as error:
                raise RefusedError("target", f"cannot create `{shown(target)}`: {reason(error)}") from error
            return Place(to_text(target), True, None)  # noqa: FBT003  # as above
        if tree and os.path.lexists(target):
            raise RefusedError("target", f"`{shown(target)}` exists and is not a folder")
        if tree:
            return Place(to_text(_beside(target, tree)), False, to_text(target))  # noqa: FBT003  # as above
        return Place(to_text(target), False, None)  # noqa: FBT003  # as above

    def expect(self, number: int, entry: Entry) -> int:
        """Prepare for an entry; return how many bytes of it may be stored already."""
        path = self._path(entry)
        try:
            if self._is_confined and self._leads_out(path):
                problem = f"`{shown(path)}` is a symlink that leads out of the target"
                if entry.is_folder:
                    raise RefusedError("target", problem)
                self._report(number, problem)
            elif entry.is_folder:
                is_new = not os.path.isdir(path)
                if is_new:
                    os.mkdir(path, (entry.mode & 0o777 & ~self._umask) | 0o700)
                self._folders.append((path, entry, is_new))
                self._report(number, None)
            elif length := self._held(number, entry, os.path.realpath(path) if os.path.islink(path) else path):
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

    def _held(self, number: int, entry: Entry, path: bytes) -> int:
        found = os.stat(path) if os.path.lexists(path) else None
        if found and not stat.S_ISREG(found.st_mode):
            what = "is a folder there" if stat.S_ISDIR(found.st_mode) else "is not a plain file there"
            self._report(number, f"`{shown(path)}` {what}")
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
            is_same = digest(path if number in self._whole else unfinished, length) == known
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
        self._tell(offset, 0)
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
        """Write bytes of the current file. Raises `RefusedError` if no other file can be stored either."""
        if self._file < 0:
            return
        try:
            left = block
            while left:
                left = left[os.write(self._file, left) :]
            self._arrived += len(block)
            self._tell(0, len(block))
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
                self._report(number, problem or f"`{shown(path)}` is incomplete")
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
        """Give folders their modes, and a complete tree its name. Raises `RefusedError`."""
        for path, entry, is_new in reversed(self._folders):
            try:
                if self._preserve:
                    _preserve(path, entry)
                elif is_new:
                    os.chmod(path, entry.mode & 0o777 & ~self._umask)
            except OSError as error:
                self._failed = True
                raise RefusedError("target", f"`{shown(path)}`: {reason(error)}") from error
        place = self.place
        if place and place.final is not None and not self._failed:
            root, final = to_bytes(place.root), to_bytes(place.final)
            try:
                if os.path.lexists(root):
                    os.rename(root, final)
            except OSError as error:
                raise RefusedError(
                    "target", f"`{shown(root)}` cannot be renamed to `{shown(final)}`: {reason(error)}"
                ) from error

    def _path(self, entry: Entry) -> bytes:
        first, _, rest = entry.path.partition("/")
        # A worker is trusted about its files, not about their target on this machine.
        parts = [first, *rest.split("/")] if rest else [first]
        if {"", ".."} & {*parts} or "." in parts[1:] or "\0" in entry.path or self.place is None:
            raise RefusedError("wrong", f"`{entry.path!a}` is not a valid path")
        return os.path.join(to_bytes(self.place.root), *map(to_bytes, parts if self.place.is_into else parts[1:]))

    def _report(self, number: int, problem: str | None) -> None:
        self.reports.append((number, problem))

    def _fail(self, number: int, path: bytes, error: OSError) -> None:
        self._failed = True
        self._coming.pop(number, None)
        problem = f"`{shown(path)}`: {reason(error)}"
        if error.errno in _HOPELESS:
            raise RefusedError(_HOPELESS[error.errno], problem) from error
        self._report(number, problem)

    def close(self) -> None:
        """Close the current file as it is."""
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)


def _preserve(path: bytes, entry: Entry) -> None:
    # Without setuid and setgid bits: the owner differs here.
    os.chmod(path, entry.mode & 0o777)
    os.utime(path, ns=(entry.mtime, entry.mtime))


def _beside(path: bytes, key: str) -> bytes:
    """Return the temporary name of an incomplete copy, in the folder of its final name."""
    name = os.path.basename(path)[:_LONGEST_NAME]
    return os.path.join(os.path.dirname(path), b".%s.tpuctl-%s" % (name, key.encode()))
