"""Garbled answers of the API: one error, never a traceback, and never an absence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cloud.discovered import plain
from tests.cloud.scripted_api import NAME, Received, Reply, ScriptedServer, node, refuse
from tests.cloud.test_decoded_answers import ODD, changed, places
from tests.conftest import Console

UNEXPECTED = "unexpected response from the service: "
# The answer to every request, and its fault as a node and as a list.
ANSWERS: dict[str, tuple[Any, str, str]] = {
    "error": ({"error": {"code": 403, "message": "no"}}, "an error with status 200", "an error with status 200"),
    "html": (b"<html>Sign in</html>", "not JSON", "not JSON"),
    "empty": (b"", "not JSON", "not JSON"),
    "list": ([], "not a JSON object", "not a JSON object"),
    "null": (b"null", "not a JSON object", "not a JSON object"),
    "utf-16": (json.dumps({"nodes": []}).encode("utf-16"), "not UTF-8", "not UTF-8"),
    "nested": (b'{"nodes": ' + b"[" * 100_000, "nested too deep", "nested too deep"),
    "5,000 digits": (b'{"nodes": [%s]}' % (b"1" * 5000), "a number is too large", "a number is too large"),
    "unknown fields only": ({"new": 1}, "`name` is missing", "`nodes` is missing"),
    "of another kind": ({"kind": "Status"}, "`name` is missing", "`nodes` is missing"),
    "null for a list": ({"nodes": None}, "`name` is missing", "nodes: expected a list"),
    "null items": ({"nodes": [None]}, "`name` is missing", "nodes[0]: expected an object"),
    "another node": (
        {**node(), "name": str(NAME).replace("trainer", "other")},
        "name: a resource that was not requested",
        "`nodes` is missing",
    ),
    "no address": (
        node(networkEndpoints=[{}, {"ipAddress": 5}]),
        "networkEndpoints[1].ipAddress: expected",
        "`nodes` is missing",
    ),
}
OF_NODES = (
    ("status", "trainer", "--zone=us-central2-b"),
    ("down", "trainer", "--zone=us-central2-b", "--yes"),
    ("delete", "trainer", "--zone=us-central2-b", "--yes"),
)
OF_LISTS = (("list",), ("list", "-o", "json"), ("down", "trainer", "--yes"), ("ssh", "trainer", "--", "true"))


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda _: Reply({})) as server:
        yield server


@pytest.fixture
def console(offline: Console, server: ScriptedServer) -> Console:
    server.received.clear()
    return Console({**offline.environ, "TPUCTL_ENDPOINT": server.url, "TPUCTL_PROJECT": "p"}, offline.folder)


@pytest.mark.parametrize("answer", ANSWERS)
def test_garbled_answer_is_one_error_and_no_absence(answer: str, console: Console, server: ScriptedServer) -> None:
    body, as_node, as_list = ANSWERS[answer]
    server.script = lambda _: Reply(body)

    for command in (*OF_NODES, *OF_LISTS):
        out, err, code = console(*command)
        error = json.loads(err)["error"]["message"] if "json" in command else err.removeprefix("error: ")
        assert (out, code) == ("", 1)
        assert error.startswith(UNEXPECTED + (as_node if command in OF_NODES else as_list))


@pytest.mark.parametrize(("state", "method"), [(None, "POST"), ("PREEMPTED", "DELETE"), ("STOPPED", "POST")])
def test_change_that_is_done_but_invisible_is_not_sent_repeatedly(
    state: str | None, method: str, console: Console, server: ScriptedServer
) -> None:
    def script(sent: Received) -> Reply:
        if sent.method != "GET":
            return Reply({"name": "projects/p/locations/us-central2-b/operations/o", "done": True})
        return (
            Reply(node(state, acceleratorType="v4-8")) if state and "/nodes" in sent.path else refuse(404, "NOT_FOUND")
        )

    server.script = script
    _, _, code = console("up", "trainer", "--type=v4-8", "--zone=us-central2-b", "--skip-check=all", "--timeout=9s")

    assert code == 5
    assert [request.method for request in server.received if request.method != "GET"] == [method]


def test_empty_answer_is_an_empty_list(console: Console, server: ScriptedServer) -> None:
    """Google's JSON omits empty fields."""
    server.script = lambda _: Reply({})

    assert console("list", "-o", "json") == ("[]\n", "", 0)
    absent = "trainer: already gone, or never there: the journal has no node of this name\n"
    assert console("down", "trainer", "--yes") == ("trainer\n", absent, 0)


def test_down_with_a_request_for_very_many_nodes_does_not_hang(console: Console, server: ScriptedServer) -> None:
    spec = {"multisliceParams": {"nodeCount": 10**9, "nodeIdPrefix": "n"}}
    request = {"name": "projects/p/locations/us-central2-b/queuedResources/q", "tpu": {"nodeSpec": [spec]}}
    server.script = lambda sent: Reply({"queuedResources": [request]} if "queuedResources" in sent.path else {})

    out, err, code = console("down", "trainer", "--yes")

    assert (out, code) == ("", 1)
    assert (
        f"{UNEXPECTED}queuedResources[0].tpu.nodeSpec[0].multisliceParams.nodeCount: expected a number of nodes" in err
    )


WHOLE = {**plain("tpu", "v2", "Node"), **node(), "acceleratorType": "v4-8", "health": "HEALTHY"}
STATUS = ("status", "trainer", "--zone=us-central2-b")
SHOWING = (("list",), STATUS, (*STATUS, "-o", "json"))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(path=st.sampled_from([*places(WHOLE)]), odd=st.sampled_from(ODD))
def test_node_with_one_odd_field_is_shown_or_is_one_error(path: tuple[str | int, ...], odd: Any) -> None:
    body = changed(WHOLE, path, odd)
    with ScriptedServer(lambda sent: Reply(answer_about(sent, body))) as server, TemporaryDirectory() as home:
        environ = {"TPUCTL_ENDPOINT": server.url, "TPUCTL_PROJECT": "p", "HOME": home, "NO_GCE_CHECK": "true"}
        console = Console({**environ, "TPUCTL_STATE_DIR": f"{home}/state"}, Path(home))
        for command in (*SHOWING, ("wait", "trainer", "--zone=us-central2-b", "--timeout=9s", "--for", "healthy")):
            out, err, code = console(*command)
            assert "Traceback" not in err
            assert code in {0, 5} or (code == 1 and UNEXPECTED in err and out == "")


def answer_about(sent: Received, body: Any) -> Any:
    if "/nodes?" in sent.path:
        return {"nodes": [body]}
    return body if sent.path.endswith("/nodes/trainer") else {}
