"""What readiness is decided from: frozen values, no rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.errors import TpuctlError
    from tpuctl.model import Difference, Node, QueuedResource
    from tpuctl.names import NodeName


class Goal(StrEnum):
    """Where a node is wanted. The first five are levels of usable; each includes the ones before."""

    READY = "ready"
    HEALTHY = "healthy"
    SSH = "ssh"
    STARTUP = "startup"
    DEVICES = "devices"
    STOPPED = "stopped"
    GONE = "gone"
    PREEMPTED = "preempted"

    @property
    def is_usable(self) -> bool:
        """Tell whether a node that got there can be used."""
        return self in LEVELS

    def includes(self, level: Goal) -> bool:
        """Tell whether this level cannot be reached without that one."""
        return self.is_usable and LEVELS.index(level) <= LEVELS.index(self)


LEVELS = (Goal.READY, Goal.HEALTHY, Goal.SSH, Goal.STARTUP, Goal.DEVICES)


class Repair(StrEnum):
    """How far a repair may go; each includes the ones before."""

    NONE = "none"
    REBOOT = "reboot"
    RESTART = "restart"
    RECREATE = "recreate"

    def allows(self, step: Repair) -> bool:
        """Tell whether this permits a step."""
        ladder = list(Repair)
        return ladder.index(step) <= ladder.index(self)


class Answer(StrEnum):
    """What came back from a worker's ssh."""

    YES = "answers"
    KEY_REFUSED = "refuses the key"
    HOST_KEY_CHANGED = "has another host key"
    UNREACHABLE = "does not answer"


class Startup(StrEnum):
    """What has become of a worker's startup script and cloud-init."""

    UNKNOWN = "unknown"  # nothing on the worker can tell; counts as ended
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # it has ended, and not well

    @property
    def has_ended(self) -> bool:
        """Tell whether there is nothing to wait for."""
        return self is not Startup.RUNNING


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """What one worker showed of itself.

    `startup`, `chips` (device files of TPU chips) and `failed` (why the user's own probe did not pass) are nothing where they
    were not asked for or could not be told. `holders` are processes that hold the TPU (`1234 python3`). `detail` has ssh's
    own words, or what else explains it.
    """

    answer: Answer
    startup: Startup | None = None
    chips: int | None = None
    failed: str | None = None
    holders: tuple[str, ...] = ()
    detail: str = field(default="", compare=False)


class Verb(StrEnum):
    """What a change, or a step of a plan, does."""

    CREATE = "create"
    DELETE = "delete"
    START = "start"
    STOP = "stop"
    REBOOT = "reboot"
    UPDATE = "update"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """How long something may last before it counts as stuck. tpuctl's defaults, not the service's promises.

    Each grows by `per_worker` with every worker beyond the first. `recheck` is how long a repair is given to show its effect.
    """

    unhealthy: timedelta = timedelta(minutes=5)
    unanswered: timedelta = timedelta(minutes=10)
    devices: timedelta = timedelta(minutes=5)
    starting: timedelta = timedelta(minutes=15)
    restarting: timedelta = timedelta(minutes=15)
    repairing: timedelta = timedelta(minutes=30)
    recheck: timedelta = timedelta(minutes=3)
    per_worker: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is wanted and what may be done for it.

    `timeout` nothing means no deadline. `is_keeper` tells that the node was entrusted to this run: it is repaired unless a
    process holds its TPU, or that cannot be told. `forced` lets a repair touch a node that may be in use. `is_patient` goes
    on asking where there is no capacity or no quota, with pauses that double from `backoff` to `longest_backoff`.
    `recreate_deleted` makes a node again that somebody deleted. `has_probe`: a probe of the user's decides about devices, not
    the count of chips. `only_looks` is for one who waits for what others do: no defect ends that wait. The budgets `max_…`
    are refilled after `refill` of being usable. `internal_retries` is for a creation that failed by a fault of the service.
    """

    goal: Goal = Goal.SSH
    may_create: bool = False
    may_start: bool = False
    replace: bool = False
    is_keeper: bool = False
    forced: bool = False
    is_patient: bool = False
    recreate_deleted: bool = False
    has_probe: bool = False
    only_looks: bool = False
    repair: Repair = Repair.NONE
    max_reboots: int = 1
    max_restarts: int = 2
    max_recreates: int = 1
    internal_retries: int = 2
    refill: timedelta = timedelta(hours=2)
    backoff: timedelta = timedelta(minutes=1)
    longest_backoff: timedelta = timedelta(minutes=15)
    timeout: timedelta | None = timedelta(minutes=30)
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True, slots=True)
class Failure:
    """A change that the service accepted and then did not carry out; `times` counts such failures in a row.

    `node_id` is that of the node it was made to, or that a creation left behind, where one was seen.
    """

    verb: Verb
    error: TpuctlError = field(compare=False)
    ago: timedelta = timedelta()
    times: int = 1
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """The API has not answered: how long, how often in a row, and how it failed last. No evidence about any node."""

    lasts: timedelta
    times: int
    error: TpuctlError = field(compare=False)


@dataclass(frozen=True, slots=True)
class Tried:
    """The repairs since the budgets were last full."""

    reboots: int = 0
    restarts: int = 0
    recreates: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the time of the next look depends on.

    `usual` are past durations of the state that the node is in, of nodes like it, sorted; `since_action` is the time since
    this run last changed something; `throttled` counts how often the API has lately refused for being asked too often;
    `jitter` is drawn anew for each look, from 0 up to 1.
    """

    usual: tuple[timedelta, ...] = ()
    since_action: timedelta | None = None
    throttled: int = 0
    jitter: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was observed, and what was done so far.

    `node` is nothing only where the API said that it is absent. `request` is the queued resource that owns it, or owned it.
    `in_state` is how long state, health and the workers' answers have been as they are, `in_health` the first two; `waited`
    is how long this run has been at it; `workers` has one entry for each worker, or none where ssh was not asked. `is_ours`
    tells that this run, or one that did not end, created or started the node; `pending` is a change that was requested and
    that has not ended; `failure` one that was not carried out; `refused_stop` the service's words. `was_there` tells that
    this run saw a node, `last_alive` the last time that one was seen that was not on its way out by our doing, and
    `has_vanished` that it went without our doing. `since_repair` is the time since the last repair had its effect. `held_by`
    is whoever else repairs this node now. `silence` is set while the API does not answer: then all else is old.
    """

    name: NodeName
    node: Node | None
    request: QueuedResource | None = None
    differences: tuple[Difference, ...] = ()
    in_state: timedelta = timedelta()
    in_health: timedelta = timedelta()
    waited: timedelta = timedelta()
    workers: tuple[WorkerSeen, ...] = ()
    is_ours: bool = False
    tried: Tried = field(default_factory=Tried)
    since_repair: timedelta | None = None
    was_there: bool = False
    has_vanished: bool = False
    last_alive: datetime | None = None
    refused_stop: str | None = None
    pending: Verb | None = None
    failure: Failure | None = None
    held_by: str | None = None
    silence: Silence | None = None
    pace: Pace = field(default_factory=Pace)
