"""Runs on a worker: what the command prints, and what it is given to read."""

from __future__ import annotations

import os

from tpuctl.remote.onboard.link import BLOCK, Link
from tpuctl.remote.onboard.small_files import read, write

# Blocks of each stream at a time: a signal from the client must not wait for a gigabyte of output.
ROUND = 16


class Stream:
    """What the command prints into one file, sent from an offset on."""

    def __init__(self, link: Link, folder: str, kind: bytes, offset: int) -> None:
        self.link, self.kind, self.offset = link, kind, offset
        try:
            self.file = os.open(folder + ("/out" if kind == b"o" else "/err"), os.O_RDONLY)
        except FileNotFoundError:  # both are in one file
            self.file = -1

    def pump(self) -> bool:
        """Send some of what there is; return whether there was any."""
        before = self.offset
        for _ in range(ROUND if self.file >= 0 else 0):
            data = os.pread(self.file, BLOCK, self.offset)
            if not data:
                break
            self.link.send(self.kind, data)
            self.offset += len(data)
        return self.offset > before


class Feed:
    """The command's stdin. How much it was given is written down, for the next connection to go on from there.

    A command that reads nothing must not keep its output or a signal waiting, so nothing here waits for it.
    """

    def __init__(self, link: Link, folder: str) -> None:
        self.link, self.place = link, folder + "/fed"
        self.given = int((read(self.place) or b"0").split()[0])
        self.pending = b""
        self.is_whole = False
        try:
            self.pipe = os.open(folder + "/in", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # the command has ended, or has had all of it
            self.pipe = -1
        link.send(b"a", b"%d" % self.given)

    def take(self, kind: bytes, payload: bytes) -> None:
        """Take more from the client, or the end of it."""
        self.pending += payload
        self.is_whole = self.is_whole or kind == b"f"
        self.give()

    def give(self) -> None:
        """Give the command as much as it takes now."""
        before = len(self.pending)
        try:
            while self.pending and self.pipe >= 0:
                self.pending = self.pending[os.write(self.pipe, self.pending) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # nobody will read the rest
            os.close(self.pipe)
            self.pipe = -1
        if self.pipe < 0:
            self.pending = b""
        self.given += before - len(self.pending)
        end = self.is_whole and not self.pending
        if end and self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1
        write(self.place, b"%d%s" % (self.given, b" end" if end else b""))
        self.link.send(b"a", b"%d" % self.given)
