"""What the tests of `decide` share: nodes, and decisions in one line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tpuctl.models.node import Node
from tpuctl.models.spec import SpecDifference
from tpuctl.names import NodeName
from tpuctl.nodes.conditions import (
    Create,
    Decision,
    Delete,
    DeleteRequest,
    Done,
    Fail,
    Now,
    ObservedState,
    Policy,
    Reboot,
    Repair,
    Requeue,
    Restart,
    SshAnswer,
    Start,
    WorkerSnapshot,
)
from tpuctl.nodes.decide import decide

NAME = NodeName("p", "us-central2-b", "trainer")
UP = Policy(may_create=True, may_start=True, repair=Repair.RESTART)
WAIT = Policy()
SECOND = timedelta(seconds=1)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
AT_NOW = Now(timedelta(), NOW)
YES, SILENT, NO_KEY, NO_HOST = map(
    WorkerSnapshot, (SshAnswer.YES, SshAnswer.UNREACHABLE, SshAnswer.KEY_REFUSED, SshAnswer.HOST_KEY_CHANGED)
)
DIFFERENT = (SpecDifference("network", "mine", "default"),)
SICK = {"health": "UNHEALTHY_TENSORFLOW"}


def node(state: str = "READY", **fields: Any) -> Node:
    """A healthy v4-8 with one address, but for the fields given."""
    raw = {"name": str(NAME), "id": "7", "state": state, "acceleratorType": "v4-8", "health": "HEALTHY"}
    raw = {field: value for field, value in (raw | fields).items() if value is not None}
    workers = Node(NAME, raw).workers
    return Node(NAME, {"networkEndpoints": [{"ipAddress": "10.0.0.2"}] * workers} | raw)


def slice_(state: str = "READY", **fields: Any) -> Node:
    return node(state, acceleratorType="v4-16", **fields)


def spot(state: str, **fields: Any) -> Node:
    return node(state, schedulingConfig={"spot": True}, **fields)


def queued(state: str, **fields: Any) -> Node:
    return node(state, queuedResource="projects/p/locations/us-central2-b/queuedResources/q1", **fields)


def describe_decision(decision: Decision) -> str:
    """Return a decision in one line; for an error its kind and its first line."""
    match decision:
        case Done(_, note):
            return "reached" + (f": {note}" if note else "")
        case Fail(error):
            return f"{error.kind}: {str(error).splitlines()[0]}"
        case Requeue(delay, reason, then):
            after = f" [{then.what} in {then.after.total_seconds():g}]" if then else ""
            return f"wait {delay.total_seconds():g}: {reason}{after}"
        case Delete(reason, node_id, is_repair):
            return f"delete {node_id}{' to repair' * is_repair}: {reason}"
        case DeleteRequest(reason, _, force, is_repair):
            return f"delete request{' by force' * force}{' to repair' * is_repair}: {reason}"
        case Restart(reason, rejected):
            return "; ".join((f"restart: {reason}", *rejected))
        case Create(reason) | Start(reason) | Reboot(reason):
            return f"{type(decision).__name__.lower()}: {reason}"


# The instants of the observed state, by the durations until now that the tables name.
_INSTANTS = {
    "in_state": "unchanged_since",
    "in_request_state": "request_since",
    "waited": "started",
    "since_repair": "repaired_at",
}


def observed(seen_node: Node | None, **fields: Any) -> ObservedState:
    given = {_INSTANTS.get(key, key): -value if key in _INSTANTS else value for key, value in fields.items()}
    return ObservedState(name=NAME, node=seen_node, **given)


def decision_for(policy: Policy, seen_node: Node | None, **fields: Any) -> str:
    return describe_decision(decide(policy, observed(seen_node, **fields), AT_NOW))
