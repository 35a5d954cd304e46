"""Runs on a worker: makes a folder hold the files that the client lists. Must run under Python 3.8.

This program finds the differences, by size and time, and by content if only the time differs. Nothing is written, read or
deleted outside the folder, nor through a symlink in it. `~/.tpuctl/sync/KEY.json` records what syncs put here: nothing else is
ever deleted, and a replaced file that no sync put there is kept in `~/.tpuctl/sync/KEY.replaced/`, or `KEY.replaced.2/`, ….
Other programs may change the folder at any moment: an entry is judged when it has been taken out of its place.

The client sends the entries, and the worker its plan. If that is empty, the worker's report follows at once. Else the client
sends the numbers of the entries whose contents are the same, the files as a tar stream, and those that are not whole, and the
worker what was done.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import signal
import stat
import time
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tpuctl.ssh.agent.link import make_folder
from tpuctl.ssh.agent.tar_stream import (
    FileEntry,
    RefusedError,
    move,
    path_text,
    reason,
    serve,
    status_or_none,
    to_bytes,
    to_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.ssh.agent.link import ClientLink
    from tpuctl.ssh.agent.tar_stream import Stream

# The folder of unfinished files in the target folder.
STAGE = ".tpuctl-sync"
LOCK_PATIENCE = 10.0


def serve_sync_tree(_: ClientLink, request: dict[str, Any]) -> None:
    """Serve one client. Its `token` stays the same when it tries again."""
    serve(lambda stream: sync(stream, request))


def sync(stream: Stream, request: dict[str, Any]) -> None:
    """Make the folder hold the files of the client."""
    tree = SyncFolder(request["folder"])
    entries = [FileEntry(*row) for row in stream.receive()]
    if request["dry_run"]:
        stream.send(tree.plan(entries, delete=request["delete"]))
        return
    lock = tree.lock(request["token"])
    try:
        plan = tree.plan(entries, delete=request["delete"])
        stream.send(plan)
        if any(plan[key] for key in ("send", "link", "touch", "digests", "delete")):
            same = stream.receive()
            tree.receive(stream, {entry.path: entry for entry in entries})
            # What another program has written may now be in the stage for a moment: the next attempt waits.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            tree.apply(entries, plan, same)
    finally:
        tree.forget_stage()
        tree.remember()
        os.close(lock)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    size = sum(entry.size for entry, _ in tree.arrived.values())
    stream.send({"bytes": size, "deleted": tree.deleted, "replaced": tree.replaced})


class SyncFolder:
    """The target folder, and what earlier syncs put there: size and mtime of each file, target of each link."""

    def __init__(self, folder: str) -> None:
        home = os.path.expanduser(b"~")
        self.root = os.path.realpath(os.path.join(home, os.path.expanduser(to_bytes(folder))))
        status = status_or_none(self.root)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise RefusedError("refused", f"`{path_text(self.root)}` is a file on the worker")
        key = hashlib.sha256(self.root).hexdigest()[:16]
        self.note = os.path.join(home, b".tpuctl", b"sync", key.encode())
        self.stage = os.path.join(self.root, STAGE.encode())
        self.records: dict[str, list[Any]] = {}
        try:
            with open(self.note + b".json", encoding="ascii") as file:
                self.records = json.load(file)["files"]
        except (FileNotFoundError, ValueError, KeyError):
            pass
        self.arrived: dict[str, tuple[FileEntry, bytes]] = {}  # and where they are
        self.replaced: list[str] = []
        self.deleted: list[str] = []
        self._open: dict[str, bool] = {"": status is not None}

    def lock(self, token: str) -> int:
        """Lock the folder, create it, and return the descriptor that holds the lock.

        A sync that lost its client is terminated by the next attempt of the same client.
        """
        try:
            lock = lock_file(self.note + b".lock", token, LOCK_PATIENCE)
        except BlockingIOError as error:
            message = f"another sync to `{path_text(self.root)}` is running on the worker"
            raise RefusedError("refused", message) from error
        # A sync that was killed may have left its files.
        self.forget_stage()
        make_folder(self.stage)
        self._open = {"": True}
        return lock

    def plan(self, entries: list[FileEntry], *, delete: bool) -> dict[str, Any]:
        """Return all differences, as the client gets them; `first`: no sync has put anything here yet."""
        is_first = not self.records
        gone, kept = self.obsolete({entry.path for entry in entries}) if delete else ([], [])
        plan = {**self.compare(entries), "folder": to_text(self.root), "delete": gone, "kept": kept}
        return {**plan, "first": is_first}

    def receive(self, stream: Stream, entries: dict[str, FileEntry]) -> None:
        """Receive files into the stage, without those that the client calls broken then."""
        for number in itertools.count():
            entry = stream.next_member()
            if entry is None:
                break
            part = b"%s/%d" % (self.stage, number)
            try:
                stream.receive_file(part, entry.size)
            except OSError as error:
                message = "`%s` cannot be written on the worker: %s" % (entry.path, reason(error))
                raise RefusedError("refused", message) from error
            known = entries[entry.path]
            # The stream has the time in seconds. If the file has changed within this second, the next sync compares contents.
            is_known = (known.size, known.mtime // 10**9) == (entry.size, entry.mtime // 10**9)
            self.arrived[entry.path] = known if is_known else entry, part
        for name in stream.receive():
            self.arrived.pop(name, None)

    def apply(self, entries: list[FileEntry], plan: dict[str, Any], same: list[int]) -> None:
        """Give all files their names, create the symlinks, and delete."""
        # The transfer may have taken hours.
        self._open = {"": True}
        digests = dict(plan["digests"])
        for number in plan["touch"] + same:
            self.touch(entries[number], digests.get(number))
        links = [(entries[number], os.path.join(self.stage, b"link")) for number in plan["link"]]
        new = sorted([*self.arrived.values(), *links])
        for entry, _ in new:
            self.make_room(entry.path)
        for entry, part in new:
            self.put(entry, part)
        self.deleted = [name for name in plan["delete"] if self.remove(name)]

    def compare(self, entries: list[FileEntry]) -> dict[str, Any]:
        """Return the numbers of entries to send, to link, and to change the mode of, and digests if only times differ.

        `foreign`: those that would replace an entry that no sync put there, or that has changed since.
        """
        send, link, attributes, foreign, digests = [], [], [], [], []
        for number, entry in enumerate(entries):
            name = entry.path
            if name.startswith("/") or "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise RefusedError("refused", f"`{name}` leads out of the folder")
            status = self.status(name)
            if status is not None and stat.S_ISDIR(status.st_mode) and self.has_others(name):
                raise not_replaceable(name)
            if entry.target is not None:
                if status and stat.S_ISLNK(status.st_mode) and os.readlink(self.path(name)) == to_bytes(entry.target):
                    continue
                link.append(number)
            elif status is None or not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
                send.append(number)
            elif status.st_mtime_ns != entry.mtime:
                digests.append([number, digest(self.path(name))])
            elif status.st_mode & 0o777 != entry.mode & 0o777:
                attributes.append(number)
                continue
            else:
                continue
            if status is not None and not stat.S_ISDIR(status.st_mode) and not self.is_ours(name, status):
                foreign.append(number)
        return {"send": send, "link": link, "touch": attributes, "digests": digests, "foreign": foreign}

    def obsolete(self, names: set[str]) -> tuple[list[str], list[str]]:
        """Return what a sync put here and is no longer in the tree: unchanged entries, and changed ones."""
        gone: list[str] = []
        kept: list[str] = []
        for name in sorted(set(self.records) - names):
            try:
                status = self.status(name)
            except RefusedError:  # its folder was replaced by something else
                status = None
            if status is None:
                del self.records[name]
            else:
                (gone if self.is_ours(name, status) else kept).append(name)
        return gone, kept

    def put(self, entry: FileEntry, part: bytes) -> None:
        """Give a file its name, or create a symlink."""
        name, path = entry.path, self.path(entry.path)
        if entry.target is not None:
            os.symlink(to_bytes(entry.target), part)
        else:
            os.chmod(part, entry.mode & 0o777)
            os.utime(part, ns=(entry.mtime, entry.mtime))
        version = version_of(part, os.lstat(part))
        status, kept = self.status(name), None
        if status is not None and not self.is_ours(name, status):
            kept = self.keep(name, path)
        if put_in_place(part, path):
            taken = os.lstat(part)
            if not self.is_ours(name, taken, part) and identity_of(taken) != kept:
                self.keep(name, part)
            if status_or_none(part) is not None:
                os.unlink(part)
        self.records[name] = version

    def touch(self, entry: FileEntry, known: str | None) -> None:
        """Set the mode of a file whose contents are the same; with their digest also the time."""
        name, path = entry.path, self.path(entry.path)
        status = self.status(name)
        if status is None or not stat.S_ISREG(status.st_mode):
            return
        is_ours = self.is_ours(name, status)
        os.chmod(path, entry.mode & 0o777)
        if known is None:
            return
        os.utime(path, ns=(entry.mtime, entry.mtime))
        if digest(path) != known:  # changed since: the time must show it
            os.utime(path)
        elif is_ours:
            self.records[name] = [entry.size, entry.mtime]

    def keep(self, name: str, path: bytes) -> tuple[int, ...] | None:
        """Keep a copy of what no sync put at a name, and return its identity, None for a folder, which is moved away."""
        status = os.lstat(path)
        for number in itertools.count(1):
            folder = self.note + b".replaced" + (b".%d" % number if number > 1 else b"")
            copy = os.path.join(folder, to_bytes(name))
            above = os.path.dirname(copy)
            try:
                make_folder(above)
            except (FileExistsError, NotADirectoryError):  # an older copy is in the place of a folder
                continue
            # Neither through an older copy that is a symlink, nor over an older copy.
            is_direct = os.path.realpath(above) == os.path.join(
                os.path.realpath(folder), to_bytes(name).rpartition(b"/")[0]
            ).rstrip(b"/")
            if is_direct and status_or_none(copy) is None:
                break
        if name not in self.replaced:
            self.replaced.append(name)
        if stat.S_ISDIR(status.st_mode):
            shutil.move(os.fsdecode(path), os.fsdecode(copy))
            return None
        try:
            os.link(path, copy, follow_symlinks=False)
        except OSError:  # another file system
            shutil.copy2(path, copy, follow_symlinks=False)
        return identity_of(status)

    def make_room(self, name: str) -> None:
        """Create the folders above a file, and remove a folder in its place if that has only entries of syncs."""
        parent = name.rpartition("/")[0]
        if not self.is_open(parent):
            self.make_room(parent)
            self.remove(parent, prune=False)
            os.mkdir(self.path(parent))
            self._open[parent] = True
        status = self.status(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            if self.has_others(name):
                raise not_replaceable(name)
            for inside in [one for one in self.records if one.startswith(name + "/")]:
                self.remove(inside)
            if status_or_none(self.path(name)) is not None:
                raise not_replaceable(name)
            self.make_room(name)

    def has_others(self, folder: str) -> bool:
        """Return whether a folder has anything that no sync put there or that has changed; no sync leaves an empty folder."""
        inside = os.listdir(self.path(folder))
        for name in (folder + "/" + to_text(entry) for entry in inside):
            status = self.status(name)
            if status is None:
                continue
            if self.has_others(name) if stat.S_ISDIR(status.st_mode) else not self.is_ours(name, status):
                return True
        return not inside

    def remove(self, name: str, *, prune: bool = True) -> bool:
        """Delete an unchanged entry of a sync, and folders that become empty; keep a changed one."""
        status = self.status(name)
        if status is None or not self.is_ours(name, status):
            return False
        path, taken = self.path(name), os.path.join(self.stage, b"taken")
        os.rename(path, taken)
        if not self.is_ours(name, os.lstat(taken), taken):
            if rename_to(taken, path, RENAME_NOREPLACE):
                self.keep(name, taken)
            return False
        os.unlink(taken)
        del self.records[name]
        parent = name.rpartition("/")[0] if prune else ""
        while parent:
            try:
                os.rmdir(self.path(parent))
            except OSError:
                break
            self._open = {"": True}
            parent = parent.rpartition("/")[0]
        return True

    def path(self, name: str) -> bytes:
        """Return the path of a file of the tree on the worker."""
        return b"%s/%s" % (self.root.rstrip(b"/"), to_bytes(name))

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of the entry at a path, without following any symlink below the root."""
        return status_or_none(self.path(name)) if self.is_open(name.rpartition("/")[0]) else None

    def is_open(self, parent: str) -> bool:
        """Return whether a folder exists. Any other entry there must come from a sync, or `RefusedError` is raised."""
        if parent not in self._open:
            status = self.status(parent)
            is_folder = status is not None and stat.S_ISDIR(status.st_mode)
            if status is not None and not is_folder and not self.is_ours(parent, status):
                what = "a symlink" if stat.S_ISLNK(status.st_mode) else "a file"
                message = f"`{parent}` is {what} on the worker, and no sync put it there: move it away"
                raise RefusedError("refused", message)
            self._open[parent] = is_folder
        return self._open[parent]

    def is_ours(self, name: str, status: os.stat_result, path: bytes | None = None) -> bool:
        """Return whether an entry is unchanged since a sync put it at a name; `path` if it was taken from there."""
        is_plain = stat.S_ISLNK(status.st_mode) or stat.S_ISREG(status.st_mode)
        return is_plain and self.records.get(name) == version_of(path or self.path(name), status)

    def remember(self) -> None:
        """Store the record of what was put here."""
        part = self.note + b".part"
        with open(part, "w", encoding="ascii") as file:
            file.write(json.dumps({"folder": path_text(self.root), "files": self.records}))
        os.replace(part, self.note + b".json")

    def forget_stage(self) -> None:
        """Remove unfinished files."""
        shutil.rmtree(self.stage, ignore_errors=True)


