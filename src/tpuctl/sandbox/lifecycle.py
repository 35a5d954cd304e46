"""The life cycle of nodes: transitions, their durations, and the verbs that each state forbids. Pure.

A record carries a timeline: past phases and planned phases. Its state follows from the time, so nothing runs between two
requests. Durations are the sandbox's own choice, in the order of what users report; they are not documented.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from tpuctl.sandbox.api_calls import Json

GONE = "GONE"  # not a state of the API: from here on the record answers 404
STATES = (
    *("CREATING", "READY", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING", "STOPPED", "STOPPING", "STARTING"),
    *("PREEMPTED", "TERMINATED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN"),
)
# States in which a node has no addresses yet. That nodes in all other states keep theirs is unverified.
WITHOUT_ENDPOINTS = frozenset({"CREATING"})
PREEMPTIBLE_LIFE = timedelta(hours=24)  # documented for preemptible nodes; spot nodes have no such end


@dataclass(frozen=True, slots=True)
class LifecyclePhase:
    """A state from `at` on. `lacks_chip` is the index of a worker with a missing chip.

    `straggler`: that of one with a slow chip. `hanging_worker`: that of one that takes part in no collective operation.
    `blocked_ports`: TCP ports at which other workers do not reach its own, with commas.
    `initiator`: who suspended a queued resource; of a node, who deletes it and so suspends its queued resource.
    `startup_delay`: seconds by which startup scripts run longer; negative: forever. `startup_fails`: they fail.
    `is_hidden`: the API does not show the record yet. `has_capacity`: false while a creation or a start fails for want of it.
    """

    at: datetime
    state: str
    health: str = ""
    description: str = ""
    maintenance: Json | None = None
    initiator: str = ""
    lacks_chip: int | None = None
    startup_delay: float = 0
    startup_fails: bool = False
    is_hidden: bool = False
    has_capacity: bool = True
    # Later fields come last: a stored phase is a list.
    straggler: int | None = None
    hanging_worker: int | None = None
    blocked_ports: str = ""


Timeline = tuple[LifecyclePhase, ...]


class NodeVerb(StrEnum):
    """A change that a client may request; the value is the service's word in error messages."""

    START = "start"
    STOP = "stop"
    UPDATE = "update"
    DELETE = "delete"
    REIMAGE = "reimage"


@dataclass(frozen=True, slots=True)
class PhaseDurations:
    """The durations for one incarnation of one node: the same key gives the same durations."""

    key: str
    health_lag: tuple[float, float] = (0, 20)

    def draw(self, what: str, shortest: float, longest: float) -> timedelta:
        """Return a duration drawn between two numbers of seconds."""
        import hashlib  # noqa: PLC0415  # 3 ms for each ssh connection, which draws none

        digest = hashlib.blake2b(f"{self.key}/{what}".encode(), digest_size=8).digest()
        return timedelta(seconds=round(shortest + (longest - shortest) * int.from_bytes(digest) / 2**64, 3))

    def of(self, what: str) -> timedelta:
        """Return the duration of a transition, by its name in `_SECONDS`."""
        return self.draw(what, *_SECONDS[what])

    def create(self, workers: int) -> timedelta:
        """Return the duration of a creation: up to twice as long for a large slice."""
        return self.of("create") * (1 + min(workers, 256).bit_length() / 9 - 1 / 9)

    def health(self) -> timedelta:
        """Return how long a new READY node has no health (unverified that it has none; setting `health_lag`)."""
        return self.draw("health", *self.health_lag)


# The shortest and longest duration. `failure`: until a failing operation ends (observed for stock-outs on create).
_SECONDS = {"create": (90, 240), "start": (60, 120), "stop": (30, 60), "delete": (30, 60), "failure": (30, 80)}


def phase_at(timeline: Timeline, now: datetime) -> LifecyclePhase | None:
    """Return the phase at a time. None before the first phase, while it is hidden, and after the end of the record."""
    current = None
    for phase in timeline:
        if phase.at > now:
            break
        current = phase
    return None if current is None or current.state == GONE or current.is_hidden else current


