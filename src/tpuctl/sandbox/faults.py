"""Faults on request: stored in the sandbox, applied to the calls and nodes that match, used up one by one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import afflictions
from tpuctl.sandbox.afflictions import TIMELINE_KINDS, Fault, FaultKind, afflict, hang
from tpuctl.sandbox.lifecycle import STATES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.sandbox.calls import Call
    from tpuctl.sandbox.lifecycle import Pace, Timeline
    from tpuctl.sandbox.world import NodeRecord, QueuedRecord, Session, World

__all__ = ["CallFault", "CallFaultKind", "Fault", "FaultKind", "add_fault", "call_fault", "list_faults", "remove_fault"]


class CallFaultKind(StrEnum):
    """What can happen to a call in place of, or around, its answer."""

    DROP_BEFORE = "drop-before"
    DROP_AFTER = "drop-after"
    HTTP_ERROR = "http-error"
    SLOW = "slow"
    UNAUTHENTICATED = "unauthenticated"


@dataclass(frozen=True, slots=True)
class CallFault:
    """The fault of one call. `retry_after` is in seconds, for the header; `delay` is sandbox time."""

    kind: CallFaultKind
    status: int = 503
    retry_after: int | None = None
    delay: timedelta = field(default_factory=timedelta)
    message: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """The subject of a call or an operation; a part that it lacks is empty."""

    method: str
    project: str = ""
    zone: str = ""
    node: str = ""

    @classmethod
    def of(cls, call: Call) -> Target:
        """Return the subject of a call, from its resource name."""
        name = str(call.params.get("name") or call.params.get("parent") or call.params.get("project") or "")
        parts = name.split("/")
        if "projects" not in parts:
            return cls(call.method, project=name, zone=str(call.params.get("zone") or ""))
        pairs = dict(zip(parts[::2], parts[1::2], strict=False))
        node = call.params.get("nodeId") or call.params.get("queuedResourceId")
        named = pairs.get("nodes") or pairs.get("queuedResources") or pairs.get("operations")
        return cls(call.method, pairs.get("projects", ""), pairs.get("locations", ""), str(node or named or ""))


def call_fault(sandbox: World, call: Call) -> CallFault | None:
    """Return the fault that a call meets, if any, and use it up. An unreachable zone has the lowest priority and stays."""
    target = Target.of(call)
    with sandbox.read() as session:
        fault = next((fault for _, fault in _matching(session, target, _CALL_KINDS)), None)
        if fault is None or fault.count == 0 or fault.kind is FaultKind.UNREACHABLE:
            return _to_call(fault, target) if fault else None  # no write transaction: the fault is not used up
    with sandbox.write() as session:
        for fault_id, fault in _matching(session, target, _CALL_KINDS):
            if fault.kind is not FaultKind.UNREACHABLE:
                _use(session, fault_id, fault)
            return _to_call(fault, target)
    return None


def _to_call(fault: Fault, target: Target) -> CallFault:
    if fault.kind is FaultKind.UNREACHABLE:
        return CallFault(CallFaultKind.HTTP_ERROR, 503, message=f"The location {target.zone} is unreachable.")
    kind = CallFaultKind(fault.kind.value)
    delay = fault.duration or timedelta(seconds=30)
    delay = delay if kind is CallFaultKind.SLOW else timedelta()
    status = 401 if kind is CallFaultKind.UNAUTHENTICATED else fault.status
    return CallFault(kind, status, fault.retry_after, delay, fault.message)


_CALL_KINDS = frozenset({*(FaultKind(kind.value) for kind in CallFaultKind), FaultKind.UNREACHABLE})


def add_fault(session: Session, fault: Fault) -> int:
    """Store a fault and return its id. It affects existing matching nodes at once, in order of zone and name.

    Raises `InvalidInputError` for a state that the API does not have, or a negative count.
    """
    if fault.kind is FaultKind.HANG and fault.state not in {*STATES, *_QUEUED_STATES}:
        raise InvalidInputError(f"`{fault.state}` is not a state", hint=f"use one of {', '.join(STATES)}")
    if fault.count < 0:
        raise InvalidInputError(f"the number of times cannot be {fault.count}", hint="0 means until it is removed")
    fault_id = session.put_fault(afflictions.dump(fault))
    if fault.kind in TIMELINE_KINDS:
        from tpuctl.sandbox import consequences  # noqa: PLC0415  # consequences imports faults

        consequences.meet(session, fault_id)
    return fault_id


_QUEUED_STATES = ("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "SUSPENDING")


def list_faults(session: Session) -> list[tuple[int, Fault]]:
    """Return the remaining faults with their ids; `count` is the number of occurrences left."""
    return [(fault_id, afflictions.load(document)) for fault_id, document in session.faults()]


def remove_fault(session: Session, fault_id: int) -> bool:
    """Remove a fault. Return whether it existed. Its past effects stay."""
    return abs(fault_id) < 2**63 and session.delete_fault(fault_id)  # SQLite's integers end there


def get_fault(session: Session, fault_id: int) -> Fault | None:
    """Return a fault by its id. None if it is used up."""
    return next((fault for known, fault in list_faults(session) if known == fault_id), None)


def plan(session: Session, node: NodeRecord, timeline: Timeline, pace: Pace) -> Timeline:
    """Return a new timeline with the matching faults applied, and use them up."""
    for fault_id, fault in _matching(session, _target(node), TIMELINE_KINDS):
        changed = afflict(timeline, fault, session.now, pace, owned=bool(node.queued_resource), is_new=True)
        if changed is not None:
            timeline = changed
            _use(session, fault_id, fault)
    return timeline


def meet(session: Session, fault_id: int, node: NodeRecord, pace: Pace) -> Timeline | None:
    """Return the timeline of an existing node under a fault and use the fault up. None if the fault does not apply."""
    fault = get_fault(session, fault_id)
    if fault is None or not _matches(fault, _target(node)):
        return None
    owned = bool(node.queued_resource)
    timeline = afflict(node.timeline, fault, session.now, pace, owned=owned, is_new=not session.exists(node))
    if timeline is not None:
        _use(session, fault_id, fault)
    return timeline


def plan_queued(session: Session, record: QueuedRecord) -> Timeline:
    """Return the new timeline of a queued resource with the matching hangs applied, and use them up."""
    timeline = record.timeline
    for fault_id, fault in _matching(session, _queued_target(record), frozenset({FaultKind.HANG})):
        changed = hang(timeline, fault, session.now) if fault.state in _QUEUED_STATES else None
        if changed is not None:
            timeline = changed
            _use(session, fault_id, fault)
    return timeline


def meet_queued(session: Session, fault_id: int, record: QueuedRecord) -> Timeline | None:
    """Return the timeline of an existing queued resource under a fault and use it up. None if the fault does not apply."""
    fault = get_fault(session, fault_id)
    if fault is None or fault.kind is not FaultKind.HANG or fault.state not in _QUEUED_STATES:
        return None
    timeline = hang(record.timeline, fault, session.now) if _matches(fault, _queued_target(record)) else None
    if timeline is not None:
        _use(session, fault_id, fault)
    return timeline


def take(session: Session, kind: FaultKind, target: Target) -> Fault | None:
    """Return the first fault of a kind that matches and use it up."""
    for fault_id, fault in _matching(session, target, frozenset({kind})):
        if (
            kind is FaultKind.OPERATION_ERROR
            and fault.method == "*"
            and not target.method.endswith((".create", ".start"))
        ):
            continue
        _use(session, fault_id, fault)
        return fault
    return None


def ssh_key_delay(session: Session, node: NodeRecord) -> timedelta:
    """Return the time from a change of the metadata until its ssh keys work. Does not use up the fault."""
    faults = _matching(session, _target(node), frozenset({FaultKind.SSH_KEY_LATE}))
    return max((fault.duration or timedelta(minutes=1) for _, fault in faults), default=timedelta())


def unreachable_zones(session: Session, project: str, zones: tuple[str, ...]) -> tuple[str, ...]:
    """Return the unreachable ones of some zones."""
    faults = [fault for _, fault in list_faults(session) if fault.kind is FaultKind.UNREACHABLE]
    return tuple(
        zone for zone in zones if any(fnmatchcase(zone, f.zone) and fnmatchcase(project, f.project) for f in faults)
    )


def _target(node: NodeRecord) -> Target:
    return Target("", node.project, node.zone, node.node_id)


def _queued_target(record: QueuedRecord) -> Target:
    return Target("", record.project, record.zone, record.queued_resource_id)


def _matching(session: Session, target: Target, kinds: frozenset[FaultKind]) -> Iterator[tuple[int, Fault]]:
    """Yield the faults that match, unreachable zones last."""
    found = [(i, f) for i, f in list_faults(session) if f.kind in kinds and _matches(f, target)]
    yield from sorted(found, key=lambda pair: pair[1].kind is FaultKind.UNREACHABLE)


def _matches(fault: Fault, target: Target) -> bool:
    if fault.kind is FaultKind.UNREACHABLE and target.zone in {"", "-"}:
        return False  # a list of all zones succeeds and reports the zone
    return (
        (not target.method or fnmatchcase(target.method, fault.method))
        and fnmatchcase(target.project, fault.project)
        and fnmatchcase(target.zone, fault.zone)
        and fnmatchcase(target.node, fault.node)
    )


def _use(session: Session, fault_id: int, fault: Fault) -> None:
    if fault.count == 1:
        session.delete_fault(fault_id)
    elif fault.count > 1:
        session.put_fault(afflictions.dump(replace(fault, count=fault.count - 1)), fault_id=fault_id)
