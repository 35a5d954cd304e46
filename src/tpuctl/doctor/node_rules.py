"""Rules about a node as the API reports it, besides those of `check`: state, health, symptoms, maintenance, addresses."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.check.facts import Known, Unknown
from tpuctl.check.findings import Level, Remedy, RuleResult
from tpuctl.doctor.verdicts import error, node_rule, note, on_node, unknown, unread, verdict, warning
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.models.node import Health, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.doctor.doctor_facts import NodeFacts
    from tpuctl.models.node import Node

_SHOWN = 3
_MAINTENANCE_NOTICE = timedelta(hours=24)
_RECREATE, _FREE = on_node("recreate it", "up"), on_node("free its name and quota", "down")
_SEE_PROGRESS = on_node("see its progress", "status")
_DELETE = on_node("delete it, then create it again with `tpuctl up`", "down")
_WAIT = on_node("wait until it is usable", "wait")
# The verdict about each state, in which `{}` stands for it.
_STATES = {
    NodeState.STOPPED: warning("it is {}", on_node("start it", "up")),
    NodeState.TERMINATED: error("it is {}: only its record is left", _RECREATE, _FREE),
    **dict.fromkeys((NodeState.HIDDEN, NodeState.UNKNOWN), error("it is {}, and does not recover by itself", _DELETE)),
    **dict.fromkeys(
        (NodeState.CREATING, NodeState.STARTING, NodeState.RESTARTING, NodeState.REIMAGING, NodeState.REPAIRING),
        warning("it is {}, and not READY yet", _WAIT),
    ),
    **dict.fromkeys(
        (NodeState.STOPPING, NodeState.DELETING, NodeState.HIDING, NodeState.UNHIDING),
        warning("it is {}", _SEE_PROGRESS),
    ),
}
_PREEMPTED = error("it is {}: the service took it back, with its boot disk", _RECREATE, _FREE)
_NEW_STATE = unknown("it is {}, a state that this version of tpuctl does not know")
_HEALTH_REASONS = {
    Health.TIMEOUT: "the node does not answer the service",
    Health.UNHEALTHY_TENSORFLOW: "the machine learning software on the node does not run correctly",
    Health.UNHEALTHY_MAINTENANCE: "the service maintains the hardware, and moves the node by itself",
}


@node_rule("TPU950", "state and health of the node")
def check_node_state(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check the state of the node, and the health that the service reports for a READY node.

    An error if the node is dead, hidden or UNKNOWN; a warning if it is stopped, starting or stopping. A READY node is an error
    unless it is HEALTHY, and a warning during maintenance. An unset health is a note: it is normal for a while after a start
    [API field text; observed].
    """
    node = facts.node
    if node.state is NodeState.READY:
        yield from _judge_health(node)
        return
    found = _PREEMPTED if node.is_preempted else _STATES.get(node.state, _NEW_STATE)
    details = {"state": str(node.state), "createTime": node.raw.get("createTime")}
    yield verdict(found.level, found.text.format(node.state), *found.remedies, facts=details)


def _judge_health(node: Node) -> Iterator[RuleResult]:
    found = {"health": str(node.health), "healthDescription": node.health_description}
    text = f"it is {node.health}" + (f" ({node.health_description})" if node.health_description else "")
    why = _HEALTH_REASONS.get(node.health, "this version of tpuctl does not know that health")
    match node.health:
        case Health.HEALTHY:
            pass
        case Health.HEALTH_UNSPECIFIED:
            yield note("the service reports no health, which is normal for a while after a start", facts=found)
        case Health.UNHEALTHY_MAINTENANCE:
            yield warning(text, on_node("wait until it is healthy", "wait", "--for", "healthy"), why=why, facts=found)
        case _:
            yield error(text, on_node("reboot or restart it", "reset"), why=why, facts=found)


