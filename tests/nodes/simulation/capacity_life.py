"""The plan of a life that looks for capacity: one node, its zones and tiers, the commands about it, and what disturbs them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from random import Random

ZONES = ("us-east5-b", "europe-west4-a", "us-east1-d")
NODE, TYPE, VERSION = "trainer", "v6e-8", "v2-alpha-tpuv6e"
_TIERS = (("spot",), ("on-demand",), ("spot", "on-demand"))
_CALL_FAULTS = ("http-error", "http-error", "drop-before", "drop-after", "drop-after", "slow")
_REQUEST_FAULTS = (
    "suspend",
    "suspend",
    "late-node",
    "fall-back",
    "survives-delete",
    "already-exists",
    "fails",
    "quota",
)
_ACTIONS = ("delete-node", "delete-node", "delete-request", "create-node")
_METHODS = ("*.create", "*.create", "*.delete", "*.list", "*.get")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldEvent:
    """A change of the world at a time: of the stock, a fault of the sandbox, or an action of another client.

    `kind` is `stock` (`number` nodes of the tier `word`), an action of another client, or a kind of faults of the sandbox.
    """

    at: timedelta
    kind: str
    zone: str = "*"
    word: str = "*"
    number: int = 1
    lasts: timedelta | None = None
    method: str = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPlan:
    """One command: `up`, `down` or `watch`, the pause before it, and how its process ends before its work is done.

    `dies` is the number of a request, and whether the process dies `before` or `after` it is answered. `interrupted`: the
    time from the beginning after which the user interrupts it. `timeout` is the end of a watch.
    """

    command: str
    pause: timedelta
    timeout: timedelta
    dies: tuple[int, str] | None = None
    interrupted: timedelta | None = None


# The commands in a calm world, at the end of a life.
LAST_UP = CommandPlan(command="up", pause=timedelta(), timeout=timedelta(hours=3))
LAST_DOWN = CommandPlan(command="down", pause=timedelta(), timeout=timedelta(hours=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLife:
    """One node from its first request to the last `down`. `zones` are in the order in which they are tried."""

    seed: int
    zones: tuple[str, ...]
    tiers: tuple[str, ...]
    is_queued: bool
    queue_for: timedelta | None
    start_after: timedelta | None
    recreate_deleted: bool
    events: tuple[WorldEvent, ...]
    commands: tuple[CommandPlan, ...]

    @property
    def calm_from(self) -> timedelta:
        """When the last event has happened."""
        return max((event.at for event in self.events), default=timedelta())


def draw_capacity_life(seed: int) -> CapacityLife:
    """Return the plan of a life. The same seed gives the same plan."""
    random = Random(f"capacity {seed}")  # noqa: S311  # keeps no secret
    zones = tuple(random.sample(ZONES, random.choice((1, 2, 2, 3))))
    is_queued = random.random() < 0.6
    # Several tiers need several zones.
    tiers = random.choice(_TIERS if len(zones) > 1 else _TIERS[:2])
    commands = tuple(_draw_command(random, is_first=number == 0) for number in range(random.choice((1, 2, 2, 3))))
    is_watched = random.random() < 0.25
    if is_watched:
        commands = (CommandPlan(command="up", pause=timedelta(), timeout=_minutes(random, 10, 15)), *commands[1:2])
        commands += (CommandPlan(command="watch", pause=timedelta(), timeout=_minutes(random, 30, 40)),)
    return CapacityLife(
        seed=seed,
        zones=zones,
        tiers=tiers,
        is_queued=is_queued,
        queue_for=_minutes(random, 5, 12) if is_queued and random.random() < 0.3 else None,
        start_after=_minutes(random, 0.5, 2.9) if is_queued and random.random() < 0.15 else None,
        recreate_deleted=random.random() < 0.3,
        events=_draw_events(random, zones, tiers, is_watched=is_watched),
        commands=commands,
    )


def _draw_command(random: Random, *, is_first: bool) -> CommandPlan:
    """Draw a command whose process often dies."""
    end = random.random()
    dies = (
        random.randint(1, 14) if random.random() < 0.7 else random.randint(10, 60),
        random.choice(("before", "after")),
    )
    return CommandPlan(
        command="up" if is_first or random.random() < 0.75 else "down",
        pause=_minutes(random, 0, 2) if random.random() < 0.8 else _minutes(random, 2, 8),
        timeout=_minutes(random, 5, 14),
        dies=dies if end < 0.5 else None,
        interrupted=_minutes(random, 0, 10) if end > 0.85 else None,
    )


def _draw_events(
    random: Random, zones: tuple[str, ...], tiers: tuple[str, ...], *, is_watched: bool
) -> tuple[WorldEvent, ...]:
    events = []
    if random.random() < 0.75:
        # Most zones begin without capacity, and stock comes and goes.
        for zone, tier in product(zones, tiers):
            if random.random() < 0.7:
                events.append(WorldEvent(at=timedelta(), kind="stock", zone=zone, word=tier, number=0))
        for _ in range(random.randint(0, 3)):
            number = random.choice((0, 1, 1))
            at, tier = _minutes(random, 0.5, 14), random.choice(tiers)
            events.append(WorldEvent(at=at, kind="stock", zone=random.choice(zones), word=tier, number=number))
    for kinds, chance in ((_CALL_FAULTS, 0.4), (_REQUEST_FAULTS, 0.45), (_ACTIONS, 0.3)):
        while random.random() < chance:
            events.append(_draw_disturbance(random, random.choice(kinds), random.choice((*zones, "*"))))
    if is_watched:
        # A watch has no deadline: there is capacity at its end.
        for zone, tier in product(zones, tiers):
            events.append(WorldEvent(at=_minutes(random, 14, 18), kind="stock", zone=zone, word=tier, number=5))
    if random.random() < 0.06:
        lasts = _minutes(random, 0.5, 6)
        zone = random.choice(zones)
        events.append(WorldEvent(at=_minutes(random, 0, 12), kind="unreachable", zone=zone, number=0, lasts=lasts))
    return tuple(sorted(events, key=lambda event: event.at))


def _draw_disturbance(random: Random, kind: str, zone: str) -> WorldEvent:
    at = timedelta() if random.random() < 0.4 else _minutes(random, 0, 14)
    word, method, lasts = "*", "*", _minutes(random, 0.2, 4)
    number = random.choice((1, 1, 1, 2, 3))
    match kind:
        case "http-error":
            word, method = random.choice(("429", "500", "503")), random.choice(_METHODS)
        case "drop-before" | "drop-after" | "slow":
            method, lasts = random.choice(_METHODS), _minutes(random, 0.1, 1)
        case "suspend":
            word = random.choice(("SERVICE", "SERVICE", "SERVICE", "USER"))
        case "fails":
            word, method = random.choice(("8", "8", "13")), "*.create"
        case "create-node":
            word = random.choice(("spot", "on-demand"))
    if kind in _ACTIONS or kind in {"suspend", "already-exists", "quota"}:
        number = 1
    return WorldEvent(at=at, kind=kind, zone=zone, word=word, number=number, lasts=lasts, method=method)


def _minutes(random: Random, first: float, last: float) -> timedelta:
    """Return a time drawn between two numbers of minutes, to the millisecond."""
    return timedelta(milliseconds=round(random.uniform(first, last) * 60_000))
