"""Draw plans at random: goal, initial state and faults. The same seed gives the same plan."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from tests.nodes.simulation.plan import CallFault, InitialState, Life, NodeFault, Plan, RunGoal, Thresholds

_ZONE = "us-central2-b"
_SECOND = timedelta(seconds=1)
_QUICK = Thresholds(
    unhealthy=timedelta(minutes=1),
    unanswered=timedelta(minutes=2),
    stuck=timedelta(minutes=3),
    recheck=timedelta(minutes=1),
)
_METHODS = ("*", "*.nodes.list", "*.nodes.get", "*.nodes.create", "*.nodes.delete", "*.nodes.stop", "*.nodes.start")
_DEFECTS = ("TIMEOUT", "UNHEALTHY_TENSORFLOW")
# Most nodes work; the others are in each known state, and in a new one.
_STATES = (
    *("READY",) * 12,
    *("CREATING", "STOPPED", "STOPPED", "PREEMPTED", "TERMINATED", "STARTING", "STARTING", "DELETING"),
    *("REPAIRING", "RESTARTING", "STOPPING", "UNKNOWN", "HIDDEN", "MELTING"),
)
_KINDS = (
    *("hang", "hang", "sick", "sick", "sick-after", "silent", "silent", "fails", "fails", "quota", "maintenance"),
    *("delete", "recreate", "interlope", "stop", "preempt", "preempt", "state"),
)


def draw(seed: int, *, lives: int = 10) -> Plan:
    """Return a plan: of `up` and `wait`, or of `watch`."""
    random = Random(seed)  # noqa: S311  # keeps no secret
    is_watch = random.random() < 0.3
    until = _between(random, 12, 25) if is_watch else None
    drawn = tuple(_life(random, number, is_watch=is_watch) for number in range(lives))
    span = 12.0
    kills = tuple(
        (_between(random, 0.1, span), random.choice(("asleep", "asleep", "before", "after")))
        for _ in range(random.choice((0, 0, 0, 1, 2)))
    )
    return Plan(
        seed=seed,
        lives=drawn,
        weather=_weather(random, span),
        kills=kills,
        login_ends=_between(random, 0.5, span) if random.random() < 0.06 else None,
        until=until,
        can_ask=random.random() < 0.85,
    )


def _between(random: Random, first: float, last: float) -> timedelta:
    """Return a time drawn between two numbers of minutes, to the millisecond."""
    return timedelta(milliseconds=round(random.uniform(first, last) * 60_000))


def _weather(random: Random, span: float) -> tuple[CallFault, ...]:
    if random.random() < 0.4:
        return ()
    return tuple(_spell(random, _between(random, 0, span)) for _ in range(random.randint(1, 6)))


def _spell(random: Random, at: timedelta) -> CallFault:
    kind = random.choice(("http-error", "http-error", "drop-before", "drop-after", "slow", "unreachable"))
    method = "*" if kind == "unreachable" else random.choice(_METHODS)
    lasts = _between(random, 0.2, 4) if kind == "unreachable" else _between(random, 0.1, 1)
    status = random.choice((429, 500, 503))
    return CallFault(at=at, kind=kind, method=method, status=status, times=random.choice((1, 1, 2, 6)), lasts=lasts)


def _life(random: Random, number: int, *, is_watch: bool) -> Life:
    is_slice, spot = random.random() < 0.25, random.random() < 0.35
    goal = _watching(random) if is_watch else _asking(random)
    found = _found(random, goal) if random.random() < (0.85 if is_watch or not goal.has_spec else 0.5) else None
    return Life(
        node_id=f"n{number}",
        zone=_ZONE,
        accelerator_type="v4-16" if is_slice else "v4-8",
        workers=2 if is_slice else 1,
        spot=spot,
        goal=goal,
        found=found,
        creation=_creation(random),
        ssh_lag=_between(random, 0, 0.7),
        faults=_node_faults(random, spot=spot),
    )


def _creation(random: Random) -> timedelta:
    """Return 20 s to 20 min, most of them short."""
    seconds: float = 20 * 60 ** (random.random() ** 3)
    return _SECOND * round(seconds, 3)


def _asking(random: Random) -> RunGoal:
    command = "wait" if random.random() < 0.15 else "up"
    return RunGoal(
        command=command,
        condition=random.choice(("ready", "healthy", "ssh", "ssh", "ssh")),
        repair="none" if command == "wait" else _repair(random),
        max_reboots=_budget(random),
        max_restarts=_budget(random),
        max_recreates=_budget(random),
        forced=random.random() < 0.2,
        replace=command == "up" and random.random() < 0.2,
        patient=random.random() < 0.3,
        recreate_deleted=random.random() < 0.1,
        has_spec=random.random() < 0.85,
        timeout=timedelta(minutes=random.choice((10,) * 8 + (12, 15, 20, 30, 60, 120))),
        thresholds=random.choice((_QUICK,) * 5 + (Thresholds(),)),
    )


def _watching(random: Random) -> RunGoal:
    return RunGoal(
        command="watch",
        condition=random.choice(("healthy", "ssh", "ssh")),
        repair=_repair(random),
        max_reboots=_budget(random),
        max_restarts=_budget(random),
        max_recreates=_budget(random),
        forced=random.random() < 0.3,
        patient=True,
        recreate_deleted=random.random() < 0.3,
        has_spec=random.random() < 0.6,
        timeout=None,
        thresholds=random.choice((_QUICK,) * 5 + (Thresholds(),)),
    )


def _repair(random: Random) -> str:
    return random.choice(("none", "reboot", "restart", "restart", "recreate", "recreate", "recreate"))


def _budget(random: Random) -> int:
    return random.choice((0, 1, 1, 2))


def _found(random: Random, goal: RunGoal) -> InitialState:
    state = random.choice(_STATES)
    health, lasts, then = "", _between(random, 0.2, 6), "READY"
    if state == "READY":
        health = random.choice(("HEALTHY",) * 6 + ("", "UNHEALTHY_MAINTENANCE", "SICK", *_DEFECTS))
    steady = state in {"STOPPED", "PREEMPTED", "TERMINATED", "UNKNOWN", "HIDDEN", "READY"}
    if state in {"DELETING", "STOPPING"}:
        then = {"DELETING": "GONE", "STOPPING": "STOPPED"}[state]
    for_ever = random.random() < 0.3 and state not in {"CREATING", "DELETING", "STOPPING"}
    is_well_soon = state == "READY" and health != "HEALTHY" and random.random() < 0.3
    return InitialState(
        state=state,
        health=health,
        lasts=None if (steady or for_ever) and not is_well_soon else lasts,
        then=then,
        age=_between(random, 1, 60),
        differs=random.random() < 0.12 and goal.has_spec,
        in_use=random.random() < 0.2,
    )


def _node_faults(random: Random, *, spot: bool) -> tuple[NodeFault, ...]:
    if random.random() < 0.35:
        return ()
    drawn = (_node_fault(random, spot=spot) for _ in range(random.choice((1, 1, 1, 2, 3))))
    struck = sorted(drawn, key=lambda fault: fault.at)
    if any(fault.kind == "preempt" for fault in struck) and random.random() < 0.3:
        struck.insert(0, NodeFault(at=timedelta(), kind="interlope", word=random.choice(("READY", "CREATING"))))
    return tuple(struck)


def _node_fault(random: Random, *, spot: bool) -> NodeFault:
    at, lasts = _between(random, 0, 12), random.choice((None, _between(random, 0.5, 12)))
    kind = random.choice(_KINDS)
    word, times = "", 1
    match kind:
        case "hang":
            at, word = timedelta(), random.choice(("CREATING", "STARTING", "STOPPING", "DELETING"))
        case "sick" | "sick-after":
            word = random.choice((*_DEFECTS, *_DEFECTS, "UNHEALTHY_MAINTENANCE"))
            at = timedelta() if kind == "sick-after" else at
            times = random.choice((1, 1, 2, 5))
        case "fails":
            word = random.choice(("create", "create", "start")) + random.choice((" 8", " 8", " 13", " 13", " 3"))
            at, times = timedelta(), random.choice((1, 2, 4))
        case "quota":
            at, times = timedelta(), random.choice((1, 2))
        case "maintenance":
            lasts = _between(random, 2, 10)
        case "recreate" | "interlope":
            word = random.choice(("READY", "CREATING"))
        case "preempt":
            word = "PREEMPTED" if spot and random.random() < 0.8 else "TERMINATED"
        case "state":
            word = random.choice(("REPAIRING", "REPAIRING", "RESTARTING", "UNKNOWN", "HIDDEN", "MELTING"))
    return NodeFault(at=at, kind=kind, word=word, lasts=lasts, times=times)
