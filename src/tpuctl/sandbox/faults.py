"""Faults on request: stored in the sandbox, applied to the calls and nodes that match, used up one by one.

Every change of a node's timeline is stored here (`store_node`, `store_queued_resource`), with what depends on it: operations,
and the queued resource that owns the node.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_duration, format_timestamp, parse_duration
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import lifecycle
from tpuctl.sandbox.api_calls import already_exists, error_id, invalid_field, not_found
from tpuctl.sandbox.capacity import CapacityTier, describe_shortage
from tpuctl.sandbox.fault_kinds import FAULT_KEYS, FaultKind, FaultSubject
from tpuctl.sandbox.lifecycle import (
    STATES,
    LifecyclePhase,
    PhaseDurations,
    end_of_timeline,
    first_time_in,
    preempted_timeline,
    replaced_slice_timeline,
    restart_timeline,
    timeline_until,
    withdrawn_timeline,
)
from tpuctl.sandbox.state_session import QueuedRecord
from tpuctl.sandbox.tpu_operations import settle_operations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.lifecycle import Timeline
    from tpuctl.sandbox.state import SandboxState
    from tpuctl.sandbox.state_session import NodeRecord, StateSession

__all__ = ["FaultKind"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that occurs `count` times (0: until it is removed) where `project`, `zone`, `node` and `method` match.

    These four are globs; `method` is a discovery id such as `*.nodes.create`. The node need not exist yet. `FaultKind` says
    what it is, and which of the other fields it reads. `after` counts from now, `duration` None is the kind's default.
    """

    kind: FaultKind
    node: str = "*"
    zone: str = "*"
    project: str = "*"
    method: str = "*"
    count: int = 1
    state: str = "CREATING"
    health: str = "UNHEALTHY_TENSORFLOW"
    description: str = ""
    after: timedelta = field(default_factory=timedelta)
    at: datetime | None = None
    duration: timedelta | None = None
    code: int = 8
    message: str = ""
    limit: int = 0
    status: int = 503
    retry_after: int | None = None
    worker: int = 0
    port: int = 8482
    initiator: str = "SERVICE"


def _kinds_of(subject: FaultSubject) -> frozenset[FaultKind]:
    return frozenset(kind for kind in FaultKind if kind.subject is subject)


NODE_FAULT_KINDS, CALL_FAULT_KINDS = _kinds_of(FaultSubject.NODE), _kinds_of(FaultSubject.CALL)
SSH_FAULT_KINDS = _kinds_of(FaultSubject.SSH)


def apply_fault(
    timeline: Timeline, fault: Fault, now: datetime, pace: PhaseDurations, *, owned: bool, is_new: bool
) -> Timeline | None:
    """Return the timeline under a fault. None if the fault does not affect it. Pure.

    `owned`: a queued resource owns the node. `is_new`: the timeline is being planned now; else the node exists already.
    """
    match fault.kind:
        case FaultKind.UNHEALTHY:
            index = _current_or_next(timeline, "READY", now)
            if index is None:
                return None
            begin = max(timeline[index].at, now)
            unhealthy = replace(timeline[index], at=begin, health=fault.health, description=fault.description)
            before = timeline[: index + 1] if timeline[index].at < now else timeline[:index]
            return (*before, unhealthy, *_phases_after(timeline[index:], "READY"))
        case FaultKind.HANG:
            return _hang_in_state(timeline, fault, now)
        case FaultKind.PREEMPT:
            ready = first_time_in(timeline, "READY", since=now) if is_new else None
            at = (ready or now) + fault.after
            if fault.at is not None:
                at = max(fault.at, ready or now)
            phase = lifecycle.phase_at(timeline, at)
            if phase is None or phase.state in {"PREEMPTED", "DELETING"}:
                return None
            return preempted_timeline(timeline, at, pace, owned=owned)
        case FaultKind.SUSPEND:
            return _suspend(timeline, fault, now, pace) if owned else None
        case FaultKind.LATE_NODE:
            return _hide_until_later(timeline, fault, now) if owned and is_new else None
        case FaultKind.MAINTENANCE:
            return _maintain(timeline, fault, now)
        case _:
            return _change_ready_phases(timeline, now, fault)


