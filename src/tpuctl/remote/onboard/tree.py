# ruff: noqa: PTH  # names are bytes here, which pathlib does not know, and it would cost 10 ms to import
"""Runs on a worker: makes a folder hold the files that the client lists. Must run under Python 3.8.

What differs is found out here, from size and time, and from the content where only the time differs. A file is written under
another name and renamed, so that nobody sees half of one. Nothing is written, read or deleted outside the folder, nor through
a symlink in it. What was put here is remembered in `~/.tpuctl/sync/KEY.json`: nothing else is ever deleted, and a file that is
replaced although no sync put it there is kept in `~/.tpuctl/sync/KEY.replaced/`.

Both sides speak in frames: eight bytes of length, so many of JSON. The client says what it has, the worker what differs, the
client what it sends, then the files: a head, blocks with their length, an empty block, and a byte that says whether the file
stood still meanwhile. Last, the worker says what was done. The other end is `remote/syncing/wire.py`.
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

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any, BinaryIO

MARK = b"\n\0tpuctl-tree\n"
HEAD = struct.Struct(">IIq")  # number, mode, mtime in ns
SIZE = struct.Struct(">I")
END = 0xFFFFFFFF
BLOCK = 1 << 20
STAGE = b".tpuctl-sync"
# A client that says nothing for so long is gone, though nobody told.
SILENCE, RSYNC_SILENCE = 600, 24 * 3600
LOCK_PATIENCE = 10.0


class RefusalError(Exception):
    """What was asked for is not done; the text says why."""


def main() -> None:
    """Serve one client on stdin and stdout."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(MARK)
    sink.flush()
    try:
        serve(source, sink)
    except RefusalError as error:
        say(sink, {"error": str(error)})
    except OSError as error:
        name = os.fsdecode(error.filename) if error.filename else ""
        say(sink, {"error": (error.strerror or str(error)).lower() + (": " + name if name else "")})


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Compare, take what is sent, delete, report."""
    wish = hear(source)
    folder = Folder(wish)
    plan = compare(folder, wish["entries"])
    gone, kept = folder.obsolete({entry[0] for entry in wish["entries"]}) if wish["delete"] else ([], [])
    can_rsync = shutil.which("rsync") is not None
    say(sink, {**plan, "folder": shown(folder.root), "delete": gone, "kept": kept, "rsync": can_rsync})
    if wish["look"]:
        return
    folder.lock()
    try:
        work = hear(source)
        put = Delivery(folder, wish["entries"])
        put.prepare(work)
        if work["rsync"]:
            say(sink, {"ready": True})
            hear(source, RSYNC_SILENCE)
            say(sink, {"missing": put.missing(work["send"])})
        put.receive(source)
        deleted = [name for name in gone if folder.remove(name)]
        folder.forget_stage()
        say(sink, {"put": put.count, "bytes": put.size, "deleted": deleted, "replaced": put.replaced})
    finally:
        folder.remember()


class Folder:
    """The folder that a tree is sent to, and what earlier syncs put there: size and mtime of each file, target of each link."""

    def __init__(self, wish: dict[str, Any]) -> None:
        home = os.path.expanduser(b"~")
        self.root = os.path.realpath(os.path.join(home, os.path.expanduser(raw(wish["folder"]))))
        status = seen(self.root)
        if status is not None and not stat.S_ISDIR(status.st_mode):
            raise RefusalError(f"`{shown(self.root)}` is a file on the worker")
        self.token = wish["token"]
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
        """Return where a file of the tree is on the worker."""
        return os.path.join(self.root, raw(name))

    def lock(self) -> None:
        """Keep others out. A sync that lost its client is ended by the next try of the same client."""
        os.makedirs(os.path.dirname(self.note), mode=0o700, exist_ok=True)
        self._lock = os.open(self.note + b".lock", os.O_RDWR | os.O_CREAT, 0o600)
        until = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > until:
                    message = f"another sync to `{shown(self.root)}` is under way on the worker"
                    raise RefusalError(message) from error
            holder = os.pread(self._lock, 200, 0).decode().split()
            if len(holder) == 2 and holder[1] == self.token:
                os.kill(int(holder[0]), signal.SIGTERM)
            time.sleep(0.05)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()} {self.token}".encode(), 0)
        os.makedirs(self.root, exist_ok=True)
        self._open = {"": True}
        self.forget_stage()

    def remember(self) -> None:
        """Write down what was put here."""
        part = self.note + b".part"
        with open(part, "w", encoding="ascii") as file:
            json.dump({"folder": shown(self.root), "files": self.records}, file)
        os.replace(part, self.note + b".json")

    def forget_stage(self) -> None:
        """Remove what was not finished."""
        shutil.rmtree(os.path.join(self.root, STAGE), ignore_errors=True)

    def stage(self, name: str, number: int) -> bytes:
        """Return where a file is written before it gets its name: on the same file system."""
        parent, scratch = os.path.dirname(self.path(name)), os.path.join(self.root, STAGE)
        os.makedirs(scratch, mode=0o700, exist_ok=True)
        if os.lstat(parent).st_dev == os.lstat(scratch).st_dev:
            return os.path.join(scratch, b"%d" % number)
        return os.path.join(parent, b".tpuctl-sync-%d" % number)

    def stand(self, name: str) -> os.stat_result | None:
        """Return what is in a file's place, without following a symlink anywhere below the root."""
        return seen(self.path(name)) if self.is_open(name.rpartition("/")[0]) else None

    def is_open(self, parent: str) -> bool:
        """Tell whether a folder is there. What stands in its place must have been put there by a sync."""
        if parent not in self._open:
            status = self.stand(parent)
            if status is not None and not stat.S_ISDIR(status.st_mode) and not self.is_ours(parent, status):
                what = "a symlink" if stat.S_ISLNK(status.st_mode) else "a file"
                raise RefusalError(f"`{parent}` is {what} on the worker, and no sync put it there: move it away")
            self._open[parent] = status is not None and stat.S_ISDIR(status.st_mode)
        return self._open[parent]

    def is_ours(self, name: str, status: os.stat_result) -> bool:
        """Tell whether something is as a sync left it."""
        record = self.records.get(name)
        if record is None:
            return False
        if stat.S_ISLNK(status.st_mode):
            return record == [shown(os.readlink(self.path(name)))]
        return stat.S_ISREG(status.st_mode) and record == [status.st_size, status.st_mtime_ns]

    def record(self, name: str) -> None:
        """Remember something as it is now."""
        status = os.lstat(self.path(name))
        is_link = stat.S_ISLNK(status.st_mode)
        self.records[name] = (
            [shown(os.readlink(self.path(name)))] if is_link else [status.st_size, status.st_mtime_ns]
        )

    def obsolete(self, names: set[str]) -> tuple[list[str], list[str]]:
        """Return what a sync put here that is no longer in the tree: what is as it was left, and what was changed since."""
        gone, kept = [], []
        for name in sorted(set(self.records) - names):
            try:
                status = self.stand(name)
            except RefusalError:  # somebody has put something else in the place of its folder
                status = None
            if status is None:
                del self.records[name]
            else:
                (gone if self.is_ours(name, status) else kept).append(name)
        return gone, kept

    def remove(self, name: str) -> bool:
        """Delete what a sync put here, with the folders that it leaves empty. What is not as it was left stays."""
        status = self.stand(name)
        if status is None or not self.is_ours(name, status):
            return False
        os.unlink(self.path(name))
        del self.records[name]
        parent = name.rpartition("/")[0]
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
        """Make the folders above a file, and clear its place of a folder that holds nothing but what syncs put there."""
        parent = name.rpartition("/")[0]
        if not self.is_open(parent):
            self.make_room(parent)
            self.remove(parent)
            os.mkdir(self.path(parent))
            self._open[parent] = True
        status = self.stand(name)
        if status is not None and stat.S_ISDIR(status.st_mode) and name not in self._open:
            for inside in [one for one in self.records if one.startswith(name + "/")]:
                self.remove(inside)
            if seen(self.path(name)) is not None:
                raise RefusalError(f"`{name}` is a folder on the worker, with files that no sync put there")


