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

import hashlib
import json
import os
import shutil
import signal
import stat
import struct
import sys
import zlib

from tpuctl.remote.onboard.folder import Folder, RefusalError, raw, seen, shown

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any, BinaryIO

MARK = b"\n\0tpuctl-tree\n"
HEAD = struct.Struct(">IIq")  # number, mode, mtime in ns
SIZE = struct.Struct(">I")
END = 0xFFFFFFFF
BLOCK = 1 << 20
# Seconds without data after which the client counts as gone.
SILENCE, RSYNC_SILENCE = 600, 24 * 3600


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
    """Compare, receive files, delete, report."""
    wish = hear(source)
    folder = Folder(wish)
    if not wish["look"]:
        folder.lock()
    plan = compare(folder, wish["entries"])
    gone, kept = folder.obsolete({entry[0] for entry in wish["entries"]}) if wish["delete"] else ([], [])
    can_rsync = shutil.which("rsync") is not None
    say(sink, {**plan, "folder": shown(folder.root), "delete": gone, "kept": kept, "rsync": can_rsync})
    if wish["look"]:
        return
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
        say(sink, {"put": put.count, "bytes": put.size, "deleted": deleted, "replaced": put.replaced})
    finally:
        folder.forget_stage()
        folder.remember()


class Delivery:
    """Writes the files of one sync into the folder."""

    def __init__(self, folder: Folder, entries: list[list[Any]]) -> None:
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
            os.symlink(raw(target), part)
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
        path, copy = self.folder.path(name), os.path.join(self.folder.note + b".replaced", raw(name))
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
            signal.alarm(SILENCE)
            number, mode, mtime = HEAD.unpack(exactly(source, HEAD.size))
            if number == END:
                return
            name = self.entries[number][0]
            part = self.folder.stage(name, number)
            try:
                size, is_whole = write(source, part)
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                raise RefusalError(f"`{name}` cannot be written on the worker: {why}") from error
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


def compare(folder: Folder, entries: list[list[Any]]) -> dict[str, Any]:
    """Return the numbers of entries to send, to link, and to change the mode of, and digests if only times differ.

    `foreign`: those that would replace an entry that no sync put there, or that has changed since.
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
    """Write the blocks of one file. Return its size, and whether it was unchanged during the transfer."""
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


def clear(copy: bytes) -> None:
    """Remove an older copy at the path of a copy, or of a folder above it."""
    above = copy
    while seen(above) is None:
        above = os.path.dirname(above)
    if not stat.S_ISDIR(os.lstat(above).st_mode):
        os.unlink(above)
    elif above == copy:
        shutil.rmtree(copy)


def check(name: str) -> None:
    """Refuse a name that leads out of the folder."""
    if name.startswith("/") or "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise RefusalError(f"`{name}` leads out of the folder")


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
