"""Runs on a worker: the connection to the client, as frames: a letter, four bytes of length, the payload."""

from __future__ import annotations

import os
import sys

MARK = b"\n\0tpuctl-job\n"
BLOCK = 64 * 1024


class Link:
    """The connection: frames to the client on stdout, frames from it on stdin."""

    def __init__(self) -> None:
        self.waiting = b""
        self.is_open = True
        write_all(1, MARK)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame; blocks while the client reads nothing."""
        write_all(1, kind + len(payload).to_bytes(4, "big") + payload)

    def frames(self) -> list[tuple[bytes, bytes]]:
        """Return the frames received so far; clear `is_open` at the end of the connection."""
        data = os.read(0, BLOCK)
        self.is_open = bool(data)
        self.waiting += data
        found = []
        while len(self.waiting) >= 5:
            end = 5 + int.from_bytes(self.waiting[1:5], "big")
            if len(self.waiting) < end:
                break
            found.append((self.waiting[:1], self.waiting[5:end]))
            self.waiting = self.waiting[end:]
        return found

    def wait_for_go(self) -> list[tuple[bytes, bytes]] | None:
        """Wait for GO; return the frames that arrived with it. None: the client has gone, and nothing may start."""
        while self.is_open:
            frames = self.frames()
            if any(kind == b"g" for kind, _ in frames):
                return frames
        return None


def write_all(file: int, data: bytes) -> None:
    """Write all of `data`; exit quietly if the client has gone."""
    try:
        while data:
            data = data[os.write(file, data) :]
    except BrokenPipeError:
        if file == 1:
            sys.exit(0)
        raise
