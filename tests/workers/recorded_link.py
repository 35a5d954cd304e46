"""A connection of a program on a worker, without a worker."""

from __future__ import annotations

from tpuctl.ssh.agent.link import ClientLink


class RecordedLink(ClientLink):
    """Keeps what the program sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes]] = []

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self.sent.append((kind, payload))