class Delivery:
    """What is put into the folder in one sync."""

    def __init__(self, folder: Folder, entries: list[list[Any]]) -> None:
        self.folder, self.entries = folder, entries
        self.count = self.size = 0
        self.replaced: list[str] = []

    def prepare(self, work: dict[str, Any]) -> None:
        """Make all ready for the files that come: folders, copies of what is not ours. Put the symlinks; set times and modes."""
        foreign = set(work["foreign"])
        for number in work["send"] + work["link"]:
            name = self.entries[number][0]
            self.folder.make_room(name)
            if number in foreign:
                self.keep(name)
        for number in work["link"]:
            name, *_, target = self.entries[number]
            part = self.folder.stage(name, number)
            os.symlink(raw(target), part)
            self.finish(part, name, 0)
        for number in work["touch"]:
            name, mode, _, mtime, _ = self.entries[number]
            status = self.folder.stand(name)
            if status is None or not stat.S_ISREG(status.st_mode):
                continue  # it went meanwhile: the next sync sees to it
            is_ours = self.folder.is_ours(name, status)
            os.chmod(self.folder.path(name), mode)
            os.utime(self.folder.path(name), ns=(mtime, mtime))
            if is_ours:
                self.folder.record(name)

    def keep(self, name: str) -> None:
        """Keep a copy of what is about to be replaced and was not put here by a sync."""
        path, copy = self.folder.path(name), os.path.join(self.folder.note + b".replaced", raw(name))
        status = self.folder.stand(name)
        if status is None or stat.S_ISDIR(status.st_mode):
            return
        os.makedirs(os.path.dirname(copy), mode=0o700, exist_ok=True)
        if seen(copy) is not None:
            os.unlink(copy)
        try:
            os.link(path, copy, follow_symlinks=False)
        except OSError:  # another file system
            shutil.copy2(path, copy, follow_symlinks=False)
        self.replaced.append(name)

    def missing(self, numbers: list[int]) -> list[int]:
        """Return which files rsync did not bring; those that it brought count from now on."""
        missing = []
        for number in numbers:
            name, _, size, mtime, _ = self.entries[number]
            status = self.folder.stand(name)
            # An old rsync knows no more than seconds.
            if status is None or status.st_size != size or status.st_mtime_ns // 10**9 != mtime // 10**9:
                missing.append(number)
            else:
                self.count, self.size = self.count + 1, self.size + size
                self.folder.record(name)
        return missing

    def receive(self, source: BinaryIO) -> None:
        """Take the files that are sent."""
        while True:
            signal.alarm(SILENCE)
            number, mode, mtime = HEAD.unpack(exactly(source, HEAD.size))
            if number == END:
                return
            name = self.entries[number][0]
            part = self.folder.stage(name, number)
            size, is_whole = write(source, part)
            if is_whole:
                os.chmod(part, mode & 0o777)
                os.utime(part, ns=(mtime, mtime))
                self.finish(part, name, size)
            else:
                os.unlink(part)

    def finish(self, part: bytes, name: str, size: int) -> None:
        """Give something its name."""
        os.replace(part, self.folder.path(name))
        self.folder.record(name)
        self.count, self.size = self.count + 1, self.size + size


