"""Many clients at once on the port: each is answered, nothing that was answered is lost, the server lives on."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tpuctl.clock import ManualClock
from tpuctl.sandbox import admin
from tpuctl.sandbox.server import SandboxServer, serve
from tpuctl.sandbox.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLIENTS = 200
ZONE = "projects/sandbox/locations/us-central2-b"
NODES = f"/v2/{ZONE}/nodes"
METADATA = "/compute/v1/projects/sandbox"
BODY = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World.open(tmp_path / "world.sqlite3", clock=ManualClock()) as world:
        with world.write() as session:
            admin.set_quota(session, generation="v4", tier="on-demand", limit=100_000)
        yield world


@pytest.fixture
def server(world: World) -> Iterator[SandboxServer]:
    with serve(world) as running:
        yield running.start()


class Client:
    """One connection, kept open."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self._connection.request(method, path, None if body is None else json.dumps(body))
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self) -> None:
        self._connection.close()


def _all_at_once(url: str, visit: Any) -> list[Any]:
    """Return what each of the clients brings back from its visit, which begin together, all connected."""
    gate = threading.Barrier(CLIENTS)

    def one(number: int) -> Any:
        client = Client(url)
        try:
            gate.wait(30)
            return visit(client, number)
        finally:
            client.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(one, range(CLIENTS)))


def test_of_200_clients_each_creates_its_node_and_reads_it(server: SandboxServer, world: World) -> None:
    def visit(client: Client, number: int) -> tuple[int, int, str]:
        created, _ = client("POST", f"{NODES}?nodeId=node-{number}", BODY)
        read, node = client("GET", f"{NODES}/node-{number}")
        return created, read, node.get("name", "")

    began = time.perf_counter()
    seen = _all_at_once(server.url, visit)
    print(time.perf_counter() - began)
    admin.advance(world, timedelta(hours=1))
    with closing(Client(server.url)) as client:
        listed = client("GET", NODES + "?pageSize=1000")[1]["nodes"]

    assert Counter(seen) == Counter((200, 200, f"{ZONE}/nodes/node-{number}") for number in range(CLIENTS))
    assert {node["name"].rpartition("/")[2] for node in listed} == {f"node-{number}" for number in range(CLIENTS)}
    assert len({node["id"] for node in listed}) == CLIENTS
    assert len({end["ipAddress"] for node in listed for end in node["networkEndpoints"]}) == CLIENTS
