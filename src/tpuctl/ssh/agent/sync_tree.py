"""Runs on a worker: makes a folder hold the files that the client lists. Must run under Python 3.8.

This program finds the differences, by size and time, and by content if only the time differs. A file is written under a
temporary name and renamed, so that no process sees half of it. Nothing is written, read or deleted outside the folder, nor
through a symlink in it. `~/.tpuctl/sync/KEY.json` records what syncs put here: nothing else is ever deleted, and a replaced
file that no sync put there is kept in `~/.tpuctl/sync/KEY.replaced/`.

Both sides send frames: eight bytes of length, then JSON. The client sends its list, the worker the differences, the client its
plan, then the files: a head, blocks with their length, an empty block, and a byte that says whether the file was unchanged
during the transfer. At last the worker reports what was done. The other end is in `workers` (sync).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import struct
import sys
import time
import zlib
from contextlib import suppress

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, BinaryIO

TREE_MARK = b"\n\0tpuctl-tree\n"
HEAD = struct.Struct(">IIq")  # number, mode, mtime in ns
SIZE = struct.Struct(">I")
END = 0xFFFFFFFF
BLOCK = 1 << 20
# Seconds without data after which the client counts as gone.
CLIENT_TIMEOUT, RSYNC_TIMEOUT = 600, 24 * 3600


def main() -> None:
    """Serve one client on stdin and stdout."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(TREE_MARK)
    sink.flush()
    try:
        serve(source, sink)
    except SyncRefusedError as error:
        write_frame(sink, {"error": str(error)})
    except OSError as error:
        name = os.fsdecode(error.filename) if error.filename else ""
        write_frame(sink, {"error": (error.strerror or str(error)).lower() + (": " + name if name else "")})


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Compare, receive files, delete, report."""
    request = read_frame(source)
    folder = SyncFolder(request)
    if not request["dry_run"]:
        folder.lock()
    plan = compare_files(folder, request["entries"])
    gone, kept = folder.obsolete({entry[0] for entry in request["entries"]}) if request["delete"] else ([], [])
    can_rsync = shutil.which("rsync") is not None
    write_frame(sink, {**plan, "folder": path_text(folder.root), "delete": gone, "kept": kept, "rsync": can_rsync})
    if request["dry_run"]:
        return
    try:
        work = read_frame(source)
        put = SyncWriter(folder, request["entries"])
        put.prepare(work)
        if work["rsync"]:
            write_frame(sink, {"ready": True})
            read_frame(source, RSYNC_TIMEOUT)
            write_frame(sink, {"missing": put.missing(work["send"])})
        put.receive(source)
        deleted = [name for name in gone if folder.remove(name)]
        write_frame(sink, {"put": put.count, "bytes": put.size, "deleted": deleted, "replaced": put.replaced})
    finally:
        folder.forget_stage()
        folder.remember()


class SyncWriter:
    """Writes the files of one sync into the folder."""

    def __init__(self, folder: SyncFolder, entries: list[list[Any]]) -> None:
        self.folder, self.entries = folder, entries
        self.count = self.size = 0
        self.replaced: list[str] = []

    def prepare(self, work: dict[str, Any]) -> None:
        """Prepare for the files: create folders, keep replaced files. Create the symlinks; set times and modes."""
        foreign = set(work["foreign"])
        for number in work["send"] + work["link"]:
            name = self.entries[number][0]
            self.folder.make_room(name)
            if number in foreign:
                self.keep(name)
        for number in work["link"]:
            name, *_, target = self.entries[number]
            part = self.folder.stage(name, number)
            os.symlink(path_bytes(target), part)
            self.finish(part, name, 0)
        for number in work["touch"]:
            name, mode, _, mtime, _ = self.entries[number]
            status = self.folder.stand(name)
            if status is None or not stat.S_ISREG(status.st_mode):
                continue  # it has gone meanwhile: left to the next sync
            is_ours = self.folder.is_ours(name, status)
            os.chmod(self.folder.path(name), mode)
            os.utime(self.folder.path(name), ns=(mtime, mtime))
            if is_ours:
                self.folder.record(name)

    def keep(self, name: str) -> None:
        """Keep a copy of an entry that no sync put here, before it is replaced."""
        path, copy = self.folder.path(name), os.path.join(self.folder.note + b".replaced", path_bytes(name))
        status = self.folder.stand(name)
        if status is None or stat.S_ISDIR(status.st_mode):
            return
        clear(copy)
        os.makedirs(os.path.dirname(copy), mode=0o700, exist_ok=True)
        try:
            os.link(path, copy, follow_symlinks=False)
        except OSError:  # another file system
            shutil.copy2(path, copy, follow_symlinks=False)
        self.replaced.append(name)

    def missing(self, numbers: list[int]) -> list[int]:
        """Return the files that rsync did not transfer; record the others."""
        missing = []
        for number in numbers:
            name, _, size, mtime, _ = self.entries[number]
            status = self.folder.stand(name)
            # An old rsync stores times in seconds.
            if status is None or status.st_size != size or status.st_mtime_ns // 10**9 != mtime // 10**9:
                missing.append(number)
            else:
                self.count, self.size = self.count + 1, self.size + size
                self.folder.record(name)
        return missing

    def receive(self, source: BinaryIO) -> None:
        """Receive the files."""
        while True:
            signal.alarm(CLIENT_TIMEOUT)
            number, mode, mtime = HEAD.unpack(exactly(source, HEAD.size))
            if number == END:
                return
            name = self.entries[number][0]
            part = self.folder.stage(name, number)
            try:
                size, is_whole = write(source, part)
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                raise SyncRefusedError(f"`{name}` cannot be written on the worker: {why}") from error
            if is_whole:
                os.chmod(part, mode & 0o777)
                os.utime(part, ns=(mtime, mtime))
                self.finish(part, name, size)
            else:
                os.unlink(part)

    def finish(self, part: bytes, name: str, size: int) -> None:
        """Give a file or link its name."""
        os.replace(part, self.folder.path(name))
        self.folder.record(name)
        self.count, self.size = self.count + 1, self.size + size


def compare_files(folder: SyncFolder, entries: list[list[Any]]) -> dict[str, Any]:
    """Return the numbers of entries to send, to link, and to change the mode of, and digests if only times differ.

    `foreign`: those that would replace an entry that no sync put there, or that has changed since.
    """
    send, link, attributes, foreign = [], [], [], []
    digests = {}
    for number, (name, mode, size, mtime, target) in enumerate(entries):
        check(name)
        status = folder.stand(name)
        if target is not None:
            if status and stat.S_ISLNK(status.st_mode) and os.readlink(folder.path(name)) == path_bytes(target):
                continue
            link.append(number)
        elif status is None or not stat.S_ISREG(status.st_mode) or status.st_size != size:
            send.append(number)
        elif status.st_mtime_ns != mtime:
            digests[number] = digest(folder.path(name))
        elif status.st_mode & 0o777 != mode:
            attributes.append(number)
            continue
        else:
            continue
        if status is not None and not stat.S_ISDIR(status.st_mode) and not folder.is_ours(name, status):
            foreign.append(number)
    return {"send": send, "link": link, "touch": attributes, "digests": digests, "foreign": foreign}


def write(source: BinaryIO, part: bytes) -> tuple[int, bool]:
    """Write the blocks of one file. Return its size, and whether it was unchanged during the transfer."""
    total = 0
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        while True:
            (size,) = SIZE.unpack(exactly(source, SIZE.size))
            if size == 0:
                return total, exactly(source, 1) == b"\1"
            signal.alarm(CLIENT_TIMEOUT)
            block = memoryview(exactly(source, size))
            total += size
            while block:
                block = block[file.write(block) or 0 :]


def clear(copy: bytes) -> None:
    """Remove an older copy at the path of a copy, or of a folder above it."""
    above = copy
    while lstat_or_none(above) is None:
        above = os.path.dirname(above)
    if not stat.S_ISDIR(os.lstat(above).st_mode):
        os.unlink(above)
    elif above == copy:
        shutil.rmtree(copy)


def check(name: str) -> None:
    """Refuse a name that leads out of the folder."""
    if name.startswith("/") or "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise SyncRefusedError(f"`{name}` leads out of the folder")


def digest(path: bytes) -> str:
    """Return a digest of the content of a file."""
    found = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def exactly(source: BinaryIO, size: int) -> bytes:
    """Read `size` bytes. Exit if the client has gone."""
    found = source.read(size)
    if len(found) < size:
        raise SystemExit(1)
    return found


def read_frame(source: BinaryIO, patience: int = CLIENT_TIMEOUT) -> Any:  # JSON
    """Read a frame."""
    signal.alarm(patience)
    (size,) = struct.unpack(">Q", exactly(source, 8))
    return json.loads(zlib.decompress(exactly(source, size)))


def write_frame(sink: BinaryIO, value: dict[str, Any]) -> None:
    """Write a frame."""
    text = json.dumps(value).encode("ascii")
    sink.write(struct.pack(">Q", len(text)) + text)
    sink.flush()


STAGE = b".tpuctl-sync"
LOCK_PATIENCE = 10.0


class SyncRefusedError(Exception):
    """A refused request; the text says why."""


class SyncFolder:
    """The target folder, and what earlier syncs put there: size and mtime of each file, target of each link."""

    def __init__(self, request: dict[str, Any]) -> None:
        home = os.path.expanduser(b"~")
        self.root = os.path.realpath(os.path.join(home, os.path.expanduser(path_bytes(request["folder"]))))
        status = lstat_or_none(self.root)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise SyncRefusedError(f"`{path_text(self.root)}` is a file on the worker")
        self.token = request["token"]
        key = hashlib.sha256(self.root).hexdigest()[:16]
        self.note = os.path.join(home, b".tpuctl", b"sync", key.encode())
        self.records: dict[str, list[Any]] = {}
        try:
            with open(self.note + b".json", encoding="ascii") as file:
                self.records = json.load(file)["files"]
        except (FileNotFoundError, ValueError, KeyError):
            pass
        self._open: dict[str, bool] = {"": status is not None}
        self._lock = -1

    def path(self, name: str) -> bytes:
        """Return the path of a file of the tree on the worker."""
        return os.path.join(self.root, path_bytes(name))

    def lock(self) -> None:
        """Lock the folder. A sync that lost its client is terminated by the next attempt of the same client."""
        os.makedirs(os.path.dirname(self.note), mode=0o700, exist_ok=True)
        self._lock = os.open(self.note + b".lock", os.O_RDWR | os.O_CREAT, 0o600)
        until = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > until:
                    message = f"another sync to `{path_text(self.root)}` is running on the worker"
                    raise SyncRefusedError(message) from error
            holder = os.pread(self._lock, 200, 0).decode().split()
            if len(holder) == 2 and holder[1] == self.token:
                with suppress(ProcessLookupError):
                    os.kill(int(holder[0]), signal.SIGTERM)
            time.sleep(0.05)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()} {self.token}".encode(), 0)
        os.makedirs(self.root, exist_ok=True)
        self._open = {"": True}
        self.forget_stage()

    def remember(self) -> None:
        """Store the record of what was put here."""
        part = self.note + b".part"
        with open(part, "w", encoding="ascii") as file:
            json.dump({"folder": path_text(self.root), "files": self.records}, file)
        os.replace(part, self.note + b".json")

    def forget_stage(self) -> None:
        """Remove unfinished files."""
        shutil.rmtree(os.path.join(self.root, STAGE), ignore_errors=True)

    def stage(self, name: str, number: int) -> bytes:
        """Return the temporary path of a file, on the same file system."""
        parent, scratch = os.path.dirname(self.path(name)), os.path.join(self.root, STAGE)
        os.makedirs(scratch, mode=0o700, exist_ok=True)
        if os.lstat(parent).st_dev == os.lstat(scratch).st_dev:
            return os.path.join(scratch, b"%d" % number)
        return os.path.join(parent, b".tpuctl-sync-%d" % number)

    def stand(self, name: str) -> os.stat_result | None:
        """Return the status of the entry at a path, without following any symlink below the root."""
        return lstat_or_none(self.path(name)) if self.is_open(name.rpartition("/")[0]) else None

    def is_open(self, parent: str) -> bool:
        """Return whether a folder exists. Any other entry there must come from a sync, or `SyncRefusedError` is raised."""
        if parent not in self._open:
            status = self.stand(parent)
            if status is not None and not stat.S_ISDIR(status.st_mode) and not self.is_ours(parent, status):
                what = "a symlink" if stat.S_ISLNK(status.st_mode) else "a file"
                raise SyncRefusedError(f"`{parent}` is {what} on the worker, and no sync put it there: move it away")
            self._open[parent] = status is not None and stat.S_ISDIR(status.st_mode)
        return self._open[parent]

    def is_ours(self, name: str, status: os.stat_result) -> bool:
        """Return whether an entry is unchanged since a sync put it there."""
        record = self.records.get(name)
        if record is None:
            return False
        if stat.S_ISLNK(status.st_mode):
            return record == [path_text(os.readlink(self.path(name)))]
        return stat.S_ISREG(status.st_mode) and record == [status.st_size, status.st_mtime_ns]

    def record(self, name: str) -> None:
        """Record an entry as it is now."""
        status = os.lstat(self.path(name))
        is_link = stat.S_ISLNK(status.st_mode)
        self.records[name] = (
            [path_text(os.readlink(self.path(name)))] if is_link else [status.st_size, status.st_mtime_ns]
        )

    def obsolete(self, names: set[str]) -> tuple[list[str], list[str]]:
        """Return what a sync put here and is no longer in the tree: unchanged entries, and changed ones."""
        gone: list[str] = []
        kept: list[str] = []
        for name in sorted(set(self.records) - names):
            try:
                status = self.stand(name)
            except SyncRefusedError:  # its folder was replaced by something else
                status = None
            if status is None:
                del self.records[name]
            else:
                (gone if self.is_ours(name, status) else kept).append(name)
        return gone, kept

    def remove(self, name: str, *, prune: bool = True) -> bool:
        """Delete an unchanged entry of a sync, and folders that become empty; keep a changed one."""
        status = self.stand(name)
        if status is None or not self.is_ours(name, status):
            return False
        os.unlink(self.path(name))
        del self.records[name]
        parent = name.rpartition("/")[0] if prune else ""
        while parent:
            try:
                os.rmdir(self.path(parent))
            except OSError:
                break
            self._open.clear()
            self._open[""] = True
            parent = parent.rpartition("/")[0]
        return True

    def make_room(self, name: str) -> None:
        """Create the folders above a file, and remove a folder in its place if that has only entries of syncs."""
        parent = name.rpartition("/")[0]
        if not self.is_open(parent):
            self.make_room(parent)
            self.remove(parent, prune=False)
            os.mkdir(self.path(parent))
            self._open[parent] = True
        status = self.stand(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            for inside in [one for one in self.records if one.startswith(name + "/")]:
                self.remove(inside)
            if lstat_or_none(self.path(name)) is not None:
                raise SyncRefusedError(f"`{name}` is a folder on the worker, with files that no sync put there")
            self.make_room(name)


def lstat_or_none(path: bytes) -> os.stat_result | None:
    """Return the status of a path without following a symlink; None if it does not exist."""
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return None


def path_bytes(name: str) -> bytes:
    """Encode a name, independent of the locale."""
    return name.encode("utf-8", "surrogateescape")


def path_text(path: bytes) -> str:
    """Decode a path."""
    return path.decode("utf-8", "surrogateescape")
