"""A connection of a program on a worker, without a worker."""

from __future__ import annotations

from tpuctl.ssh.agent.link import ClientLink


class RecordedLink(ClientLink):
    """Gives these frames to the program, and keeps what it sends."""

    def __init__(self, *frames: tuple[bytes, bytes]) -> None:
        self.is_open = True
        self.sent: list[tuple[bytes, bytes]] = []
        self._frames = list(frames)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self.sent.append((kind, payload))

    def frames(self) -> list[tuple[bytes, bytes]]:
        self.is_open, found, self._frames = False, self._frames, []
        return found
