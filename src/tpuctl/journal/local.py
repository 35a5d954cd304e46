"""The journal on the local disk: one private file for each node, PROJECT/ZONE/NAME.jsonl.

Every process locks the file to write and to read, so that it can be rotated while others write: NAME.1.jsonl gets the
older half. On a file system without locks, lines are still written whole, and nothing is rotated.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.journal.lines import halves, joined
from tpuctl.journal.store import LIMIT, JournalError, UnreadableJournalError
from tpuctl.names import NodeName
from tpuctl.platforms import write_to_disk
from tpuctl.private import make_private, read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FULL = "the disk is full"


class LocalStore:
    """The files below one folder, which the first write creates. `warn` is called for files that cannot be read."""

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = lambda _: None) -> None:
        self._folder, self._warn = folder, warn
        self._safe: set[Path] = set()

    def append(self, name: NodeName, line: bytes, *, durable: bool) -> None:
        """Write a line. A durable line is on the disk when this returns."""
        path = self._path(name)
        try:
            make_private(path.parent)
            with _locked(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as (handle, is_locked):
                size = _write(path, handle, line, may_take_back=is_locked)
                if durable:
                    write_to_disk(handle)
                    self._sync_folders(path)
                if is_locked and size > LIMIT:
                    _rotate(path, _rotated(path))
        except OSError as error:
            raise JournalError(path, error.strerror or str(error)) from error

    def read(self, name: NodeName, *, rotated: bool) -> bytes:
        """Return the content of the files. For a file that cannot be read, `warn` is called and nothing is returned."""
        path = self._path(name)
        try:
            with _locked(path, os.O_RDONLY, fcntl.LOCK_SH):
                newer = read_bounded(path)
                older = read_bounded(_rotated(path)) if rotated and _rotated(path).exists() else b""
        except FileNotFoundError:
            return b""
        except OSError as error:
            self._warn(f"cannot read the journal: {path}: {error.strerror or error}")
            return b""
        return joined(older, newer)

    def check(self, name: NodeName | None) -> None:
        """Raise `UnreadableJournalError` if the file of a node, or without a name one of the folders, cannot be read."""
        place = self._path(name) if name else self._folder
        try:
            if name:
                read_bounded(place)
                return
            for place in (self._folder, *self._folder.glob("*/"), *self._folder.glob("*/*/")):
                list(place.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnreadableJournalError(place, error.strerror or str(error)) from error

    def names(self) -> list[NodeName]:
        """Return the nodes that have a file, sorted."""
        return sorted(_name(path) for path in self._files("*/*"))

    def recent(self, project: str, zone: str) -> list[NodeName]:
        """Return the nodes of a project: first those of the zone, then the others, each the most recent first."""
        dated = []
        for path in self._files(f"{_folder_of(project)}/*"):
            with suppress(OSError):
                dated.append((path.parent.name == zone, path.stat().st_mtime_ns, path))
        return [_name(path) for _, _, path in sorted(dated, reverse=True)]

    def where(self, name: NodeName) -> str:
        """Return the path of a node's file."""
        return str(self._path(name))

    def flush(self, *, only_due: bool) -> None:
        """Do nothing: every line is written at once."""

    def _files(self, pattern: str) -> Iterator[Path]:
        # A node name has no dot: a file with one is a rotated file.
        return (path for path in self._folder.glob(f"{pattern}/*.jsonl") if "." not in path.stem)

    def _path(self, name: NodeName) -> Path:
        return self._folder / _folder_of(name.project) / name.zone / f"{name.node_id}.jsonl"

    def _sync_folders(self, path: Path) -> None:
        """Write the folders to the disk, once in this process, so that the file survives a power failure."""
        if path in self._safe:
            return
        for folder in path.relative_to(self._folder).parents:
            _sync(self._folder / folder)
        _sync(self._folder.parent)
        self._safe.add(path)


def _write(path: Path, handle: int, line: bytes, *, may_take_back: bool) -> int:
    """Write the whole line or none of it. Return the size of the file."""
    size = os.fstat(handle).st_size
    # A crash may have left a line without its end. The next line must not be lost with it.
    is_torn = size and os.pread(handle, 1, size - 1) != b"\n"
    text = b"\n" + line if is_torn else line
    if os.write(handle, text) < len(text):
        if may_take_back:
            os.ftruncate(handle, size)
        raise JournalError(path, _FULL)
    return size + len(text)


def _rotate(path: Path, aside: Path) -> None:
    """Move the older half to another file. If the disk is full or the file is too large to read, it keeps growing."""
    try:
        before = read_bounded(aside) if aside.exists() else b""
        older, newer = halves(read_bounded(path), before=before)
        # In this order, a crash in between leaves lines twice, but loses none.
        for target, content in ((aside, older), (path, newer)):
            _replace(target, content)
    except OSError:
        return


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name}.new")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            write_to_disk(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    _sync(target.parent)


@contextmanager
def _locked(path: Path, flags: int, kind: int) -> Iterator[tuple[int, bool]]:
    """Open a file and wait for its lock. Yield the handle, and whether the file system has locks."""
    while True:
        # Opening a pipe for writing would block until it has a reader.
        handle = os.open(path, flags | os.O_NONBLOCK, 0o600)
        try:
            if stat.S_ISFIFO(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            try:
                fcntl.flock(handle, kind)
                is_locked = True
            except OSError:
                is_locked = False
            # The file may have been rotated meanwhile. Then the lock is that of the deleted file.
            if _is_at(handle, path):
                yield handle, is_locked
                return
        finally:
            os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _sync(folder: Path) -> None:
    """Write the entries of a folder to the disk, if the file system supports it and the folder can be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            write_to_disk(handle)
        finally:
            os.close(handle)


def _rotated(path: Path) -> Path:
    return path.with_name(f"{path.stem}.1.jsonl")


def _folder_of(project: str) -> str:
    # A domain-scoped project has a colon, which some file systems reject. No project has an underscore.
    return project.replace(":", "_")


def _name(path: Path) -> NodeName:
    project, zone, node_id = path.with_suffix("").parts[-3:]
    return NodeName(project.replace("_", ":"), zone, node_id)
