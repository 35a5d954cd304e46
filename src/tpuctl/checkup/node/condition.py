"""Rules about a node as the API reports it: its state, health, tier, operations, and what it was created with."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import format_duration, format_timestamp
from tpuctl.model import Health, NodeState, QueuedState, Tier
from tpuctl.names import short
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.node.facts import Asked, NodeFacts

_SHOWN = 3
_COMING = frozenset(
    {NodeState.CREATING, NodeState.STARTING, NodeState.RESTARTING, NodeState.REIMAGING, NodeState.REPAIRING}
)
_GOING = frozenset({NodeState.STOPPING, NodeState.DELETING, NodeState.HIDING, NodeState.UNHIDING})
_SOON = timedelta(hours=24)
# A preemptible node is taken after 24 hours at the latest [documentation].
_LONGEST = timedelta(hours=24)
_HEALTH_REASONS = {
    Health.TIMEOUT: "the node does not answer the service",
    Health.UNHEALTHY_TENSORFLOW: "the machine learning software on the node does not run correctly",
    Health.UNHEALTHY_MAINTENANCE: "the service maintains the hardware, and moves the node by itself",
}


@rule("TPU950", "state of the node")
def state(facts: NodeFacts) -> Iterator[Found]:
    """Check the state of the node.

    An error if the node is dead, hidden or UNKNOWN; a warning if it is stopped, starting or stopping.
    """
    node, name = facts.node, facts.node.name.node_id
    level, text = Level.OK, "it is READY"
    remedies: tuple[Remedy, ...] = ()
    if node.is_preempted:
        level, text = Level.ERROR, f"it is {node.state}: the service took it back, with its boot disk"
        remedies = (_own("recreate it", "up", name), _own("free its name and quota", "down", name))
    elif node.state is NodeState.TERMINATED:
        level, text = Level.ERROR, "it is TERMINATED: only its record is left"
        remedies = (_own("recreate it", "up", name), _own("free its name and quota", "down", name))
    elif node.state in {NodeState.HIDDEN, NodeState.UNKNOWN}:
        level, text = Level.ERROR, f"it is {node.state}, and does not recover by itself"
        remedies = (_own("delete it, then create it again with `tpuctl up`", "down", name),)
    elif node.state is NodeState.STOPPED:
        level, text, remedies = Level.WARNING, "it is STOPPED", (_own("start it", "up", name),)
    elif node.state in _COMING:
        level, text = Level.WARNING, f"it is {node.state}, and not READY yet"
        remedies = (_own("wait until it is usable", "wait", name),)
    elif node.state in _GOING:
        level, text, remedies = Level.WARNING, f"it is {node.state}", (_own("see its progress", "status", name),)
    elif node.state is not NodeState.READY:
        level, text = Level.UNKNOWN, f"it is {node.state}, a state that this version of tpuctl does not know"
    details = {"state": str(node.state), "createTime": node.raw.get("createTime")}
    yield Found(level=level, subject=name, text=text, remedies=remedies, facts=details)


@rule("TPU951", "health of the node")
def health(facts: NodeFacts) -> Iterator[Found]:
    """Check the health that the service reports for a READY node: an error unless HEALTHY; a warning during maintenance.

    An unset health is a note: it is normal for a while after a start [API field text; observed].
    """
    node, name = facts.node, facts.node.name.node_id
    if node.state is not NodeState.READY:
        return
    description = f" ({node.health_description})" if node.health_description else ""
    found = {"health": str(node.health), "healthDescription": node.health_description}
    match node.health:
        case Health.HEALTHY:
            yield Found(level=Level.OK, subject=name, text="it is HEALTHY", facts=found)
        case Health.HEALTH_UNSPECIFIED:
            text = "the service reports no health, which is normal for a while after a start"
            yield Found(level=Level.NOTE, subject=name, text=text, facts=found)
        case Health.UNHEALTHY_MAINTENANCE:
            remedies = (_own("wait until it is healthy", "wait", f"{name} --for healthy"),)
            why = _HEALTH_REASONS[node.health]
            yield Found(
                level=Level.WARNING,
                subject=name,
                text=f"it is {node.health}{description}",
                why=why,
                remedies=remedies,
                facts=found,
            )
        case _:
            why = _HEALTH_REASONS.get(node.health, "this version of tpuctl does not know that health")
            remedies = (_own("reboot or restart it", "reset", name),)
            yield Found(
                level=Level.ERROR,
                subject=name,
                text=f"it is {node.health}{description}",
                why=why,
                remedies=remedies,
                facts=found,
            )


@rule("TPU952", "symptoms reported by the service")
def symptoms(facts: NodeFacts) -> Iterator[Found]:
    """Show the symptoms that the service reports for its workers [API v2, Symptom]: a warning."""
    node, reported = facts.node, facts.node.symptoms
    if not reported:
        yield Found(level=Level.OK, subject=node.name.node_id, text="the service reports no symptoms")
        return
    parts = []
    for one in reported[-_SHOWN:][::-1]:
        where = f" on worker {one.worker}" if one.worker else ""
        when = f", {format_duration(facts.now - one.at)} ago" if one.at else ""
        parts.append(f"{one.kind}{where}{f' ({one.details})' if one.details else ''}{when}")
    more = f", and {len(reported) - _SHOWN} older" if len(reported) > _SHOWN else ""
    yield Found(
        level=Level.WARNING,
        subject=node.name.node_id,
        text=f"the service reports {', '.join(parts)}{more}",
        why="the cause of failures there may be the hardware, not your program",
        remedies=(_own("if it continues, reset the node", "reset", node.name.node_id),),
        facts={"symptoms": [{"symptomType": one.kind, "workerId": one.worker} for one in reported]},
    )


@rule("TPU953", "announced maintenance")
def maintenance(facts: NodeFacts) -> Iterator[Found]:
    """Show announced maintenance: a warning from 24 hours before its window, else a note."""
    node, coming = facts.node, facts.node.upcoming_maintenance
    if coming is None:
        yield Found(level=Level.OK, subject=node.name.node_id, text="no maintenance is announced")
        return
    is_near = coming.start is None or coming.start - facts.now < _SOON
    when = "at an unknown time"
    if coming.start:
        left = coming.start - facts.now
        begins = f"in {format_duration(left)}" if left > timedelta() else "now, or has begun"
        when = f"{begins} ({format_timestamp(coming.start)})"
    yield Found(
        level=Level.WARNING if is_near else Level.NOTE,
        subject=node.name.node_id,
        text=f"maintenance ({coming.kind}, {coming.status}) comes {when}",
        why="programs on its workers are terminated then",
        remedies=(Remedy("write a checkpoint before that, and let `tpuctl watch` bring the node up again"),),
        facts={"windowStartTime": format_timestamp(coming.start) if coming.start else None, "type": coming.kind},
    )


@rule("TPU954", "how long the node may stay")
def tier(facts: NodeFacts) -> Iterator[Found]:
    """Show the tier: a note if the service may take the node back at any moment.

    It may do so with spot and preemptible nodes, and does with preemptible ones after 24 hours at the latest [documentation].
    """
    node, age = facts.node, facts.now - facts.node.created if facts.node.created else None
    old = f", and it was created {format_duration(age)} ago" if age is not None else ""
    found = {"tier": str(node.tier), "ageSeconds": round(age.total_seconds()) if age is not None else None}
    if node.tier.can_start_again:
        yield Found(level=Level.OK, subject=node.name.node_id, text=f"its tier is {node.tier}{old}", facts=found)
        return
    left = ""
    if node.tier is Tier.PREEMPTIBLE and age is not None and age < _LONGEST:
        left = f", and in {format_duration(_LONGEST - age)} at the latest"
    yield Found(
        level=Level.NOTE,
        subject=node.name.node_id,
        text=f"its tier is {node.tier}{old}: the service may take it at any moment{left}",
        why="it cannot be started again after that, only recreated, without the contents of its boot disk",
        remedies=(_own("recreate it automatically when that happens", "watch", node.name.node_id),),
        facts=found,
    )


@rule("TPU955", "queued resource of the node")
def queued_resource(facts: NodeFacts) -> Iterator[Found]:
    """Check the state of the queued resource that owns the node.

    An error if it is suspended or failed, since the node ends with it; a warning for every other state but ACTIVE.
    """
    match facts.request:
        case None:
            return
        case Known(request):
            name, id_ = facts.node.name.node_id, request.queued_resource_id
            found = {
                "queuedResource": request.name,
                "state": str(request.state),
                "stateInitiator": request.initiator,
            }
            if request.state is QueuedState.ACTIVE:
                yield Found(level=Level.OK, subject=name, text=f"its queued resource `{id_}` is ACTIVE", facts=found)
                return
            by = " by the service" if request.initiator == "SERVICE" else ""
            is_ending = request.state.is_dead or request.state in {QueuedState.SUSPENDING, QueuedState.DELETING}
            remedies = (_own("delete it with its queued resource", "down", name), _own("request it again", "up", name))
            yield Found(
                level=Level.ERROR if is_ending else Level.WARNING,
                subject=name,
                text=f"its queued resource `{id_}` is {request.state}{by}",
                why="a node ends with the queued resource that owns it",
                remedies=remedies if is_ending else (),
                facts=found,
            )
        case Absent():
            text = f"the queued resource `{short(facts.node.queued_resource or '')}` that it names does not exist"
            yield Found(level=Level.WARNING, subject=facts.node.name.node_id, text=text)
        case Unknown() as fact:
            text = f"its queued resource could not be read: {fact.reason}"
            name = facts.node.name.node_id
            yield Found(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)


@rule("TPU956", "last change that failed")
def failure(facts: NodeFacts) -> Iterator[Found]:
    """Show the last change of the node that failed without a later success: a note.

    The source is tpuctl's journal, which does not record changes by other programs.
    """
    match facts.failure:
        case Known(last):
            when = f", {format_duration(facts.now - last.at)} ago" if last.at else ""
            yield Found(
                level=Level.NOTE,
                subject=facts.node.name.node_id,
                text=f"the last change failed{when}: {last.text}",
                remedies=(_own("see its history", "history", facts.node.name.node_id),),
                facts={"error": last.error},
            )
        case Absent():
            yield Found(level=Level.OK, subject=facts.node.name.node_id, text="no recent change by tpuctl failed")
        case Unknown(reason):
            text = f"the journal could not be read: {reason}"
            yield Found(level=Level.UNKNOWN, subject=facts.node.name.node_id, text=text)


@rule("TPU962", "operations of the node")
def operations(facts: NodeFacts) -> Iterator[Found]:
    """Check the newest API operation on the node, of any client, as far back as the API lists them.

    A failed one is a warning on a node that is not READY, else a note; one in progress is a note.
    """
    name = facts.node.name.node_id
    match facts.operations:
        case Known(()) | Absent():
            yield Found(level=Level.OK, subject=name, text="the API lists no operation on it")
        case Known((newest, *_)):
            yield _judge_operation(facts, newest)
        case Unknown() as fact:
            text = f"its operations could not be listed: {fact.reason}"
            yield Found(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)


def _judge_operation(facts: NodeFacts, newest: Asked) -> Found:
    name, is_ready = facts.node.name.node_id, facts.node.state is NodeState.READY
    when = f", {format_duration(facts.now - newest.began)} ago" if newest.began else ""
    found = {"verb": newest.verb, "done": newest.is_done, "error": newest.error, "errorId": newest.error_id}
    if newest.error is not None:
        more = (Remedy("see what that means", f"tpuctl explain {newest.error_id}"),) if newest.error_id else ()
        return Found(
            level=Level.NOTE if is_ready else Level.WARNING,
            subject=name,
            text=f"the newest operation on it, {newest.verb}{when}, failed: {newest.error}",
            remedies=more,
            facts=found,
        )
    if not newest.is_done:
        wait = _own("see its progress", "status", name)
        text = (
            f"an operation on it is in progress: {newest.verb}, begun{when.removeprefix(',') or ' at an unknown time'}"
        )
        return Found(level=Level.NOTE, subject=name, text=text, remedies=(wait,), facts=found)
    text = f"the newest operation on it, {newest.verb}{when}, succeeded"
    return Found(level=Level.OK, subject=name, text=text, facts=found)


def _own(text: str, verb: str, rest: str) -> Remedy:
    return Remedy(text, f"tpuctl {verb} {rest}")


RULES = (state, health, symptoms, maintenance, tier, queued_resource, failure, operations)
