# ruff: noqa: PTH118, PTH123  # names of files are bytes here, which pathlib does not know
"""Read the contents of a tree's files for sending. Small files are read once for all workers; no partial file is sent."""

from __future__ import annotations

import os
import stat
from threading import Lock
from typing import TYPE_CHECKING

from tpuctl.remote.onboard.tree import END, HEAD, SIZE, digest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from io import FileIO

    from tpuctl.remote.syncing.tree import Tree

_BLOCK = 256 * 1024
# Files of at most one block are cached for the other workers, up to this many bytes.
_CACHE_SIZE = 32 * 1024 * 1024
_MAX_TRIES = 3
_WHOLE, _CHANGED = SIZE.pack(0) + b"\1", SIZE.pack(0) + b"\0"


class Contents:
    """Reads the files of a tree. Thread-safe.

    `unreadable` are the files that could not be sent, with the reasons. Files that were deleted meanwhile are not among them.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._root = os.fsencode(tree.folder)
        self._small: dict[int, bytes] = {}
        self._room = _CACHE_SIZE
        self._digests: dict[int, str | None] = {}
        self._lock = Lock()
        self.unreadable: dict[str, str] = {}

    def stream(self, numbers: Iterable[int]) -> Iterator[bytes]:
        """Yield the files, and the end mark, in the format of the program on the worker."""
        waiting: list[bytes] = []
        size = 0
        for number in numbers:
            for piece in self._file(number):
                waiting.append(piece)
                size += len(piece)
                if size >= _BLOCK:
                    yield b"".join(waiting)
                    waiting, size = [], 0
        waiting.append(HEAD.pack(END, 0, 0))
        yield b"".join(waiting)

    def digest(self, number: int) -> str | None:
        """Return a digest of the contents. None if the file cannot be read."""
        with self._lock:
            if number not in self._digests:
                try:
                    self._digests[number] = digest(self._path(number))
                except OSError:
                    self._digests[number] = None
            return self._digests[number]

    def _path(self, number: int) -> bytes:
        return os.path.join(self._root, self._tree.entries[number].path.encode("utf-8", "surrogateescape"))

    def _file(self, number: int) -> Iterator[bytes]:
        if number in self._small:
            yield self._small[number]
            return
        name = self._tree.entries[number].path
        try:
            for _ in range(_MAX_TRIES):
                if (yield from self._read(number)):
                    return
            self.unreadable[name] = "it kept changing while it was read"
        except FileNotFoundError:
            return
        except OSError as error:
            self.unreadable[name] = (error.strerror or str(error)).lower()

    def _read(self, number: int) -> Generator[bytes, None, bool]:
        """Yield one file. Return False if it changed while it was read; the worker discards it then."""
        # Something else may have replaced the file: follow no symlink, and do not block on a pipe.
        descriptor = os.open(self._path(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                return False
            head = HEAD.pack(number, before.st_mode & 0o777, before.st_mtime_ns)
            if before.st_size > _BLOCK:
                yield head
                return (yield from _read_blocks(file, before))
            data = file.read(_BLOCK)
            if not _is_unchanged(file, before) or len(data) != before.st_size:
                return False
            piece = head + (SIZE.pack(len(data)) + data if data else b"") + _WHOLE
        with self._lock:
            if number not in self._small and self._room >= len(piece):
                self._room -= len(piece)
                self._small[number] = piece
        yield piece
        return True


def _read_blocks(file: FileIO, before: os.stat_result) -> Generator[bytes, None, bool]:
    total = 0
    try:
        while total <= before.st_size and (block := file.read(_BLOCK)):
            total += len(block)
            yield SIZE.pack(len(block))
            yield block
        is_whole = total == before.st_size and _is_unchanged(file, before)
    except OSError:
        yield _CHANGED  # the worker waits for the end of the file
        raise
    yield _WHOLE if is_whole else _CHANGED
    return is_whole


def _is_unchanged(file: FileIO, before: os.stat_result) -> bool:
    after = os.fstat(file.fileno())
    return (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