def _current_or_next(timeline: Timeline, state: str, now: datetime) -> int | None:
    """Return the index of the current or next phase in a state. None if there is none."""
    current = sum(1 for phase in timeline if phase.at <= now) - 1
    following = range(max(current, 0), len(timeline))
    return next((index for index in following if timeline[index].state == state), None)


def _ready_changes(fault: Fault, phase: LifecyclePhase) -> dict[str, Any]:
    """Return the fields that a fault changes in the phases in which the node is READY, of which this is the first."""
    match fault.kind:
        case FaultKind.MISSING_CHIP:
            return {"lacks_chip": fault.worker}
        case FaultKind.STRAGGLER:
            return {"straggler": fault.worker}
        case FaultKind.DUTY_ZERO:
            return {"hanging_worker": fault.worker}
        case FaultKind.PORT_BLOCKED:
            return {"blocked_ports": ",".join(filter(None, (phase.blocked_ports, str(fault.port))))}
        case FaultKind.STARTUP_SLOW:
            return {"startup_delay": fault.duration.total_seconds() if fault.duration is not None else -1.0}
        case FaultKind.STARTUP_FAILS:
            return {"startup_fails": True}
        case _:
            return {}


def _change_ready_phases(timeline: Timeline, now: datetime, fault: Fault) -> Timeline | None:
    """Return the timeline with the changes of a fault in the current or next phases in which the node is READY."""
    index = _current_or_next(timeline, "READY", now)
    if index is None or not (changes := _ready_changes(fault, timeline[index])):
        return None
    until = len(timeline) - len(_phases_after(timeline[index:], "READY"))
    marked = (replace(phase, **changes) for phase in timeline[index:until])
    return (*timeline[:index], *marked, *timeline[until:])


def _hang_in_state(timeline: Timeline, fault: Fault, now: datetime) -> Timeline | None:
    """Return the timeline with the fault's state extended. None if the node does not leave or reach that state."""
    index = _current_or_next(timeline, fault.state, now)
    later = _phases_after(timeline[index:], fault.state) if index is not None else ()
    if not later:
        return None
    staying = timeline[: len(timeline) - len(later)]
    if fault.duration is None:
        return staying
    return (*staying, *(replace(phase, at=phase.at + fault.duration) for phase in later))


# How long a queued resource is ACTIVE that is suspended at once: a client may see it, or not.
_SHORT_LIFE = timedelta(seconds=10)


def _suspend(timeline: Timeline, fault: Fault, now: datetime, pace: PhaseDurations) -> Timeline | None:
    """Return the timeline with the end of a queued resource's node. None if the node is not READY, now or later."""
    current = lifecycle.phase_at(timeline, now)
    if current and current.state == "READY":
        return withdrawn_timeline(timeline, now + fault.after, pace, initiator=fault.initiator)
    ready = first_time_in(timeline, "READY", since=now)
    if ready is None:
        return None
    return withdrawn_timeline(timeline, ready + max(fault.after, _SHORT_LIFE), pace, initiator=fault.initiator)


def _hide_until_later(timeline: Timeline, fault: Fault, now: datetime) -> Timeline | None:
    """Return the timeline with its phases hidden until some time after READY. None if the node is not READY later."""
    ready = first_time_in(timeline, "READY", since=now)
    if ready is None:
        return None
    shown = ready + (fault_duration(fault) or timedelta())
    hidden = tuple(replace(phase, is_hidden=True) for phase in timeline if phase.at < shown)
    return (
        *hidden,
        replace(hidden[-1], at=shown, is_hidden=False),
        *(phase for phase in timeline if phase.at >= shown),
    )


