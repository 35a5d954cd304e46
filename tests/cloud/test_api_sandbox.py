"""The client against the sandbox, in process and over a socket: one behaviour, lost answers included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tpuctl.clock import ManualClock
from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions
from tpuctl.cloud.tpu import TpuClient
from tpuctl.cloud.transport import HttpFactory
from tpuctl.durations import parse_duration
from tpuctl.errors import AlreadyExistsError, NodeNotFoundError
from tpuctl.models.node import NodeState
from tpuctl.models.node_changes import changed_fields
from tpuctl.models.operation import Operation
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault
from tpuctl.sandbox.http_server import open_server
from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.state import SandboxState

NAME = NodeName("p", "us-central2-b", "trainer")
SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base")
FAULTS = [FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER, FaultKind.HTTP_ERROR]


@pytest.fixture
def sandbox_state(tmp_path: Path) -> Iterator[SandboxState]:
    with SandboxState.open(tmp_path / "world.db", clock=ManualClock()) as sandbox_state:
        yield sandbox_state


@pytest.fixture(params=["in process", "socket"])
def client(sandbox_state: SandboxState, request: pytest.FixtureRequest) -> Iterator[TpuClient]:
    if request.param == "in process":
        http = SandboxHttp(sandbox_state)
        yield TpuClient(lambda: http, sandbox_state.clock)
        return
    with open_server(sandbox_state).start() as server:
        factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(server.url))
        yield TpuClient(factory, sandbox_state.clock, endpoint=server.url)
        factory.close()


def break_next(sandbox_state: SandboxState, kind: FaultKind, method: str) -> None:
    with sandbox_state.write() as session:
        add_fault(session, Fault(kind, method=f"tpu.projects.locations.nodes.{method}", status=503))


def settled(client: TpuClient, sandbox_state: SandboxState, operation: Operation) -> None:
    """Advance the sandbox's clock until an operation ends."""
    sandbox_state.clock.sleep(parse_duration("1h"))
    if operation.name is not None:
        ended = client.get_operation(operation.name)
        assert (ended.done, ended.error) == (True, None)


def changed(client: TpuClient, fields: dict[str, Any]) -> Operation:
    client.change_node(NAME, lambda node: changed_fields(node, fields))
    return Operation(None, done=True)


@pytest.mark.parametrize("kind", FAULTS)
def test_node_life_cycle_with_every_answer_lost(
    client: TpuClient, sandbox_state: SandboxState, kind: FaultKind
) -> None:
    """Each change is applied once, whether the request or its answer was lost; a repeated create would be refused."""
    steps: list[tuple[str, Callable[[], Operation], NodeState]] = [
        ("create", lambda: client.create_node(NAME, SPEC), NodeState.READY),
        ("stop", lambda: client.stop_node(NAME, lambda _: None), NodeState.STOPPED),
        ("start", lambda: client.start_node(NAME), NodeState.READY),
        ("patch", lambda: changed(client, {"labels": {"a": "b"}, "metadata": {"k": "v"}}), NodeState.READY),
    ]
    ids = set()
    for method, change, state in steps:
        break_next(sandbox_state, kind, method)
        settled(client, sandbox_state, change())
        found = client.get_node(NAME)
        assert found.state is state
        ids.add(found.id)

    assert len(ids) == 1
    assert (found.labels, found.metadata["k"]) == ({"a": "b"}, "v")
    break_next(sandbox_state, kind, "delete")
    settled(client, sandbox_state, client.delete_node(NAME, lambda _: None))
    with pytest.raises(NodeNotFoundError):
        client.get_node(NAME)


def test_list_names_unreachable_zones(client: TpuClient, sandbox_state: SandboxState) -> None:
    other = NodeName("p", "europe-west4-a", "other")
    settled(client, sandbox_state, client.create_node(NAME, SPEC))
    settled(
        client,
        sandbox_state,
        client.create_node(other, NodeSpec(accelerator_type="v3-8", runtime_version="tpu-vm-base")),
    )
    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.UNREACHABLE, zone="europe-west4-a", count=0))

    everywhere = client.list_nodes("p")
    named = client.list_nodes("p", ["europe-west4-a", "us-central2-b"])

    assert [node.name for node in everywhere.nodes] == [node.name for node in named.nodes] == [NAME]
    assert everywhere.unreachable == named.unreachable == ("europe-west4-a",)
    assert client.server_time is not None


def test_second_create_of_a_name_raises_already_exists(client: TpuClient) -> None:
    client.create_node(NAME, SPEC)

    with pytest.raises(AlreadyExistsError):
        client.create_node(NAME, SPEC)


def test_zone_offers_types_and_versions(client: TpuClient) -> None:
    assert "us-central2-b" in client.locations("p")
    assert "v4-8" in client.accelerator_types("p", "us-central2-b")
    assert "tpu-ubuntu2204-base" in client.runtime_versions("p", "us-central2-b")
    assert client.guest_attributes(NAME) == ()
    assert client.list_queued_resources("p").queued_resources == ()
