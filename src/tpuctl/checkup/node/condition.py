"""Rules about a node as the API reports it: how it is, and how long it may stay so."""

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
    from tpuctl.model import Node, QueuedResource

_SHOWN = 3
_COMING = frozenset(
    {NodeState.CREATING, NodeState.STARTING, NodeState.RESTARTING, NodeState.REIMAGING, NodeState.REPAIRING}
)
_GOING = frozenset({NodeState.STOPPING, NodeState.DELETING, NodeState.HIDING, NodeState.UNHIDING})
_SOON = timedelta(hours=24)
# A preemptible node is taken after 24 hours at the latest [documentation].
_LONGEST = timedelta(hours=24)
_HEALTH_WHYS = {
    Health.TIMEOUT: "the service gets no answer from it",
    Health.UNHEALTHY_TENSORFLOW: "its software for machine learning does not run as it should",
    Health.UNHEALTHY_MAINTENANCE: "the service maintains its hardware, and moves it by itself",
}


@rule("TPU950", "state of the node")
def state(facts: NodeFacts) -> Iterator[Found]:
    """Check the state of the node.

    An error where it is dead, hidden or unknown after a repair; a warning where it is stopped, or on its way.
    """
    node, name = facts.node, facts.node.name.node_id
    level, text = Level.OK, "it is READY"
    remedies: tuple[Remedy, ...] = ()
    if node.is_preempted:
        level, text = Level.ERROR, f"it is {node.state}: the service took it back, with its boot disk"
        remedies = (_own("make it anew", "up", name), _own("free its name and quota", "down", name))
    elif node.state is NodeState.TERMINATED:
        level, text = Level.ERROR, "it is TERMINATED: nothing but its record is left"
        remedies = (_own("make it anew", "up", name), _own("free its name and quota", "down", name))
    elif node.state in {NodeState.HIDDEN, NodeState.UNKNOWN}:
        level, text = Level.ERROR, f"it is {node.state}, and does not come back by itself"
        remedies = (_own("delete it, then make it again with `tpuctl up`", "down", name),)
    elif node.state is NodeState.STOPPED:
        level, text, remedies = Level.WARNING, "it is STOPPED", (_own("bring it up", "up", name),)
    elif node.state in _COMING:
        level, text = Level.WARNING, f"it is {node.state}: on its way"
        remedies = (_own("wait until it is usable", "wait", name),)
    elif node.state in _GOING:
        level, text, remedies = Level.WARNING, f"it is {node.state}", (_own("see what becomes of it", "status", name),)
    elif node.state is not NodeState.READY:
        level, text = Level.UNKNOWN, f"it is {node.state}, a state that this version of tpuctl does not know"
    facts_of = {"state": str(node.state), "createTime": node.raw.get("createTime")}
    yield Found(level=level, subject=name, text=text, remedies=remedies, facts=facts_of)


@rule("TPU951", "health of the node")
def health(facts: NodeFacts) -> Iterator[Found]:
    """Check what the service says of a READY node's health: an error for all but HEALTHY; under maintenance a warning.

    An unset health is a note: it says nothing, and is normal for a while after a start [API field text; observed].
    """
    node, name = facts.node, facts.node.name.node_id
    if node.state is not NodeState.READY:
        return
    said = f" ({node.health_description})" if node.health_description else ""
    found = {"health": str(node.health), "healthDescription": node.health_description}
    match node.health:
        case Health.HEALTHY:
            yield Found(level=Level.OK, subject=name, text="it is HEALTHY", facts=found)
        case Health.HEALTH_UNSPECIFIED:
            text = "the service says nothing of its health, which it does a while after a start"
            yield Found(level=Level.NOTE, subject=name, text=text, facts=found)
        case Health.UNHEALTHY_MAINTENANCE:
            remedies = (_own("wait until it is back", "wait", f"{name} --for healthy"),)
            why = _HEALTH_WHYS[node.health]
            yield Found(
                level=Level.WARNING,
                subject=name,
                text=f"it is {node.health}{said}",
                why=why,
                remedies=remedies,
                facts=found,
            )
        case _:
            why = _HEALTH_WHYS.get(node.health, "this version of tpuctl does not know that health")
            remedies = (_own("boot or restart it, whichever it allows", "reset", name),)
            yield Found(
                level=Level.ERROR,
                subject=name,
                text=f"it is {node.health}{said}",
                why=why,
                remedies=remedies,
                facts=found,
            )


@rule("TPU952", "symptoms that the service noticed")
def symptoms(facts: NodeFacts) -> Iterator[Found]:
    """Show what the service noticed about its workers [API v2, Symptom]: a warning."""
    node, seen = facts.node, facts.node.symptoms
    if not seen:
        yield Found(level=Level.OK, subject=node.name.node_id, text="the service noticed no symptoms")
        return
    parts = []
    for one in seen[-_SHOWN:][::-1]:
        where = f" on worker {one.worker}" if one.worker else ""
        when = f", {format_duration(facts.now - one.at)} ago" if one.at else ""
        parts.append(f"{one.kind}{where}{f' ({one.details})' if one.details else ''}{when}")
    more = f", and {len(seen) - _SHOWN} older" if len(seen) > _SHOWN else ""
    yield Found(
        level=Level.WARNING,
        subject=node.name.node_id,
        text=f"the service noticed {', '.join(parts)}{more}",
        why="what fails there may be the hardware, and not your program",
        remedies=(_own("where it goes on, reset it", "reset", node.name.node_id),),
        facts={"symptoms": [{"symptomType": one.kind, "workerId": one.worker} for one in seen]},
    )


