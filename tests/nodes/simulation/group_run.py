"""Run the commands of a life that brings a group of slices up, in the world of a life that looks for capacity.

After the planned commands, of which many are killed, the world becomes calm: the last `up` must bring all slices up, and the
last `down` must leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from random import Random

from tests.nodes.race_bench import AnsweringWorkers
from tests.nodes.simulation.capacity_life import (
    LAST_DOWN,
    LAST_UP,
    NODE,
    TYPE,
    VERSION,
    CapacityLife,
    CommandPlan,
    draw_capacity_life,
)
from tests.nodes.simulation.capacity_world import CapacityWorld, moments, open_world
from tests.nodes.simulation.clock import Killed, SimulatedClock
from tests.nodes.simulation.plan import PROJECT
from tests.nodes.simulation.stand_ins import FreeLeases, MemoryStore
from tpuctl.cloud.tpu import TpuClient
from tpuctl.errors import TpuctlError
from tpuctl.models.node import Tier
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName, NodeReference, slice_ids
from tpuctl.nodes.actuator import ActionContext
from tpuctl.nodes.conditions import Policy, Repair
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.group_lookup import find_group
from tpuctl.nodes.journal import Journal
from tpuctl.nodes.lookup import SearchPlace
from tpuctl.nodes.resource_group import distinct_groups
from tpuctl.nodes.slices import as_slice, bring_up_slices, find_slices
from tpuctl.nodes.tear_down import tear_down
from tpuctl.nodes.zone_order import Offer
from tpuctl.nodes.zone_search import bring_up_somewhere

_SLICES = 3
_IDS = slice_ids(NODE, _SLICES)
_MOST_LAST_COMMANDS = 4
_ALL_READY = ["READY"] * _SLICES


def judge_group(seed: int) -> Iterator[str]:
    """Live a life and yield what went wrong."""
    life = draw_capacity_life(seed)
    # Another client creates no slice; a watch is judged elsewhere.
    life = replace(
        life,
        events=tuple(event for event in life.events if event.kind != "create-node"),
        commands=tuple(replace(plan, command="down" if plan.command == "down" else "up") for plan in life.commands),
    )
    with open_world(life) as (world, clock):
        for fault in _GroupRun(life, world, clock).live():
            yield f"seed {seed}: {fault}"


class _GroupRun:
    """The processes of one life; only the journal outlives each of them."""

    def __init__(self, life: CapacityLife, world: CapacityWorld, clock: SimulatedClock) -> None:
        self._life, self._world, self._clock = life, world, clock
        self._store = MemoryStore()

    def live(self) -> Iterator[str]:
        """Run all commands and yield what went wrong."""
        is_own = True  # since nothing existed no process was killed, and none said that something is left
        for plan in self._life.commands:
            is_empty = not self._world.states()
            code, words = self._run(plan)
            is_own = (is_own or is_empty) and code is not None
            yield from self._judge(plan, code, words, is_own=is_own)
            is_own = is_own and not _says_more(words)
        self._clock.sleep(timedelta(minutes=1))
        self._world.settle()
        for _ in range(_MOST_LAST_COMMANDS):
            code, words = self._run(LAST_UP)
            if code == 0:
                break
            self._run(LAST_DOWN)
        if code != 0:
            yield f"the last up ended with {code}: {words}"
        yield from self._judge(LAST_UP, code, words, is_own=False)
        code, words = self._run(LAST_DOWN)
        self._clock.sleep(timedelta(hours=2))
        if code != 0 or self._world.states() or self._world.usage():
            yield f"the last down ended with {code} ({words}), and left {self._world.states()}"
        for at, states in moments(self._world.snapshots):
            living = [key for key, state in states.items() if key.kind == "nodes" and state != "DELETING"]
            if len(living) != len({key.resource_id for key in living}):
                yield f"a slice existed twice at {at}: {living}"

    def _judge(self, plan: CommandPlan, code: int | None, words: str, *, is_own: bool) -> Iterator[str]:
        left = self._world.states()
        nodes = {key: state for key, state in left.items() if key.kind == "nodes"}
        zones = {key.zone for key in nodes}
        if plan.command == "up" and code == 0 and (list(nodes.values()) != _ALL_READY or len(zones) != 1):
            yield f"up succeeded, and left {left}"
        if plan.command == "up" and code not in {0, None} and is_own and left and not _says_more(words):
            yield f"up ended with {code} ({words}), and left {left}"

    def _run(self, plan: CommandPlan) -> tuple[int | None, str]:
        """Run a command. Return its exit code, None if its process was killed or interrupted, and what it said."""
        self._clock.sleep(plan.pause)
        self._world.begin(plan)
        try:
            if plan.command == "up":
                self._up(plan)
            else:
                self._down(plan)
        except TpuctlError as error:
            return int(error.exit_code), " ".join((*map(str.strip, error.lines), error.hint or ""))
        except (Killed, KeyboardInterrupt) as end:
            return None, type(end).__name__
        finally:
            self._world.end()
        return 0, ""

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
            emit=lambda _: None,
            server_now=lambda: cloud.server_time or self._clock.now(),
            random=random,
        )

    def _up(self, plan: CommandPlan) -> None:
        life, context = self._life, self._context()
        spec = NodeSpec(
            accelerator_type=TYPE,
            runtime_version=VERSION,
            tier=Tier(life.tiers[0]),
            queue=life.is_queued,
            named=frozenset({"accelerator_type", "runtime_version", "tier"}),
        )
        spec = as_slice(spec, NODE, _SLICES)
        policy = Policy(
            may_create=True, may_start=True, repair=Repair.RESTART, timeout=plan.timeout, queue_for=life.queue_for
        )
        found = find_slices(
            NODE,
            _IDS,
            context.cloud.list_nodes(PROJECT),
            context.cloud.list_queued_resources(PROJECT),
            zones=life.zones,
        )
        zone = found.zone or life.zones[0]
        is_begun = found.zone is not None
        since = context.clock.monotonic()
        goals = [
            Goal(name=NodeName(PROJECT, zone, node_id), policy=policy, spec=spec, purpose="up", since=since)
            for node_id in _IDS
        ]
        if len(life.zones) == 1:
            results = bring_up_slices(context, goals)
        else:
            offers = [Offer(zone) for zone in life.zones]
            results = bring_up_somewhere(
                context, lambda: offers, goals, spec, is_begun=is_begun, announce=lambda _: None
            )
        for result in results:
            if isinstance(result, TpuctlError):
                raise result

    def _down(self, plan: CommandPlan) -> None:
        context, place = self._context(), SearchPlace(PROJECT)
        groups = [find_group(context, place, NodeReference(node_id)) for node_id in (*_IDS, NODE)]
        targets = distinct_groups(group for group in groups if group)
        for result in tear_down(context, targets, by="down", timeout=plan.timeout):
            if isinstance(result, TpuctlError):
                raise result


def _says_more(words: str) -> bool:
    """Return whether an error says that something of the group could not be deleted, or was left to a user."""
    return ("is left" in words and "nothing is left" not in words) or "left alone" in words
