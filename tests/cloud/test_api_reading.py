"""Reads: present, absent and unknown are never confused."""

from __future__ import annotations

import itertools
import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import httplib2
import pytest

from tests.cloud.scripted_api import (
    NAME,
    NODE,
    Answer,
    Drop,
    Received,
    Reply,
    client_of,
    in_turn,
    node,
    operation,
    refuse,
)
from tpuctl.clock import ManualClock
from tpuctl.cloud.tpu import NodeListing, OperationsClient, QueuedListing, TpuClient
from tpuctl.errors import AccessError, InvalidInputError, NodeNotFoundError, ServiceUnavailableError, TpuctlError
from tpuctl.models.node import Node
from tpuctl.models.operation import Operation, OperationError
from tpuctl.models.queued import QueuedResource

NOT_OFFERED = refuse(403, "PERMISSION_DENIED", "no", {"reason": "LOCATION_POLICY_VIOLATED"})


def test_get_returns_the_node_of_the_service() -> None:
    date, clock = {"Date": "Thu, 01 Jan 2026 10:00:00 GMT"}, ManualClock(datetime(2025, 12, 1, tzinfo=UTC))
    with client_of(lambda _: Reply(node(), headers=date), clock=clock) as (client, server):
        assert client.get_node(NAME) == Node(NAME, node())
        assert client.server_time == datetime(2026, 1, 1, 10, tzinfo=UTC)
        assert server.lines == [f"GET {NODE}"]
        clock.sleep(timedelta(hours=2))
        assert client.server_now == datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("date", ["soon", "Thu, 01 Jan 2026 10:00:00 +99999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_invalid_date_is_left_out(date: str) -> None:
    with client_of(lambda _: Reply(node(), headers={"Date": date})) as (client, _server):
        assert client.get_node(NAME) == Node(NAME, node())
        assert client.server_time is None


@pytest.mark.parametrize("locations", [{}, {"locations": []}])
def test_project_without_zones_raises_instead_of_listing_nothing(locations: Any) -> None:
    def script(request: Received) -> Answer:
        return Reply(locations) if request.line.endswith("/locations") else refuse(501, "UNIMPLEMENTED")

    with client_of(script) as (client, _server), pytest.raises(ServiceUnavailableError, match="locations: none"):
        client.list_nodes("p")


def test_node_is_absent_only_after_a_404_of_the_api() -> None:
    with client_of(lambda _: refuse(404, "NOT_FOUND")) as (client, _server):
        assert client.find_node(NAME) is None
        with pytest.raises(NodeNotFoundError, match="no node `trainer` in us-central2-b"):
            client.get_node(NAME)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Reply(b"<html>404 no such page</html>", 404), ServiceUnavailableError),
        (Reply(b"", 404), ServiceUnavailableError),
        (Reply({"error": "gone"}, 404), ServiceUnavailableError),
        (Reply({"error": {"code": 404, "message": "no such route"}}, 404), ServiceUnavailableError),
        (Reply({"error": {"code": 404, "status": "A\nB", "details": 5}}, 404), ServiceUnavailableError),
        (refuse(403, "PERMISSION_DENIED"), AccessError),
        (refuse(401, "UNAUTHENTICATED"), AccessError),
        (refuse(503, "UNAVAILABLE"), ServiceUnavailableError),
        (Reply([{"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "x"}}], 403), AccessError),
        (Reply([], 403), AccessError),
        (Reply(b"<p>portal</p>", 302), ServiceUnavailableError),
        (Drop(), ServiceUnavailableError),
    ],
)
def test_other_failures_do_not_mean_absent(answer: Any, kind: type[Exception]) -> None:
    with client_of(lambda _: answer) as (client, _server), pytest.raises(kind):
        client.find_node(NAME)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(b"<html>hi</html>", "not JSON; it begins with `<html>hi</html>`", id="html"),
        pytest.param(b'{"name": "pro', 'not JSON; it begins with `{"name": "pro`', id="cut off"),
        pytest.param(b'[{"name": 1}]', 'not a JSON object; it begins with `[{"name": 1}]`', id="a list"),
        pytest.param(b"null", "not a JSON object; it begins with `null`", id="null"),
        pytest.param(b"", "not JSON; it begins with no content", id="empty"),
        pytest.param(b"\xff", "not UTF-8; it begins with `\ufffd`", id="bytes"),
        pytest.param('{"name": "ä"}'.encode("latin-1"), 'not UTF-8; it begins with `{"name": "\ufffd"}`', id="latin-1"),
        pytest.param(
            b'{"error": {"code": 503}}',
            'an error with status 200; it begins with `{"error": {"code": 503}}`',
            id="error",
        ),
        pytest.param(b'{"n": NaN}', 'NaN is not JSON; it begins with `{"n": NaN}`', id="NaN"),
        pytest.param(b'{"n": 1e999}', 'a number is too large; it begins with `{"n": 1e999}`', id="infinite"),
        pytest.param(b'{"name": "\\ud800"}', 'not UTF-8; it begins with `{"name": "\\ud800"}`', id="half a character"),
        pytest.param(b"{}", "`name` is missing", id="empty object"),
        pytest.param(b'{"name": 5}', "name: expected a string", id="name of another type"),
        pytest.param(
            json.dumps(node(networkEndpoints={})).encode(), "networkEndpoints: expected a list", id="object for a list"
        ),
        pytest.param(
            json.dumps({**node(), "name": str(NAME).replace("trainer", "other")}).encode(),
            "name: a resource that was not requested",
            id="another node",
        ),
    ],
)
def test_get_with_an_unexpected_answer_is_one_error_and_no_state(body: bytes, text: str) -> None:
    with client_of(lambda _: Reply(body)) as (client, server):
        with pytest.raises(ServiceUnavailableError) as caught:
            client.find_node(NAME)

        assert caught.value.message == f"unexpected response from the service: {text}"
        assert len(server.lines) == 5


def test_get_is_sent_again_after_retry_after() -> None:
    clock = ManualClock()
    busy = refuse(503, "UNAVAILABLE", Retry_After="7")
    dated = refuse(429, "RESOURCE_EXHAUSTED", Retry_After="Thu, 01 Jan 2026 00:00:20 GMT")
    with client_of(in_turn(busy, dated, Reply(node())), clock=clock) as (client, _server):
        client.get_node(NAME)

    assert clock.monotonic() == timedelta(seconds=20)


def test_googles_libraries_log_nothing_about_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    with client_of(lambda _: refuse(403, "PERMISSION_DENIED")) as (client, _server), pytest.raises(AccessError):
        client.get_node(NAME)

    assert caplog.records == []


def test_list_has_all_pages_of_all_zones() -> None:
    pages = {
        "": {"nodes": [node()], "nextPageToken": "t1", "unreachable": ["projects/p/locations/eu-a"]},
        "t1": {"nextPageToken": "t2"},
        "t2": {"nodes": [node("STOPPED")], "unreachable": ["eu-a", "locations/eu-b"]},
    }

    def script(request: Received) -> Reply:
        assert "pageSize=1000" in request.path
        return Reply(pages[request.path.partition("pageToken=")[2].partition("&")[0]])

    with client_of(script) as (client, server):
        both = (Node(NAME, node()), Node(NAME, node("STOPPED")))
        assert client.list_nodes("p") == NodeListing(both, ("eu-a", "eu-b"))
        assert server.lines == ["GET /v2/projects/p/locations/-/nodes"] * 3


def test_list_with_a_repeated_page_token_raises() -> None:
    with (
        client_of(lambda _: Reply({"nextPageToken": "again"})) as (client, _server),
        pytest.raises(ServiceUnavailableError, match="repeats a page"),
    ):
        client.list_nodes("p")


def test_list_with_endless_page_tokens_raises() -> None:
    tokens = itertools.count()

    class Endless:
        def request(self, *_: Any, **__: Any) -> tuple[Any, bytes]:
            return httplib2.Response({"status": "200"}), json.dumps({"nextPageToken": str(next(tokens))}).encode()

    client = TpuClient(Endless, ManualClock())
    with pytest.raises(ServiceUnavailableError, match="the list of the service has more than 1000 pages"):
        client.list_nodes("p")


def test_operations_are_read_to_the_end_of_the_list() -> None:
    """The newest may stand on the last page: the order of the list is not documented."""

    class Pages:
        def request(self, url: str, **_: Any) -> tuple[Any, bytes]:
            page = int(url.partition("pageToken=")[2].partition("&")[0] or 0)
            began = f"2026-01-01T00:00:{page:02}Z"
            found = operation(metadata={"target": str(NAME), "createTime": began})
            following = {"nextPageToken": str(page + 1)} if page < 40 else {}
            return httplib2.Response({"status": "200"}), json.dumps({"operations": [found], **following}).encode()

    (newest,) = OperationsClient(Pages, ManualClock()).operations("p", NAME.zone, {str(NAME)}, limit=1)
    assert newest["metadata"]["createTime"] == "2026-01-01T00:00:40Z"


def zone_by_zone(zones: dict[str, Reply], *, wildcard: Reply) -> Any:
    def script(request: Received) -> Reply:
        if request.line == "GET /v2/projects/p/locations":
            return Reply({"locations": [{"locationId": zone} for zone in zones]})
        zone = request.path.split("/")[5]
        return wildcard if zone == "-" else zones[zone]

    return script


@pytest.mark.parametrize(
    "wildcard",
    [
        refuse(400, "INVALID_ARGUMENT"),
        refuse(403, "PERMISSION_DENIED"),
        refuse(404, "NOT_FOUND"),
        refuse(501, "UNIMPLEMENTED"),
    ],
)
def test_refused_wildcard_lists_each_zone(wildcard: Reply) -> None:
    zones = {f"us-z{index}-a": Reply({"nodes": [node()]}) for index in range(20)}
    zones |= {"us-x-a": NOT_OFFERED, "us-y-a": refuse(404, "NOT_FOUND"), "us-w-a": refuse(503, "UNAVAILABLE")}
    with client_of(zone_by_zone(zones, wildcard=wildcard)) as (client, server):
        assert client.list_nodes("p") == NodeListing((Node(NAME, node()),) * 20, ("us-w-a",))
        # Threads share nothing: each has its connection, and closes it.
        assert server.connections <= 9
        # Google's batch interface would leave for the real service.
        assert {line.rpartition("/")[2] for line in server.lines} == {"nodes", "locations"}


@pytest.mark.parametrize(
    ("zones", "kind"),
    [
        ({"us-a-a": refuse(503, "UNAVAILABLE"), "us-b-b": NOT_OFFERED}, ServiceUnavailableError),
        ({"us-a-a": refuse(403, "PERMISSION_DENIED"), "us-b-b": refuse(403, "PERMISSION_DENIED")}, AccessError),
        ({"us-a-a": NOT_OFFERED}, AccessError),
    ],
)
def test_list_without_any_answer_raises(zones: dict[str, Reply], kind: type[Exception]) -> None:
    refusal = refuse(403, "PERMISSION_DENIED")
    with client_of(zone_by_zone(zones, wildcard=refusal)) as (client, _server):
        with pytest.raises(kind):
            client.list_nodes("p")
        with pytest.raises(kind):
            client.list_nodes("p", list(zones))


@pytest.mark.parametrize(
    ("message", "reason", "error_id"),
    [
        ("Cloud TPU API has not been used in project 7 before or it is disabled.", "SERVICE_DISABLED", "api-disabled"),
        ("This API method requires billing to be enabled.", "BILLING_DISABLED", "billing-disabled"),
        ("Permission denied on resource project p.", "CONSUMER_INVALID", "iam-project-not-found"),
        ("Permission 'tpu.nodes.list' denied on 'projects/p/locations/-'", "", "iam-permission-denied"),
        ("The request had insufficient scopes.", "ACCESS_TOKEN_SCOPE_INSUFFICIENT", "auth-insufficient-scopes"),
    ],
)
def test_refusal_of_the_project_or_the_caller_is_not_repeated_for_each_zone(
    message: str, reason: str, error_id: str
) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}] if reason else []
    with client_of(lambda _: refuse(403, "PERMISSION_DENIED", message, *details)) as (client, server):
        for ask in (client.list_nodes, client.list_queued_resources, client.offers):
            with pytest.raises(TpuctlError) as raised:
                ask("p")
            assert raised.value.error_id == error_id

        assert [line.rpartition("/")[2] for line in server.lines] == ["nodes", "queuedResources", "acceleratorTypes"]
        assert all("/locations/-/" in line for line in server.lines)


