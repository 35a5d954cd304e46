"""The plan of a simulation: plain values, which the oracle reads without the code that it judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

PROJECT = "sandbox"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How long a fault may last before a repair is allowed."""

    unhealthy: timedelta = timedelta(minutes=5)
    unanswered: timedelta = timedelta(minutes=10)
    stuck: timedelta = timedelta(minutes=15)
    recheck: timedelta = timedelta(minutes=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGoal:
    """The goal of a run, and the changes allowed for it. `command` is up, wait or watch; `timeout` None: no deadline."""

    command: str = "up"
    condition: str = "ssh"
    repair: str = "restart"
    max_reboots: int = 1
    max_restarts: int = 2
    max_recreates: int = 1
    forced: bool = False
    replace: bool = False
    patient: bool = False
    recreate_deleted: bool = False
    has_spec: bool = True
    timeout: timedelta | None = timedelta(minutes=30)
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def may_change(self) -> bool:
        return self.command != "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """The initial state of a node, how long it `lasts` (None: for ever), and the state after it."""

    state: str
    health: str = ""
    lasts: timedelta | None = None
    then: str = "READY"
    age: timedelta = timedelta(hours=1)
    differs: bool = False
    in_use: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault:
    """A fault of one node, by the service or another client. The meaning of the fields depends on `kind`.

    `interlope` recreates a dead node just before the next call that reads it by name, such as the one before a delete.
    """

    at: timedelta
    kind: str
    word: str = ""
    lasts: timedelta | None = None
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFault:
    """A fault of calls about any node."""

    at: timedelta
    kind: str
    method: str = "*"
    status: int = 503
    times: int = 1
    lasts: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One node, from the beginning to the end of a simulation."""

    node_id: str
    zone: str
    accelerator_type: str
    workers: int
    spot: bool
    goal: RunGoal
    found: InitialState | None
    creation: timedelta
    ssh_lag: timedelta
    faults: tuple[NodeFault, ...]

    @property
    def name(self) -> str:
        return f"projects/{PROJECT}/locations/{self.zone}/nodes/{self.node_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A simulation of many nodes. `kills`: when the process dies; `dies_in_call`: in the next call, before or after it."""

    seed: int
    lives: tuple[Life, ...]
    weather: tuple[CallFault, ...] = ()
    kills: tuple[tuple[timedelta, str], ...] = ()
    login_ends: timedelta | None = None
    until: timedelta | None = None
    can_ask: bool = True