@rule("TPU953", "announced maintenance")
def maintenance(facts: NodeFacts) -> Iterator[Found]:
    """Show an announced maintenance: a warning within 24 hours of its window, else a note."""
    node, coming = facts.node, facts.node.upcoming_maintenance
    if coming is None:
        yield Found(level=Level.OK, subject=node.name.node_id, text="no maintenance is announced")
        return
    is_near = coming.start is None or coming.start - facts.now < _SOON
    when = "at a time that is not told"
    if coming.start:
        left = coming.start - facts.now
        begins = f"in {format_duration(left)}" if left > timedelta() else "now, or has begun"
        when = f"{begins} ({format_timestamp(coming.start)})"
    yield Found(
        level=Level.WARNING if is_near else Level.NOTE,
        subject=node.name.node_id,
        text=f"maintenance ({coming.kind}, {coming.status}) comes {when}",
        why="programs on its workers end then",
        remedies=(Remedy("write a checkpoint before, and let `tpuctl watch` bring it up again"),),
        facts={"windowStartTime": format_timestamp(coming.start) if coming.start else None, "type": coming.kind},
    )


@rule("TPU954", "how long the node may stay")
def tier(facts: NodeFacts) -> Iterator[Found]:
    """Tell what the tier means: a note where the service may take the node back at any moment.

    That is of spot and preemptible nodes, of the latter after 24 hours at the latest [documentation].
    """
    node, age = facts.node, facts.now - facts.node.created if facts.node.created else None
    old = f", and it was made {format_duration(age)} ago" if age is not None else ""
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
        why="it cannot be started again then: it is made anew, without what was on its boot disk",
        remedies=(_own("let it be made anew when that happens", "watch", node.name.node_id),),
        facts=found,
    )


@rule("TPU955", "queued resource of the node")
def queued_resource(facts: NodeFacts) -> Iterator[Found]:
    """Check the state of the queued resource that owns the node.

    An error where it is suspended or failed, as the node ends with it; a warning where it is otherwise not ACTIVE.
    """
    match facts.request:
        case None:
            return
        case Known(request):
            yield _request(facts.node, request)
        case Absent():
            text = f"the queued resource `{short(facts.node.queued_resource or '')}` that it names is not there"
            yield Found(level=Level.WARNING, subject=facts.node.name.node_id, text=text)
        case Unknown() as fact:
            text = f"its queued resource could not be read: {fact.reason}"
            name = facts.node.name.node_id
            yield Found(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)


def _request(node: Node, request: QueuedResource) -> Found:
    name, id_ = node.name.node_id, request.queued_resource_id
    found = {"queuedResource": request.name, "state": str(request.state), "stateInitiator": request.initiator}
    if request.state is QueuedState.ACTIVE:
        return Found(level=Level.OK, subject=name, text=f"its queued resource `{id_}` is ACTIVE", facts=found)
    by = " by the service" if request.initiator == "SERVICE" else ""
    is_ending = request.state.is_dead or request.state in {QueuedState.SUSPENDING, QueuedState.DELETING}
    return Found(
        level=Level.ERROR if is_ending else Level.WARNING,
        subject=name,
        text=f"its queued resource `{id_}` is {request.state}{by}",
        why="a node ends with the request that owns it",
        remedies=(_own("delete it with its request", "down", name), _own("ask anew", "up", name)) if is_ending else (),
        facts=found,
    )


@rule("TPU956", "last change that failed")
def failure(facts: NodeFacts) -> Iterator[Found]:
    """Show the last change of the node that failed and was not followed by a success: a note.

    It is read from tpuctl's journal: what others did is not in it.
    """
    match facts.failure:
        case Known(last):
            when = f", {format_duration(facts.now - last.at)} ago" if last.at else ""
            yield Found(
                level=Level.NOTE,
                subject=facts.node.name.node_id,
                text=f"the last change did not go well{when}: {last.text}",
                remedies=(_own("see all that happened", "history", facts.node.name.node_id),),
                facts={"error": last.error},
            )
        case Absent():
            yield Found(level=Level.OK, subject=facts.node.name.node_id, text="no change of tpuctl's has failed lately")
        case Unknown(reason):
            text = f"the journal could not be read: {reason}"
            yield Found(level=Level.UNKNOWN, subject=facts.node.name.node_id, text=text)


@rule("TPU962", "operations of the node")
def operations(facts: NodeFacts) -> Iterator[Found]:
    """Look at the newest operation of the API on the node, whoever asked for it, as far back as the API remembers.

    One that failed is a warning on a node that is not READY, else a note; one that still goes on is a note.
    """
    name = facts.node.name.node_id
    match facts.operations:
        case Known(()) | Absent():
            yield Found(level=Level.OK, subject=name, text="the API remembers no operation on it")
        case Known((newest, *_)):
            yield _newest(facts, newest)
        case Unknown() as fact:
            text = f"its operations could not be listed: {fact.reason}"
            yield Found(level=Level.UNKNOWN, subject=name, text=text, is_passing=fact.is_passing)


def _newest(facts: NodeFacts, newest: Asked) -> Found:
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
        wait = _own("see how it goes on", "status", name)
        text = f"an operation on it goes on: {newest.verb}, begun{when.removeprefix(',') or ' at an unknown time'}"
        return Found(level=Level.NOTE, subject=name, text=text, remedies=(wait,), facts=found)
    text = f"the newest operation on it, {newest.verb}{when}, went well"
    return Found(level=Level.OK, subject=name, text=text, facts=found)


def _own(text: str, verb: str, rest: str) -> Remedy:
    return Remedy(text, f"tpuctl {verb} {rest}")


RULES = (state, health, symptoms, maintenance, tier, queued_resource, failure, operations)
