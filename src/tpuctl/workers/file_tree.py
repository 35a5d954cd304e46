# ruff: noqa: PTH114, PTH115, PTH118, PTH120  # names of files are bytes here, which pathlib does not know

"""List the files of a folder, and read them: in a git tree those that git tracks or would track, else all.

Never follows symlinks. Small files are read once for all workers; no partial file is sent.
"""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.ssh.agent.sync_tree import END, HEAD, SIZE, digest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from io import FileIO

# A repository may hold a folder that looks like a bare one, with a configuration of its own: git would run what
# `core.fsmonitor` names there. The same for a tree that came as an archive [git documentation, safe.bareRepository].
_SAFE_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit")
_LIST = (*_SAFE_OPTIONS, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
# In a git hook, these would direct git to another tree than the folder's.
_GIT_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
)


class TreeEntry(NamedTuple):
    """A file or a symlink of a tree."""

    # Relative to the folder of the tree. Surrogates stand for bytes that are not UTF-8.
    path: str
    # The nine permission bits.
    mode: int
    # In bytes.
    size: int
    mtime_ns: int
    # The target of a symlink; None for a file.
    target: str | None


@dataclass(frozen=True, slots=True)
class FileTree:
    """The files of a folder to send, and notes about skipped files."""

    folder: Path
    entries: tuple[TreeEntry, ...]
    notes: tuple[str, ...] = ()


def read_tree(folder: Path, *, home: Path | None = None) -> FileTree:
    """List the files of a folder to send.

    In a git tree these are tracked files and untracked files that are not ignored, also those of submodules and of git trees
    inside it. Elsewhere all files are listed, with a note, but a home folder is refused because it contains keys. Files that
    are deleted in the working tree, empty folders and `.git` are skipped. Raises `InvalidInputError` for a missing folder, a
    file or an empty folder, and `TpuctlError` if git is missing or fails.
    """
    try:
        folder = folder.resolve(strict=True)
    except OSError as error:
        raise InvalidInputError(f"no such folder: `{folder}`") from error
    if not folder.is_dir():
        raise InvalidInputError(f"`{folder}` is not a folder", hint="use the folder that contains it")
    reader = _TreeReader(folder)
    if any(os.path.lexists(one / ".git") for one in (folder, *folder.parents)):
        found = reader.from_git(b"")
        why = "git tracks no file in it, and ignores the others"
    else:
        if folder == Path("/") or (home is not None and folder == home.resolve()):
            raise InvalidInputError(
                f"`{folder}` is not a git tree, so it is not synced as a whole", hint="sync a folder in it"
            )
        reader.notes.append(f"`{folder}` is not in a git tree: sending all its files; run `git init` to use .gitignore")
        found = reader.from_disk(b"")
        why = "it is empty"
    entries = tuple({entry.path: entry for entry in found}.values())
    if not entries:
        raise InvalidInputError(f"`{folder}` has no files to send: {why}")
    return FileTree(folder, entries, tuple(dict.fromkeys(reader.notes)))


def default_worker_folder(source: Path) -> str:
    """Return the default folder on the workers: in the home, with the name of the source."""
    name = source.resolve().name
    if not name:
        raise InvalidInputError("`/` has no name for a folder on the workers", hint="use `--to PATH`")
    return f"~/{name}"


class _TreeReader:
    """Reads one folder. Names are relative to it."""

    def __init__(self, folder: Path) -> None:
        self._root = os.fsencode(folder)
        self._real: dict[bytes, bool] = {b"": True}
        self.notes: list[str] = []

    def from_git(self, below: bytes) -> Iterator[TreeEntry]:
        """Yield the files that git lists in a folder, and in the git trees inside it."""
        for name in dict.fromkeys(_git(os.path.join(self._root, below).rstrip(b"/") or b"/").split(b"\0")):
            if not name:
                continue
            path = os.path.join(below, name.rstrip(b"/"))
            # git treats a file as gone if its folder is a symlink now.
            if not self._is_real(os.path.dirname(path)):
                continue
            try:
                status = os.lstat(os.path.join(self._root, path))
            except (FileNotFoundError, NotADirectoryError):
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield from self._entry(path, status)
            elif os.path.lexists(os.path.join(self._root, path, b".git")):
                yield from self.from_git(path)
            else:
                self.notes.append(f"submodule `{_text(path)}` is not checked out: skipped")

    def from_disk(self, below: bytes) -> Iterator[TreeEntry]:
        """Yield all files of a folder; for git trees inside it, the files that git lists."""
        with os.scandir(os.path.join(self._root, below)) as found:
            items = sorted(found, key=lambda item: item.name)
        for item in items:
            path = os.path.join(below, item.name)
            if not item.is_dir(follow_symlinks=False):
                yield from self._entry(path, item.stat(follow_symlinks=False))
            elif os.path.lexists(os.path.join(self._root, path, b".git")):
                yield from self.from_git(path)
            else:
                yield from self.from_disk(path)

    def _entry(self, path: bytes, status: os.stat_result) -> Iterator[TreeEntry]:
        name, mode = _text(path), status.st_mode & 0o777
        if stat.S_ISREG(status.st_mode):
            yield TreeEntry(name, mode, status.st_size, status.st_mtime_ns, None)
        elif stat.S_ISLNK(status.st_mode):
            yield TreeEntry(name, mode, 0, 0, _text(os.readlink(os.path.join(self._root, path))))
        else:
            self.notes.append(f"`{name}` is neither a file nor a symlink: skipped")

    def _is_real(self, parent: bytes) -> bool:
        if parent not in self._real:
            above = self._is_real(os.path.dirname(parent))
            self._real[parent] = above and not os.path.islink(os.path.join(self._root, parent))
        return self._real[parent]


def _git(folder: bytes) -> bytes:
    """Return the output of `git ls-files`: NUL-terminated names."""
    environ = {name: value for name, value in os.environ.items() if name not in _GIT_VARIABLES}
    try:
        done = subprocess.run(["git", *_LIST], cwd=folder, env=environ, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise TpuctlError(
            f"`{_text(folder)}` is in a git tree, and `git` is not on PATH",
            hint="install git: it lists the files to send",
        ) from error
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise TpuctlError(f"git cannot list `{_text(folder)}`: {message}")
    return done.stdout


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


_BLOCK = 256 * 1024
# Files of at most one block are cached for the other workers, up to this many bytes.
_CACHE_SIZE = 32 * 1024 * 1024
_MAX_TRIES = 3
_WHOLE, _CHANGED = SIZE.pack(0) + b"\1", SIZE.pack(0) + b"\0"


class TreeContents:
    """Reads the files of a tree. Thread-safe.

    `unreadable` are the files that could not be sent, with the reasons. Files that were deleted meanwhile are not among them.
    """

    def __init__(self, tree: FileTree) -> None:
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
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123  # a descriptor, not a path
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
