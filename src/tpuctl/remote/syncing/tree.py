# ruff: noqa: PTH114, PTH115, PTH118, PTH120  # names of files are bytes here, which pathlib does not know
"""What is to be sent of a folder: in a git tree, what git tracks or would; elsewhere, all. Symlinks are never followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.remote.syncing.values import Entry, Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

# A folder that came with its `.git` could name a program there, which git would run to hear what has changed.
_LIST = ("-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
# With these git, called from a hook, would speak of another tree than the folder's.
_OF_ANOTHER_TREE = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
)


def read_tree(folder: Path, *, home: Path | None = None) -> Tree:
    """Return the files of a folder that are to be sent.

    In a git tree these are the tracked ones and the untracked ones that are not ignored, those of submodules and of trees
    inside it too. Elsewhere it is every file, which a note says; but a home is refused, for the keys in it. Files that are
    deleted in the working tree, empty folders and `.git` are left out. Raises `InvalidInputError` for what is no folder or
    has no files, `TpuctlError` where git is missing or refuses.
    """
    try:
        folder = folder.resolve(strict=True)
    except OSError as error:
        raise InvalidInputError(f"there is no folder `{folder}`") from error
    if not folder.is_dir():
        raise InvalidInputError(f"`{folder}` is no folder", hint="name the folder that it is in")
    reader = _Reader(folder)
    if any(os.path.lexists(one / ".git") for one in (folder, *folder.parents)):
        found = reader.from_git(b"")
        why = "git tracks nothing there, and ignores the rest"
    else:
        if folder == Path("/") or (home is not None and folder == home.resolve()):
            raise InvalidInputError(f"`{folder}` is sent only as a git tree", hint="sync a folder below it")
        reader.notes.append(f"`{folder}` is in no git tree: all its files are sent; after `git init` .gitignore counts")
        found = reader.from_disk(b"")
        why = "it is empty"
    entries = tuple({entry.path: entry for entry in found}.values())
    if not entries:
        raise InvalidInputError(f"`{folder}` has no files to send: {why}")
    return Tree(folder, entries, tuple(dict.fromkeys(reader.notes)))


def worker_folder(source: Path) -> str:
    """Return where the files of a folder go when nobody says where: below the home, under its name."""
    name = source.resolve().name
    if not name:
        raise InvalidInputError("`/` has no name that a folder on the workers could have", hint="use `--to PATH`")
    return f"~/{name}"


class _Reader:
    """Reads one folder. Names are relative to it."""

    def __init__(self, folder: Path) -> None:
        self._root = os.fsencode(folder)
        self._real: dict[bytes, bool] = {b"": True}
        self.notes: list[str] = []

    def from_git(self, below: bytes) -> Iterator[Entry]:
        """Yield what git knows of a folder, and of the trees inside it."""
        for name in dict.fromkeys(_git(os.path.join(self._root, below).rstrip(b"/") or b"/").split(b"\0")):
            if not name:
                continue
            path = os.path.join(below, name.rstrip(b"/"))
            status = self._status(path)
            if status is None:
                continue
            if not stat.S_ISDIR(status.st_mode):
                yield from self._entry(path, status)
            elif os.path.lexists(os.path.join(self._root, path, b".git")):
                yield from self.from_git(path)
            else:
                self.notes.append(f"submodule `{_text(path)}` is not checked out: nothing of it is sent")

    def from_disk(self, below: bytes) -> Iterator[Entry]:
        """Yield all files of a folder; of git trees inside it what git knows."""
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

    def _entry(self, path: bytes, status: os.stat_result) -> Iterator[Entry]:
        name, mode = _text(path), status.st_mode & 0o777
        if stat.S_ISREG(status.st_mode):
            yield Entry(name, mode, status.st_size, status.st_mtime_ns, None)
        elif stat.S_ISLNK(status.st_mode):
            yield Entry(name, mode, 0, 0, _text(os.readlink(os.path.join(self._root, path))))
        else:
            self.notes.append(f"`{name}` is neither a file nor a symlink: it is not sent")

    def _status(self, path: bytes) -> os.stat_result | None:
        """Return what is there now. A file whose folder has become a symlink is gone, as git sees it."""
        if not self._is_real(os.path.dirname(path)):
            return None
        try:
            return os.lstat(os.path.join(self._root, path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _is_real(self, parent: bytes) -> bool:
        if parent not in self._real:
            above = self._is_real(os.path.dirname(parent))
            self._real[parent] = above and not os.path.islink(os.path.join(self._root, parent))
        return self._real[parent]


def _git(folder: bytes) -> bytes:
    """Return the names that git knows below a folder, each ended by a NUL."""
    import subprocess  # noqa: PLC0415  # not needed by --help

    environ = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_TREE}
    try:
        done = subprocess.run(["git", *_LIST], cwd=folder, env=environ, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise TpuctlError(
            f"`{_text(folder)}` is in a git tree, and there is no `git` on PATH to ask what it ignores",
            hint="install git",
        ) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise TpuctlError(f"git cannot list `{_text(folder)}`: {said}")
    return done.stdout


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
