"""What readiness is decided from, and what it decides: frozen values, no rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.errors import TpuctlError
    from tpuctl.model import Difference, Node
    from tpuctl.names import NodeName


class Goal(StrEnum):
    """Where a node is wanted. The first three are levels of usable; each includes the one before."""

    READY = "ready"
    HEALTHY = "healthy"
    SSH = "ssh"
    STOPPED = "stopped"
    GONE = "gone"

    @property
    def is_usable(self) -> bool:
        """Tell whether a node that got there can be used."""
        return self in {Goal.READY, Goal.HEALTHY, Goal.SSH}


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
class Policy:
    """What is wanted and what may be done for it. The times are tpuctl's defaults, not the service's promises.

    `timeout` nothing means no deadline. `slow_after` grows by `slow_per_worker` with each worker beyond the first.
    `forced` lets a repair touch a node that may be in use.
    """

    goal: Goal = Goal.SSH
    may_create: bool = False
    may_start: bool = False
    replace: bool = False
    forced: bool = False
    repair: Repair = Repair.NONE
    max_restarts: int = 2
    max_recreates: int = 1
    timeout: timedelta | None = timedelta(minutes=30)
    unhealthy_after: timedelta = timedelta(minutes=5)
    unanswered_after: timedelta = timedelta(minutes=10)
    slow_after: timedelta = timedelta(minutes=15)
    slow_per_worker: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was observed, and what was done so far in this run.

    `in_state` is how long the node's state, health and answers have been as they are; `waited` is how long this run has
    been at it; `answers` has one entry for each worker, or none where ssh was not asked; `is_ours` tells that this run
    created or started the node; `pending` is a change that this run requested and that has not ended; `failure` is the error
    of such a change; `was_there` tells that this run saw a node; `has_vanished` that it went without our doing.
    """

    name: NodeName
    node: Node | None
    differences: tuple[Difference, ...] = ()
    in_state: timedelta = timedelta()
    waited: timedelta = timedelta()
    answers: tuple[Answer, ...] = ()
    is_ours: bool = False
    restarts: int = 0
    recreates: int = 0
    was_there: bool = False
    refused_stop: str | None = None
    has_vanished: bool = False
    pending: Verb | None = None
    failure: TpuctlError | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Reached:
    """The node is where it is wanted. `note` says what should be known about it."""

    note: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after `delay`."""

    delay: timedelta
    reason: str


@dataclass(frozen=True, slots=True)
class Create:
    """Create the node from its spec."""

    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """Start the stopped node."""

    reason: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Stop the node; once it is stopped, the next decision is to start it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reboot:
    """Reboot every worker from inside."""

    reason: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the node whose id was just seen; once it is gone, the next decision is to create it."""

    reason: str
    node_id: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop trying; the error says why and what can be done."""

    error: TpuctlError


Decision = Reached | Wait | Create | Start | Restart | Reboot | Delete | GiveUp
