"""Every value of the state and health enums of every version: a row that reaches it, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.response_schema import VERSIONS
from tpuctl.sandbox import administration
from tpuctl.sandbox.discovery import load_document
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault

if TYPE_CHECKING:
    from tests.sandbox.conftest import Api
    from tpuctl.clock import ManualClock
    from tpuctl.sandbox.state import SandboxState

ZONE = "projects/sandbox/locations/us-central2-b"
NODE, QUEUED = f"{ZONE}/nodes/node", f"{ZONE}/queuedResources/queued"
BODY = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class Story:
    """The calls of a client and of a sandbox user that reach a state. Every step returns the story."""

    def __init__(self, sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
        self.state, self.api, self.clock = sandbox_state, api, clock

    def create(self) -> Story:
        """Create a node."""
        assert "name" in self.api.create()
        return self

    def node(self, *verbs: str, **fields: Any) -> Story:
        """Add a node, and call methods on it."""
        administration.add_node(self.state, **fields)
        for verb in verbs:
            assert "name" in self.api(f"nodes.{verb}", name=NODE, version="v1" if verb == "reimage" else "v2")
        return self

    def fault(self, kind: FaultKind, **values: Any) -> Story:
        """Add a fault."""
        with self.state.write() as session:
            add_fault(session, Fault(kind, **values))
        return self

    def request(self, wait: timedelta, *verbs: str, **fields: Any) -> Story:
        """Create a queued resource, wait, and call methods on it."""
        spec = {"parent": ZONE, "nodeId": "node", "node": BODY}
        body = {"tpu": {"nodeSpec": [spec]}, **fields}
        self.api("queuedResources.create", body, parent=ZONE, queuedResourceId="queued")
        self.clock.sleep(wait)
        for verb in verbs:
            assert "name" in self.api(f"queuedResources.{verb}", name=QUEUED, force=True)
        return self

    def wait(self, duration: timedelta) -> Story:
        """Advance the clock."""
        self.clock.sleep(duration)
        return self


Rows = dict[str, Callable[[Story], Story]]
NODE_STATES: Rows = {
    "CREATING": lambda story: story.create(),
    "READY": lambda story: story.create().wait(9 * MINUTE),
    "RESTARTING": lambda story: story.request(15 * MINUTE, "reset"),
    "REIMAGING": lambda story: story.node("reimage", apiVersion="V1"),
    "DELETING": lambda story: story.node("delete"),
    "STOPPED": lambda story: story.node("stop").wait(2 * MINUTE),
    "STOPPING": lambda story: story.node("stop"),
    "STARTING": lambda story: story.node("start", state="STOPPED"),
    "PREEMPTED": lambda story: story.node().fault(FaultKind.PREEMPT),
    # Only the service itself sets this state: a seed sets it here.
    "REPAIRING": lambda story: story.node(state="REPAIRING"),
    "TERMINATED": lambda story: story.node(state="TERMINATED"),
    "HIDING": lambda story: story.node(state="HIDING"),
    "HIDDEN": lambda story: story.node(state="HIDDEN"),
    "UNHIDING": lambda story: story.node(state="UNHIDING"),
    "UNKNOWN": lambda story: story.node(state="UNKNOWN"),
}
HEALTHS: Rows = {
    "HEALTHY": lambda story: story.node(),
    "TIMEOUT": lambda story: story.node().fault(FaultKind.UNHEALTHY, health="TIMEOUT"),
    "UNHEALTHY_TENSORFLOW": lambda story: story.node().fault(FaultKind.UNHEALTHY),
    "UNHEALTHY_MAINTENANCE": lambda story: story.node().fault(FaultKind.MAINTENANCE),
}
QUEUED_STATES: Rows = {
    "CREATING": lambda story: story.request(SECOND),
    "ACCEPTED": lambda story: story.request(5 * SECOND),
    "WAITING_FOR_RESOURCES": lambda story: story.request(30 * SECOND),
    "PROVISIONING": lambda story: story.request(4 * MINUTE),
    "ACTIVE": lambda story: story.request(15 * MINUTE),
    "SUSPENDING": lambda story: story.request(15 * MINUTE).fault(FaultKind.PREEMPT),
    "SUSPENDED": lambda story: story.request(15 * MINUTE).fault(FaultKind.PREEMPT).wait(2 * MINUTE),
    "FAILED": lambda story: story.request(MINUTE, queueingPolicy={"validUntilDuration": "30s"}),
    "DELETING": lambda story: story.request(15 * MINUTE, "delete"),
}
NEVER_SHOWN = {
    "STATE_UNSPECIFIED": "the zero of the enum: every record has a state",
    "HEALTH_UNSPECIFIED": "the zero of the enum: proto3 JSON leaves it out",
    "DEPRECATED_UNHEALTHY": "deprecated in v1, and no other version has it",
}
ENUMS = {"Node.state": NODE_STATES, "Node.health": HEALTHS, "QueuedResourceState.state": QUEUED_STATES}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_enum_value_has_a_row_or_a_reason(version: str) -> None:
    for place, rows in ENUMS.items():
        schema, _, field = place.partition(".")
        if schema in load_document("tpu", version).schemas:
            values = load_document("tpu", version).schemas[schema]["properties"][field]["enum"]
            assert set(values) == {*rows, *(value for value in NEVER_SHOWN if value in values)}, place


@pytest.mark.parametrize(("field", "wanted"), [(f, v) for f, rows in ENUMS.items() for v in rows if "Node" in f])
def test_node_reaches_the_value_in_every_version(
    sandbox_state: SandboxState, api: Api, clock: ManualClock, field: str, wanted: str
) -> None:
    ENUMS[field][wanted](Story(sandbox_state, api, clock))

    shown = [api("nodes.get", name=NODE, version=version)[field.partition(".")[2]] for version in VERSIONS]
    assert shown == [wanted] * 4


@pytest.mark.parametrize("wanted", QUEUED_STATES)
def test_queued_resource_reaches_the_value_in_both_versions(
    sandbox_state: SandboxState, api: Api, clock: ManualClock, wanted: str
) -> None:
    QUEUED_STATES[wanted](Story(sandbox_state, api, clock))

    shown = [api("queuedResources.get", name=QUEUED, version=version)["state"] for version in ("v2", "v2alpha1")]
    reason = shown[0].get("failedData", {}).get("error", {}).get("code")
    assert ([state["state"] for state in shown], reason) == ([wanted] * 2, 4 if wanted == "FAILED" else None)
