"""The two interfaces of the sandbox: requests and responses are the same in process and over a loopback port."""

from __future__ import annotations

import http.client
import json
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, cast
from urllib.parse import urlsplit

import google_auth_httplib2
import pytest
from google.auth.credentials import AnonymousCredentials
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from tpuctl.clock import ManualClock
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault
from tpuctl.sandbox.http_server import SandboxServer, open_server
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.state import SandboxState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

if TYPE_CHECKING:
    Answer = tuple[int, dict[str, str], Any]
    Send = Callable[..., Answer]

ZONE = "projects/p/locations/us-central2-b"
NODE = {"runtimeVersion": "tpu-ubuntu2204-base", "acceleratorType": "v4-8"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sandbox_state(tmp_path: Path, clock: ManualClock) -> SandboxState:
    return SandboxState.open(tmp_path / "sandbox.db", clock=clock, speed=1)


@pytest.fixture
def server(sandbox_state: SandboxState) -> Iterator[SandboxServer]:
    with open_server(sandbox_state).start() as running:
        yield running


@pytest.fixture(params=["in process", "over http"])
def send(request: pytest.FixtureRequest, sandbox_state: SandboxState) -> Iterator[Send]:
    """Send one request and return status, headers and decoded body; a broken connection raises ConnectionError."""
    if request.param == "in process":
        yield lambda *call: _in_process(sandbox_state, *call)
        return
    with open_server(sandbox_state).start() as running:
        yield lambda *call: _over_http(running.url, *call)


def _in_process(sandbox_state: SandboxState, method: str, path: str, body: Any = None) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body) if body is not None else None
    response, answer = SandboxHttp(sandbox_state).request(f"https://www.googleapis.com{path}", method, content)
    return response.status, dict(response), _decoded(answer)


def _over_http(url: str, method: str, path: str, body: Any = None) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body) if body is not None else None
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request(method, path, content)
        response = connection.getresponse()
        return (
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            _decoded(response.read()),
        )
    finally:
        connection.close()


def _decoded(content: bytes) -> Any:
    return json.loads(content) if content.startswith(b"{") else content.decode()


def _disturb(sandbox_state: SandboxState, fault: Fault) -> None:
    with sandbox_state.write() as session:
        add_fault(session, fault)


def _raw(server: SandboxServer, content: bytes) -> bytes:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=5) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_created_node_is_read_back_with_sandbox_time(send: Send, clock: ManualClock) -> None:
    created = send("POST", f"/v2/{ZONE}/nodes?nodeId=trainer", NODE)
    clock.sleep(timedelta(hours=1))
    read = send("GET", f"/v2/{ZONE}/nodes/trainer")

    assert (created[0], created[2]["metadata"]["verb"], created[1]["date"]) == (
        200,
        "create",
        "Thu, 01 Jan 2026 00:00:00 GMT",
    )
    assert (read[0], read[2]["name"], read[1]["date"], read[1]["content-type"]) == (
        200,
        f"{ZONE}/nodes/trainer",
        "Thu, 01 Jan 2026 01:00:00 GMT",
        "application/json; charset=UTF-8",
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", f"/v2/{ZONE}/nodes/none", None, 404, f"Resource '{ZONE}/nodes/none' was not found"),
        ("GET", f"/v2/{ZONE}/nodes?pageSize=x", None, 400, "Invalid value at 'page_size' (TYPE_INT32), \"x\""),
        ("POST", f"/v2/{ZONE}/nodes", b"{", 400, "Invalid JSON payload received. "),
        ("GET", "/v1/projects/p/serviceAccounts", None, 501, "Operation is not implemented, or supported, or enabled."),
    ],
)
def test_error_has_googles_error_body(
    send: Send, method: str, path: str, *, body: Any, status: int, message: str
) -> None:
    answer = send(method, path, body)

    assert (answer[0], answer[2]["error"]["code"]) == (status, status)
    assert answer[2]["error"]["message"].startswith(message)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v2/<b>"), ("PUT", f"/v2/{ZONE}/nodes/x"), ("GET", "/")])
def test_unknown_path_gets_an_html_page(send: Send, method: str, path: str) -> None:
    status, headers, page = send(method, path)

    shown = path.replace("<", "&lt;").replace(">", "&gt;")
    assert (status, headers["content-type"]) == (404, "text/html; charset=UTF-8")
    assert f"The requested URL <code>{shown}</code> was not found on this server." in page


