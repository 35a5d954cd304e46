"""Copies of files: list them, store them, and the program for the worker's end of `tpuctl scp`. Must run under Python 3.8.

Nothing is ever deleted.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.ssh.agent.file_stream import (
    HOPELESS,
    REPEATED,
    FileEntry,
    RefusedError,
    UnsentFileError,
    changed_part_error,
    digest,
    lock_file,
    move,
    part_length,
    path_text,
    reason,
    resume_offset,
    serve,
    status_or_none,
    to_bytes,
    to_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.ssh.agent.file_stream import Stream
    from tpuctl.ssh.agent.link import ClientLink

# The folder of the parts of unfinished copies, beside their destination or in it. One copy at a time holds its lock.
PARTS = b".tpuctl-parts"
LOCK = b"lock"
LOCK_PATIENCE = 60.0
# Seconds in which the other end reads the beginnings of all files that are here in part.
DIGEST_PATIENCE = 4 * 3600
# How many problems with files are kept of a worker, which is not trusted.
MAX_PROBLEMS = 1000


def serve_copy_files(_: ClientLink, request: dict[str, Any]) -> None:
    """Serve one client: it fetches what matches `patterns`, or sends what goes to `target`."""
    is_upload = "target" in request
    serve(lambda stream: receive_copy(stream, request) if is_upload else send_copy(stream, request))


def receive_copy(stream: Stream, request: dict[str, Any]) -> None:
    """Receive files into `target`, with `~` expanded. `place` is that of an earlier connection.

    The client sends the number of sources, whether a single folder is copied, and the entries. The worker says where they go,
    which files it has in part with digests of these parts, the digests of files that may be the same, and what it cannot store.
    The client sends the numbers of the same files, then all others; the worker reports the problems.
    """
    named, is_tree, rows = stream.receive()
    entries = [FileEntry(*row) for row in rows]
    place = CopyPlace(*request["place"]) if request["place"] else None
    target = os.path.expanduser(to_bytes(request["target"]) or b".")
    receiver = FileReceiver(
        target, preserve=request["preserve"], source=request["source"], place=place, token=request["token"]
    )
    with closing(receiver):
        place = receiver.settle(named, is_tree=is_tree)
        parts, digests, refused = [], [], []
        for number, entry in enumerate(entries):
            if entry.is_folder:
                receiver.add(entry)
            elif not receiver.is_possible(entry):
                refused.append(number)
            elif length := part_length(receiver.parts, entry):
                parts.append([number, length, digest(os.path.join(receiver.parts, entry.part), length)])
            elif known := receiver.digest_of_equal(entry):
                digests.append([number, known])
        stream.send([place, parts, digests, refused])
        stream.patience, usual = DIGEST_PATIENCE, stream.patience
        same = stream.receive()
        stream.patience = usual
        for number in same:
            receiver.add(entries[number])
        while (row := stream.receive()) is not None:
            *fields, offset, problem = row
            receiver.receive(stream, FileEntry(*fields), offset, problem)
        receiver.finish()
        stream.send(sorted(receiver.problems.items()))


def send_copy(stream: Stream, request: dict[str, Any]) -> None:
    """Send the files that match `patterns`. `names`: of home folders; `hidden`: see `list_files`.

    The client sends the parts that it has, with the digests of `digests_of_part`. The worker sends an overview, then all files.
    """
    stream.patience, usual = DIGEST_PATIENCE, stream.patience
    parts = stream.receive()
    stream.patience = usual
    homes = {os.path.expanduser(to_bytes(path)): to_bytes(name) for path, name in request["names"].items()}
    paths = expand(request["patterns"])
    listing = list_files(paths, recurse=request["recurse"], names=homes, hidden=request["hidden"])
    size = sum(entry.size for _, entry in listing.files)
    notes, failed = _first(listing.notes), _first(listing.failed)
    stream.send([listing.named, listing.is_tree, len(listing.files), size, notes, failed])
    for path, entry in listing.files:
        if entry.is_folder:
            stream.send([*entry, 0, None])
        else:
            stream.send_file(path, entry, _agreed_offset(path, entry, parts.get(entry.part.decode())))


def _agreed_offset(path: bytes, entry: FileEntry, part: list[Any] | None) -> int:
    """Return where to continue a file: after what the client has, if the file begins with it."""
    if part is None:
        return 0
    length, unfinished, whole = part
    offset = resume_offset(length, entry.size)
    try:
        return offset if offset and digest(path, offset) == (whole if offset == length else unfinished) else 0
    except OSError:
        return 0


def digests_of_part(path: bytes, length: int) -> list[Any]:
    """Return the length of a part and its digests: without the end that is sent again, and of all."""
    return [length, digest(path, max(0, length - REPEATED)), digest(path, length)]


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


class CopyPlace(NamedTuple):
    """Where a copy goes. It is decided once: an unfinished copy must not be taken for a folder to copy into."""

    root: str  # of the entries
    is_into: bool  # whether their paths below `root` begin with the requested name
    parts: str
    new_tree: tuple[int, int] | None  # the device and the inode of `root` if it becomes the target at the end


class FileReceiver:
    """Stores entries in a target: into it if it is a folder, else in its place. Other copies to it wait until `close`.

    A file gets its name as soon as it is whole, a new tree in `finish`. `place`: of an earlier connection of the same copy.
    `problems`: why entries are not stored. `is_confined`: do not trust the sender, and follow no symlink out of the target.
    `suffix`: of the parts' folder. `source`: stands for the sources and their machine. `token`: see `lock_file`.
    """

    def __init__(
        self,
        target: bytes,
        *,
        preserve: bool,
        is_confined: bool = False,
        suffix: bytes = b"",
        source: str = "",
        place: CopyPlace | None = None,
        token: str | None = None,
    ) -> None:
        self._target, self._preserve, self._is_confined = target, preserve, is_confined
        self._source, self._place, self._token, self._suffix = source, place, token, suffix
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._lock: int | None = None
        self._is_into = os.path.isdir(target) if place is None else place.is_into
        self._is_new_tree = self._has_failed = False
        self._root = target if place is None else to_bytes(place.root)
        self._whole: list[tuple[FileEntry, os.stat_result | None]] = []
        self._folders: list[tuple[bytes, FileEntry, bool]] = []
        self.parts = self._parts_in(self._folder()) if place is None else to_bytes(place.parts)
        self.problems: dict[str, str] = {}
        self.more_problems = 0
        self.files = self.size = 0  # whole files, and their bytes

    def _folder(self) -> bytes:
        return self._target if self._is_into else os.path.dirname(os.path.realpath(self._target.rstrip(b"/")))

    def _parts_in(self, folder: bytes) -> bytes:
        return os.path.join(folder, PARTS + self._suffix)

    def settle(self, count: int, *, is_tree: bool) -> CopyPlace:
        """Decide where the entries of so many sources go, and lock it. Raises `RefusedError`."""
        if self._place is None:
            self._decide(count, is_tree=is_tree)
        else:
            self._is_new_tree = self._place.new_tree is not None
        self.lock()
        identity = self._open_tree() if self._is_new_tree else None
        return CopyPlace(to_text(self._root), self._is_into, to_text(self.parts), identity)

    def _decide(self, count: int, *, is_tree: bool) -> None:
        if self._is_into:
            return
        is_folder, target = self._target.endswith(b"/") and not is_tree, self._target.rstrip(b"/")
        text, folder = path_text(target), self._folder()
        if count > 1 and not is_folder:
            kind = "target" if os.path.lexists(target) else "new folder"
            raise RefusedError(kind, f"`{text}` is not an existing folder")
        if not os.path.isdir(folder):
            raise RefusedError("target", f"there is no folder `{path_text(os.path.dirname(target) or folder)}`")
        if is_tree and os.path.lexists(target):
            raise RefusedError("target", f"`{text}` exists and is not a folder")
        if is_folder:
            try:
                os.mkdir(target)
            except OSError as error:
                raise RefusedError("target", f"cannot create `{text}`: {reason(error)}") from error
            self._is_into, self._root, parts = True, target, self._parts_in(target)
            if parts != self.parts:
                self.close()
                self.parts = parts
        elif not is_tree:
            self._root = target
        else:
            self._is_new_tree = True
            key = hashlib.blake2b(os.path.abspath(target) + b"\0" + to_bytes(self._source), digest_size=12).hexdigest()
            self._root = os.path.join(self.parts, b"tree-" + key.encode())

    def _open_tree(self) -> tuple[int, int] | None:
        """Create the folder of a new tree. Return None if an earlier connection has already given it the target's name."""
        target, known = self._target.rstrip(b"/"), self._place and self._place.new_tree
        found = status_or_none(self._root)
        if found is None:
            goal = status_or_none(target)
            if goal is not None:
                if known is None or (goal.st_dev, goal.st_ino) != tuple(known):
                    raise RefusedError("target", f"`{path_text(target)}` was created during the copy")
                self._is_new_tree, self._root = False, target
                return None
            os.mkdir(self._root, 0o700)
            found = os.lstat(self._root)
        if not stat.S_ISDIR(found.st_mode):
            raise RefusedError("target", f"`{path_text(self._root)}` is not a folder")
        return found.st_dev, found.st_ino

    def lock(self) -> None:
        """Keep other copies from the parts. Raises `RefusedError` if one runs."""
        if self._lock is not None:
            return
        found = status_or_none(self.parts)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            what = "a symlink" if stat.S_ISLNK(found.st_mode) else "not a folder"
            raise RefusedError("target", f"`{path_text(self.parts)}` is {what}")
        folder = path_text(os.path.dirname(self.parts))
        try:
            self._lock = lock_file(os.path.join(self.parts, LOCK), self._token, LOCK_PATIENCE)
        except BlockingIOError as error:
            raise RefusedError("busy", f"another copy to `{folder}` is running") from error
        except OSError as error:
            raise RefusedError("target", f"cannot write to `{folder}`: {reason(error)}") from error

    def close(self) -> None:
        """Let other copies continue, and remove the folder of the parts if it is empty."""
        if self._lock is None:
            return
        with suppress(OSError):
            if self._is_new_tree:
                os.rmdir(self._root)
        with suppress(OSError):
            os.unlink(os.path.join(self.parts, LOCK))
            os.rmdir(self.parts)
        os.close(self._lock)
        self._lock = None

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
            self._note(entry, problem)
        return problem is None

    def _note(self, entry: FileEntry, problem: str) -> None:
        if self._is_confined and len(self.problems) >= MAX_PROBLEMS:
            self.more_problems += 1
        else:
            self.problems[entry.path] = problem

    def add(self, entry: FileEntry, written: os.stat_result | None = None) -> None:
        """Add a folder, a file that is stored already, or a file of which the whole part was written.

        Raises `RefusedError` if no other file can be stored either.
        """
        if not self.is_possible(entry):
            return
        if self._is_new_tree:
            self._whole.append((entry, written))
        else:
            self._store(entry, written)

    def receive(self, stream: Stream, entry: FileEntry, offset: int, problem: str | None) -> None:
        """Receive a file into its part. Raises `PeerLostError`, and `RefusedError` if no other file can be stored either."""
        if problem is not None:
            self._note(entry, problem)
            return
        self.lock()
        try:
            written = stream.receive_file(os.path.join(self.parts, entry.part), entry, offset)
        except UnsentFileError as error:
            self._note(entry, error.args[0])
        except OSError as error:
            self._fail(entry, error)
        else:
            self.add(entry, written)

    def _store(self, entry: FileEntry, written: os.stat_result | None) -> None:
        """Create a folder, or give a whole file its name."""
        path, part = self.path(entry), os.path.join(self.parts, entry.part)
        try:
            if entry.is_folder:
                is_here = os.path.isdir(path)
                if not is_here:
                    os.mkdir(path, 0o700)
                self._folders.append((path, entry, self._is_new_tree or not is_here))
                return
            if written is not None:
                found = os.lstat(part)
                if not os.path.samestat(found, written) or found.st_size != entry.size:
                    raise changed_part_error(part)
                self._set_mode(part, entry, os.stat(path).st_mode if os.path.lexists(path) else None)
                move(part, path)
            elif self._preserve:
                self._set_mode(path, entry, None)
            self.files += 1
            self.size += entry.size
        except OSError as error:
            self._fail(entry, error)

    def finish(self) -> None:
        """Give a new tree its name, and folders their modes. Raises `RefusedError` if that is impossible."""
        for entry, written in self._whole:
            self._store(entry, written)
        is_whole_tree = self._is_new_tree and bool(self._whole) and not self._has_failed
        if is_whole_tree:
            self._refuse_leftovers()
        for path, entry, is_new in reversed(self._folders):
            if is_new or self._preserve:
                self._set_mode(path, entry, None)
        if is_whole_tree:
            target = self._target.rstrip(b"/")
            if os.path.lexists(target):
                raise RefusedError("target", f"`{path_text(target)}` was created during the copy")
            os.rename(self._root, target)

    def _refuse_leftovers(self) -> None:
        # A copy that was interrupted here may have had files that its source has no longer.
        names = {self.path(entry) for entry, _ in self._whole}
        for folder, folders, files in os.walk(self._root):
            for name in folders + files:
                path = os.path.join(folder, name)
                if path not in names:
                    problem = f"`{path_text(path)}` remains from an interrupted copy: delete it, and repeat the command"
                    raise RefusedError("target", problem)

    def _set_mode(self, path: bytes, entry: FileEntry, old: int | None) -> None:
        # Without setuid and setgid bits: the owner differs here.
        if self._preserve:
            os.chmod(path, entry.mode & 0o777)
            os.utime(path, ns=(entry.mtime, entry.mtime))
        else:
            os.chmod(path, entry.mode & 0o777 & ~self._umask if old is None else old & 0o777)

    def _fail(self, entry: FileEntry, error: OSError) -> None:
        self._has_failed = True
        problem = f"`{path_text(self.path(entry))}`: {reason(error)}"
        self._note(entry, problem)
        if error.errno in HOPELESS:
            raise RefusedError(HOPELESS[error.errno], problem) from error
