"""Run a plan with the real loop and the real client, killed and restarted by the plan."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from tests.nodes.simulation import disturbances
from tests.nodes.simulation.clock import Killed, SimulatedClock
from tests.nodes.simulation.ledger import Ledger
from tests.nodes.simulation.plan import PROJECT, Life, Plan
from tests.nodes.simulation.stage import Stage
from tests.nodes.simulation.stand_ins import FreeLeases, MemoryStore, SimulatedWorkers
from tpuctl.cloud.tpu import TpuClient
from tpuctl.errors import AccessError, TpuctlError
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import Tier
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.actions import bring_up_nodes
from tpuctl.nodes.actuator import ActionContext
from tpuctl.nodes.conditions import Condition, Policy, Repair, Thresholds
from tpuctl.nodes.controller import NodeResult, watch_nodes
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.journal import Journal

_FOR_EVER = 20  # starts of a run that is killed again and again
# The kinds of errors, and their documented exit codes.
_CODES = {
    "failure": 1,
    "unavailable": 1,
    "outcome_unknown": 1,
    "invalid_request": 2,
    "not_found": 3,
    "not_allowed": 4,
    "timed_out": 5,
    "no_capacity": 6,
    "quota": 7,
    "conflict": 8,
    "already_exists": 8,
    "broken": 10,
}


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of the last run for a node: time, exit code (0: usable), and the id that it names.

    `is_over`: it was given up, or reached; else a watch went on with it until its time was up.
    """

    code: int
    at: datetime
    is_over: bool
    node_id: str | None
    words: str


@dataclass(frozen=True, slots=True)
class History:
    """A plan, its events, and its results. `begun` has the time of each start of the run."""

    plan: Plan
    ledger: Ledger
    endings: dict[str, RunResult]
    events: list[NodeEvent]
    begun: list[datetime]
    ended: datetime


def live(plan: Plan) -> History:
    """Run all nodes of a plan to their results."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-lives-", dir=_memory()) as folder:
        clock = SimulatedClock()
        stage = Stage(Path(folder), plan, clock)
        try:
            return _live(stage, clock)
        finally:
            stage.state.close()


def _live(stage: Stage, clock: SimulatedClock) -> History:
    disturbances.prepare(stage)
    store, begun = MemoryStore(), list[datetime]()
    events: list[NodeEvent] = []
    endings: dict[str, RunResult] | None = None
    while endings is None:
        begun.append(clock.now())
        stage.run, stage.is_alive = len(begun), True
        assert stage.run < _FOR_EVER
        events = []
        context = _context(stage, clock, Journal(store, writer=f"run {stage.run}"), events)
        try:
            endings = _watch(context, stage.plan) if stage.plan.until else _bring_up(context, stage.plan)
        except Killed:
            stage.is_alive = False
            clock.sleep(timedelta(seconds=30))
    for name in stage.lives:
        stage.refresh(name)
    stage.close()
    return History(stage.plan, stage.ledger, endings, events, begun, clock.now())


def _context(stage: Stage, clock: SimulatedClock, journal: Journal, events: list[NodeEvent]) -> ActionContext:
    random = Random(stage.plan.seed * 1000 + stage.run)  # noqa: S311  # keeps no secret
    cloud = TpuClient(lambda: stage, clock, random=random)
    return ActionContext(
        cloud=cloud,
        clock=clock,
        journal=journal,
        workers=SimulatedWorkers(stage),
        leases=FreeLeases(),
        emit=events.append,
        server_now=lambda: cloud.server_time or clock.now(),
        random=random,
    )


def _bring_up(context: ActionContext, plan: Plan) -> dict[str, RunResult]:
    """End as `up` and `wait` do: each node has a result or an error."""
    results = bring_up_nodes(context, [_task(life) for life in plan.lives])
    return {life.name: _ended(life, result, context) for life, result in zip(plan.lives, results, strict=True)}


def _watch(context: ActionContext, plan: Plan) -> dict[str, RunResult]:
    """End as `watch` does: some nodes were given up, the others were watched until the end."""
    until = (plan.until or timedelta()) - context.clock.monotonic()
    try:
        watch_nodes(context, [_task(life) for life in plan.lives], until=until, each_round=lambda _: None)
    except AccessError as error:
        return {life.name: _error(error, context.clock.now()) for life in plan.lives}
    return {life.name: _watched(life, context) for life in plan.lives}


def _watched(life: Life, context: ActionContext) -> RunResult:
    last = _last(life, context, {EventKind.GAVE_UP, EventKind.REACHED, EventKind.RECOVERED})
    if last is None or last.kind is not EventKind.GAVE_UP:
        return RunResult(0, context.clock.now(), is_over=False, node_id=None, words="looked after until the end")
    return RunResult(_CODES[str(last.data["error"])], last.at, is_over=True, node_id=None, words=last.text)


def _last(life: Life, context: ActionContext, kinds: set[EventKind]) -> NodeEvent | None:
    events: list[NodeEvent] = context.emit.__self__  # type: ignore[attr-defined]  # the list that gathers events
    return next(
        (event for event in reversed(events) if event.node.node_id == life.node_id and event.kind in kinds), None
    )


def _ended(life: Life, result: NodeResult | TpuctlError, context: ActionContext) -> RunResult:
    last = _last(life, context, {EventKind.REACHED, EventKind.RECOVERED, EventKind.GAVE_UP})
    assert last is not None
    if isinstance(result, TpuctlError):
        return _error(result, last.at)
    return RunResult(0, last.at, is_over=True, node_id=result.node.id if result.node else None, words="reached")


def _error(error: TpuctlError, at: datetime) -> RunResult:
    words = error.message + (f" ({error.hint})" if error.hint else "")
    return RunResult(int(error.exit_code), at, is_over=True, node_id=None, words=words)


def _task(life: Life) -> Goal:
    goal = life.goal
    tier = Tier.SPOT if life.spot else None
    named = frozenset({"accelerator_type", "runtime_version"})
    spec = NodeSpec(accelerator_type=life.accelerator_type, runtime_version=disturbances.ASKED, tier=tier, named=named)
    purpose = goal.command if goal.may_change else None
    name = NodeName(PROJECT, life.zone, life.node_id)
    return Goal(name=name, policy=_policy(life), spec=spec if goal.has_spec else None, purpose=purpose)


def _policy(life: Life) -> Policy:
    goal, limits = life.goal, life.goal.thresholds
    stuck: dict[str, Any] = dict.fromkeys(("starting", "restarting", "repairing"), limits.stuck)
    thresholds = Thresholds(unhealthy=limits.unhealthy, unanswered=limits.unanswered, recheck=limits.recheck, **stuck)
    return Policy(
        goal=Condition(goal.condition),
        may_create=goal.may_change,
        may_start=goal.may_change,
        replace=goal.replace,
        ignores_use=goal.forced,
        retries_without_capacity=goal.patient,
        watches=goal.command == "watch",
        recreate_deleted=goal.recreate_deleted,
        repair=Repair(goal.repair),
        max_reboots=goal.max_reboots,
        max_restarts=goal.max_restarts,
        max_recreates=goal.max_recreates,
        timeout=goal.timeout,
        thresholds=thresholds,
    )


def _memory() -> str | None:
    """Return a folder in memory, None without one: these files need not outlive the process."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
