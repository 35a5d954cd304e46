"""How a node lives: what follows what, how long it takes, and what each state forbids. Pure: the time comes in.

A record carries a timeline: phases that have begun and phases that will. Reading a state is looking at the clock, so nothing
runs between two requests. Durations are the sandbox's own choice, in the order of what users report; they are not documented.
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

    from tpuctl.sandbox.calls import Json

GONE = "GONE"  # not a state of the API: from here on the record answers 404
STATES = (
    *("CREATING", "READY", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING", "STOPPED", "STOPPING", "STARTING"),
    *("PREEMPTED", "TERMINATED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN"),
)
# A node without workers to reach: its addresses are not there yet. Source for the others: none; they keep their addresses.
WITHOUT_ENDPOINTS = frozenset({"CREATING"})
PREEMPTIBLE_LIFE = timedelta(hours=24)  # documented for preemptible nodes; spot nodes have no such end


@dataclass(frozen=True, slots=True)
class Phase:
    """A state from a moment on. `initiator` is only used by queued resources; `lacks_chip` is the worker that misses a chip.

    `startup_delay` are the seconds for which startup scripts run longer, below zero for ever; `startup_fails` that they fail.
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


Timeline = tuple[Phase, ...]


class Verb(StrEnum):
    """What a client may ask of a node; the word that the service uses in its refusals."""

    START = "start"
    STOP = "stop"
    UPDATE = "update"
    DELETE = "delete"
    REIMAGE = "reimage"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, drawn for one incarnation of one node: the same key gives the same durations."""

    key: str
    health_lag: tuple[float, float] = (0, 20)

    def between(self, what: str, shortest: float, longest: float) -> timedelta:
        """Return a duration drawn between two numbers of seconds."""
        digest = hashlib.blake2b(f"{self.key}/{what}".encode(), digest_size=8).digest()
        return timedelta(seconds=round(shortest + (longest - shortest) * int.from_bytes(digest) / 2**64, 3))

    def create(self, workers: int) -> timedelta:
        """Return 1.5 to 4 minutes, and up to as much again for a large slice."""
        return self.between("create", 90, 240) * (1 + min(workers, 256).bit_length() / 9 - 1 / 9)

    def start(self) -> timedelta:
        """Return one to two minutes."""
        return self.between("start", 60, 120)

    def stop(self) -> timedelta:
        """Return half a minute to a minute."""
        return self.between("stop", 30, 60)

    def delete(self) -> timedelta:
        """Return half a minute to a minute."""
        return self.between("delete", 30, 60)

    def failure(self) -> timedelta:
        """Return how soon a doomed operation fails: 30 to 80 s (observed for stock-outs on create)."""
        return self.between("failure", 30, 80)

    def health(self) -> timedelta:
        """Return how long a young READY node has no health (unverified that it has none; setting `health_lag`)."""
        return self.between("health", *self.health_lag)


def phase_at(timeline: Timeline, now: datetime) -> Phase | None:
    """Return the phase that lasts at a time; nothing before the first and after the end of the record."""
    current = None
    for phase in timeline:
        if phase.at > now:
            break
        current = phase
    return None if current is None or current.state == GONE else current


def since(timeline: Timeline, now: datetime) -> datetime | None:
    """Return when the state that lasts at a time began, whatever else has changed in it.

    Nothing where nothing lasts, and where a timeline begins with it: what is put into a world has long been so.
    """
    began, state = None, timeline[0].state if timeline else ""
    for phase in timeline:
        if phase.at > now:
            break
        if phase.state != state:
            began, state = phase.at, phase.state
    return began


def until(timeline: Timeline, now: datetime) -> Timeline:
    """Return what has happened by a time; what was to come is dropped. Only the last phases are kept."""
    return tuple(phase for phase in timeline if phase.at <= now)[-24:]


def first(timeline: Timeline, state: str, *, since: datetime) -> datetime | None:
    """Return when a state is first reached at or after a time, if ever."""
    return next((phase.at for phase in timeline if phase.state == state and phase.at >= since), None)


def end_of(timeline: Timeline) -> datetime | None:
    """Return when the record disappears, if that is settled."""
    return timeline[-1].at if timeline and timeline[-1].state == GONE else None


def create(now: datetime, pace: Pace, *, workers: int, preemptible: bool) -> Timeline:
    """Return the life of a new node to which nothing happens."""
    return (Phase(now, "CREATING"), *_ready(now + pace.create(workers), pace, preemptible=preemptible))


def start(timeline: Timeline, now: datetime, pace: Pace) -> Timeline:
    """Return the timeline after a start that succeeds."""
    return (*until(timeline, now), Phase(now, "STARTING"), *_ready(now + pace.start(), pace))


def restart(timeline: Timeline, now: datetime, pace: Pace) -> Timeline:
    """Return the timeline after the service itself restarts the node."""
    return (*until(timeline, now), Phase(now, "RESTARTING"), *_ready(now + pace.start(), pace))


def stop(timeline: Timeline, now: datetime, pace: Pace) -> Timeline:
    """Return the timeline after a stop that succeeds."""
    return (*until(timeline, now), Phase(now, "STOPPING"), Phase(now + pace.stop(), "STOPPED"))


def reimage(timeline: Timeline, now: datetime, pace: Pace) -> Timeline:
    """Return the timeline after a reimage, which takes as long as a start (unverified)."""
    return (*until(timeline, now), Phase(now, "REIMAGING"), *_ready(now + pace.start(), pace))


def delete(timeline: Timeline, now: datetime, pace: Pace) -> Timeline:
    """Return the timeline after a delete; one that is already going on is not begun again."""
    current = phase_at(timeline, now)
    if current is None:
        return (*until(timeline, now), Phase(now, GONE))
    if current.state == "DELETING":
        return timeline
    return (*until(timeline, now), Phase(now, "DELETING"), Phase(now + pace.delete(), GONE))


def fail(timeline: Timeline, now: datetime, pace: Pace, *, during: str, then: str) -> Timeline:
    """Return the timeline of an operation that fails: in `during` for a while, then `then` (perhaps `GONE`)."""
    return (*until(timeline, now), Phase(now, during), Phase(now + pace.failure(), then))


def preempt(timeline: Timeline, at: datetime, pace: Pace, *, owned: bool) -> Timeline:
    """Return the timeline of a node whose capacity is taken at a time.

    The record of a node stays, PREEMPTED (documented); the node of a queued resource is deleted by the service (observed).
    """
    before = tuple(phase for phase in timeline if phase.at <= at)
    if owned:
        return (*before, Phase(at, "DELETING"), Phase(at + pace.delete(), GONE))
    return (*before, Phase(at, "PREEMPTED"))


def _ready(at: datetime, pace: Pace, *, preemptible: bool = False) -> Iterator[Phase]:
    yield Phase(at, "READY")
    yield Phase(at + pace.health(), "READY", "HEALTHY")
    if preemptible:
        yield Phase(at + PREEMPTIBLE_LIFE, "PREEMPTED")


@dataclass(frozen=True, slots=True)
class Rule:
    """Whether a state lets a verb through, and who says so."""

    is_allowed: bool
    source: str

    @property
    def is_verified(self) -> bool:
        """Tell whether there is a source; what has none can be overridden by a world setting."""
        return self.source != "unverified"


_YES, _NO = Rule(is_allowed=True, source="unverified"), Rule(is_allowed=False, source="unverified")


def _rules() -> dict[tuple[Verb, str], Rule]:
    """Return the whole table: what was not observed is refused, except delete, which cleans up everything."""
    table = {(verb, state): _YES if verb is Verb.DELETE else _NO for verb in Verb for state in STATES}
    documented = replace(_YES, source="API field text")
    table[Verb.DELETE, "READY"] = table[Verb.STOP, "READY"] = table[Verb.START, "STOPPED"] = documented
    table[Verb.UPDATE, "READY"] = documented
    table[Verb.DELETE, "STOPPED"] = table[Verb.DELETE, "TERMINATED"] = documented
    table[Verb.REIMAGE, "READY"] = _YES
    table[Verb.DELETE, "PREEMPTED"] = replace(_YES, source="observed: skypilot#129")
    table[Verb.UPDATE, "PREEMPTED"] = replace(_NO, source="observed: skypilot source")
    for verb in (Verb.START, Verb.STOP):
        table[verb, "PREEMPTED"] = replace(_NO, source="gcloud 528 help")
    # Metadata may be patched on a node that is being created; its labels may not (observed: skypilot source).
    table[Verb.UPDATE, "CREATING"] = table[Verb.UPDATE, "STOPPED"] = _YES
    return table


RULES: Mapping[tuple[Verb, str], Rule] = _rules()


def is_allowed(verb: Verb, state: str, settings: Mapping[str, object]) -> bool:
    """Tell whether a state lets a verb through.

    The world setting `allow_<verb>_while_<state>` (`allow_stop_while_creating`) overrides a rule that is not verified.
    """
    rule = RULES.get((verb, state), _NO)
    override = None if rule.is_verified else settings.get(f"allow_{verb}_while_{state.lower()}")
    return rule.is_allowed if override is None else bool(override)
