"""What a fault does to the life of a node: a timeline in, a timeline out. Pure.

The same function serves a node that is being planned and one that exists when the fault is set.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tpuctl.clock import format_timestamp
from tpuctl.sandbox import lifecycle

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.lifecycle import Pace, Phase, Timeline


class FaultKind(StrEnum):
    """What can be made to go wrong: first what happens to nodes, then what happens to calls."""

    UNHEALTHY = "unhealthy"
    HANG = "hang"
    PREEMPT = "preempt"
    OPERATION_ERROR = "operation-error"
    MAINTENANCE = "maintenance"
    MISSING_CHIP = "missing-chip"
    STARTUP_SLOW = "startup-slow"
    STARTUP_FAILS = "startup-fails"
    SSH_KEY_LATE = "ssh-key-late"
    QUOTA = "quota"
    DROP_BEFORE = "drop-before"
    DROP_AFTER = "drop-after"
    HTTP_ERROR = "http-error"
    SLOW = "slow"
    UNAUTHENTICATED = "unauthenticated"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong `count` times (0: until it is removed) where `project`, `zone`, `node` and `method` match.

    These four are globs; `method` is a discovery id such as `*.nodes.create`. The node need not exist yet.

    - unhealthy: `health` (and `description`) when the node is or comes up READY.
    - hang: the node stays in `state` for `duration` longer, for ever when that is not given.
    - preempt: at `at`, or `after` from now (from READY for a node that is still to be made).
    - operation-error: create or start (or what `method` says) fails with a google.rpc `code` and `message` (else the
      service's words for that code).
    - maintenance: announced now, under way from `at` or `after` on, for `duration` (10 minutes).
    - missing-chip: `worker` lacks one of its chips while the node is, or next is, READY (reported after a start: jax#13260).
    - startup-slow: startup scripts run `duration` longer from when the node came or next comes up, for ever when that is not
      given; startup-fails: they fail.
    - ssh-key-late: a key in the metadata works `duration` after it was written.
    - quota: create is refused with 429, naming `limit`.
    - http-error: `status`, with `Retry-After: retry_after` seconds; slow: the answer takes `duration` longer.
    - unreachable: the zones that match answer 503 and are reported by lists of all zones.
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


TIMELINE_KINDS = frozenset(
    {
        *(FaultKind.UNHEALTHY, FaultKind.HANG, FaultKind.PREEMPT, FaultKind.MAINTENANCE),
        *(FaultKind.MISSING_CHIP, FaultKind.STARTUP_SLOW, FaultKind.STARTUP_FAILS),
    }
)


def afflict(
    timeline: Timeline, fault: Fault, now: datetime, pace: Pace, *, owned: bool, is_new: bool
) -> Timeline | None:
    """Return the timeline under a fault, or nothing when the fault does not meet it.

    `owned` says that a queued resource has the node, `is_new` that the timeline is only now being planned.
    """
    match fault.kind:
        case FaultKind.UNHEALTHY:
            return _sicken(timeline, fault, now)
        case FaultKind.HANG:
            return hang(timeline, fault, now)
        case FaultKind.PREEMPT:
            ready = lifecycle.first(timeline, "READY", since=now) if is_new else None
            at = (ready or now) + fault.after
            if fault.at is not None:
                at = max(fault.at, ready or now)
            phase = lifecycle.phase_at(timeline, at)
            if phase is None or phase.state in {"PREEMPTED", "DELETING"}:
                return None
            return lifecycle.preempt(timeline, at, pace, owned=owned)
        case FaultKind.MAINTENANCE:
            return _maintain(timeline, fault, now)
        case FaultKind.MISSING_CHIP:
            return _mark(timeline, now, lacks_chip=fault.worker)
        case FaultKind.STARTUP_SLOW:
            delay = fault.duration.total_seconds() if fault.duration is not None else -1.0
            return _mark(timeline, now, startup_delay=delay)
        case FaultKind.STARTUP_FAILS:
            return _mark(timeline, now, startup_fails=True)
        case _:
            return None


def _ahead(timeline: Timeline, state: str, now: datetime) -> int | None:
    """Return the index of the current phase, or of the next one, that is in a state."""
    current = sum(1 for phase in timeline if phase.at <= now) - 1
    following = range(max(current, 0), len(timeline))
    return next((index for index in following if timeline[index].state == state), None)


def _sicken(timeline: Timeline, fault: Fault, now: datetime) -> Timeline | None:
    index = _ahead(timeline, "READY", now)
    if index is None:
        return None
    ill = replace(
        timeline[index],
        at=max(timeline[index].at, now),
        health=fault.health,
        description=fault.description,
    )
    before = timeline[: index + 1] if timeline[index].at < now else timeline[:index]
    return (*before, ill, *_beyond(timeline[index:], "READY"))


def _mark(timeline: Timeline, now: datetime, **changes: Any) -> Timeline | None:
    """Return a timeline with phases that differ while the node is READY, now or the next time."""
    index = _ahead(timeline, "READY", now)
    if index is None:
        return None
    until = len(timeline) - len(_beyond(timeline[index:], "READY"))
    marked = (replace(phase, **changes) for phase in timeline[index:until])
    return (*timeline[:index], *marked, *timeline[until:])


def hang(timeline: Timeline, fault: Fault, now: datetime) -> Timeline | None:
    """Return a timeline that stays longer in the fault's state, or nothing when it never is in that state again."""
    index = _ahead(timeline, fault.state, now)
    if index is None or timeline[index:] == _same(timeline[index:], fault.state):
        return None
    staying = (*timeline[:index], *_same(timeline[index:], fault.state))
    if fault.duration is None:
        return staying
    return (
        *staying,
        *(replace(phase, at=phase.at + fault.duration) for phase in _beyond(timeline[index:], fault.state)),
    )