def _maintain(timeline: Timeline, fault: Fault, now: datetime) -> Timeline | None:
    """Return the timeline with announced, ongoing and finished maintenance of the current or next READY phase."""
    index = _current_or_next(timeline, "READY", now)
    if index is None:
        return None
    known = max(timeline[index].at, now)
    begin = max(fault.at or known + fault.after, known)
    end = begin + (fault_duration(fault) or timedelta())
    later = _phases_after(timeline[index:], "READY")
    last = timeline[len(timeline) - len(later) - 1]
    steady = replace(last, state="READY", health="HEALTHY", description="")
    event = {
        "type": "SCHEDULED" if begin > known else "UNSCHEDULED",
        "canReschedule": begin > known,  # the customer may start announced maintenance (unverified)
        "windowStartTime": format_timestamp(begin),
        "windowEndTime": format_timestamp(end),
        "latestWindowStartTime": format_timestamp(begin),
    }
    announced = replace(steady, at=known, maintenance={**event, "maintenanceStatus": "PENDING"})
    ongoing = replace(
        steady,
        at=begin,
        health="UNHEALTHY_MAINTENANCE",
        description="the node is under maintenance",
        maintenance={**event, "maintenanceStatus": "ONGOING"},
    )
    over = replace(steady, at=end, maintenance=None)
    before = tuple(phase for phase in timeline[: index + 1] if phase.at < known)
    after = (phase for phase in later if phase.at > end)
    return (*before, *((announced,) if begin > known else ()), ongoing, over, *after)


def _phases_after(rest: Timeline, state: str) -> tuple[LifecyclePhase, ...]:
    """Return the phases after the leading ones that are in a state."""
    return rest[next((i for i, phase in enumerate(rest) if phase.state != state), len(rest)) :]


def parse_fault(entry: Mapping[str, Any]) -> Fault:
    """Return the fault of an entry with the keys of `FAULT_KEYS`, or with its own fields.

    Raises `InvalidInputError` for an unknown kind.
    """
    values = {FAULT_KEYS[key].field if key in FAULT_KEYS else key: value for key, value in entry.items()}
    for key in ("after", "duration"):
        if key in values and not isinstance(values[key], timedelta):
            values[key] = parse_duration(str(values[key]))
    return Fault(FaultKind.named(str(values.pop("kind"))), **values)


def dump_fault(fault: Fault) -> Json:
    """Return a fault as JSON: durations in seconds."""
    at = fault.at and fault.at.isoformat()
    return {**asdict(fault), "at": at, "after": _seconds(fault.after), "duration": _seconds(fault.duration)}


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def load_fault(values: Json) -> Fault:
    """Return a fault read from JSON."""
    spans = {key: timedelta(seconds=values[key]) for key in ("after", "duration") if values[key] is not None}
    at = values["at"] and datetime.fromisoformat(values["at"])
    return Fault(**{**values, **spans, "kind": FaultKind(values["kind"]), "at": at})


@dataclass(frozen=True, slots=True)
class FaultTarget:
    """The subject of a call or an operation; a part that it lacks is empty."""

    method: str
    project: str = ""
    zone: str = ""
    node: str = ""

    @classmethod
    def of(cls, call: Call) -> FaultTarget:
        """Return the subject of a call, from its resource name."""
        name = call["name"] or call["parent"] or call["project"]
        parts = name.split("/")
        if "projects" not in parts:
            return cls(call.method, project=name, zone=call["zone"])
        pairs = dict(zip(parts[::2], parts[1::2], strict=False))
        node = call.params.get("nodeId") or call.params.get("queuedResourceId")
        named = pairs.get("nodes") or pairs.get("queuedResources") or pairs.get("operations")
        return cls(call.method, pairs.get("projects", ""), pairs.get("locations", ""), str(node or named or ""))


