"""Many clients at once on the port: each gets an answer, no answered change is lost, the server keeps running."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import pytest

from tpuctl.clock import ManualClock
from tpuctl.sandbox.administration import advance_clock, read_status, set_tpu_quota
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault
from tpuctl.sandbox.http_server import SandboxServer, open_server
from tpuctl.sandbox.request_log import read_log
from tpuctl.sandbox.state import SandboxState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")
MANY = 200
ZONE = "projects/sandbox/locations/us-central2-b"
NODES = f"/v2/{ZONE}/nodes"
PROJECT = "/compute/v1/projects/sandbox"
BODY = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}


@pytest.fixture
def sandbox_state(tmp_path: Path) -> Iterator[SandboxState]:
    with SandboxState.open(tmp_path / "world.sqlite3", clock=ManualClock()) as sandbox_state:
        yield sandbox_state


@pytest.fixture
def server(sandbox_state: SandboxState) -> Iterator[SandboxServer]:
    with open_server(sandbox_state) as running:
        yield running.start()


class Client:
    """One connection, kept open."""

    def __init__(self, server: SandboxServer) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and the JSON of a response."""
        self._connection.request(method, path, None if body is None else json.dumps(body))
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self) -> None:
        self._connection.close()


def _at_once(server: SandboxServer, visit: Callable[[Client, int], T], *, clients: int = MANY) -> list[T]:
    """Return the result of each client. All start at the same moment."""
    gate = threading.Barrier(clients)

    def go(number: int) -> T:
        with closing(Client(server)) as client:
            gate.wait(30)
            return visit(client, number)

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(go, range(clients)))


def _allow(sandbox_state: SandboxState, nodes: int) -> None:
    with sandbox_state.write() as session:
        set_tpu_quota(session, generation="v4", tier="on-demand", limit=nodes * 8)  # TensorCores


def test_200_clients_create_and_read_their_nodes(sandbox_state: SandboxState, server: SandboxServer) -> None:
    _allow(sandbox_state, MANY)

    def visit(client: Client, number: int) -> tuple[int, int, str]:
        created, _ = client("POST", f"{NODES}?nodeId=node-{number}", BODY)
        read, node = client("GET", f"{NODES}/node-{number}")
        return created, read, str(node.get("name"))

    seen = _at_once(server, visit)
    advance_clock(sandbox_state, timedelta(hours=1))
    with closing(Client(server)) as client:
        nodes = client("GET", f"{NODES}?pageSize=1000")[1]["nodes"]

    assert seen == [(200, 200, f"{ZONE}/nodes/node-{number}") for number in range(MANY)]
    assert {node["name"] for node in nodes} == {name for _, _, name in seen}
    assert len({node["id"] for node in nodes}) == MANY
    assert len({end["ipAddress"] for node in nodes for end in node["networkEndpoints"]}) == MANY


def test_200_clients_get_as_many_nodes_as_the_quota_allows(sandbox_state: SandboxState, server: SandboxServer) -> None:
    _allow(sandbox_state, 25)

    statuses = _at_once(server, lambda client, n: client("POST", f"{NODES}?nodeId=node-{n}", BODY)[0])
    with closing(Client(server)) as client:
        nodes = client("GET", f"{NODES}?pageSize=1000")[1]["nodes"]

    assert Counter(statuses) == {200: 25, 429: MANY - 25}
    assert sorted(node["name"] for node in nodes) == sorted(
        f"{ZONE}/nodes/node-{number}" for number, status in enumerate(statuses) if status == 200
    )


def test_200_clients_with_one_name_create_one_node(server: SandboxServer) -> None:
    statuses = _at_once(server, lambda client, _: client("POST", f"{NODES}?nodeId=trainer", BODY)[0])

    assert Counter(statuses) == {200: 1, 409: MANY - 1}


def test_concurrent_metadata_changes_are_detected_and_none_is_lost(server: SandboxServer) -> None:
    """Clients read, change and write the whole project metadata, as gcloud does: the fingerprint detects other changes."""

    def add(client: Client, number: int) -> int:
        for attempt in range(1, 1000):
            metadata = client("GET", PROJECT)[1]["commonInstanceMetadata"]
            items = [*metadata.get("items", []), {"key": f"client-{number}", "value": str(attempt)}]
            status, answer = client("POST", f"{PROJECT}/setCommonInstanceMetadata", {**metadata, "items": items})
            if status == 200:
                return attempt
            assert (status, answer["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")
        raise AssertionError("never first")

    attempts = _at_once(server, add, clients=20)
    with closing(Client(server)) as client:
        items = client("GET", PROJECT)[1]["commonInstanceMetadata"]["items"]

    assert sorted((item["key"], item["value"]) for item in items) == sorted(
        (f"client-{number}", str(attempt)) for number, attempt in enumerate(attempts)
    )


def test_clients_with_half_a_request_do_not_block_others(server: SandboxServer) -> None:
    content = json.dumps(BODY).encode()
    head = f"POST {NODES}?nodeId=slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    address = urlsplit(server.url)
    with ExitStack() as stack:
        halves = [
            stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=10))
            for _ in range(MANY)
        ]
        for number, half in enumerate(halves):
            half.sendall(head[: 1 + number % len(head)])
        slow = stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=10))
        for letter in (head + content)[:-1]:
            slow.sendall(bytes([letter]))

        with closing(Client(server)) as client:
            assert client("GET", NODES) == (200, {})
            slow.sendall(content[-1:])
            assert slow.recv(15) == b"HTTP/1.1 200 OK"
            assert client("GET", f"{NODES}/slow")[0] == 200


def test_state_can_be_closed_after_the_server(tmp_path: Path) -> None:
    """A response in progress ends first. A thread that used a closed connection crashed the interpreter."""
    with (
        SandboxState.open(tmp_path / "world.sqlite3", speed=1) as sandbox_state,
        open_server(sandbox_state) as running,
    ):
        with sandbox_state.write() as session:
            add_fault(session, Fault(FaultKind.SLOW, duration=timedelta(milliseconds=500)))
        address = urlsplit(running.start().url)
        with socket.create_connection((address.hostname, address.port), timeout=10) as client:
            client.sendall(f"GET {NODES} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            while read_status(sandbox_state).faults:  # until the request has met it
                time.sleep(0.01)
            running.close()

        assert [(entry.path, entry.status) for entry in read_log(sandbox_state.path)] == [(NODES, 200)]
