# ruff: noqa: PTH114, PTH115, PTH118, PTH119, PTH120  # names of files are bytes here, which pathlib does not know

"""List the files of a folder: in a git tree those that git tracks or would track, else all. Never follows symlinks."""

from __future__ import annotations

import os
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tpuctl.config.sources import adc_path
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.ssh.agent.tar_stream import FileEntry, to_bytes, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# A repository may hold a folder that looks like a bare one, with a configuration of its own: git would run what
# `core.fsmonitor` names there. The same for a tree that came as an archive [git documentation, safe.bareRepository].
_SAFE_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit")
_LIST = (*_SAFE_OPTIONS, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
_LIST_IGNORED = (*_SAFE_OPTIONS, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
# In a git hook, these would direct git to another tree than the folder's.
_GIT_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
)


# The file that google-github-actions/auth writes into the checkout [source: google-github-actions/auth, README].
_CREDENTIALS_OF_CI = b"gha-creds-*.json"
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FileTree:
    """The files of a folder to send, and notes about skipped files."""

    folder: Path
    entries: tuple[FileEntry, ...]
    notes: tuple[str, ...] = ()

    def path(self, number: int) -> bytes:
        """Return the path of an entry on this machine."""
        return os.path.join(os.fsencode(self.folder), to_bytes(self.entries[number].path))

    def size(self, numbers: Iterable[int]) -> int:
        """Return the size of these entries."""
        return sum(self.entries[number].size for number in numbers)


def read_tree(folder: Path, environ: Mapping[str, str] = _NO_VARIABLES) -> FileTree:
    """List the files of a folder to send, without the credentials file that `environ` names, and those of CI jobs.

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
    home = environ.get("HOME")
    reader = _TreeReader(folder, adc_path(environ))
    if _is_in_git_tree(folder):
        found = reader.from_git(b"")
        why = "git tracks no file in it, and ignores the others"
    else:
        if folder == Path("/") or (home and folder == Path(home).resolve()):
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


def count_ignored(folder: Path) -> int | None:
    """Return the number of files, and of whole folders, that git ignores in a folder; None outside of a git tree."""
    return _git(os.fsencode(folder), _LIST_IGNORED).count(b"\0") if _is_in_git_tree(folder) else None


def _is_in_git_tree(folder: Path) -> bool:
    return any(os.path.lexists(one / ".git") for one in (folder, *folder.parents))


def read_copy(folder: Path) -> FileTree:
    """List all files of a folder that has nothing but files that `read_tree` listed elsewhere."""
    return FileTree(folder, tuple(_TreeReader(folder, folder / ".no-such-file").from_disk(b"")))


def default_worker_folder(source: Path) -> str:
    """Return the default folder on the workers: in the home, with the name of the source."""
    name = source.resolve().name
    if not name:
        raise InvalidInputError("`/` has no name for a folder on the workers", hint="use `--to PATH`")
    return f"~/{name}"


class _TreeReader:
    """Reads one folder. Names are relative to it."""

    def __init__(self, folder: Path, credentials: Path) -> None:
        self._root = os.fsencode(folder)
        self._credentials: os.stat_result | None = None
        with suppress(OSError, ValueError):
            self._credentials = credentials.stat()
        self._real: dict[bytes, bool] = {b"": True}
        self.notes: list[str] = []

    def from_git(self, below: bytes) -> Iterator[FileEntry]:
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
                self.notes.append(f"submodule `{to_text(path)}` is not checked out: skipped")

    def from_disk(self, below: bytes) -> Iterator[FileEntry]:
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

    def _entry(self, path: bytes, status: os.stat_result) -> Iterator[FileEntry]:
        name = to_text(path)
        is_login = self._credentials is not None and os.path.samestat(status, self._credentials)
        if is_login or fnmatchcase(os.path.basename(path), _CREDENTIALS_OF_CI):
            self.notes.append(f"`{name}` contains the credentials of this machine: skipped")
        elif stat.S_ISREG(status.st_mode):
            yield FileEntry(name, status.st_mode, status.st_size, status.st_mtime_ns)
        elif stat.S_ISLNK(status.st_mode):
            yield FileEntry(name, status.st_mode, 0, 0, to_text(os.readlink(os.path.join(self._root, path))))
        else:
            self.notes.append(f"`{name}` is neither a file nor a symlink: skipped")

    def _is_real(self, parent: bytes) -> bool:
        if parent not in self._real:
            above = self._is_real(os.path.dirname(parent))
            self._real[parent] = above and not os.path.islink(os.path.join(self._root, parent))
        return self._real[parent]


def _git(folder: bytes, words: Sequence[str] = _LIST) -> bytes:
    """Return the output of `git ls-files`: NUL-terminated names."""
    environ = {name: value for name, value in os.environ.items() if name not in _GIT_VARIABLES}
    try:
        done = subprocess.run(["git", *words], cwd=folder, env=environ, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise TpuctlError(
            f"`{to_text(folder)}` is in a git tree, and `git` is not on PATH",
            hint="install git: it lists the files to send",
        ) from error
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        raise TpuctlError(f"git cannot list `{to_text(folder)}`: {message}")
    return done.stdout