def state_since(timeline: Timeline, now: datetime) -> datetime | None:
    """Return when the state at a time began, ignoring other changes in it.

    None if there is no phase, and if the timeline begins with that state: the record was added in it.
    """
    began, state = None, timeline[0].state if timeline else ""
    for phase in timeline:
        if phase.at > now:
            break
        if phase.state != state:
            began, state = phase.at, phase.state
    return began


# States in which the virtual machines of a node run: they are powered off at the end of STOPPING and DELETING. Unverified for
# REPAIRING and UNKNOWN, and that the hidden states change nothing.
_POWERED = frozenset({"READY", "REPAIRING", "UNKNOWN", "STOPPING", "DELETING", "HIDING", "HIDDEN", "UNHIDING"})


def has_run_since(timeline: Timeline, since: datetime, now: datetime) -> bool:
    """Return whether the virtual machines that ran at a time have run without a break until now."""
    current = phase_at(timeline, now)
    return current is not None and all(phase.state in _POWERED for phase in timeline if since < phase.at <= now)


def timeline_until(timeline: Timeline, now: datetime) -> Timeline:
    """Return the phases up to a time, without planned ones; at most the last 24."""
    return tuple(phase for phase in timeline if phase.at <= now)[-24:]


def first_time_in(timeline: Timeline, state: str, *, since: datetime) -> datetime | None:
    """Return when a state is first reached at or after a time, if ever."""
    return next((phase.at for phase in timeline if phase.state == state and phase.at >= since), None)


# A stopped node has no claim on capacity (observed: its start may fail); a preempted one has lost it.
_WITHOUT_CAPACITY = frozenset({"STOPPED", "PREEMPTED", "TERMINATED", GONE})


def capacity_intervals(timeline: Timeline) -> list[tuple[float, float]]:
    """Return the times in which a node holds capacity, as seconds since 1970; the last interval may be endless."""
    intervals: list[tuple[float, float]] = []
    begin: float | None = None
    for phase in timeline:
        holds = phase.has_capacity and phase.state not in _WITHOUT_CAPACITY
        if phase.state == "DELETING" and phase is not timeline[0]:
            holds = begin is not None  # it gives back what it has
        if holds and begin is None:
            begin = phase.at.timestamp()
        elif not holds and begin is not None:
            intervals.append((begin, phase.at.timestamp()))
            begin = None
    return intervals if begin is None else [*intervals, (begin, inf)]


def end_of_timeline(timeline: Timeline) -> datetime | None:
    """Return when the record disappears. None if that is not planned."""
    return timeline[-1].at if timeline and timeline[-1].state == GONE else None


def create_timeline(now: datetime, pace: PhaseDurations, *, workers: int, preemptible: bool) -> Timeline:
    """Return the timeline of a new node without faults."""
    return (LifecyclePhase(now, "CREATING"), *_ready_phases(now + pace.create(workers), pace, preemptible=preemptible))


def restart_timeline(
    timeline: Timeline, now: datetime, pace: PhaseDurations, *, during: str = "RESTARTING"
) -> Timeline:
    """Return the timeline after a start (`during` STARTING), a reimage (as long, unverified), or a restart by the service."""
    return (*timeline_until(timeline, now), LifecyclePhase(now, during), *_ready_phases(now + pace.of("start"), pace))


def stop_timeline(timeline: Timeline, now: datetime, pace: PhaseDurations) -> Timeline:
    """Return the timeline after a stop that succeeds."""
    end = now + pace.of("stop")
    return (*timeline_until(timeline, now), LifecyclePhase(now, "STOPPING"), LifecyclePhase(end, "STOPPED"))


def delete_timeline(timeline: Timeline, now: datetime, pace: PhaseDurations) -> Timeline:
    """Return the timeline after a delete. A delete that is in progress is not started again."""
    current = phase_at(timeline, now)
    if current is None:
        return (*timeline_until(timeline, now), LifecyclePhase(now, GONE))
    if current.state == "DELETING":
        return timeline
    return (
        *timeline_until(timeline, now),
        LifecyclePhase(now, "DELETING"),
        LifecyclePhase(now + pace.of("delete"), GONE),
    )


