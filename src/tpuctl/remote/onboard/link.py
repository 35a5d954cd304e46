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
        """Send a frame; waits while the client takes nothing."""
        write_all(1, kind + len(payload).to_bytes(4, "big") + payload)

    def frames(self) -> list[tuple[bytes, bytes]]:
        """Return what the client has sent, without waiting for more than there is; `is_open` tells whether it is there."""
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
        """Return what else the client said along with go. It may instead be gone: nothing, and nothing may start."""
        while self.is_open:
            said = self.frames()
            if any(kind == b"g" for kind, _ in said):
                return said
        return None


def write_all(file: int, data: bytes) -> None:
    """Write all of it; a client that is gone ends this process quietly."""
    try:
        while data:
            data = data[os.write(file, data) :]
    except BrokenPipeError:
        if file == 1:
            sys.exit(0)
        raise
