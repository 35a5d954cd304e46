"""Apply a fault to a timeline. Pure.

The same functions serve a node that is being planned and a node that exists when the fault is set.
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
    """The kinds of faults: first those of nodes, then those of calls."""

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
    """A fault that occurs `count` times (0: until it is removed) where `project`, `zone`, `node` and `method` match.

    These four are globs; `method` is a discovery id such as `*.nodes.create`. The node need not exist yet.

    - unhealthy: `health` (and `description`) while the node is, or once it becomes, READY.
    - hang: the node stays in `state` for `duration` longer; None: forever.
    - preempt: at `at`, or `after` from now (from READY for a node that is not created yet).
    - operation-error: create or start (or what `method` matches) fails with a google.rpc `code` and `message` (default: the
      service's message for that code).
    - maintenance: announced now, ongoing from `at` or `after` on, for `duration` (10 minutes).
    - missing-chip: `worker` lacks one of its chips while the node is, or next is, READY (reported after a start: jax#13260).
    - startup-slow: startup scripts run `duration` longer, counted from the last or next start of the node; None: forever.
    - startup-fails: startup scripts fail.
    - ssh-key-late: a key in the metadata works `duration` after it was written.
    - quota: create is rejected with 429, naming `limit`.
    - http-error: `status`, with `Retry-After: retry_after` seconds.
    - slow: the answer takes `duration` longer.
    - unreachable: the matching zones answer 503, and lists of all zones report them.
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
    """Return the timeline under a fault. None if the fault does not affect it.

    `owned`: a queued resource owns the node. `is_new`: the timeline is being planned now.
    """
    match fault.kind:
        case FaultKind.UNHEALTHY:
            index = _ahead(timeline, "READY", now)
            if index is None:
                return None
            begin = max(timeline[index].at, now)
            ill = replace(timeline[index], at=begin, health=fault.health, description=fault.description)
            before = timeline[: index + 1] if timeline[index].at < now else timeline[:index]
            return (*before, ill, *_beyond(timeline[index:], "READY"))
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
    """Return the index of the current or next phase in a state. None if there is none."""
    current = sum(1 for phase in timeline if phase.at <= now) - 1
    following = range(max(current, 0), len(timeline))
    return next((index for index in following if timeline[index].state == state), None)


def _mark(timeline: Timeline, now: datetime, **changes: Any) -> Timeline | None:
    """Return the timeline with changes in the current or next phases in which the node is READY."""
    index = _ahead(timeline, "READY", now)
    if index is None:
        return None
    until = len(timeline) - len(_beyond(timeline[index:], "READY"))
    marked = (replace(phase, **changes) for phase in timeline[index:until])
    return (*timeline[:index], *marked, *timeline[until:])


def hang(timeline: Timeline, fault: Fault, now: datetime) -> Timeline | None:
    """Return the timeline with the fault's state extended. None if the node does not leave or reach that state."""
    index = _ahead(timeline, fault.state, now)
    later = _beyond(timeline[index:], fault.state) if index is not None else ()
    if not later:
        return None
    staying = timeline[: len(timeline) - len(later)]
    if fault.duration is None:
        return staying
    return (*staying, *(replace(phase, at=phase.at + fault.duration) for phase in later))


def _maintain(timeline: Timeline, fault: Fault, now: datetime) -> Timeline | None:
    """Return the timeline with announced, ongoing and finished maintenance of the current or next READY phase."""
    index = _ahead(timeline, "READY", now)
    if index is None:
        return None
    known = max(timeline[index].at, now)
    begin = max(fault.at or known + fault.after, known)
    end = begin + (fault.duration or timedelta(minutes=10))
    later = _beyond(timeline[index:], "READY")
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


def _beyond(rest: Timeline, state: str) -> tuple[Phase, ...]:
    """Return the phases after the leading ones that are in a state."""
    return rest[next((i for i, phase in enumerate(rest) if phase.state != state), len(rest)) :]


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
