"""Changes whose answers get lost: applied at most once, and reported correctly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest

from tests.cloud.one_node import ABSENT, FAULT, Service
from tests.cloud.scripted_api import (
    NAME,
    NODE,
    NODES,
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
from tpuctl.cloud.requests import ApiRequest
from tpuctl.cloud.tpu import TpuClient
from tpuctl.errors import (
    ConflictError,
    NodeNotFoundError,
    NotFoundError,
    OutcomeUnknownError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
)
from tpuctl.models.node import Node
from tpuctl.models.node_changes import changed_fields
from tpuctl.models.operation import Operation
from tpuctl.models.spec import REQUEST_LABEL, NodeSpec

SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base", labels={"team": "a"})
OP = Operation.from_api(operation())
_EXHAUSTED = refuse(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).")
QUEUED = "projects/p/locations/us-central2-b/queuedResources/q"


def meant(*_: object) -> None:
    """Agree to whatever was read."""


def only(expected_id: str) -> Callable[[Node], None]:
    """Return a check that refuses each node but one."""

    def check(node: Node) -> None:
        if node.id != expected_id:
            raise ConflictError(f"it is {node.id}")

    return check


Change = Callable[[TpuClient], Operation]
CHANGES: list[tuple[str, Change, dict[str, Any]]] = [
    (f"POST {NODE}:stop", lambda client: client.stop_node(NAME, meant), node("READY")),
    (f"POST {NODE}:start", lambda client: client.start_node(NAME), node("STOPPED")),
    (f"DELETE {NODE}", lambda client: client.delete_node(NAME, meant), node()),
]


def add_label(node: Node) -> dict[str, Any]:
    return changed_fields(node, {"labels": {**node.labels, "a": "b"}})


@pytest.mark.parametrize("fault", [Drop(), FAULT])
@pytest.mark.parametrize(("lost_before", "sent"), [(False, 1), (True, 2)])
def test_update_with_a_lost_answer_is_read_back_and_sent_again_if_it_is_not_there(
    fault: Reply | Drop, *, lost_before: bool, sent: int
) -> None:
    service = Service(node=node(labels={"x": "y"}), faults=[fault], lost_before=lost_before)
    with client_of(service) as (client, _server):
        assert client.change_node(NAME, add_label).labels == {"x": "y", "a": "b"}
        assert service.changes == [f"PATCH {NODE}"] * sent


@pytest.mark.parametrize(("fault", "kind"), [(Drop(), OutcomeUnknownError), (FAULT, ServiceUnavailableError)])
def test_update_whose_answers_all_get_lost_is_given_up(fault: Reply | Drop, kind: type[Exception]) -> None:
    service = Service(node=node(), faults=[fault] * 9, lost_before=True)
    with client_of(service) as (client, _server):
        with pytest.raises(ServiceUnavailableError) as caught:
            client.change_node(NAME, add_label)
        assert type(caught.value) is kind
        assert service.changes == [f"PATCH {NODE}"] * 3


@pytest.mark.parametrize(("line", "change", "there"), CHANGES)
@pytest.mark.parametrize("fault", [Drop(), FAULT])
def test_change_with_a_lost_answer_is_read_back_and_not_repeated(
    line: str, change: Change, there: dict[str, Any], fault: Reply | Drop
) -> None:
    service = Service(node=dict(there), faults=[fault])
    with client_of(service) as (client, _server):
        assert change(client) == Operation.unnamed()
        assert service.changes == [line]


@pytest.mark.parametrize(("line", "change", "there"), CHANGES)
@pytest.mark.parametrize("fault", [Drop(), FAULT])
def test_change_that_never_arrived_is_sent_again(
    line: str, change: Change, there: dict[str, Any], fault: Reply | Drop
) -> None:
    service = Service(node=dict(there), faults=[fault], lost_before=True)
    with client_of(service) as (client, _server):
        assert change(client) == OP
        assert service.changes == [line] * 2


@pytest.mark.parametrize(("line", "change", "there"), CHANGES)
@pytest.mark.parametrize(("fault", "kind"), [(Drop(), OutcomeUnknownError), (FAULT, ServiceUnavailableError)])
def test_change_whose_answers_all_get_lost_is_given_up(
    line: str, change: Change, there: dict[str, Any], fault: Reply | Drop, kind: type[Exception]
) -> None:
    service = Service(node=dict(there), faults=[fault] * 9, lost_before=True)
    with client_of(service) as (client, _server):
        with pytest.raises(ServiceUnavailableError) as caught:
            change(client)
        assert type(caught.value) is kind
        assert service.changes == [line] * 3


@pytest.mark.parametrize(("line", "change", "_there"), CHANGES[:2])
def test_change_of_an_absent_node_raises_not_found(line: str, change: Change, _there: object) -> None:
    with client_of(Service()) as (client, _server), pytest.raises(NodeNotFoundError):
        change(client)


def test_delete_of_an_absent_node_succeeds() -> None:
    with client_of(Service()) as (client, _server):
        assert client.delete_node(NAME, meant) == Operation(None, done=True, was_sent=False)


ENDINGS: list[tuple[str, str, Callable[[TpuClient, Callable[[Node], None]], Operation]]] = [
    ("READY", f"DELETE {NODE}", lambda client, check: client.delete_node(NAME, check)),
    ("READY", f"POST {NODE}:stop", lambda client, check: client.stop_node(NAME, check)),
]


@pytest.mark.parametrize(
    ("state", "end"), [("DELETING", ENDINGS[0][2]), ("STOPPING", ENDINGS[1][2]), ("STOPPED", ENDINGS[1][2])]
)
def test_ending_by_another_client_is_not_reported_as_sent(
    state: str, end: Callable[[TpuClient, Callable[[Node], None]], Operation]
) -> None:
    with client_of(Service(node=node(state))) as (client, server):
        assert end(client, meant) == Operation(None, was_sent=False)
        assert server.lines == [f"GET {NODE}"]


@pytest.mark.parametrize(("state", "line", "end"), ENDINGS, ids=["delete", "stop"])
@pytest.mark.parametrize(("expected_id", "is_sent"), [("7", True), ("6", False)], ids=["same", "recreated"])
def test_ending_is_sent_only_to_the_node_that_is_meant(
    state: str,
    line: str,
    end: Callable[[TpuClient, Callable[[Node], None]], Operation],
    expected_id: str,
    *,
    is_sent: bool,
) -> None:
    with client_of(Service(node=node(state))) as (client, server):
        with nullcontext() if is_sent else pytest.raises(ConflictError, match="it is 7"):
            end(client, only(expected_id))
        assert server.lines == [f"GET {NODE}", *[line] * is_sent]


@pytest.mark.parametrize(("state", "line", "end"), ENDINGS, ids=["delete", "stop"])
@pytest.mark.parametrize(
    ("refusal", "may_be_done"), [(Drop(), True), (FAULT, True), (_EXHAUSTED, False)], ids=["lost", "fault", "rate"]
)
def test_ending_is_not_repeated_on_a_newer_node_of_the_name(
    state: str,
    line: str,
    end: Callable[[TpuClient, Callable[[Node], None]], Operation],
    refusal: Reply | Drop,
    *,
    may_be_done: bool,
) -> None:
    """The answer has taken a while: another client may have created a node of the same name."""
    there = node(state)

    def script(request: Received) -> Reply | Drop:
        if request.method == "GET":
            return Reply(there)
        there["id"] = "8"
        return refusal

    with client_of(script, clock=ManualClock()) as (client, server):
        assert end(client, meant) == Operation(None, was_sent=may_be_done)
        assert [one for one in server.lines if one == line] == [line]


@pytest.mark.parametrize(("state", "line", "end"), ENDINGS, ids=["delete", "stop"])
def test_ending_looks_right_before_each_sending(
    state: str, line: str, end: Callable[[TpuClient, Callable[[Node], None]], Operation]
) -> None:
    """A node that is extended while a refused request waits is left alone."""
    there, looks = node(state), []

    def check(found: Node) -> None:
        looks.append(found.labels)
        if found.labels:
            raise ConflictError("it is kept")

    def script(request: Received) -> Reply | Drop:
        if request.method == "GET":
            return Reply(there)
        there["labels"] = {"tpuctl-keep": "yes"}
        return _EXHAUSTED

    with client_of(script, clock=ManualClock()) as (client, server):
        with pytest.raises(ConflictError, match="it is kept"):
            end(client, check)
        assert (looks, server.lines.count(line)) == ([{}, {"tpuctl-keep": "yes"}], 1)


@pytest.mark.parametrize("refusal", [refuse(403, "PERMISSION_DENIED"), refuse(429, "RESOURCE_EXHAUSTED")])
@pytest.mark.parametrize(("state", "line", "end"), ENDINGS, ids=["delete", "stop"])
def test_refused_look_after_a_lost_answer_leaves_the_outcome_unknown(
    state: str, line: str, end: Callable[[TpuClient, Callable[[Node], None]], Operation], refusal: Reply
) -> None:
    looks = [Reply(node(state)), Reply(node(state))]

    def script(request: Received) -> Reply | Drop:
        if request.method != "GET":
            return Drop()
        return looks.pop(0) if looks else refusal

    with client_of(script, clock=ManualClock()) as (client, server):
        with pytest.raises(OutcomeUnknownError):
            end(client, meant)
        assert server.lines.count(line) == 1


def test_update_with_a_lost_answer_lists_no_operations() -> None:
    """Without the name of its operation the list says nothing."""
    service = Service(node=node(labels={"x": "y"}), faults=[Drop()])
    with client_of(service) as (client, server):
        client.change_node(NAME, add_label)
        assert [line for line in server.lines if "operations" in line] == []


def test_ending_without_an_answer_to_the_look_is_not_sent() -> None:
    with client_of(lambda _: FAULT, clock=ManualClock()) as (client, server):
        with pytest.raises(ServiceUnavailableError) as raised:
            client.delete_node(NAME, meant)
        assert (type(raised.value), {*server.lines}) == (ServiceUnavailableError, {f"GET {NODE}"})


def test_refusal_quotes_the_service_and_is_not_repeated() -> None:
    refusal = refuse(400, "FAILED_PRECONDITION", "stop is not supported while in state STARTING")
    with client_of(Service(node=node(), faults=[refusal], lost_before=True)) as (client, server):
        with pytest.raises(ConflictError, match="stop is not supported while in state STARTING"):
            client.stop_node(NAME, meant)
        assert server.lines == [f"GET {NODE}", f"POST {NODE}:stop"]


def test_simultaneous_changes_of_metadata_are_both_applied() -> None:
    """The second writer is refused, reads the new metadata and adds its own change."""
    there = node(metadata={"ssh-keys": "a"})

    def script(request: Received) -> Reply:
        if request.method == "GET":
            return Reply(there)
        if there["metadata"] == {"ssh-keys": "a"}:
            there["metadata"] = {"ssh-keys": "a\nb"}
            return refuse(409, "ABORTED")
        there.update(request.body)
        return Reply(operation(done=True))

    def add(found: Node) -> dict[str, Any]:
        keys = found.metadata["ssh-keys"]
        return {} if keys.endswith("c") else {"metadata": {"ssh-keys": f"{keys}\nc"}}

    with client_of(script) as (client, server):
        assert client.change_node(NAME, add).metadata == {"ssh-keys": "a\nb\nc"}
        assert [request for request in server.received if request.method == "PATCH"][1:] == [
            Received("PATCH", f"{NODE}?updateMask=metadata", body={"metadata": {"ssh-keys": "a\nb\nc"}})
        ]


def test_unchanged_metadata_is_not_sent() -> None:
    with client_of(Service(node=node(metadata={"a": "b"}))) as (client, server):
        assert client.change_node(NAME, lambda _: {}).metadata == {"a": "b"}
        assert server.lines == [f"GET {NODE}"]


def test_update_that_waited_for_a_retry_is_made_of_the_newest_labels() -> None:
    """A refusal for now delays the request: what another client changed meanwhile is not overwritten by the repetition."""
    there = node(labels={"x": "y"})

    def script(request: Received) -> Reply:
        if request.method == "GET":
            return Reply(there)
        if "other" not in there["labels"]:
            there["labels"] = {**there["labels"], "other": "client"}
            return refuse(429, "RESOURCE_EXHAUSTED", "slow down", retry_after="1")
        there.update(request.body)
        return Reply(operation(done=True))

    with client_of(script) as (client, server):
        assert client.change_node(NAME, add_label).labels == {"x": "y", "other": "client", "a": "b"}
        assert [line for line in server.lines if line.startswith("PATCH")] == [f"PATCH {NODE}"] * 2


def test_overwritten_change_is_restored_although_the_service_refuses_that_at_first() -> None:
    there, updates = node(labels={"x": "y"}), list[dict[str, Any]]()

    def update(labels: dict[str, str]) -> dict[str, Any]:
        there["labels"] = labels
        number = len(updates)
        about = {"verb": "update", "target": str(NAME), "endTime": f"2026-01-01T00:00:0{number}Z"}
        name = f"projects/p/locations/us-central2-b/operations/op-{number}"
        updates.append({"name": name, "done": True, "metadata": about, "response": dict(there)})
        return updates[-1]

    def script(request: Received) -> Reply:
        if request.line.endswith("/operations"):
            return Reply({"operations": updates})
        if request.method == "GET":
            return Reply(there)
        if not updates:
            update({**there["labels"], "other": "client"})  # after our read, before our write
        elif "refused" not in seen:
            seen.append("refused")
            return refuse(409, "ABORTED")
        return Reply(update(request.body["labels"]))

    seen: list[str] = []
    with client_of(script) as (client, _server):
        assert client.change_node(NAME, add_label).labels == {"x": "y", "other": "client", "a": "b"}
        assert (len(updates), seen) == (3, ["refused"])


def test_update_whose_operation_does_not_end_continues_in_the_cloud() -> None:
    def script(request: Received) -> Reply:
        return Reply(operation() if request.method == "PATCH" or "/operations/" in request.path else node())

    with client_of(script) as (client, _server), pytest.raises(TimedOutError) as caught:
        client.change_node(NAME, add_label, timeout=timedelta(seconds=4))

    assert (str(caught.value), caught.value.hint) == (
        "the update of `trainer` has not finished after 4s",
        "it continues in the cloud; check it with `tpuctl status us-central2-b/trainer`",
    )


def test_update_that_others_overwrite_all_the_time_is_given_up() -> None:
    """The change is not there at the end, so the error says so."""
    there = node(labels={"x": "y"})
    script = lambda request: Reply(there if request.method == "GET" else operation(done=True))  # noqa: E731  # short
    with client_of(script) as (client, server):
        with pytest.raises(ConflictError, match=r"at the same time: not changed as wanted: labels"):
            client.change_node(NAME, add_label)
        assert server.lines.count(f"PATCH {NODE}") == 6


@pytest.mark.parametrize("lost", [None, Drop(), FAULT])
def test_queued_resource_is_deleted_with_one_request_id(lost: Reply | Drop | None) -> None:
    there = {"name": QUEUED, "state": {"state": "ACTIVE"}}
    answers = [lost, Reply(there)] if lost else []
    with client_of(in_turn(Reply(there), *answers, *[Reply(there)] * bool(lost), Reply(operation()))) as (
        client,
        server,
    ):
        assert client.delete_queued_resource(QUEUED, meant, force=True) == OP

        deletes = [request.path for request in server.received if request.method == "DELETE"]
        assert len(deletes) == (2 if lost else 1)
        assert len(set(deletes)) == 1
        assert f"/v2/{QUEUED}?force=true&requestId=" in deletes[0]


def test_delete_of_an_absent_queued_resource_succeeds() -> None:
    with client_of(lambda _: ABSENT) as (client, _server):
        assert client.delete_queued_resource(QUEUED, meant, force=False) == Operation(None, done=True, was_sent=False)
        with pytest.raises(NotFoundError):
            client.get_queued_resource(QUEUED)


def test_preview_equals_the_request_and_sends_nothing() -> None:
    with client_of(Service()) as (client, server):
        created = client.preview("create", NAME, spec=SPEC, changes={})
        assert created is not None
        assert created.body is not None
        assert created.body["labels"].keys() == {"team", REQUEST_LABEL}
        changes = {"labels": {"a": "b"}, "networkConfig": {"enableExternalIps": False}}
        mask = "updateMask=labels,networkConfig.enableExternalIps"
        base = server.url
        assert [
            (created.method, created.url),
            *(client.preview(verb, NAME, changes=changes) for verb in ("delete", "start", "stop", "update", "reboot")),
        ] == [
            ("POST", f"{base}{NODES}?nodeId=trainer"),
            ApiRequest("DELETE", f"{base}{NODE}", None),
            ApiRequest("POST", f"{base}{NODE}:start", {}),
            ApiRequest("POST", f"{base}{NODE}:stop", {}),
            ApiRequest("PATCH", f"{base}{NODE}?{mask}", changes),
            None,
        ]
        assert server.lines == []


@pytest.mark.parametrize("line", [f"DELETE {NODE}", f"POST {NODE}:stop"])
def test_change_that_needs_no_quota_is_sent_again_after_each_429(line: str) -> None:
    change, there = next((change, there) for known, change, there in CHANGES if known == line)
    service = Service(node=dict(there), faults=[_EXHAUSTED] * 2, lost_before=True)
    clock = ManualClock()
    with client_of(service, clock=clock) as (client, _server):
        assert change(client) == OP
    assert service.changes == [line] * 3
    assert clock.monotonic() >= timedelta(seconds=30)


def test_start_that_may_lack_quota_is_sent_once() -> None:
    service = Service(node=node("STOPPED"), faults=[_EXHAUSTED], lost_before=True)
    with client_of(service) as (client, _server), pytest.raises(QuotaError):
        client.start_node(NAME)
    assert service.changes == [f"POST {NODE}:start"]