def test_refusal_of_the_wildcard_alone_lists_each_zone() -> None:
    message = "Permission denied on 'locations/-' (or it may not exist)."
    refusal = refuse(403, "PERMISSION_DENIED", message, {"reason": "LOCATION_POLICY_VIOLATED"})
    with client_of(zone_by_zone({"us-a-a": Reply({"nodes": [node()]})}, wildcard=refusal)) as (client, _server):
        assert client.list_nodes("p") == NodeListing((Node(NAME, node()),))


def test_simultaneous_lists_fetch_the_zones_once() -> None:
    clock = ManualClock()
    zones = {"us-a-a": Reply({}), "us-b-b": Reply({})}
    with client_of(zone_by_zone(zones, wildcard=refuse(404, "NOT_FOUND")), clock=clock) as (client, server):
        asking = [
            threading.Thread(target=ask, args=("p",))
            for ask in (client.list_nodes, client.list_queued_resources, client.offers)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        assert server.lines.count("GET /v2/projects/p/locations") == 1

        clock.sleep(timedelta(seconds=59))
        client.list_nodes("p")
        assert server.lines.count("GET /v2/projects/p/locations") == 1
        clock.sleep(timedelta(seconds=1))
        client.list_nodes("p")
        assert server.lines.count("GET /v2/projects/p/locations") == 2


def test_unavailable_service_is_not_asked_zone_by_zone() -> None:
    with client_of(lambda _: refuse(503, "UNAVAILABLE")) as (client, server):
        with pytest.raises(ServiceUnavailableError):
            client.list_nodes("p")

        assert set(server.lines) == {"GET /v2/projects/p/locations/-/nodes"}


def test_named_zones_are_listed_one_by_one() -> None:
    zones = {"us-a-a": Reply({"nodes": [node()]}), "us-b-b": refuse(500, "INTERNAL")}
    with client_of(zone_by_zone(zones, wildcard=Reply())) as (client, _server):
        assert client.list_nodes("p", ["us-b-b", "us-a-a"]) == NodeListing((Node(NAME, node()),), ("us-b-b",))


def test_queued_resources_are_listed_like_nodes() -> None:
    queued = {"name": "projects/p/locations/us-a-a/queuedResources/q"}
    zones = {"us-a-a": Reply({"queuedResources": [queued]}), "us-b-b": NOT_OFFERED}
    with client_of(zone_by_zone(zones, wildcard=refuse(404, "NOT_FOUND"))) as (client, _server):
        assert client.list_queued_resources("p") == QueuedListing((QueuedResource(queued["name"], queued),))


def test_catalogue_lists_types_and_versions_of_a_zone() -> None:
    answers = {
        "locations": {"locations": [{"locationId": "us-a-a"}, {"name": "projects/p/locations/us-b-b"}]},
        "acceleratorTypes": {"acceleratorTypes": [{"type": "v4-8"}, {"name": "x/acceleratorTypes/v4-16"}]},
        "runtimeVersions": {"runtimeVersions": [{"version": "tpu-ubuntu2204-base"}]},
    }
    with client_of(lambda request: Reply(answers[request.line.split("/")[-1]])) as (client, _server):
        assert client.locations("p") == ("us-a-a", "us-b-b")
        assert client.accelerator_types("p", "us-a-a") == ("v4-8", "v4-16")
        assert client.runtime_versions("p", "us-a-a") == ("tpu-ubuntu2204-base",)


def test_operation_is_read_by_its_name() -> None:
    error = {"code": 8, "message": "full", "details": [{"reason": "R"}]}
    with client_of(lambda _: Reply(operation(done=True, error=error))) as (client, _server):
        name = operation()["name"]
        assert client.get_operation(name) == Operation(name, done=True, error=OperationError(8, "full", "R"))
        with pytest.raises(InvalidInputError):
            client.get_operation("op-1")


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (Reply({}), ()),
        (refuse(404, "NOT_FOUND"), ()),
        (refuse(400, "INVALID_ARGUMENT", 'The "GuestAttributes" value "x" was not found.'), ()),
        (
            Reply({"guestAttributes": [{"queryValue": {"items": [{"namespace": "n", "key": "k", "value": "v"}]}}, {}]}),
            ({"n/k": "v"}, {}),
        ),
    ],
)
def test_guest_attributes_are_read_for_each_worker(answer: Reply, found: Any) -> None:
    with client_of(lambda _: answer) as (client, server):
        assert client.guest_attributes(NAME) == found
        client.guest_attributes(NAME, 2)

        assert [(request.line, request.body) for request in server.received] == [
            (f"POST {NODE}:getGuestAttributes", {}),
            (f"POST {NODE}:getGuestAttributes", {"workerIds": ["2"]}),
        ]


def test_query_of_guest_attributes_is_retried() -> None:
    with client_of(in_turn(Drop(), Reply({}))) as (client, _server):
        assert client.guest_attributes(NAME) == ()