@pytest.mark.parametrize(("kind", "status_after"), [(FaultKind.DROP_BEFORE, 404), (FaultKind.DROP_AFTER, 200)])
def test_dropped_create_takes_effect_only_after(
    send: Send, sandbox_state: SandboxState, kind: FaultKind, status_after: int
) -> None:
    _disturb(sandbox_state, Fault(kind, method="*.nodes.create"))

    with pytest.raises(ConnectionError):
        send("POST", f"/v2/{ZONE}/nodes?nodeId=x", NODE)

    assert send("GET", f"/v2/{ZONE}/nodes/x")[0] == status_after


def test_call_faults_reach_the_caller(send: Send, sandbox_state: SandboxState, clock: ManualClock) -> None:
    _disturb(sandbox_state, Fault(FaultKind.HTTP_ERROR, status=429, retry_after=7))
    busy = send("GET", f"/v2/{ZONE}/nodes")
    _disturb(sandbox_state, Fault(FaultKind.UNAUTHENTICATED))
    refused = send("GET", f"/v2/{ZONE}/nodes")
    _disturb(sandbox_state, Fault(FaultKind.SLOW, duration=timedelta(seconds=90)))
    started = clock.now()
    late = send("GET", f"/v2/{ZONE}/nodes")

    assert (busy[0], busy[1]["retry-after"], busy[2]["error"]["status"]) == (429, "7", "RESOURCE_EXHAUSTED")
    assert (refused[0], refused[1]["www-authenticate"], refused[2]["error"]["status"]) == (
        401,
        'Bearer realm="https://accounts.google.com/", error="invalid_token"',
        "UNAUTHENTICATED",
    )
    assert (late[0], clock.now() - started) == (200, timedelta(seconds=90))


def test_googles_client_works_on_both_interfaces(sandbox_state: SandboxState, server: SandboxServer) -> None:
    anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]  # google-auth types only part of itself
    authorized = google_auth_httplib2.AuthorizedHttp(anonymous, http=SandboxHttp(sandbox_state))
    endpoint = {"api_endpoint": server.url}
    inside = build("tpu", "v2", static_discovery=True, http=authorized)
    outside = build("tpu", "v2", static_discovery=True, credentials=anonymous, client_options=endpoint)

    inside.projects().locations().nodes().create(parent=ZONE, nodeId="a", body=NODE).execute()
    outside.projects().locations().nodes().create(parent=ZONE, nodeId="b", body=NODE).execute()
    with pytest.raises(HttpError, match="Unknown name"):
        outside.projects().locations().nodes().create(parent=ZONE, nodeId="c", body={**NODE, "foo": 1}).execute()
    # More than 2048 characters: the client sends the query as the body of a POST.
    wildcard = "projects/p/locations/-"
    listed = [
        client.projects().locations().nodes().list(parent=wildcard, pageSize=9, quotaUser="u" * 3000).execute()
        for client in (inside, outside)
    ]
    outside.close()

    assert [sorted(node["name"] for node in answer["nodes"]) for answer in listed] == [
        [f"{ZONE}/nodes/a", f"{ZONE}/nodes/b"]
    ] * 2


def test_bug_is_an_exception_in_process_and_a_500_over_http(tmp_path: Path) -> None:
    class Broken:
        clock = ManualClock()
        path = tmp_path / "state"

        def read(self) -> NoReturn:
            raise ZeroDivisionError

    broken = cast("SandboxState", Broken())
    with pytest.raises(ZeroDivisionError):
        SandboxHttp(broken).request(f"https://tpu.googleapis.com/v2/{ZONE}/nodes")
    seen: list[str] = []
    with open_server(broken, log=seen.append).start() as running:
        answer = _over_http(running.url, "GET", f"/v2/{ZONE}/nodes")

    assert (answer[0], answer[2]["error"]["message"]) == (500, "Internal error encountered.")
    assert "ZeroDivisionError" in seen[0]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b""),
        (b"GET /v2/x HTTP/1.1\r\nHost: rebound.example\r\n\r\n", b"403"),
        (b"GET /v2/x HTTP/1.1\r\nHost: localhost\r\nOrigin: https://page.example\r\n\r\n", b"403"),
        (b"GET /v2/x HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[\r\n\r\n", b"403"),
        (b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"POST /v2/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 52428801\r\n\r\n", b"413"),
        (b"POST /v2/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /v2/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{}", b"400"),
        (b"POST /v2/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"GET /v2/x HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", b"404"),
        (b"GET /v2/x", b""),
    ],
)
def test_server_survives_invalid_requests(server: SandboxServer, content: bytes, status: bytes) -> None:
    first_line = _raw(server, content).partition(b"\r\n")[0]

    assert first_line.startswith(b"HTTP/1.1 " + status) if status else not first_line.startswith(b"HTTP/1.1 2")
    assert _over_http(server.url, "GET", f"/v2/{ZONE}/nodes")[0] == 200
