"""Run the commands of a life that looks for capacity with the real client and loop, as `up`, `down` and `watch` do.

After the planned commands the world becomes calm: the last `up` must succeed, and the last `down` must leave nothing behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

from tests.nodes.race_bench import AnsweringWorkers
from tests.nodes.simulation.capacity_life import LAST_DOWN, LAST_UP, NODE, TYPE, VERSION, CapacityLife, CommandPlan
from tests.nodes.simulation.capacity_world import CapacityWorld, ResourceKey, open_world
from tests.nodes.simulation.clock import Killed, SimulatedClock
from tests.nodes.simulation.plan import PROJECT
from tests.nodes.simulation.stand_ins import FreeLeases, MemoryStore
from tpuctl.cloud.tpu import TpuClient
from tpuctl.errors import NodeNotInProjectError, TpuctlError
from tpuctl.models.events import NodeEvent
from tpuctl.models.node import Tier
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName, NodeReference
from tpuctl.nodes.actions import bring_up_nodes
from tpuctl.nodes.actuator import ActionContext
from tpuctl.nodes.conditions import Policy, Repair
from tpuctl.nodes.controller import NodeResult, watch_nodes
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.group_lookup import check_whole_request, find_group
from tpuctl.nodes.journal import Journal
from tpuctl.nodes.lookup import SearchPlace, find_node, search_requested_name
from tpuctl.nodes.tear_down import end_creations, tear_down
from tpuctl.nodes.zone_order import Offer
from tpuctl.nodes.zone_search import bring_up_somewhere, spec_of_attempt

_REFERENCE, _PLACE = NodeReference(NODE), SearchPlace(PROJECT)
# What is left of a life would show within this time.
_AFTERMATH = timedelta(hours=2)
_MOST_LAST_COMMANDS = 8


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A command that was run: `code` is its exit code, None if its process was killed or interrupted."""

    plan: CommandPlan
    begun: datetime
    ended: datetime
    code: int | None
    words: str
    # The states of all resources at its end.
    left: dict[ResourceKey, str]


@dataclass(frozen=True, slots=True)
class CapacityHistory:
    """A life with all that happened. `results` end with the last `up` and the last `down`."""

    life: CapacityLife
    world: CapacityWorld
    results: list[CommandResult]
    calm_since: datetime
    # What counts against quotas after the last `down`, and all resources long after it.
    usage: int
    aftermath: dict[ResourceKey, str]
    events: list[NodeEvent]


def live_capacity(life: CapacityLife) -> CapacityHistory:
    """Run all commands of a life, then the last `up` and `down` in a calm world."""
    with open_world(life) as (world, clock):
        return _CapacityRun(life, world, clock).live()


