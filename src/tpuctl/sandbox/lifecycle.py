"""The life cycle of nodes: transitions, their durations, and the verbs that each state forbids. Pure.

A record carries a timeline: past phases and planned phases. Its state follows from the time, so nothing runs between two
requests. Durations are the sandbox's own choice, in the order of what users report; they are not documented.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
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
    """A state from `at` on. Only queued resources use `initiator`; `lacks_chip` is the index of a worker with a missing chip.

    `startup_delay`: seconds by which startup scripts run longer; negative: forever. `startup_fails`: they fail.
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
        digest = hashlib.blake2b(f"{self.key}/{what}".encode(), digest_size=8).digest()
        return timedelta(seconds=round(shortest + (longest - shortest) * int.from_bytes(digest) / 2**64, 3))

    def create(self, workers: int) -> timedelta:
        """Return 1.5 to 4 minutes, and up to as much again for a large slice."""
        return self.draw("create", 90, 240) * (1 + min(workers, 256).bit_length() / 9 - 1 / 9)

    def start(self) -> timedelta:
        """Return one to two minutes."""
        return self.draw("start", 60, 120)

    def stop(self) -> timedelta:
        """Return half a minute to a minute."""
        return self.draw("stop", 30, 60)

    def delete(self) -> timedelta:
        """Return half a minute to a minute."""
        return self.draw("delete", 30, 60)

    def failure(self) -> timedelta:
        """Return the time until a failing operation ends: 30 to 80 s (observed for stock-outs on create)."""
        return self.draw("failure", 30, 80)

    def health(self) -> timedelta:
        """Return how long a new READY node has no health (unverified that it has none; setting `health_lag`)."""
        return self.draw("health", *self.health_lag)


def phase_at(timeline: Timeline, now: datetime) -> LifecyclePhase | None:
    """Return the phase at a time. None before the first phase and after the end of the record."""
    current = None
    for phase in timeline:
        if phase.at > now:
            break
        current = phase
    return None if current is None or current.state == GONE else current


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


def timeline_until(timeline: Timeline, now: datetime) -> Timeline:
    """Return the phases up to a time, without planned ones; at most the last 24."""
    return tuple(phase for phase in timeline if phase.at <= now)[-24:]


def first_time_in(timeline: Timeline, state: str, *, since: datetime) -> datetime | None:
    """Return when a state is first reached at or after a time, if ever."""
    return next((phase.at for phase in timeline if phase.state == state and phase.at >= since), None)


def end_of_timeline(timeline: Timeline) -> datetime | None:
    """Return when the record disappears. None if that is not planned."""
    return timeline[-1].at if timeline and timeline[-1].state == GONE else None


def create_timeline(now: datetime, pace: PhaseDurations, *, workers: int, preemptible: bool) -> Timeline:
    """Return the timeline of a new node without faults."""
    return (LifecyclePhase(now, "CREATING"), *_ready_phases(now + pace.create(workers), pace, preemptible=preemptible))


def start_timeline(timeline: Timeline, now: datetime, pace: PhaseDurations) -> Timeline:
    """Return the timeline after a start that succeeds."""
    return (*timeline_until(timeline, now), LifecyclePhase(now, "STARTING"), *_ready_phases(now + pace.start(), pace))


def restart_timeline(timeline: Timeline, now: datetime, pace: PhaseDurations) -> Timeline:
    """Return the timeline after the service itself restarts the node."""
    return (*timeline_until(timeline, now), LifecyclePhase(now, "RESTARTING"), *_ready_phases(now + pace.start(), pace))


def stop_timeline(timeline: Timeline, now: datetime, pace: PhaseDurations) -> Timeline:
    """Return the timeline after a stop that succeeds."""
    return (
        *timeline_until(timeline, now),
        LifecyclePhase(now, "STOPPING"),
        LifecyclePhase(now + pace.stop(), "STOPPED"),
    )


def reimage_timeline(timeline: Timeline, now: datetime, pace: PhaseDurations) -> Timeline:
    """Return the timeline after a reimage, which takes as long as a start (unverified)."""
    return (*timeline_until(timeline, now), LifecyclePhase(now, "REIMAGING"), *_ready_phases(now + pace.start(), pace))