def failed_timeline(timeline: Timeline, now: datetime, pace: PhaseDurations, *, during: str, then: str) -> Timeline:
    """Return the timeline of an operation that fails: `during` for a while, then `then` (perhaps `GONE`)."""
    failing = LifecyclePhase(now, during, has_capacity=during not in {"CREATING", "STARTING"})
    return (*timeline_until(timeline, now), failing, LifecyclePhase(now + pace.of("failure"), then))


def preempted_timeline(timeline: Timeline, at: datetime, pace: PhaseDurations, *, owned: bool) -> Timeline:
    """Return the timeline of a node that is preempted at a time.

    The record of a node stays, PREEMPTED (documented); the service deletes the node of a queued resource (observed).
    """
    if owned:
        return withdrawn_timeline(timeline, at, pace, initiator="SERVICE")
    return (*(phase for phase in timeline if phase.at <= at), LifecyclePhase(at, "PREEMPTED"))


def replaced_slice_timeline(timeline: Timeline, at: datetime, pace: PhaseDurations, *, workers: int) -> Timeline:
    """Return the timeline of a slice that the service takes back and that its queued resource creates again.

    Documented for a request of several slices: a new slice is created, the others restart. Its states are unverified.
    """
    gone = at + pace.of("delete")
    created = gone + timedelta(seconds=10)
    return (
        *(phase for phase in timeline if phase.at <= at),
        LifecyclePhase(at, "DELETING", initiator="SERVICE"),
        LifecyclePhase(gone, "CREATING", is_hidden=True),
        LifecyclePhase(created, "CREATING"),
        *_ready_phases(created + pace.create(workers), pace),
    )


def withdrawn_timeline(timeline: Timeline, at: datetime, pace: PhaseDurations, *, initiator: str) -> Timeline:
    """Return the timeline of a queued resource's node that is deleted at a time, which suspends the queued resource."""
    before = (phase for phase in timeline if phase.at <= at)
    return (
        *before,
        LifecyclePhase(at, "DELETING", initiator=initiator),
        LifecyclePhase(at + pace.of("delete"), GONE),
    )


def _ready_phases(at: datetime, pace: PhaseDurations, *, preemptible: bool = False) -> Iterator[LifecyclePhase]:
    yield LifecyclePhase(at, "READY")
    yield LifecyclePhase(at + pace.health(), "READY", "HEALTHY")
    if preemptible:
        yield LifecyclePhase(at + PREEMPTIBLE_LIFE, "PREEMPTED")


# The states in which a verb is allowed or refused according to a source.
_SOURCED: Mapping[tuple[NodeVerb, str], bool] = {
    # API field text.
    (NodeVerb.DELETE, "READY"): True,
    (NodeVerb.DELETE, "STOPPED"): True,
    (NodeVerb.DELETE, "TERMINATED"): True,
    (NodeVerb.STOP, "READY"): True,
    (NodeVerb.START, "STOPPED"): True,
    (NodeVerb.UPDATE, "READY"): True,
    (NodeVerb.DELETE, "PREEMPTED"): True,  # observed: skypilot#129
    (NodeVerb.UPDATE, "PREEMPTED"): False,  # observed: skypilot source
    # gcloud 528 help.
    (NodeVerb.START, "PREEMPTED"): False,
    (NodeVerb.STOP, "PREEMPTED"): False,
}
# Metadata may be patched on a node that is being created; its labels may not (observed: skypilot source).
_ASSUMED = frozenset({(NodeVerb.REIMAGE, "READY"), (NodeVerb.UPDATE, "CREATING"), (NodeVerb.UPDATE, "STOPPED")})


def is_verb_allowed(verb: NodeVerb, state: str) -> bool:
    """Return whether a state allows a verb. Unobserved combinations are refused, except delete, which cleans up everything."""
    return _SOURCED.get((verb, state), verb is NodeVerb.DELETE or (verb, state) in _ASSUMED)
