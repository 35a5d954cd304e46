"""What a world is to go through: plain values, so that the oracle can read them without knowing the code that it judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

PROJECT = "sandbox"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How long something may last before it may be mended."""

    unhealthy: timedelta = timedelta(minutes=5)
    unanswered: timedelta = timedelta(minutes=10)
    stuck: timedelta = timedelta(minutes=15)
    recheck: timedelta = timedelta(minutes=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for, and what may be done for it. `command` is up, wait or watch; no `timeout`: no deadline."""

    command: str = "up"
    goal: str = "ssh"
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
class Found:
    """What is there at the beginning: a state, `lasts` before it passes (nothing: for ever), and what follows it."""

    state: str
    health: str = ""
    lasts: timedelta | None = None
    then: str = "READY"
    age: timedelta = timedelta(hours=1)
    differs: bool = False
    in_use: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """Something that the world, or somebody else, does to one node. The meaning of the words depends on `kind`.

    `interlope` makes a dead node anew just before the next call that reads it by name, such as the one before a delete.
    """

    at: timedelta
    kind: str
    word: str = ""
    lasts: timedelta | None = None
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Something that goes wrong with calls, whatever they are about."""

    at: timedelta
    kind: str
    method: str = "*"
    status: int = 503
    times: int = 1
    lasts: timedelta = timedelta()


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One node, from the beginning of a run to its end."""

    node_id: str
    zone: str
    accelerator_type: str
    workers: int
    spot: bool
    wish: Wish
    found: Found | None
    creation: timedelta
    ssh_lag: timedelta
    blows: tuple[Blow, ...]

    @property
    def name(self) -> str:
        return f"projects/{PROJECT}/locations/{self.zone}/nodes/{self.node_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A world with many lives. `kills`: when the process dies; `dies_in_call`: in the next call, before or after its effect."""

    seed: int
    lives: tuple[Life, ...]
    weather: tuple[Weather, ...] = ()
    kills: tuple[tuple[timedelta, str], ...] = ()
    login_ends: timedelta | None = None
    until: timedelta | None = None
    can_ask: bool = True
