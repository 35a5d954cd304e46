"""The conditions and observed states of nodes, as frozen values without rules."""

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
    """The goal for a node. The first five are levels of usability; each includes the ones before."""

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
        """Return whether a node in this condition can be used."""
        return self in LEVELS

    def includes(self, level: Goal) -> bool:
        """Return whether reaching this level requires the other."""
        return self.is_usable and LEVELS.index(level) <= LEVELS.index(self)


LEVELS = (Goal.READY, Goal.HEALTHY, Goal.SSH, Goal.STARTUP, Goal.DEVICES)


class Repair(StrEnum):
    """The most disruptive repair that is allowed; each includes the ones before."""

    NONE = "none"
    REBOOT = "reboot"
    RESTART = "restart"
    RECREATE = "recreate"

    def allows(self, step: Repair) -> bool:
        """Return whether a repair step is allowed."""
        ladder = list(Repair)
        return ladder.index(step) <= ladder.index(self)


class Answer(StrEnum):
    """How a worker answered ssh."""

    YES = "answers"
    KEY_REFUSED = "refuses the key"
    HOST_KEY_CHANGED = "has another host key"
    UNREACHABLE = "does not answer"


class Startup(StrEnum):
    """The state of a worker's startup script and cloud-init."""

    UNKNOWN = "unknown"  # the worker has no record of it; counts as ended
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # ended with an error

    @property
    def has_ended(self) -> bool:
        """Return whether the startup is no longer running."""
        return self is not Startup.RUNNING


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """The observed state of one worker. A field is None if it was not requested or could not be determined."""

    answer: Answer
    startup: Startup | None = None
    # The number of device files of TPU chips.
    chips: int | None = None
    # Why the user's probe did not pass.
    failed: str | None = None
    # Processes that hold the TPU, such as `1234 python3`.
    holders: tuple[str, ...] = ()
    # The message of ssh, or another explanation.
    detail: str = field(default="", compare=False)


class Verb(StrEnum):
    """The kind of a change or of a step of a plan."""

    CREATE = "create"
    DELETE = "delete"
    START = "start"
    STOP = "stop"
    REBOOT = "reboot"
    UPDATE = "update"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """How long a condition may last before it counts as stuck. These are tpuctl's defaults; the service promises none."""

    unhealthy: timedelta = timedelta(minutes=5)
    unanswered: timedelta = timedelta(minutes=10)
    devices: timedelta = timedelta(minutes=5)
    starting: timedelta = timedelta(minutes=15)
    restarting: timedelta = timedelta(minutes=15)
    repairing: timedelta = timedelta(minutes=30)
    # How long a repair has to take effect.
    recheck: timedelta = timedelta(minutes=3)
    # Added to each threshold for every worker beyond the first.
    per_worker: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The goal, and what may be done to reach it."""

    goal: Goal = Goal.SSH
    may_create: bool = False
    may_start: bool = False
    # Delete and recreate a node that differs from its spec.
    replace: bool = False
    # The run keeps the node usable: it repairs the node unless a process holds its TPU or that is unknown.
    is_keeper: bool = False
    # Repair the node even if it may be in use.
    forced: bool = False
    # Retry while there is no capacity or quota, with pauses that double from `backoff` to `longest_backoff`.
    is_patient: bool = False
    # Create the node again after another client deleted it.
    recreate_deleted: bool = False
    # The user's probe decides whether devices work, not the number of chips.
    has_probe: bool = False
    # Only wait for changes of others: a defect does not end the wait.
    only_looks: bool = False
    repair: Repair = Repair.NONE
    max_reboots: int = 1
    max_restarts: int = 2
    max_recreates: int = 1
    # Retries of a creation that failed with an internal error of the service.
    internal_retries: int = 2
    # The repair budgets (`max_...`) are full again after the node was usable for this long.
    refill: timedelta = timedelta(hours=2)
    backoff: timedelta = timedelta(minutes=1)
    longest_backoff: timedelta = timedelta(minutes=15)
    # None: no deadline.
    timeout: timedelta | None = timedelta(minutes=30)
    thresholds: Thresholds = field(default_factory=Thresholds)


@dataclass(frozen=True, slots=True)
class Failure:
    """A change that the service accepted and then did not carry out."""

    verb: Verb
    error: TpuctlError = field(compare=False)
    ago: timedelta = timedelta()
    # Failures of this verb in a row.
    times: int = 1
    # The node that was changed, or that a failed creation left behind.
    node_id: str | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which the API does not answer. It is no evidence about any node."""

    lasts: timedelta
    # Failed calls in a row, and the error of the last.
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
    """The facts that determine the delay until the next poll."""

    # Past durations of the node's current state, from similar nodes, sorted.
    usual: tuple[timedelta, ...] = ()
    # The time since this run last sent a change.
    since_action: timedelta | None = None
    # How often the API has recently refused a call because of its rate limit.
    throttled: int = 0
    # Random, from 0 up to 1.
    jitter: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The observed state of a node, and what this run has done so far."""

    name: NodeName
    # None only after a 404 from the API.
    node: Node | None
    # The queued resource that owns, or owned, the node.
    request: QueuedResource | None = None
    # How the node differs from its spec.
    differences: tuple[Difference, ...] = ()
    # How long state, health and worker answers have been unchanged.
    in_state: timedelta = timedelta()
    # How long state and health have been unchanged.
    in_health: timedelta = timedelta()
    # How long this run has worked on the node.
    waited: timedelta = timedelta()
    # One entry for each worker; empty if no worker was probed.
    workers: tuple[WorkerSeen, ...] = ()
    # This run, or an earlier one that did not finish, created or started the node.
    is_ours: bool = False
    tried: Tried = field(default_factory=Tried)
    # The time since the last repair took effect.
    since_repair: timedelta | None = None
    # This run has observed a node of that name.
    was_there: bool = False
    # The node was deleted, but not by this run.
    has_vanished: bool = False
    # When the node was last observed, apart from deletions by this run.
    last_alive: datetime | None = None
    # The message of the service that refused to stop the node.
    refused_stop: str | None = None
    # A change that was requested and has not ended.
    pending: Verb | None = None
    failure: Failure | None = None
    # The other process that holds the lease.
    held_by: str | None = None
    # Set while the API does not answer: all other fields are outdated.
    outage: Silence | None = None
    pace: Pace = field(default_factory=Pace)
