"""Runs on a worker: the output of the command, and its stdin."""

from __future__ import annotations

import fcntl
import os

from tpuctl.remote.onboard.link import BLOCK, Link
from tpuctl.remote.onboard.small_files import RESERVED
from tpuctl.remote.onboard.trimming import trimmed

# Blocks of each stream in one round: a signal from the client must not wait for a gigabyte of output.
ROUND = 16


class Stream:
    """The output of the command in one file, sent from an offset on."""

    def __init__(self, link: Link, folder: str, kind: bytes, offset: int) -> None:
        self.link, self.folder, self.kind, self.offset = link, folder, kind, offset
        self.end: int | None = None
        try:
            self.file = os.open(folder + ("/out" if kind == b"o" else "/err"), os.O_RDONLY)
        except FileNotFoundError:  # both are in one file
            self.file = -1

    def pump(self) -> bool:
        """Send some of the available output; return whether there was any."""
        before = self.offset
        for _ in range(ROUND if self.file >= 0 else 0):
            most = BLOCK if self.end is None else max(0, min(BLOCK, self.end - self.offset))
            data = os.pread(self.file, most, self.offset)
            if not data:
                break
            # Checked after the read: a hole that existed by then is known now.
            kept_from = trimmed(self.folder)[self.kind == b"e"]
            if kept_from > self.offset:
                self.link.send(self.kind.upper(), b"%d" % (kept_from - self.offset))
                self.offset = kept_from
                continue
            self.link.send(self.kind, data)
            self.offset += len(data)
        return self.offset > before

    def stop_here(self) -> None:
        """Send only what exists now: processes left behind may print without end."""
        if self.end is None and self.file >= 0:
            self.end = os.fstat(self.file).st_size


class Feed:
    """The command's stdin. The number of bytes written to it is recorded, for the next connection to continue there.

    Nothing here blocks: a command that does not read must not delay its output or a signal. Only the latest connection writes
    to it: data that still arrives over an earlier one was sent again over the latest.
    """

    def __init__(self, link: Link, folder: str) -> None:
        self.link = link
        self.pending = b""
        self.is_whole = False
        self.book = os.open(folder + "/fed", os.O_RDWR)
        try:
            self.pipe = os.open(folder + "/in", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # the command has ended, or has received all of it
            self.pipe = -1
        fcntl.flock(self.book, fcntl.LOCK_EX)
        _, given, *rest = os.pread(self.book, RESERVED, 0).split()
        self.given = int(given)
        self.note(b" ".join(rest))
        fcntl.flock(self.book, fcntl.LOCK_UN)
        link.send(b"a", b"%d" % self.given)

    def take(self, kind: bytes, payload: bytes) -> None:
        """Receive data from the client, or its end."""
        self.pending += payload
        self.is_whole = self.is_whole or kind == b"f"
        self.give()

    def give(self) -> None:
        """Write as much as the command accepts now."""
        # Nothing blocks while the lock is held.
        fcntl.flock(self.book, fcntl.LOCK_EX)
        try:
            if int(os.pread(self.book, RESERVED, 0).split()[0]) != os.getpid():
                self.pending = b""
                return
            self.pass_on()
        finally:
            fcntl.flock(self.book, fcntl.LOCK_UN)
        self.link.send(b"a", b"%d" % self.given)

    def pass_on(self) -> None:
        """Write as much as the command accepts now, and record the number of bytes."""
        before = len(self.pending)
        try:
            while self.pending and self.pipe >= 0:
                self.pending = self.pending[os.write(self.pipe, self.pending) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the command no longer reads
            os.close(self.pipe)
            self.pipe = -1
        if self.pipe < 0:
            self.pending = b""
        self.given += before - len(self.pending)
        end = self.is_whole and not self.pending
        if end and self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1
        self.note(b"end" if end else b"")

    def note(self, end: bytes) -> None:
        """Record this process, the number of bytes written, and whether that is all; in place, as the disk may be full."""
        os.pwrite(self.book, (b"%d %d %s" % (os.getpid(), self.given, end)).ljust(RESERVED), 0)
