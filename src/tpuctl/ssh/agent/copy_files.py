"""Copies of files: list them, store them, and the program for the worker's end of `tpuctl scp`. Must run under Python 3.8.

Nothing is ever deleted.
"""

from __future__ import annotations

import glob
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.ssh.agent.file_stream import (
    HOPELESS,
    FileEntry,
    RefusedError,
    digest,
    move,
    part_length,
    path_text,
    reason,
    serve,
    to_bytes,
    to_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.ssh.agent.file_stream import Stream
    from tpuctl.ssh.agent.link import ClientLink

# The folder of the parts of unfinished copies, beside their destination or in it.
PARTS = b".tpuctl-parts"


def serve_copy_files(link: ClientLink, request: dict[str, Any]) -> None:
    """Serve one client: it fetches what matches `patterns`, or sends what goes to `target`."""
    is_upload = "target" in request
    serve(link, lambda stream: receive_copy(stream, request) if is_upload else send_copy(stream, request))


def receive_copy(stream: Stream, request: dict[str, Any]) -> None:
    """Receive files into `target`, with `~` expanded.

    The client sends the number of sources, whether a single folder is copied, and the entries; the worker says which files it
    has in part, the digests of files that may be the same, and what it cannot store. The client sends the numbers of the same
    files, then all others; the worker reports the problems.
    """
    named, is_tree, rows = stream.receive()
    entries = [FileEntry(*row) for row in rows]
    receiver = FileReceiver(os.path.expanduser(to_bytes(request["target"]) or b"."), preserve=request["preserve"])
    receiver.settle(named, is_tree=is_tree)
    parts, digests, refused = [], [], []
    for number, entry in enumerate(entries):
        if entry.is_folder:
            receiver.add(entry)
        elif not receiver.is_possible(entry):
            refused.append(number)
        elif length := part_length(receiver.parts, entry):
            parts.append([number, length])
        elif known := receiver.digest_of_equal(entry):
            digests.append([number, known])
    stream.send([parts, digests, refused])
    for number in stream.receive():
        receiver.add(entries[number], is_stored=True)
    while (row := stream.receive()) is not None:
        *fields, offset, problem = row
        receiver.receive(stream, FileEntry(*fields), offset, problem)
    receiver.finish()
    stream.send(sorted(receiver.problems.items()))


def send_copy(stream: Stream, request: dict[str, Any]) -> None:
    """Send the files that match `patterns`. `names`: of home folders; `hidden`: see `list_files`.

    The client sends the parts that it has. The worker sends an overview, then all files.
    """
    parts = stream.receive()
    homes = {os.path.expanduser(to_bytes(path)): to_bytes(name) for path, name in request["names"].items()}
    paths = expand(request["patterns"])
    listing = list_files(paths, recurse=request["recurse"], names=homes, hidden=request["hidden"])
    size = sum(entry.size for _, entry in listing.files)
    notes, failed = _first(listing.notes), _first(listing.failed)
    stream.send([listing.named, listing.is_tree, len(listing.files), size, notes, failed])
    for path, entry in listing.files:
        length = parts.get(entry.part.decode(), 0)
        if entry.is_folder:
            stream.send([*entry, 0, None])
        else:
            stream.send_file(path, entry, length if length <= entry.size else 0)


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
            if os.path.basename(path).startswith(PARTS):
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
    """Stores entries in a target: into it if it is a folder, else in its place. They get their names in `finish`.

    `problems`: why entries are not stored. `is_confined`: follow no symlink out of the target. `suffix`: of the parts' folder.
    """

    def __init__(self, target: bytes, *, preserve: bool, is_confined: bool = False, suffix: bytes = b"") -> None:
        self._target, self._preserve, self._is_confined = target, preserve, is_confined
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._is_into = os.path.isdir(target)
        self._folder = target if self._is_into else os.path.dirname(os.path.realpath(target.rstrip(b"/")))
        self._root = target  # of the entries, with or without the requested name
        self._is_new_tree = self._has_failed = False
        self._whole: list[tuple[FileEntry, bool]] = []
        self.parts = os.path.join(self._folder, PARTS + suffix)
        self.problems: dict[str, str] = {}
        self.files = self.size = 0  # whole files, and their bytes

    def settle(self, count: int, *, is_tree: bool) -> None:
        """Decide where the entries of so many sources go. Raises `RefusedError`."""
        if self._is_into:
            return
        is_folder, target = self._target.endswith(b"/") and not is_tree, self._target.rstrip(b"/")
        text = path_text(target)
        if count > 1 and not is_folder:
            kind = "target" if os.path.lexists(target) else "new folder"
            raise RefusedError(kind, f"`{text}` is not an existing folder")
        if not os.path.isdir(self._folder):
            raise RefusedError("target", f"there is no folder `{path_text(os.path.dirname(target) or self._folder)}`")
        if is_tree and os.path.lexists(target):
            raise RefusedError("target", f"`{text}` exists and is not a folder")
        if is_folder:
            try:
                os.mkdir(target)
            except OSError as error:
                raise RefusedError("target", f"cannot create `{text}`: {reason(error)}") from error
        self._is_into, self._is_new_tree, self._root = is_folder, is_tree, target
        if is_tree:  # an unfinished tree must not be taken for a folder to copy into
            self._root = os.path.join(self.parts, b"tree-" + os.path.basename(target))

    def path(self, entry: FileEntry) -> bytes:
        """Return the path for an entry: of a symlink to a file, its destination."""
        path = self._named(entry)
        return path if entry.is_folder else os.path.realpath(path) if os.path.islink(path) else path

    def _named(self, entry: FileEntry) -> bytes:
        name = entry.path if self._is_into else entry.path.partition("/")[2]
        return os.path.join(self._root, to_bytes(name)) if name else self._root

    def digest_of_equal(self, entry: FileEntry) -> str | None:
        """Return the digest of a file of the same size in the place of an entry."""
        path = self.path(entry)
        try:
            return digest(path) if entry.size and os.stat(path).st_size == entry.size else None
        except OSError:
            return None

    def is_possible(self, entry: FileEntry) -> bool:
        """Tell whether an entry can be stored; note the problem. Raises `RefusedError` for a folder that leads out."""
        link, path = self._named(entry), self.path(entry)
        problem = None
        if self._is_confined and os.path.islink(link) and (self._is_into or link != self._root):
            root = os.path.realpath(self._root).rstrip(b"/") + b"/"
            if not os.path.realpath(link).startswith(root):
                problem = f"`{path_text(link)}` is a symlink that leads out of the target"
                if entry.is_folder:
                    raise RefusedError("target", problem)
        if problem is None and not entry.is_folder and os.path.lexists(path) and not os.path.isfile(path):
            what = "is a folder there" if os.path.isdir(path) else "is not a plain file there"
            problem = f"`{path_text(path)}` {what}"
        if problem is not None:
            self.problems[entry.path] = problem
        return problem is None

    def add(self, entry: FileEntry, *, is_stored: bool = False) -> None:
        """Add a folder, a file whose part is whole, or a file that is stored already."""
        if self.is_possible(entry):
            self._whole.append((entry, is_stored))

    def receive(self, stream: Stream, entry: FileEntry, offset: int, problem: str | None) -> None:
        """Receive a file into its part. Raises `PeerLostError`, and `RefusedError` if no other file can be stored either."""
        try:
            if problem is None:
                self._make_parts()
                problem = stream.receive_file(os.path.join(self.parts, entry.part), entry, offset)
            if problem is None:
                self.add(entry)
            else:
                self.problems[entry.path] = problem
        except OSError as error:
            self._fail(entry, error)

    def _make_parts(self) -> None:
        if os.path.islink(self.parts):
            raise RefusedError("target", f"`{path_text(self.parts)}` is a symlink")
        os.makedirs(self.parts, 0o700, exist_ok=True)

    def finish(self) -> None:
        """Give all whole files their names, then the folders their modes. Raises `RefusedError` if that is impossible."""
        folders = []
        if self._is_new_tree and self._whole:
            self._make_parts()
        for entry, is_stored in self._whole:
            path = self.path(entry)
            try:
                if entry.is_folder:
                    is_new = not os.path.isdir(path)
                    if is_new:
                        os.mkdir(path, 0o700)
                    folders.append((path, entry, is_new))
                    continue
                if not is_stored:
                    part = os.path.join(self.parts, entry.part)
                    self._set_mode(part, entry, os.stat(path).st_mode if os.path.lexists(path) else None)
                    move(part, path)
                elif self._preserve:
                    self._set_mode(path, entry, None)
                self.files += 1
                self.size += entry.size
            except OSError as error:
                self._fail(entry, error)
        for path, entry, is_new in reversed(folders):
            if is_new or self._preserve:
                self._set_mode(path, entry, None)
        if self._is_new_tree and self._whole and not self._has_failed:
            os.rename(self._root, self._target.rstrip(b"/"))
        if not self._has_failed and os.path.isdir(self.parts) and not os.listdir(self.parts):
            os.rmdir(self.parts)

    def _set_mode(self, path: bytes, entry: FileEntry, old: int | None) -> None:
        # Without setuid and setgid bits: the owner differs here.
        if self._preserve:
            os.chmod(path, entry.mode & 0o777)
            os.utime(path, ns=(entry.mtime, entry.mtime))
        else:
            os.chmod(path, entry.mode & 0o777 & ~self._umask if old is None else old & 0o777)

    def _fail(self, entry: FileEntry, error: OSError) -> None:
        self._has_failed = True
        self.problems[entry.path] = f"`{path_text(self.path(entry))}`: {reason(error)}"
        if error.errno in HOPELESS:
            raise RefusedError(HOPELESS[error.errno], self.problems[entry.path]) from error