def _maintain(timeline: Timeline, fault: Fault, now: datetime) -> Timeline | None:
    index = _ahead(timeline, "READY", now)
    if index is None:
        return None
    known = max(timeline[index].at, now)
    begin = max(fault.at or known + fault.after, known)
    end = begin + (fault.duration or timedelta(minutes=10))
    steady = replace(_same(timeline[index:], "READY")[-1], state="READY", health="HEALTHY", description="")
    event = {
        "type": "SCHEDULED" if begin > known else "UNSCHEDULED",
        "canReschedule": begin > known,  # what is announced may be begun by the customer (unverified)
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
    later = (phase for phase in _beyond(timeline[index:], "READY") if phase.at > end)
    return (*before, *((announced,) if begin > known else ()), ongoing, over, *later)


def _same(rest: Timeline, state: str) -> Timeline:
    """Return the leading phases that are in a state."""
    count = next((i for i, phase in enumerate(rest) if phase.state != state), len(rest))
    return rest[:count]


def _beyond(rest: Timeline, state: str) -> tuple[Phase, ...]:
    """Return what follows the leading phases that are in a state."""
    return rest[len(_same(rest, state)) :]


def dump(fault: Fault) -> Json:
    """Return a fault as JSON."""
    values: Json = {name: getattr(fault, name) for name in Fault.__slots__}
    values["after"] = fault.after.total_seconds()
    values["duration"] = fault.duration.total_seconds() if fault.duration is not None else None
    values["at"] = fault.at.isoformat() if fault.at else None
    return values


def load(values: Json) -> Fault:
    """Return a fault read from JSON."""
    duration, at = values["duration"], values["at"]
    return Fault(
        **{
            **values,
            "kind": FaultKind(values["kind"]),
            "after": timedelta(seconds=values["after"]),
            "duration": timedelta(seconds=duration) if duration is not None else None,
            "at": datetime.fromisoformat(at) if at else None,
        }
    )