def compare(folder: Folder, entries: list[list[Any]]) -> dict[str, Any]:
    """Return the numbers of what is to be sent or linked, of what needs but another mode, and digests where only times differ.

    `foreign` are those that would replace something that no sync put there, or that was changed since.
    """
    send, link, attributes, foreign = [], [], [], []
    digests = {}
    for number, (name, mode, size, mtime, target) in enumerate(entries):
        check(name)
        status = folder.stand(name)
        if target is not None:
            if status and stat.S_ISLNK(status.st_mode) and os.readlink(folder.path(name)) == raw(target):
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
    """Write the blocks of one file. Returns its size, and whether it stood still while it was read."""
    total = 0
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        while True:
            (size,) = SIZE.unpack(exactly(source, SIZE.size))
            if size == 0:
                return total, exactly(source, 1) == b"\1"
            signal.alarm(SILENCE)
            block = memoryview(exactly(source, size))
            total += size
            while block:
                block = block[file.write(block) or 0 :]


def check(name: str) -> None:
    """Refuse a name that leads out of the folder."""
    if name.startswith("/") or "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise RefusalError(f"`{name}` leads out of the folder")


def digest(path: bytes) -> str:
    """Return what two files of the same content have in common."""
    found = hashlib.blake2b(digest_size=16)
    with open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def seen(path: bytes) -> os.stat_result | None:
    """Return what is there, a symlink as such."""
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return None


def raw(name: str) -> bytes:
    """Return the bytes that a name stands for, whatever the locale here is."""
    return name.encode("utf-8", "surrogateescape")


def shown(path: bytes) -> str:
    """Return bytes as a name."""
    return path.decode("utf-8", "surrogateescape")


def exactly(source: BinaryIO, size: int) -> bytes:
    """Read so many bytes. A client that has gone ends the program."""
    found = source.read(size)
    if len(found) < size:
        raise SystemExit(1)
    return found


def hear(source: BinaryIO, patience: int = SILENCE) -> Any:  # JSON
    """Read a frame."""
    signal.alarm(patience)
    (size,) = struct.unpack(">Q", exactly(source, 8))
    return json.loads(zlib.decompress(exactly(source, size)))


def say(sink: BinaryIO, value: dict[str, Any]) -> None:
    """Write a frame."""
    text = json.dumps(value).encode("ascii")
    sink.write(struct.pack(">Q", len(text)) + text)
    sink.flush()