def meets_call_fault(session: StateSession, call: Call) -> bool:
    """Return whether a call meets a fault, which is not used up."""
    return any(_matching_faults(session, FaultTarget.of(call), CALL_FAULT_KINDS))


def take_call_fault(sandbox: SandboxState, call: Call) -> Fault | None:
    """Return the fault that a call meets, if any, and use it up. An unreachable zone has the lowest priority and stays."""
    with sandbox.write() as session:
        for fault_id, fault in _matching_faults(session, FaultTarget.of(call), CALL_FAULT_KINDS):
            if fault.kind is not FaultKind.UNREACHABLE:
                _use_up(session, fault_id, fault)
            return fault
    return None


def add_fault(session: StateSession, fault: Fault) -> int:
    """Store a fault and return its id. It affects existing matching nodes at once, in order of zone and name.

    Raises `InvalidInputError` for a state or an initiator that the API does not have, or a negative count.
    """
    if fault.initiator not in {"SERVICE", "USER"}:
        raise InvalidInputError(f"`{fault.initiator}` cannot suspend a request", hint="use SERVICE or USER")
    if fault.kind is FaultKind.HANG and fault.state not in {*STATES, *_QUEUED_STATES}:
        raise InvalidInputError(f"`{fault.state}` is not a state", hint=f"use one of {', '.join(STATES)}")
    if fault.count < 0:
        raise InvalidInputError(
            f"the number of times cannot be {fault.count}", hint="use 0 for a fault that lasts until it is removed"
        )
    fault_id = session.put_fault(dump_fault(fault))
    if fault.kind in NODE_FAULT_KINDS:
        _apply_to_existing(session, fault_id)
    return fault_id