def lock_file(path: bytes, token: str, patience: float) -> int:
    """Create and lock a file, and return its descriptor. Raises `BlockingIOError` after `patience` in seconds.

    A program with the same token that holds the lock has lost its client, and is terminated.
    """
    until = time.monotonic() + patience
    make_folder(os.path.dirname(path))
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode().split()
            if len(holder) == 2 and holder[1] == token:
                with suppress(ProcessLookupError):
                    os.kill(int(holder[0]), signal.SIGTERM)
            os.close(lock)
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
            continue
        except OSError as error:
            if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:  # of a file system without locks
                raise
        os.ftruncate(lock, 0)
        os.pwrite(lock, ("%d %s" % (os.getpid(), token)).encode(), 0)
        return lock


def digest(path: bytes) -> str:
    """Return a digest of the contents of a file. Raises `OSError`."""
    found = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:
        while True:
            block = file.read(1 << 20)
            if not block:
                return found.hexdigest()
            found.update(block)


def version_of(path: bytes, status: os.stat_result) -> list[Any]:
    """Return what identifies the version of an entry: the target of a link; size and time of a file."""
    if stat.S_ISLNK(status.st_mode):
        return [to_text(os.readlink(path))]
    return [status.st_size, status.st_mtime_ns]


def identity_of(status: os.stat_result) -> tuple[int, ...]:
    """Return what identifies an entry and its version."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def not_replaceable(name: str) -> RefusedError:
    """Return the error for a folder that is not deleted."""
    return RefusedError("refused", "`%s` is a folder on the worker, with files that no sync put there" % name)


# Flags of renameat2(2).
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
CURRENT_FOLDER = -100
# Attempts against a program that creates and removes the entry all the time.
EXCHANGE_ATTEMPTS = 8


def put_in_place(part: bytes, path: bytes) -> bool:
    """Give a part its name; return whether what had that name is now in the place of the part.

    Where the system cannot exchange two names, what had the name is replaced.
    """
    for _ in range(EXCHANGE_ATTEMPTS):
        problem = rename_to(part, path, RENAME_NOREPLACE)
        if not problem:
            return False
        if problem == errno.EEXIST:
            problem = rename_to(part, path, RENAME_EXCHANGE)
            if not problem:
                return True
        if problem != errno.ENOENT:
            break
    move(part, path)
    return False


def rename_to(source: bytes, target: bytes, flag: int) -> int:
    """Rename an entry with a flag; return the number of the error, 0 without. Nothing is ever replaced."""
    found = renameat2()
    if found is None:  # macOS, and old systems
        return errno.ENOSYS
    rename, get_error = found
    return 0 if rename(CURRENT_FOLDER, source, CURRENT_FOLDER, target, flag) == 0 else get_error()


@lru_cache(maxsize=None)  # noqa: UP033  # Python 3.8 has no `cache`
def renameat2() -> tuple[Callable[..., int], Callable[[], int]] | None:
    """Return the call of the system and what returns its error; None on other systems."""
    try:
        import ctypes  # noqa: PLC0415  # it costs as much as the rest of the program

        return ctypes.CDLL(None, use_errno=True).renameat2, ctypes.get_errno
    except (ImportError, AttributeError, OSError):
        return None
