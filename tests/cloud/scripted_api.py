"""An HTTP server on loopback with the answers of a test, over a real socket. It records its requests."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from tpuctl.clock import Clock, ManualClock
from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions
from tpuctl.cloud.tpu import TpuClient
from tpuctl.cloud.transport import HttpFactory
from tpuctl.names import NodeName

NAME = NodeName("p", "us-central2-b", "trainer")
_SEEDED = Random(1)  # noqa: S311  # jitter, the same in each run
NODE = f"/v2/{NAME}"
NODES = "/v2/projects/p/locations/us-central2-b/nodes"


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: dict[str, str] = field(compare=False, default_factory=dict)
    body: Any = None

    @property
    def line(self) -> str:
        return f"{self.method} {self.path.split('?')[0]}"


@dataclass(frozen=True)
class Reply:
    body: Any = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    keep_open: bool = True


@dataclass(frozen=True)
class Drop:
    """Close the connection without an answer, after `partial` of one."""

    partial: bytes = b""


@dataclass(frozen=True)
class Silence:
    """Send nothing until the client gives up."""


@dataclass(frozen=True)
class Endless:
    """Send `head`, then `piece` again and again, until the client gives up."""

    head: bytes
    piece: bytes = b""
    pause: float = 0.0


@dataclass(frozen=True)
class Reset:
    """Reset the connection."""


Answer = Reply | Drop | Silence | Endless | Reset
Script = Callable[[Received], Answer]


def refuse(code: int, status: str, message: str = "no", *details: Any, **headers: str) -> Reply:
    error = {"code": code, "status": status, "message": message, "details": list(details)}
    return Reply({"error": error}, code, {name.replace("_", "-"): value for name, value in headers.items()})


class ScriptedServer:
    """Answers by `script`; `received` holds every request that arrived, `connections` counts the sockets."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.received: list[Received] = []
        self.connections = 0
        self._ended = threading.Event()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                outer.connections += 1
                while outer._one(self.rfile, self.wfile, self.connection):
                    pass

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler, bind_and_activate=True)
        self._server.daemon_threads = True
        self._server.block_on_close = False

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def lines(self) -> list[str]:
        return [request.line for request in self.received]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _one(self, reader: Any, writer: Any, connection: socket.socket) -> bool:
        try:
            first = reader.readline().decode().split()
            if len(first) < 2:
                return False
            headers = {}
            while line := reader.readline().decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            content = reader.read(int(headers.get("content-length", 0)))
            request = Received(first[0], first[1], headers, _value(content))
            self.received.append(request)
            return self._answer(self.script(request), writer, connection)
        except OSError:
            return False

    def _answer(self, answer: Answer, writer: Any, connection: socket.socket) -> bool:
        match answer:
            case Silence():
                self._ended.wait(5)
                return False
            case Endless(start, piece, pause):
                writer.write(start)
                while not self._ended.wait(pause):
                    writer.write(piece)
                return False
            case Reset():
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
                return False
            case Drop(partial):
                writer.write(partial)
                return False
            case Reply(body, status, headers, keep_open):
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                head = {"Content-Length": str(len(raw)), **headers}
                lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in head.items())]
                writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
                return keep_open


def _value(content: bytes) -> Any:
    try:
        return json.loads(content) if content else None
    except ValueError:
        return content.decode()


@contextmanager
def client_of(script: Script, *, clock: Clock | None = None) -> Iterator[tuple[TpuClient, ScriptedServer]]:
    """Return a real client of a scripted server, over a real socket; delays are simulated."""
    with ScriptedServer(script) as server:
        factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(server.url))
        try:
            yield TpuClient(factory, clock or ManualClock(), endpoint=server.url, random=_SEEDED), server
        finally:
            factory.close()


def in_turn(*answers: Answer) -> Script:
    """Return a script that gives the answers one after the other, and the last again and again."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def node(state: str = "READY", **fields: Any) -> dict[str, Any]:
    return {"name": str(NAME), "state": state, "id": "7", **fields}


def operation(**fields: Any) -> dict[str, Any]:
    return {"name": "projects/p/locations/us-central2-b/operations/op-1", **fields}
