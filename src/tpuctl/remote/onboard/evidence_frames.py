"""Runs on a worker: sends evidence as frames: a letter, four bytes of length, the payload. Within limits of size and time.

f: a file begins, as JSON: its path below the worker's folder, its source, its size, its modification time. d: bytes of it.
c: number of bytes left out here. e: it ends. n: what is missing and why, as JSON. z: the end. The output of a login shell comes
before the mark. Python 3.8, the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False  # `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any

EVIDENCE_MARK = b"\n\0tpuctl-evidence\n"
PIECE = 64 * 1024
# If a part begins in the middle of a file, the rest of its line is left out: it may be the end of a secret.
LONGEST_REST = 64 * 1024


class Report:
    """Sends evidence within the limits of size and time."""

    def __init__(self, room: int, seconds: float) -> None:
        self.room = room
        self.until = time.monotonic() + seconds
        put_all(EVIDENCE_MARK)

    def time_left(self) -> float:
        """Return the remaining seconds, 0 after the deadline."""
        return max(0.0, self.until - time.monotonic())

    def lacks(self, what: str, why: str) -> None:
        """Report what is missing."""
        put_frame(b"n", json.dumps({"path": what, "why": why[:500]}).encode("ascii"))

    def text(self, path: str, source: str, data: bytes, most: int) -> None:
        """Send the output of a program; of a long one the beginning and the end."""
        self.begin(path, source, len(data), None)
        most = min(most, self.room)
        if len(data) <= most:
            self.put(data)
        else:
            head, tail = data[: most // 4], data[len(data) - (most - most // 4) :]
            tail = after_break(tail)
            self.put(head[: head.rfind(b"\n") + 1] or head)
            left_out = len(data) - len(head) - len(tail)
            put_frame(b"c", b"%d" % left_out)
            self.put(tail)
        put_frame(b"e", b"")

    def begin(self, path: str, source: str, size: int | None, modified: float | None) -> None:
        """Begin a file."""
        about: dict[str, Any] = {"path": path, "source": source, "size": size, "modified": modified}
        put_frame(b"f", json.dumps(about).encode("ascii"))

    def put(self, data: bytes) -> None:
        """Send bytes of the current file."""
        self.room -= len(data)
        for at in range(0, len(data), PIECE):
            put_frame(b"d", data[at : at + PIECE])


def tell_file(report: Report, path: str, source: bytes, most: int, start: int = 0) -> None:
    """Send a plain file from `start` on; of a long one the beginning and the end. Raises `OSError`."""
    import stat  # noqa: PLC0415  # `os` has loaded it

    # Follow no link, wait for no pipe.
    file = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(0, "not a plain file")
        size = max(0, about.st_size - start)
        report.begin(path, os.fsdecode(source), about.st_size, about.st_mtime)
        if size <= most:
            tell_part(report, file, start, about.st_size)
        else:
            head = most // 4
            data = os.pread(file, head, start)
            data = data[: data.rfind(b"\n") + 1] or data
            report.put(data)
            begin = about.st_size - (most - head)
            rest = os.pread(file, LONGEST_REST, begin)
            begin += len(rest) - len(after_break(rest))
            put_frame(b"c", b"%d" % (begin - start - len(data)))
            tell_part(report, file, begin, about.st_size)
        put_frame(b"e", b"")
    finally:
        os.close(file)


def tell_part(report: Report, file: int, at: int, end: int) -> None:
    """Send bytes of a file while there is time; bytes that no longer exist are left out."""
    while at < end:
        data = os.pread(file, min(PIECE, end - at), at) if report.time_left() else b""
        if not data:
            put_frame(b"c", b"%d" % (end - at))
            return
        report.put(data)
        at += len(data)


def after_break(data: bytes) -> bytes:
    """Return what follows the first newline, or else the first blank or quote; empty without any."""
    end = data.find(b"\n", 0, LONGEST_REST)
    if end < 0:
        found = [at for at in (data.find(mark, 0, LONGEST_REST) for mark in (b" ", b'"', b"'", b",")) if at >= 0]
        end = min(found) if found else len(data[:LONGEST_REST]) - 1
    return data[end + 1 :]


def put_frame(kind: bytes, payload: bytes) -> None:
    """Send a frame; blocks while the client reads nothing."""
    put_all(kind + len(payload).to_bytes(4, "big") + payload)


def put_all(data: bytes) -> None:
    """Write to stdout; exit quietly if the client has gone."""
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        sys.exit(0)
