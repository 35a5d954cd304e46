"""Copies of files: list them, store them, and the program for the worker's end of `tpuctl scp`. Must run under Python 3.8.

Nothing is ever deleted.
"""

from __future__ import annotations

import glob
import os
import shutil
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.ssh.agent.tar_stream import (
    END_OF_TAR,
    FATAL_ERRNOS,
    FileEntry,
    RefusedError,
    move,
    pack,
    path_text,
    reason,
    serve,
    status_or_none,
    to_bytes,
    to_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpuctl.ssh.agent.link import ClientLink
    from tpuctl.ssh.agent.tar_stream import Stream

# How the names of folders begin that hold the files of unfinished copies, in their destination or beside it.
UNFINISHED = b".tpuctl-copy-"
# How many problems with files are kept of a worker, which is not trusted.
MAX_PROBLEMS = 1000


def serve_copy_files(_: ClientLink, request: dict[str, Any]) -> None:
    """Serve one client: it fetches what matches `patterns`, or sends what goes to `target`."""
    is_upload = "target" in request
    serve(lambda stream: receive_copy(stream, request) if is_upload else send_copy(stream, request))


def receive_copy(stream: Stream, request: dict[str, Any]) -> None:
    """Receive files into `target`, with `~` expanded: `named` sources, or a single folder (`tree`).

    The worker sends what `FileReceiver.settle` returns; `trees` are these values of earlier attempts. The client sends the
    files and those that are not whole; the worker reports the problems.
    """
    target = os.path.expanduser(to_bytes(request["target"]) or b".")
    with closing(FileReceiver(target, preserve=request["preserve"], trees=request["trees"])) as receiver:
        stream.send(receiver.settle(request["named"], is_tree=request["tree"]))
        while True:
            entry = stream.next_member()
            if entry is None:
                break
            receiver.receive(stream, entry)
        receiver.finish(stream.receive())
        stream.send(sorted(receiver.problems.items()))


def send_copy(stream: Stream, request: dict[str, Any]) -> None:
    """Send the files that match `patterns`. `names`: of home folders; `hidden`: see `list_files`.

    The worker sends an overview, then all files, and those that are not whole.
    """
    homes = {os.path.expanduser(to_bytes(path)): to_bytes(name) for path, name in request["names"].items()}
    paths = expand(request["patterns"])
    listing = list_files(paths, recurse=request["recurse"], names=homes, hidden=request["hidden"])
    size = sum(entry.size for _, entry in listing.files)
    notes, failed = _first(listing.notes), _first(listing.failed)
    stream.send([listing.named, listing.is_tree, len(listing.files), size, notes, failed])
    problems: dict[str, str] = {}
    for block, _ in pack(listing.files, problems, exact=True):
        stream.write(block)
    stream.write(END_OF_TAR)
    stream.send(list(problems.items())[:MAX_PROBLEMS])


_MAX_LISTED = 1000


def _first(texts: Sequence[str]) -> list[str]:
    more = [f"{len(texts) - _MAX_LISTED} more are not listed"] if len(texts) > _MAX_LISTED else []
    return [*texts[:_MAX_LISTED], *more]


class FileListing(NamedTuple):
    """The files to send with their entries, what is left out, what cannot be read, and the number of requested sources."""

    files: list[tuple[bytes, FileEntry]]
    notes: list[str]
    failed: list[str]
    named: int

    @property
    def is_tree(self) -> bool:
        """Whether a single folder is copied."""
        return self.named == 1 and bool(self.files) and self.files[0][1].is_folder


def list_files(
    sources: Sequence[bytes], *, recurse: bool, names: Mapping[bytes, bytes] | None = None, hidden: bool = True
) -> FileListing:
    """Return all files to send, following links.

    `names`: of sources whose path does not contain their name. Without `hidden`, hidden files directly in a source `.` are left
    out: it has no folder of its own in the target. Raises `RefusedError` for a source that does not exist, and for a folder
    without `recurse`.
    """
    listing = FileListing([], [], [], len(sources))
    for source in sources:
        name = (names or {}).get(source) or os.path.basename(source.rstrip(b"/")) or b"."
        name = os.path.basename(os.path.realpath(source)) if name == b".." else name
        try:
            found = os.stat(source)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RefusedError("missing", f"`{path_text(source)}`: {reason(error)}") from error
        if stat.S_ISDIR(found.st_mode) and not recurse:
            raise RefusedError("folder", f"`{path_text(source)}` is a folder")
        _walk(listing, source, name, hidden=hidden)
    return listing


def _walk(listing: FileListing, top: bytes, name: bytes, *, hidden: bool) -> None:
    left: list[tuple[bytes, bytes, frozenset[tuple[int, int]]]] = [(top, name, frozenset())]
    while left:
        path, name, above = left.pop()
        skipped = None
        try:
            found = os.stat(path)
            here, is_folder = (found.st_dev, found.st_ino), stat.S_ISDIR(found.st_mode)
            if os.path.basename(path).startswith(UNFINISHED):
                skipped = "it belongs to an unfinished copy"
            elif is_folder and here in above:
                skipped = "this link leads back to a folder that contains it"
            elif not is_folder and not stat.S_ISREG(found.st_mode):
                skipped = "it is not a plain file"
            elif not hidden and name.startswith(b"./.") and name.count(b"/") == 1:
                skipped = "it is hidden, and the target is not empty: name it to copy it"
            elif not is_folder and not os.access(path, os.R_OK):
                listing.failed.append(f"`{path_text(path)}`: permission denied")
            else:
                inside = sorted(os.listdir(path), reverse=True) if is_folder else []
                size = 0 if is_folder else found.st_size
                listing.files.append((path, FileEntry(to_text(name), found.st_mode, size, found.st_mtime_ns)))
                left += [(os.path.join(path, one), os.path.join(name, one), above | {here}) for one in inside]
        except OSError as error:
            if os.path.islink(path):
                skipped = "this link leads nowhere"
            else:
                listing.failed.append(f"`{path_text(path)}`: {reason(error)}")
        if skipped is not None:
            listing.notes.append(f"`{path_text(path)}` is left out: {skipped}")


def expand(patterns: Sequence[str]) -> list[bytes]:
    """Expand `~` and wildcards; a pattern without a match stays unchanged."""
    found = []
    for pattern in patterns:
        path = os.path.expanduser(to_bytes(pattern))
        found += [path] if os.path.lexists(path) else sorted(glob.glob(path)) or [path]
    return found


class FileReceiver:
    """Stores files in a target: into it if it is a folder, else in its place.

    They arrive in a fresh folder in the target or beside it, and get their names in `finish`; a new tree is renamed as a whole.
    `trees`: of earlier attempts of the same copy, as `settle` returned them: one of these may be the target by now. `problems`:
    why entries are not stored. `is_confined`: do not trust the sender, and follow no symlink out of the target.
    """

    def __init__(
        self, target: bytes, *, preserve: bool, is_confined: bool = False, trees: Sequence[Sequence[int]] = ()
    ) -> None:
        self._target, self._preserve, self._is_confined = target.rstrip(b"/") or target, preserve, is_confined
        self._is_folder_named = target.endswith(b"/")
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._trees = [tuple(tree) for tree in trees]
        self._root, self._is_into, self._is_new_tree, self._has_failed = self._target, False, False, False
        self._stage: bytes | None = None
        self._count = 0
        # Each entry, and the file that has arrived.
        self._arrived: dict[str, tuple[FileEntry, bytes]] = {}
        self._folders: list[tuple[bytes, FileEntry, bool]] = []
        self.problems: dict[str, str] = {}
        self.more_problems = 0
        self.files = self.size = 0  # whole files, and their bytes

    def settle(self, count: int, *, is_tree: bool) -> tuple[int, int] | None:
        """Decide where the entries of so many sources go. Return the device and the inode of a new tree.

        Raises `RefusedError`.
        """
        if not self._is_finished():
            self._decide(count, is_tree=is_tree)
        parent = self._target if self._is_into else os.path.dirname(os.path.realpath(self._target))
        stage = os.path.join(parent, UNFINISHED + os.urandom(8).hex().encode())
        try:
            os.mkdir(stage, 0o700)
            self._stage = stage
            if not self._is_new_tree:
                return None
            self._root = os.path.join(stage, b"tree")
            os.mkdir(self._root, 0o700)
        except OSError as error:
            raise RefusedError("target", "cannot write to `%s`: %s" % (path_text(parent), reason(error))) from error
        return identity_of(os.lstat(self._root))

    def _is_finished(self) -> bool:
        """Return whether an earlier attempt has already given its tree the target's name."""
        status = status_or_none(self._target)
        if status is None or not self._trees:
            return False
        if identity_of(status) not in self._trees:
            raise RefusedError("target", "`%s` was created during the copy" % path_text(self._target))
        return True

    def _decide(self, count: int, *, is_tree: bool) -> None:
        self._is_into = os.path.isdir(self._target)
        if self._is_into:
            return
        text, folder = path_text(self._target), os.path.dirname(os.path.realpath(self._target))
        is_folder = self._is_folder_named and not is_tree
        if count > 1 and not is_folder:
            kind = "target" if os.path.lexists(self._target) else "new folder"
            raise RefusedError(kind, "`%s` is not an existing folder" % text)
        if not os.path.isdir(folder):
            message = "there is no folder `%s`" % path_text(os.path.dirname(self._target) or folder)
            raise RefusedError("target", message)
        if is_tree and os.path.lexists(self._target):
            raise RefusedError("target", "`%s` exists and is not a folder" % text)
        if is_folder:
            try:
                os.mkdir(self._target)
            except OSError as error:
                raise RefusedError("target", "cannot create `%s`: %s" % (text, reason(error))) from error
        self._is_into, self._is_new_tree = is_folder, is_tree

    def receive(self, stream: Stream, entry: FileEntry) -> None:
        """Receive a file or a folder. Raises `PeerLostError`, and `RefusedError` if no other file can be stored either."""
        if self._stage is None:
            raise AssertionError("nothing is received before `settle`")
        # Nothing else is in a new tree, so its entries can have their names there.
        part = self._named(entry) if self._is_new_tree else os.path.join(self._stage, b"%d" % self._count)
        self._count += 1
        try:
            if entry.is_folder:
                if self._is_new_tree and part != self._root:
                    os.mkdir(part, 0o700)
            else:
                stream.receive_file(part, entry.size)
        except OSError as error:
            self._fail(entry, error)
        else:
            self._arrived[entry.path] = entry, part

    def finish(self, broken: Iterable[Sequence[str]]) -> None:
        """Give all files their names, except those that the sender calls `broken`, with reasons.

        Raises `RefusedError` if no file can get its name.
        """
        for name, problem in broken:
            _, part = self._arrived.pop(name, (None, b""))
            if part and self._is_new_tree:
                os.unlink(part)
            self._note(name, problem)
        for entry, part in self._arrived.values():
            self._store(entry, part)
        for path, entry, is_new in reversed(self._folders):
            if is_new or self._preserve:
                self._set_mode(path, entry, None)
        if self._is_new_tree and not self._has_failed and self._arrived:
            if not self._is_finished():
                if os.path.lexists(self._target):
                    raise RefusedError("target", "`%s` was created during the copy" % path_text(self._target))
                os.rename(self._root, self._target)
        elif self._is_new_tree:
            self.files = self.size = 0

    def close(self) -> None:
        """Remove what has no name."""
        if self._stage is not None:
            shutil.rmtree(self._stage, ignore_errors=True)

    def path(self, entry: FileEntry) -> bytes:
        """Return the path for an entry: of a symlink to a file, its destination."""
        path = self._named(entry)
        return path if entry.is_folder else os.path.realpath(path) if os.path.islink(path) else path

    def _named(self, entry: FileEntry) -> bytes:
        name = entry.path if self._is_into else entry.path.partition("/")[2]
        return os.path.join(self._root, to_bytes(name)) if name else self._root

    def _is_possible(self, entry: FileEntry) -> bool:
        """Return whether an entry can be stored; note the problem. Raises `RefusedError` for a folder that leads out."""
        link, path = self._named(entry), self.path(entry)
        problem = None
        if self._is_confined and os.path.islink(link) and (self._is_into or link != self._root):
            root = os.path.realpath(self._root).rstrip(b"/") + b"/"
            if not os.path.realpath(link).startswith(root):
                problem = "`%s` is a symlink that leads out of the target" % path_text(link)
                if entry.is_folder:
                    raise RefusedError("target", problem)
        if problem is None and not entry.is_folder and os.path.lexists(path) and not os.path.isfile(path):
            what = "is a folder there" if os.path.isdir(path) else "is not a plain file there"
            problem = "`%s` %s" % (path_text(path), what)
        if problem is not None:
            self._note(entry.path, problem)
        return problem is None

    def _note(self, name: str, problem: str) -> None:
        if self._is_confined and len(self.problems) >= MAX_PROBLEMS:
            self.more_problems += 1
        else:
            self.problems[name] = problem

    def _store(self, entry: FileEntry, part: bytes) -> None:
        """Create a folder, or give a file its name. Raises `RefusedError` if no other file can be stored either."""
        path = self._named(entry)
        status = status_or_none(path) if path != part else None
        if status is not None:
            if not self._is_possible(entry):
                return
            path = self.path(entry)
            status = status_or_none(path)
        try:
            if entry.is_folder:
                is_here = os.path.isdir(path)
                if not is_here:
                    os.mkdir(path, 0o700)
                self._folders.append((path, entry, self._is_new_tree or not is_here))
                return
            self._set_mode(part, entry, status and status.st_mode)
            if part != path:
                move(part, path)
            self.files += 1
            self.size += entry.size
        except OSError as error:
            self._fail(entry, error)

    def _set_mode(self, path: bytes, entry: FileEntry, old: int | None) -> None:
        # Without setuid and setgid bits: the owner differs here.
        if self._preserve:
            os.chmod(path, entry.mode & 0o777)
            os.utime(path, ns=(entry.mtime, entry.mtime))
        else:
            os.chmod(path, entry.mode & 0o777 & ~self._umask if old is None else old & 0o777)

    def _fail(self, entry: FileEntry, error: OSError) -> None:
        self._has_failed = True
        problem = "`%s`: %s" % (path_text(self.path(entry)), reason(error))
        self._note(entry.path, problem)
        if error.errno in FATAL_ERRNOS:
            raise RefusedError(FATAL_ERRNOS[error.errno], problem) from error


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Return what identifies a folder."""
    return status.st_dev, status.st_ino