_QUEUED_STATES = ("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "SUSPENDING")


def list_faults(session: StateSession) -> list[tuple[int, Fault]]:
    """Return the remaining faults with their ids; `count` is the number of occurrences left."""
    return [(fault_id, load_fault(document)) for fault_id, document in session.faults()]


def remove_fault(session: StateSession, fault_id: int) -> bool:
    """Remove a fault. Return whether it existed. Its past effects stay."""
    return abs(fault_id) < 2**63 and session.delete_fault(fault_id)  # SQLite's integers end there


def get_fault(session: StateSession, fault_id: int) -> Fault | None:
    """Return a fault by its id. None if it is used up."""
    return dict(list_faults(session)).get(fault_id)


def apply_faults(session: StateSession, record: NodeRecord | QueuedRecord, timeline: Timeline) -> Timeline:
    """Return a new timeline of a record with the matching faults applied, and use them up."""
    for fault_id, fault in _matching_faults(session, _target(record), NODE_FAULT_KINDS):
        changed = _apply_to_record(session, fault, record, timeline, is_new=True)
        if changed is not None:
            timeline = changed
            _use_up(session, fault_id, fault)
    return timeline


def _apply_to_record(
    session: StateSession, fault: Fault, record: NodeRecord | QueuedRecord, timeline: Timeline, *, is_new: bool
) -> Timeline | None:
    """Return a record's timeline under a fault. None if the fault does not affect it: a queued resource can only hang."""
    if isinstance(record, QueuedRecord):
        hangs = fault.kind is FaultKind.HANG and fault.state in _QUEUED_STATES
        return _hang_in_state(timeline, fault, session.now) if hangs else None
    owned, pace = bool(record.queued_resource), durations_of(session, record)
    changed = apply_fault(timeline, fault, session.now, pace, owned=owned, is_new=is_new)
    is_slice = bool(record.document.get("multisliceNode"))
    if changed is None or not is_slice or fault.kind not in {FaultKind.PREEMPT, FaultKind.SUSPEND}:
        return changed
    at = next(phase.at for phase in changed if phase.state == "DELETING" and phase.at >= session.now)
    # Of a slice that is lost while the request is planned, the others are not known yet.
    others = () if is_new else _other_slices(session, record)
    if fault.kind is FaultKind.SUSPEND:
        for node in others:
            # The nodes of a suspended request are deleted [API field text].
            session.put_node(
                replace(node, timeline=withdrawn_timeline(node.timeline, at, pace, initiator=fault.initiator))
            )
        return changed
    for node in others:
        store_node(session, node, restart_timeline(node.timeline, at, durations_of(session, node)))
    return replaced_slice_timeline(timeline, at, pace, workers=record.workers)


def _other_slices(session: StateSession, lost: NodeRecord) -> Iterator[NodeRecord]:
    """Yield the other READY nodes of the queued resource of a slice."""
    owner = session.queued_resource(lost.project, lost.zone, lost.queued_resource.rpartition("/")[2])
    for node_id in owner.node_ids if owner else ():
        node = session.node(lost.project, lost.zone, node_id)
        phase = node.phase(session.now) if node and node_id != lost.node_id else None
        if node and phase and phase.state == "READY" and node.queued_resource == lost.queued_resource:
            yield node


def _apply_to_existing(session: StateSession, fault_id: int) -> None:
    """Apply a new fault to the existing nodes and queued resources, in order of zone and name, until it is used up."""
    records: list[NodeRecord | QueuedRecord] = [*session.nodes(), *session.queued_resources()]
    for record in records:
        fault = get_fault(session, fault_id)
        if fault is None:
            return
        if not _matches(fault, _target(record)):
            continue
        if fault.kind is FaultKind.FALL_BACK:
            if isinstance(record, QueuedRecord) and _is_provisioning(session, record):
                _use_up(session, fault_id, fault)
                fall_back(session, record, timeline_until(record.timeline, session.now), fault, session.now)
            continue
        before = record.timeline
        is_waiting = isinstance(record, QueuedRecord) and record.not_before is not None
        if isinstance(record, QueuedRecord) and record.not_before:
            planned = LifecyclePhase(max(record.not_before, session.now), "PROVISIONING")
            before = (*(phase for phase in before if phase.state != "FAILED"), planned)
        timeline = _apply_to_record(session, fault, record, before, is_new=not session.exists(record))
        if timeline is None:
            continue
        _use_up(session, fault_id, fault)
        if not isinstance(record, QueuedRecord):
            store_node(session, record, timeline)
        elif is_waiting:
            store_waiting(session, record, timeline)
        else:
            store_queued_resource(session, record, timeline)


def _is_provisioning(session: StateSession, record: QueuedRecord) -> bool:
    return record.not_before is None and record.state(session.now) == "PROVISIONING"


def fall_back(session: StateSession, record: QueuedRecord, begun: Timeline, fault: Fault, lost: datetime) -> None:
    """Let a request that is PROVISIONING wait again from a time on, without the nodes that it has."""
    for node_id in record.node_ids:
        node = session.node(record.project, record.zone, node_id)
        if node and node.queued_resource == record.name:
            session.put_node(replace(node, timeline=(LifecyclePhase(session.now, lifecycle.GONE),)))
    again = lost + (fault_duration(fault) or timedelta())
    phases = (LifecyclePhase(lost, "WAITING_FOR_RESOURCES"), LifecyclePhase(again, "PROVISIONING"))
    store_waiting(session, record, (*begun, *phases))


def store_waiting(session: StateSession, record: QueuedRecord, timeline: Timeline) -> QueuedRecord:
    """Store a request that waits until the last phase of a timeline, PROVISIONING; without that phase it waits forever.

    At its valid-until time, if it has one, it is FAILED (API field text).
    """
    not_before, timeline = (
        (timeline[-1].at, timeline[:-1]) if timeline[-1].state == "PROVISIONING" else (None, timeline)
    )
    if record.expires:
        failed = LifecyclePhase(record.expires, "FAILED", initiator="SERVICE")
        timeline = (*(phase for phase in timeline if phase.at <= record.expires), failed)
    return store_queued_resource(session, replace(record, not_before=not_before), timeline)


def take_fault(session: StateSession, kind: FaultKind, target: FaultTarget) -> Fault | None:
    """Return the first fault of a kind that matches and use it up."""
    for fault_id, fault in _matching_faults(session, target, frozenset({kind})):
        if (
            kind is FaultKind.OPERATION_ERROR
            and fault.method == "*"
            and not target.method.endswith((".create", ".start"))
        ):
            continue
        _use_up(session, fault_id, fault)
        return fault
    return None


def ssh_key_delay(session: StateSession, node: NodeRecord) -> timedelta:
    """Return the time from a change of the metadata until its ssh keys work. Does not use up the fault."""
    faults = _matching_faults(session, _target(node), frozenset({FaultKind.SSH_KEY_LATE}))
    return max((fault_duration(fault) or timedelta() for _, fault in faults), default=timedelta())


def take_ssh_fault(session: StateSession, node: NodeRecord, worker: int) -> Fault | None:
    """Return the first fault that an ssh connection to a worker meets, and use it up."""
    for fault_id, fault in _matching_faults(session, _target(node), SSH_FAULT_KINDS):
        if fault.worker == worker:
            _use_up(session, fault_id, fault)
            return fault
    return None


def unreachable_zones(session: StateSession, project: str, zones: tuple[str, ...]) -> tuple[str, ...]:
    """Return the unreachable ones of some zones."""
    faults = [fault for _, fault in list_faults(session) if fault.kind is FaultKind.UNREACHABLE]
    return tuple(
        zone for zone in zones if any(fnmatchcase(zone, f.zone) and fnmatchcase(project, f.project) for f in faults)
    )


def _target(record: NodeRecord | QueuedRecord) -> FaultTarget:
    return FaultTarget("", record.project, record.zone, record.name.rpartition("/")[2])


def _matching_faults(
    session: StateSession, target: FaultTarget, kinds: frozenset[FaultKind]
) -> Iterator[tuple[int, Fault]]:
    """Yield the faults that match, unreachable zones last."""
    matching = [(i, f) for i, f in list_faults(session) if f.kind in kinds and _matches(f, target)]
    yield from sorted(matching, key=lambda pair: pair[1].kind is FaultKind.UNREACHABLE)


def _matches(fault: Fault, target: FaultTarget) -> bool:
    if fault.kind is FaultKind.UNREACHABLE and target.zone in {"", "-"}:
        return False  # a list of all zones succeeds and reports the zone
    if fault.kind is FaultKind.ALREADY_EXISTS and not target.method.endswith(".create"):
        return False
    return (
        (not target.method or fnmatchcase(target.method, fault.method))
        and fnmatchcase(target.project, fault.project)
        and fnmatchcase(target.zone, fault.zone)
        and fnmatchcase(target.node, fault.node)
    )


def _use_up(session: StateSession, fault_id: int, fault: Fault) -> None:
    if fault.count == 1:
        session.delete_fault(fault_id)
    elif fault.count > 1:
        session.put_fault(dump_fault(replace(fault, count=fault.count - 1)), fault_id=fault_id)


def durations_of_new(session: StateSession, name: str, incarnation: int, step: int) -> PhaseDurations:
    """Return the durations for one incarnation of a resource: the same history gives the same durations."""
    lag = session.setting("health_lag", [0, 20])
    # Another text of the key would change all durations.
    return PhaseDurations(f"0/{name}/{incarnation}/{step}", (float(lag[0]), float(lag[1])))


def durations_of(session: StateSession, record: NodeRecord | QueuedRecord) -> PhaseDurations:
    """Return the durations of the next transition of a record."""
    return durations_of_new(session, record.name, record.incarnation, len(timeline_until(record.timeline, session.now)))


def store_node(
    session: StateSession, node: NodeRecord, timeline: Timeline, *, initiator: str = "SERVICE"
) -> NodeRecord:
    """Store a node with a new timeline, update its operations and its queued resource, and return it."""
    node = replace(node, timeline=timeline)
    session.put_node(node)
    settle_operations(session, node.name, timeline)
    if node.queued_resource:
        owner = session.queued_resource(node.project, node.zone, node.queued_resource.rpartition("/")[2])
        if owner:
            store_queued_resource(session, owner, follow_nodes(session, owner, initiator=initiator))
    return node


def store_queued_resource(session: StateSession, record: QueuedRecord, timeline: Timeline) -> QueuedRecord:
    """Store a queued resource with a new timeline, update its operations, and return it."""
    record = replace(record, timeline=timeline)
    session.put_queued_resource(record)
    settle_operations(session, record.name, timeline)
    return record


def follow_nodes(session: StateSession, owner: QueuedRecord, *, initiator: str) -> Timeline:
    """Return the timeline of a queued resource that follows from its nodes' timelines.

    It is ACTIVE once all nodes have been READY (unverified for several). When a node is preempted or deleted, it is SUSPENDING
    until that ends, then SUSPENDED (observed for preemption, with initiator SERVICE), unless the service creates it again.
    """
    nodes = [session.node(owner.project, owner.zone, node_id) for node_id in owner.node_ids]
    owned = [node for node in nodes if node and node.queued_resource == owner.name]
    if any(
        phase.state in {"SUSPENDING", "SUSPENDED", "DELETING", "FAILED"} and phase.at <= session.now
        for phase in owner.timeline
    ):
        return owner.timeline
    kept = [phase for phase in owner.timeline if phase.state not in {"ACTIVE", "SUSPENDING", "SUSPENDED"}]
    kept += [phase for phase in owner.timeline if phase.state == "ACTIVE" and phase.at <= session.now]
    ready = [next((p.at for p in node.timeline if p.state == "READY"), None) for node in owned]
    if kept[-1].state == "PROVISIONING" and ready and all(ready):
        kept.append(LifecyclePhase(max(at for at in ready if at), "ACTIVE"))
    lost = [phase for node in owned if (phase := end_of_slice(node.timeline))]
    if lost and kept[-1].state in {"PROVISIONING", "ACTIVE"}:
        first = min(lost, key=lambda phase: phase.at)
        begin, initiator = first.at, first.initiator or initiator
        ends = [end for node in owned if (end := end_of_timeline(node.timeline))]
        kept = [phase for phase in kept if phase.at <= begin]
        kept.append(LifecyclePhase(begin, "SUSPENDING", initiator=initiator))
        kept.append(LifecyclePhase(max([begin, *ends]), "SUSPENDED", initiator=initiator))
    return tuple(kept)


def end_of_slice(timeline: Timeline) -> LifecyclePhase | None:
    """Return the phase in which a node of a queued resource is lost; None if it is not, or if it becomes READY again."""
    end = None
    for phase in timeline:
        if phase.state == "READY":
            end = None
        elif phase.state in {"DELETING", "PREEMPTED"} and end is None:
            end = phase
    return end


# The meaning of each google.rpc.Code, for the description of a planned failure, and the general message of an operation.
_CODES = {
    1: ("cancelled", "The operation was cancelled."),
    2: ("unknown error", "An unknown error has occurred."),
    3: ("bad request", ""),
    4: ("deadline exceeded", "The operation was not completed within its deadline."),
    5: ("not found", ""),
    6: ("exists already", ""),
    7: ("permission denied", ""),
    8: ("no capacity", ""),
    9: ("failed precondition", "The operation is not possible in the current state of the resource."),
    10: ("aborted", "The operation was aborted."),
    11: ("out of range", "A value of the request is out of range."),
    12: ("not implemented", "The operation is not implemented or not supported."),
    13: ("internal error", "an internal error has occurred"),  # observed: terraform-provider-google#16147
    14: ("unavailable", "The service is currently unavailable."),
    15: ("data loss", "Data was lost."),
    16: ("no valid credentials", "Request had invalid authentication credentials."),
}


def operation_failure(fault: Fault, target: FaultTarget, tier: CapacityTier) -> Json:
    """Return the google.rpc.Status of a fault: its own message, by default the service's message for that code.

    Observed in operations: both messages of 8, that of 13, and for 9 that reserved capacity is short. Those of 3, 6 and 7 were
    observed as errors of calls: that an operation has the same is unverified. All others are unverified.
    """
    collection, verb = target.method.split(".")[-2:]
    name = f"projects/{target.project}/locations/{target.zone}/{collection}/{target.node}"
    messages = {
        3: invalid_field("Network", "default").message,  # observed on a call: tensorflow/tpu#877
        5: not_found(name).message,  # unverified
        6: already_exists(name).message,  # observed on a call: skypilot#129
        7: f"Permission 'tpu.{collection}.{verb}' denied on '{name}'",  # observed: tensorflow/tpu#296
        8: describe_shortage(target.zone, tier),  # observed
    }
    if verb in {"create", "start"}:
        messages[9] = describe_shortage(
            target.zone, CapacityTier.RESERVED
        )  # observed with this code too: skypilot source
    _, general = _CODES.get(fault.code, ("", f"The operation failed with code {fault.code}. {error_id(name)}"))
    return {"code": fault.code, "message": fault.message or messages.get(fault.code, general)}


def describe_time(at: datetime, now: datetime, speed: float) -> str:
    """Return the sandbox time of an event, and the distance in sandbox time and in real time. `now` for past events."""
    off = at - now
    if off <= timedelta():
        return "now"
    seconds = off.total_seconds() / speed
    real = f"{seconds:.1f}s" if seconds < 10 else format_duration(timedelta(seconds=seconds))
    return f"at {format_timestamp(at)} in the sandbox, in {format_duration(off)} of its time, {real} of real time"


def describe_fault(fault: Fault) -> str:
    """Describe the event that a fault causes: `trainer is READY but UNHEALTHY_TENSORFLOW until a restart, once`."""
    zone = "" if fault.zone == "*" else f" in {fault.zone}"
    project = "" if fault.project == "*" else f" of {fault.project}"
    node = f"{'any node' if fault.node == '*' else fault.node}{zone}{project}"
    request = f"any request{zone}{project}" if fault.node == "*" else f"the request {node}"
    call = "the next call" if fault.method == "*" else f"the next call of {fault.method}"
    if (fault.node, fault.zone, fault.project) != ("*", "*", "*"):
        call += f" about {node}"
    duration = fault_duration(fault)
    lasts = format_duration(duration) if duration is not None else ""
    if duration is not None and duration < timedelta(seconds=1):
        lasts = f"{duration.total_seconds():g}s"
    meaning = f" ({_CODES[fault.code][0]})" if fault.code in _CODES else ""
    effect = fault.kind.effect.format(
        fault=fault,
        node=node,
        request=request,
        call=call,
        lasts=lasts,
        lasting=f"for {lasts}" if lasts else "forever",
        longer=f"run {lasts} longer" if lasts else "never end",
        operation="the next create or start" if fault.method == "*" else f"`{fault.method}`",
        code=f"code {fault.code}" + (f": {fault.message}" if fault.message else meaning),
        zones="every zone" if fault.zone == "*" else fault.zone,
        wait=f" and `Retry-After: {fault.retry_after}`" if fault.retry_after is not None else "",
    )
    often = "until it is removed" if fault.count == 0 else "once" if fault.count == 1 else f"{fault.count} times"
    return f"{effect}, {often}"


def fault_duration(fault: Fault) -> timedelta | None:
    """Return how long a fault lasts; None: forever."""
    return fault.duration if fault.duration is not None else fault.kind.duration
