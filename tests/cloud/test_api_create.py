"""Creation of a node: at most once, and reported correctly."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.cloud.one_node import FAULT, TAKEN, Service
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
from tpuctl.errors import AlreadyExistsError, ConflictError, InvalidRequestError, OutcomeUnknownError, QuotaError
from tpuctl.models.operation import Operation
from tpuctl.models.spec import REQUEST_LABEL, NodeSpec

SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base", labels={"team": "a"})
OP = Operation.from_api(operation())
CREATE = f"POST {NODES}"


def test_create_sends_the_spec_and_a_unique_label() -> None:
    service = Service()
    with client_of(service) as (client, server):
        assert client.create_node(NAME, SPEC) == OP

        sent = server.received[0]
        label = sent.body["labels"].pop(REQUEST_LABEL)
        assert len(label) == 32
        assert sent == Received("POST", f"{NODES}?nodeId=trainer", body={**SPEC.to_api(), "labels": {"team": "a"}})


@pytest.mark.parametrize(
    "fault", [Drop(), Drop(b"HTTP/1.1 200 OK\r\n"), FAULT, refuse(500, "INTERNAL"), Reply(b"<html>")]
)
@pytest.mark.parametrize("hidden_looks", [0, 3])
def test_create_with_a_lost_answer_is_recognised_by_its_label(fault: Reply | Drop, hidden_looks: int) -> None:
    service = Service(faults=[fault], hidden_looks=hidden_looks)
    with client_of(service) as (client, _server):
        assert client.create_node(NAME, SPEC) == Operation.unnamed()
        assert service.changes == [CREATE]


def test_create_that_was_sent_twice_on_its_way_is_recognised_by_its_label() -> None:
    """A proxy or the library may have sent it a second time, which is refused because of the first."""
    service = Service(faults=[TAKEN])
    with client_of(service) as (client, _server):
        assert client.create_node(NAME, SPEC) == Operation.unnamed()
        assert service.changes == [CREATE]


def test_create_that_never_arrived_is_sent_once_more() -> None:
    service = Service(faults=[Drop()], lost_before=True)
    clock = ManualClock()
    with client_of(service, clock=clock) as (client, _server):
        assert client.create_node(NAME, SPEC) == OP
        assert service.changes == [CREATE] * 2
        # The node had some seconds to show up.
        assert clock.monotonic() > timedelta(seconds=7)


def test_create_that_shows_up_late_is_recognised_by_the_second() -> None:
    """The second create is refused because of the first: the node is ours."""
    service = Service(faults=[Drop()], hidden_looks=4)
    with client_of(service) as (client, _server):
        assert client.create_node(NAME, SPEC) == Operation.unnamed()
        assert service.changes == [CREATE] * 2


def test_create_whose_answers_all_get_lost_has_an_unknown_outcome() -> None:
    service = Service(faults=[Drop(), Drop(), Drop()], lost_before=True)
    with client_of(service) as (client, _server):
        with pytest.raises(OutcomeUnknownError) as caught:
            client.create_node(NAME, SPEC)

        assert service.changes == [CREATE] * 2
        assert "its outcome is unknown" in caught.value.message
        assert "tpuctl status trainer" in str(caught.value.hint)


def test_lost_create_that_cannot_be_read_back_has_an_unknown_outcome() -> None:
    script = in_turn(Drop(), refuse(403, "PERMISSION_DENIED"))
    with client_of(script) as (client, server):
        with pytest.raises(OutcomeUnknownError):
            client.create_node(NAME, SPEC)
        assert server.lines == [CREATE, f"GET {NODE}"]


@pytest.mark.parametrize("faults", [[], [Drop()]])
def test_node_of_another_client_is_not_taken_for_ours(faults: list[Reply | Drop]) -> None:
    service = Service(node=node(labels={REQUEST_LABEL: "theirs"}), faults=faults)
    with client_of(service) as (client, _server), pytest.raises(AlreadyExistsError):
        client.create_node(NAME, SPEC)
    assert service.changes == [CREATE]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refuse(400, "INVALID_ARGUMENT"), InvalidRequestError),
        (refuse(429, "RESOURCE_EXHAUSTED", "Quota 'TPUV4PerProject' exhausted. Limit 0 in zone z"), QuotaError),
    ],
)
def test_refused_create_is_sent_once(answer: Reply, kind: type[Exception]) -> None:
    with client_of(lambda _: answer) as (client, server):
        with pytest.raises(kind):
            client.create_node(NAME, SPEC)
        assert server.lines == [CREATE]


@pytest.mark.parametrize("refusals", [1, 2])
def test_aborted_create_says_nothing_about_the_name(refusals: int) -> None:
    service = Service(faults=[refuse(409, "ABORTED")] * refusals, lost_before=True)
    with client_of(service) as (client, _):
        if refusals == 1:
            assert client.create_node(NAME, SPEC) == OP
        else:
            with pytest.raises(ConflictError, match="ABORTED") as raised:
                client.create_node(NAME, SPEC)
            assert not isinstance(raised.value, AlreadyExistsError)
    assert service.changes == [CREATE] * 2


def test_rate_limited_create_is_sent_again_later() -> None:
    limit = refuse(429, "RESOURCE_EXHAUSTED", "Maximum number of CreateNode requests per minute exceeded")
    clock = ManualClock()
    with client_of(in_turn(limit, Reply(operation())), clock=clock) as (client, server):
        assert client.create_node(NAME, SPEC) == OP
        assert server.lines == [CREATE] * 2
        assert clock.monotonic() >= timedelta(seconds=15)