def delete_timeline(timeline: Timeline, now: datetime, pace: PhaseDurations) -> Timeline:
    """Return the timeline after a delete. A delete that is in progress is not started again."""
    current = phase_at(timeline, now)
    if current is None:
        return (*timeline_until(timeline, now), LifecyclePhase(now, GONE))
    if current.state == "DELETING":
        return timeline
    return (*timeline_until(timeline, now), LifecyclePhase(now, "DELETING"), LifecyclePhase(now + pace.delete(), GONE))


def failed_timeline(timeline: Timeline, now: datetime, pace: PhaseDurations, *, during: str, then: str) -> Timeline:
    """Return the timeline of an operation that fails: `during` for a while, then `then` (perhaps `GONE`)."""
    return (*timeline_until(timeline, now), LifecyclePhase(now, during), LifecyclePhase(now + pace.failure(), then))


def preempted_timeline(timeline: Timeline, at: datetime, pace: PhaseDurations, *, owned: bool) -> Timeline:
    """Return the timeline of a node that is preempted at a time.

    The record of a node stays, PREEMPTED (documented); the service deletes the node of a queued resource (observed).
    """
    before = tuple(phase for phase in timeline if phase.at <= at)
    if owned:
        return (*before, LifecyclePhase(at, "DELETING"), LifecyclePhase(at + pace.delete(), GONE))
    return (*before, LifecyclePhase(at, "PREEMPTED"))


def _ready_phases(at: datetime, pace: PhaseDurations, *, preemptible: bool = False) -> Iterator[LifecyclePhase]:
    yield LifecyclePhase(at, "READY")
    yield LifecyclePhase(at + pace.health(), "READY", "HEALTHY")
    if preemptible:
        yield LifecyclePhase(at + PREEMPTIBLE_LIFE, "PREEMPTED")


@dataclass(frozen=True, slots=True)
class TransitionRule:
    """Whether a state allows a verb, and the source."""

    is_allowed: bool
    source: str

    @property
    def is_verified(self) -> bool:
        """Return whether there is a source. A sandbox setting can override a rule without one."""
        return self.source != "unverified"


_YES, _NO = TransitionRule(is_allowed=True, source="unverified"), TransitionRule(is_allowed=False, source="unverified")


def _build_rules() -> dict[tuple[NodeVerb, str], TransitionRule]:
    """Return the whole table. Unobserved combinations are refused, except delete, which cleans up everything."""
    table = {(verb, state): _YES if verb is NodeVerb.DELETE else _NO for verb in NodeVerb for state in STATES}
    documented = replace(_YES, source="API field text")
    table[NodeVerb.DELETE, "READY"] = table[NodeVerb.STOP, "READY"] = table[NodeVerb.START, "STOPPED"] = documented
    table[NodeVerb.UPDATE, "READY"] = documented
    table[NodeVerb.DELETE, "STOPPED"] = table[NodeVerb.DELETE, "TERMINATED"] = documented
    table[NodeVerb.REIMAGE, "READY"] = _YES
    table[NodeVerb.DELETE, "PREEMPTED"] = replace(_YES, source="observed: skypilot#129")
    table[NodeVerb.UPDATE, "PREEMPTED"] = replace(_NO, source="observed: skypilot source")
    for verb in (NodeVerb.START, NodeVerb.STOP):
        table[verb, "PREEMPTED"] = replace(_NO, source="gcloud 528 help")
    # Metadata may be patched on a node that is being created; its labels may not (observed: skypilot source).
    table[NodeVerb.UPDATE, "CREATING"] = table[NodeVerb.UPDATE, "STOPPED"] = _YES
    return table


TRANSITION_RULES: Mapping[tuple[NodeVerb, str], TransitionRule] = _build_rules()


def is_verb_allowed(verb: NodeVerb, state: str, settings: Mapping[str, object]) -> bool:
    """Return whether a state allows a verb.

    The sandbox setting `allow_<verb>_while_<state>` (`allow_stop_while_creating`) overrides an unverified rule.
    """
    rule = TRANSITION_RULES.get((verb, state), _NO)
    override = None if rule.is_verified else settings.get(f"allow_{verb}_while_{state.lower()}")
    return rule.is_allowed if override is None else bool(override)
