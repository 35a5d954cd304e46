"""Changes whose answers get lost: carried out at most once, and never a false word about what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from scripted_api import NAME, NODE, NODES, Drop, Received, Reply, client_of, in_turn, node, operation, refuse

from tpuctl.api.tpu import RequestPreview, TpuClient
from tpuctl.clock import ManualClock
from tpuctl.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidRequestError,
    NodeNotFoundError,
    NotFoundError,
    OutcomeUnknownError,
    QuotaError,
    ServiceUnavailableError,
)
from tpuctl.model import REQUEST_LABEL, NodeSpec, Operation

SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base", labels={"team": "a"})
OP = Operation.from_api(operation())
ABSENT = refuse(404, "NOT_FOUND")
FAULT = refuse(503, "UNAVAILABLE")
TAKEN = refuse(409, "ALREADY_EXISTS", "Resource 'x' already exists")
QUEUED = "projects/p/locations/us-central2-b/queuedResources/q"


@dataclass
class Service:
    """A service with one node. `faults` answer the next changes, carried out or (`lost_before`) not."""

    node: dict[str, Any] | None = None
    faults: list[Reply | Drop] = field(default_factory=list)
    lost_before: bool = False
    hidden_looks: int = 0
    changes: list[str] = field(default_factory=list)

    def __call__(self, request: Received) -> Reply | Drop:
        if request.method == "GET":
            return self._read()
        self.changes.append(request.line)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and self.lost_before:
            return fault
        answer = self._change(request)
        return answer if fault is None else fault

    def _read(self) -> Reply:
        self.hidden_looks -= 1
        return ABSENT if self.node is None or self.hidden_looks >= 0 else Reply(self.node)

    def _change(self, request: Received) -> Reply:
        if request.line == f"POST {NODES}":
            if self.node is not None:
                return TAKEN
            self.node = {**node("CREATING"), **request.body}
            return Reply(operation())
        if self.node is None:
            return ABSENT
        match request.method, request.line.rpartition(":")[2]:
            case "POST", "stop":
                self.node["state"] = "STOPPING"
            case "POST", "start":
                self.node["state"] = "STARTING"
            case "PATCH", _:
                self.node.update(request.body)
            case _:
                self.node = None
        return Reply(operation())


CREATE = f"POST {NODES}"


def test_create_sends_the_spec_and_a_label_of_its_own() -> None:
    service = Service()
    with client_of(service) as (client, server):
        assert client.create_node(NAME, SPEC) == OP

        sent = server.received[0]
        label = sent.body["labels"].pop(REQUEST_LABEL)
        assert len(label) == 32
        assert sent == Received(
            "POST", f"{NODES}?nodeId=trainer&alt=json", body={**SPEC.to_api(), "labels": {"team": "a"}}
        )


@pytest.mark.parametrize(
    "fault", [Drop(), Drop(b"HTTP/1.1 200 OK\r\n"), FAULT, refuse(500, "INTERNAL"), Reply(b"<html>")]
)
@pytest.mark.parametrize("hidden_looks", [0, 3])
def test_a_create_that_was_carried_out_unseen_is_recognised(fault: Reply | Drop, hidden_looks: int) -> None:
    service = Service(faults=[fault], hidden_looks=hidden_looks)
    with client_of(service) as (client, _server):
        assert client.create_node(NAME, SPEC) == Operation.unnamed()
        assert service.changes == [CREATE]


def test_a_create_that_never_arrived_is_sent_once_more() -> None:
    service = Service(faults=[Drop()], lost_before=True)
    clock = ManualClock()
    with client_of(service, clock=clock) as (client, _server):
        assert client.create_node(NAME, SPEC) == OP
        assert service.changes == [CREATE] * 2
        # The node had some seconds to show up.
        assert clock.monotonic() > timedelta(seconds=7)


def test_a_create_that_shows_up_late_is_recognised_by_the_second() -> None:
    """The second create is refused because of the first: the node is ours."""
    service = Service(faults=[Drop()], hidden_looks=4)
    with client_of(service) as (client, _server):
        assert client.create_node(NAME, SPEC) == Operation.unnamed()
        assert service.changes == [CREATE] * 2


def test_a_create_that_stays_lost_is_an_unknown_outcome() -> None:
    service = Service(faults=[Drop(), Drop(), Drop()], lost_before=True)
    with client_of(service) as (client, _server):
        with pytest.raises(OutcomeUnknownError) as caught:
            client.create_node(NAME, SPEC)

        assert service.changes == [CREATE] * 2
        assert "it is not known" in caught.value.message
        assert "tpuctl status trainer" in str(caught.value.hint)


def test_a_lost_create_that_cannot_be_looked_for_is_an_unknown_outcome() -> None:
    script = in_turn(Drop(), refuse(403, "PERMISSION_DENIED"))
    with client_of(script) as (client, server):
        with pytest.raises(OutcomeUnknownError):
            client.create_node(NAME, SPEC)
        assert server.lines == [CREATE, f"GET {NODE}"]


@pytest.mark.parametrize("faults", [[], [Drop()]])
def test_the_node_of_somebody_else_is_not_taken_for_ours(faults: list[Reply | Drop]) -> None:
    service = Service(node=node(labels={REQUEST_LABEL: "theirs"}), faults=faults)
    with client_of(service) as (client, _server), pytest.raises(AlreadyExistsError):
        client.create_node(NAME, SPEC)
    assert service.changes == [CREATE]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refuse(400, "INVALID_ARGUMENT"), InvalidRequestError),
        (refuse(429, "RESOURCE_EXHAUSTED", "Quota 'TPUV4PerProject' exhausted. Limit 0 in zone z"), QuotaError),
        (refuse(409, "ABORTED"), AlreadyExistsError),
    ],
)
def test_a_refused_create_is_sent_once(answer: Reply, kind: type[Exception]) -> None:
    with client_of(lambda _: answer) as (client, server):
        with pytest.raises(kind):
            client.create_node(NAME, SPEC)
        assert server.lines == [CREATE]


def test_a_create_that_came_too_fast_is_sent_again_later() -> None:
    limit = refuse(429, "RESOURCE_EXHAUSTED", "Maximum number of CreateNode requests per minute exceeded")
    clock = ManualClock()
    with client_of(in_turn(limit, Reply(operation())), clock=clock) as (client, server):
        assert client.create_node(NAME, SPEC) == OP
        assert server.lines == [CREATE] * 2
        assert clock.monotonic() >= timedelta(seconds=15)


Change = Callable[[TpuClient], Operation]
CHANGES: list[tuple[str, Change, dict[str, Any]]] = [
    (f"POST {NODE}:stop", lambda client: client.stop_node(NAME), node("READY")),
    (f"POST {NODE}:start", lambda client: client.start_node(NAME), node("STOPPED")),
    (f"PATCH {NODE}", lambda client: client.update_node(NAME, {"labels": {"a": "b"}, "description": ""}), node()),
    (f"PATCH {NODE}", lambda client: client.change_metadata(NAME, lambda old: {**old, "k": "v"}), node()),
    (f"DELETE {NODE}", lambda client: client.delete_node(NAME), node()),
]


@pytest.mark.parametrize(("line", "change", "there"), CHANGES)
@pytest.mark.parametrize("fault", [Drop(), FAULT])
def test_a_change_whose_answer_was_lost_is_looked_at_and_not_repeated(
    line: str, change: Change, there: dict[str, Any], fault: Reply | Drop
) -> None:
    service = Service(node=dict(there), faults=[fault])
    with client_of(service) as (client, _server):
        assert change(client) == Operation.unnamed()
        assert service.changes == [line]


@pytest.mark.parametrize(("line", "change", "there"), CHANGES)
@pytest.mark.parametrize("fault", [Drop(), FAULT])
def test_a_change_that_never_arrived_is_sent_again(
    line: str, change: Change, there: dict[str, Any], fault: Reply | Drop
) -> None:
    service = Service(node=dict(there), faults=[fault], lost_before=True)
    with client_of(service) as (client, _server):
        assert change(client) == OP
        assert service.changes == [line] * 2


@pytest.mark.parametrize(("line", "change", "there"), CHANGES)
@pytest.mark.parametrize(("fault", "kind"), [(Drop(), OutcomeUnknownError), (FAULT, ServiceUnavailableError)])
def test_a_change_that_stays_lost_is_given_up(
    line: str, change: Change, there: dict[str, Any], fault: Reply | Drop, kind: type[Exception]
) -> None:
    service = Service(node=dict(there), faults=[fault] * 9, lost_before=True)
    with client_of(service) as (client, _server):
        with pytest.raises(ServiceUnavailableError) as caught:
            change(client)
        assert type(caught.value) is kind
        assert service.changes == [line] * 3


@pytest.mark.parametrize(("line", "change", "_there"), CHANGES[:4])
def test_what_is_absent_cannot_be_changed(line: str, change: Change, _there: object) -> None:
    with client_of(Service()) as (client, _server), pytest.raises(NodeNotFoundError):
        change(client)


def test_deleting_what_is_gone_succeeds() -> None:
    with client_of(Service()) as (client, _server):
        assert client.delete_node(NAME) == Operation(None, done=True)


@pytest.mark.parametrize(("expected_id", "deletes"), [("7", 2), ("6", 1)])
def test_a_lost_delete_is_not_repeated_on_a_newer_node_of_the_name(expected_id: str, deletes: int) -> None:
    service = Service(node=node(), faults=[Drop()], lost_before=True)
    with client_of(service) as (client, _server):
        client.delete_node(NAME, expected_id=expected_id)
        assert service.changes == [f"DELETE {NODE}"] * deletes


def test_a_refusal_is_the_services_word_and_not_repeated() -> None:
    refusal = refuse(400, "FAILED_PRECONDITION", "stop is not supported while in state STARTING")
    with client_of(lambda _: refusal) as (client, server):
        with pytest.raises(ConflictError, match="stop is not supported while in state STARTING"):
            client.stop_node(NAME)
        assert server.lines == [f"POST {NODE}:stop"]


def test_two_changes_of_metadata_at_once_both_count() -> None:
    """The one that comes second is refused, reads what the other left and adds to that."""
    there = node(metadata={"ssh-keys": "a"})

    def script(request: Received) -> Reply:
        if request.method == "GET":
            return Reply(there)
        if there["metadata"] == {"ssh-keys": "a"}:
            there["metadata"] = {"ssh-keys": "a\nb"}
            return refuse(409, "ABORTED")
        there.update(request.body)
        return Reply(operation())

    def add(old: Mapping[str, str]) -> Mapping[str, str]:
        return {**old, "ssh-keys": f"{old['ssh-keys']}\nc"}

    with client_of(script) as (client, server):
        assert client.change_metadata(NAME, add) == OP
        assert there["metadata"] == {"ssh-keys": "a\nb\nc"}
        assert server.received[-1] == Received(
            "PATCH", f"{NODE}?updateMask=metadata&alt=json", body={"metadata": {"ssh-keys": "a\nb\nc"}}
        )


def test_metadata_that_is_as_wanted_is_not_sent() -> None:
    with client_of(Service(node=node(metadata={"a": "b"}))) as (client, server):
        assert client.change_metadata(NAME, dict) == Operation(None, done=True)
        assert server.lines == [f"GET {NODE}"]


@pytest.mark.parametrize("lost", [None, Drop(), FAULT])
def test_a_queued_resource_is_deleted_under_one_request_id(lost: Reply | Drop | None) -> None:
    there = {"name": QUEUED, "state": {"state": "ACTIVE"}}
    answers = [lost, Reply(there)] if lost else []
    with client_of(in_turn(*answers, Reply(operation()))) as (client, server):
        assert client.delete_queued_resource(QUEUED, force=True) == OP

        deletes = [request.path for request in server.received if request.method == "DELETE"]
        assert len(deletes) == (2 if lost else 1)
        assert len(set(deletes)) == 1
        assert f"/v2/{QUEUED}?force=true&requestId=" in deletes[0]


def test_a_queued_resource_that_is_gone() -> None:
    with client_of(lambda _: ABSENT) as (client, _server):
        assert client.delete_queued_resource(QUEUED, force=False) == Operation(None, done=True)
        with pytest.raises(NotFoundError):
            client.get_queued_resource(QUEUED)


def test_previews_are_the_requests_and_send_nothing() -> None:
    with client_of(Service()) as (client, server):
        created = client.preview_create(NAME, SPEC)
        assert created.body is not None
        assert created.body["labels"].keys() == {"team", REQUEST_LABEL}
        changes = {"labels": {"a": "b"}, "networkConfig": {"enableExternalIps": False}}
        mask = "updateMask=labels%2CnetworkConfig.enableExternalIps"
        base = server.url
        assert [
            (created.method, created.url),
            client.preview_delete(NAME),
            client.preview_start(NAME),
            client.preview_stop(NAME),
            client.preview_update(NAME, changes),
        ] == [
            ("POST", f"{base}{NODES}?nodeId=trainer&alt=json"),
            RequestPreview("DELETE", f"{base}{NODE}?alt=json", None),
            RequestPreview("POST", f"{base}{NODE}:start?alt=json", {}),
            RequestPreview("POST", f"{base}{NODE}:stop?alt=json", {}),
            RequestPreview("PATCH", f"{base}{NODE}?{mask}&alt=json", changes),
        ]
        assert server.lines == []