@node_rule("TPU952", "symptoms reported by the service")
def check_symptoms(facts: NodeFacts) -> Iterator[RuleResult]:
    """Show the symptoms that the service reports for its workers [API v2, Symptom]: a warning."""
    reported = facts.node.symptoms
    if not reported:
        return
    parts = []
    for one in reported[-_SHOWN:][::-1]:
        where = f" on worker {one.worker}" if one.worker else ""
        when = f", {format_duration(facts.now - one.at)} ago" if one.at else ""
        parts.append(f"{one.kind}{where}{f' ({one.details})' if one.details else ''}{when}")
    more = f", and {len(reported) - _SHOWN} older" if len(reported) > _SHOWN else ""
    yield warning(
        f"the service reports {', '.join(parts)}{more}",
        on_node("if it continues, reset the node", "reset"),
        why="the cause of failures there may be the hardware, not your program",
        facts={"symptoms": [{"symptomType": one.kind, "workerId": one.worker} for one in reported]},
    )


@node_rule("TPU953", "announced maintenance")
def check_maintenance(facts: NodeFacts) -> Iterator[RuleResult]:
    """Show announced maintenance: a warning from 24 hours before its window, else a note."""
    maintenance = facts.node.upcoming_maintenance
    if maintenance is None:
        return
    start, when, is_near = None, "at an unknown time", True
    if maintenance.start:
        start, left = format_timestamp(maintenance.start), maintenance.start - facts.now
        when = (f"in {format_duration(left)}" if left > timedelta() else "now, or has begun") + f" ({start})"
        is_near = left < _MAINTENANCE_NOTICE
    yield verdict(
        Level.WARNING if is_near else Level.NOTE,
        f"maintenance ({maintenance.kind}, {maintenance.status}) comes {when}",
        Remedy("write a checkpoint before that, and let `tpuctl watch` bring the node up again"),
        why="programs on its workers are terminated then",
        facts={"windowStartTime": start, "type": maintenance.kind},
    )


@node_rule("TPU958", "addresses of the workers")
def check_addresses(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check that a READY node has an address for each worker of its type; a note if none of them is external."""
    node, endpoints = facts.node, facts.node.endpoints
    if node.state is not NodeState.READY:
        return
    external = sum(one.external is not None for one in endpoints)
    found = {"workers": node.workers, "endpoints": len(endpoints), "external": external}
    with_address = sum(one.address is not None for one in endpoints)
    if len(endpoints) < node.workers or with_address < len(endpoints):
        yield error(
            f"it lists {with_address or 'no'} address{'es' if with_address != 1 else ''} for {node.workers} workers",
            on_node("wait until all of them are listed", "wait", "--for", "healthy"),
            why="a worker without an address cannot be reached, and may not exist",
            facts=found,
        )
    elif not external:
        text = "its workers have internal addresses only: connect with `--iap`, or from inside their network"
        yield note(text, facts=found)


@node_rule("TPU961", "what the workers publish")
def check_guest_attributes(facts: NodeFacts) -> Iterator[RuleResult]:
    """Check that the workers publish host keys and instance names as guest attributes [observed; gcloud 528 source].

    A note if they do not: ssh then trusts the first key that it sees, and Identity-Aware Proxy tunnels do not find them.
    """
    node = facts.node
    if node.state is not NodeState.READY:
        return
    match facts.published:
        case Known(workers):
            with_keys = sum(any(key.startswith("hostkeys/") for key in one) for one in workers)
            silent = max(node.workers, len(workers)) - with_keys
            if not silent:
                return
            which = "none of its workers publishes" if silent >= node.workers else f"{silent} of its workers publish no"
            yield note(
                f"{which} host keys",
                Remedy("check that `compute.disableGuestAttributesAccess` is not enforced in the organization"),
                why="ssh trusts the first key that it sees, and `--iap` needs what they publish",
                facts={"silent": silent},
            )
        case Unknown() as fact:
            yield unread("the guest attributes of its workers could not be read", fact)


@node_rule("TPU965", "whether the workers can be examined")
def check_workers_can_be_examined(facts: NodeFacts) -> Iterator[RuleResult]:
    """Show why the workers were not examined, if so: the state of the node, or what is missing on this machine."""
    if facts.obstacle is not None:
        yield unknown(
            f"its workers were not examined: {facts.obstacle}",
            *((Remedy(facts.remedy),) if facts.remedy else ()),
            is_passing=facts.node.state is not NodeState.READY,
        )
