# ruff: noqa: PTH114, PTH115, PTH118, PTH120  # names of files are bytes here, which pathlib does not know
"""List the files of a folder: in a git tree those that git tracks or would track, else all. Never follows symlinks."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.errors import InvalidInputError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class Entry(NamedTuple):
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
class Tree:
    """The files of a folder to send, and notes about skipped files."""

    folder: Path
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()


def read_tree(folder: Path, *, home: Path | None = None) -> Tree:
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
    return Tree(folder, entries, tuple(dict.fromkeys(reader.notes)))


def worker_folder(source: Path) -> str:
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

    def from_git(self, below: bytes) -> Iterator[Entry]:
        """Yield the files that git lists in a folder, and in the git trees inside it."""
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
                self.notes.append(f"submodule `{_text(path)}` is not checked out: skipped")

    def from_disk(self, below: bytes) -> Iterator[Entry]:
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

    def _entry(self, path: bytes, status: os.stat_result) -> Iterator[Entry]:
        name, mode = _text(path), status.st_mode & 0o777
        if stat.S_ISREG(status.st_mode):
            yield Entry(name, mode, status.st_size, status.st_mtime_ns, None)
        elif stat.S_ISLNK(status.st_mode):
            yield Entry(name, mode, 0, 0, _text(os.readlink(os.path.join(self._root, path))))
        else:
            self.notes.append(f"`{name}` is neither a file nor a symlink: skipped")

    def _status(self, path: bytes) -> os.stat_result | None:
        """Return the current status. None if the file is gone, or its folder is a symlink now, which git treats as gone."""
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
    """Return the output of `git ls-files`: NUL-terminated names."""
    import subprocess  # noqa: PLC0415  # not needed by --help

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