class _CapacityRun:
    """The processes of one life; only the journal outlives each of them."""

    def __init__(self, life: CapacityLife, world: CapacityWorld, clock: SimulatedClock) -> None:
        self._life, self._world, self._clock = life, world, clock
        self._store = MemoryStore()
        self._events: list[NodeEvent] = []

    def live(self) -> CapacityHistory:
        """Run the planned commands, then the last ones."""
        results = [self._run(plan) for plan in self._life.commands]
        self._clock.sleep(timedelta(minutes=1))
        self._world.settle()
        calm_since = self._clock.now()
        results.append(self._run(LAST_UP))
        for _ in range(_MOST_LAST_COMMANDS):
            if results[-1].code == 0 or not self._may_succeed_now(results):
                break
            results.append(self._run(LAST_UP))
        results.append(self._run(LAST_DOWN))
        usage = self._world.usage()
        self._clock.sleep(_AFTERMATH)
        return CapacityHistory(self._life, self._world, results, calm_since, usage, self._world.states(), self._events)

    def _may_succeed_now(self, results: list[CommandResult]) -> bool:
        """Return whether the last `up` may be tried again: what it met was left from before the world was calm.

        The other client deletes its node, and the user the request that a user suspended, and a node that a watch has made
        like that of the other client. A creation that was under way may
        have failed.
        """
        states = self._world.states()
        if any(key in self._world.foreign for key in states):
            self._world.remove_foreign()
            self._clock.sleep(timedelta(minutes=3))
            return True
        if any(key.kind == "queuedResources" and state == "SUSPENDED" for key, state in states.items()):
            results.append(self._run(LAST_DOWN))
            return True
        if self._world.foreign and "differs from the requested spec" in results[-1].words:
            # A watch has recreated the other client's node, as it was.
            results.append(self._run(LAST_DOWN))
            return True
        planned = len(self._life.commands)
        return len(results) == planned + 1 and bool(results[planned - 1].left)

    def _run(self, plan: CommandPlan) -> CommandResult:
        world, clock = self._world, self._clock
        clock.sleep(plan.pause)
        begun = clock.now()
        world.begin(plan)
        code: int | None = 0
        words = ""
        try:
            words = {"up": self._up, "down": self._down, "watch": self._watch}[plan.command](plan)
        except TpuctlError as error:
            code, words = int(error.exit_code), " ".join(map(str.strip, error.lines))
        except (Killed, KeyboardInterrupt) as end:
            code, words = None, type(end).__name__
        world.end()
        return CommandResult(plan, begun, clock.now(), code, words, world.states())

    def _context(self) -> ActionContext:
        run = self._world.run
        random = Random(self._life.seed * 1000 + run)  # noqa: S311  # keeps no secret
        cloud = TpuClient(lambda: self._world, self._clock, random=random)
        return ActionContext(
            cloud=cloud,
            clock=self._clock,
            journal=Journal(self._store, writer=f"run {run}"),
            workers=AnsweringWorkers(),
            leases=FreeLeases(),
            emit=self._events.append,
            server_now=lambda: cloud.server_time or self._clock.now(),
            random=random,
        )

    def _up(self, plan: CommandPlan) -> str:
        life, context = self._life, self._context()
        tiers = tuple(map(Tier, life.tiers))
        spec = NodeSpec(
            accelerator_type=TYPE,
            runtime_version=VERSION,
            tier=tiers[0],
            queue=life.is_queued,
            named=frozenset({"accelerator_type", "runtime_version", "tier"}),
        )
        policy = Policy(
            may_create=True,
            may_start=True,
            repair=Repair.RESTART,
            timeout=plan.timeout,
            queue_for=life.queue_for,
            start_after=context.clock.now() + life.start_after if life.start_after else None,
        )
        first = NodeName(PROJECT, life.zones[0], NODE)
        task = Goal(name=first, policy=policy, spec=spec, purpose="up", since=context.clock.monotonic())
        if len(life.zones) == 1:
            (result,) = bring_up_nodes(context, [task])
            if isinstance(result, TpuctlError):
                raise result
            return _described(result)
        offers = [Offer(zone, tier if len(tiers) > 1 else None) for tier in tiers for zone in life.zones]
        found = search_requested_name(context.cloud, PROJECT, _REFERENCE, ())
        if found is not None:
            node = context.cloud.find_node(found)
            wanted = spec_of_attempt(context.cloud, found, spec, node=node, tiers=tiers)
            task = replace(task, name=found, spec=wanted)
        is_begun = found is not None
        (result,) = bring_up_somewhere(
            context, lambda: offers, [task], spec, is_begun=is_begun, announce=lambda _: None
        )
        assert not isinstance(result, TpuctlError)
        return _described(result)

    def _down(self, plan: CommandPlan) -> str:
        context = self._context()
        target = find_group(context, _PLACE, _REFERENCE)
        if target is None and end_creations(context, _PLACE, (), [_REFERENCE], by="down"):
            target = find_group(context, _PLACE, _REFERENCE)
        if target is None:
            return "already gone"
        check_whole_request(target, all_nodes=False)
        (outcome,) = tear_down(context, [target], by="down", timeout=plan.timeout)
        if isinstance(outcome, TpuctlError):
            raise outcome
        return "gone"

    def _watch(self, plan: CommandPlan) -> str:
        context = self._context()
        found = find_node(context.cloud, _PLACE, _REFERENCE)
        requested = None if found else search_requested_name(context.cloud, PROJECT, _REFERENCE, ())
        name = found.name if found else requested
        known = context.journal.names()
        if name is None and len(known) != 1:
            raise NodeNotInProjectError(NODE, PROJECT)
        policy = Policy(
            may_create=True,
            may_start=True,
            repair=Repair.RESTART,
            watches=True,
            retries_without_capacity=True,
            recreate_deleted=self._life.recreate_deleted,
            timeout=None,
        )
        task = Goal(name=name or known[0], policy=policy, purpose="watch", is_queued=requested is not None)
        errors = watch_nodes(context, [task], until=plan.timeout, each_round=lambda _: None)
        if errors:
            raise errors[0]
        return "watched until the end"


def _described(result: NodeResult) -> str:
    return f"usable: {result.node.id if result.node else None}"
