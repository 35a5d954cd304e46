"""Bring a node up in the first zone and tier that has capacity; `zone_order` decides which one is tried next.

One attempt for each zone: an attempt without capacity leaves no record behind before the next begins. An error of access or of
the request ends the search, because each zone would answer the same. An attempt of an earlier run that was killed is continued
first: where it ends without capacity, the search goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.durations import format_duration
from tpuctl.errors import CheckFailedError, NoCapacityError, QuotaError, ServiceUnavailableError, TpuctlError
from tpuctl.models.events import EventKind
from tpuctl.models.node import Node, NodeState, QueuedState
from tpuctl.models.spec import SHORTEST_QUEUE
from tpuctl.models.spec_fields import V2ALPHA1
from tpuctl.nodes.actions import bring_up_nodes
from tpuctl.nodes.lease_guard import LeaseGuard, released_at_end
from tpuctl.nodes.lookup import only_node
from tpuctl.nodes.poll import Wait, poll
from tpuctl.nodes.queueing import RequestExpiredError
from tpuctl.nodes.slices import bring_up_slices
from tpuctl.nodes.zone_order import Attempt, EndSearch, Offer, PauseSearch, TryNext, choose_offer, search_error

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.node import Tier
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.conditions import Policy
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.goal import Goal
    from tpuctl.nodes.reconciler import NodeReconciler


def with_tier(spec: NodeSpec, tier: Tier | None) -> NodeSpec:
    """Return the spec with another capacity type."""
    return replace(spec, tier=tier, named=spec.named | {"tier"}) if tier else spec


# An answer after which the next zone is tried. Others end the search.
_MOVE_ON = (NoCapacityError, QuotaError, CheckFailedError, RequestExpiredError)


def spec_of_attempt(
    cloud: TpuClient,
    name: NodeName,
    spec: NodeSpec,
    *,
    node: Node | None,
    tiers: Sequence[Tier],
    made_as: NodeSpec | None = None,
) -> NodeSpec:
    """Return the spec with the capacity type of the node, or of the request for it, if that is one of several `tiers`.

    `made_as` is the spec that the node was created with, if the journal has it: the API does not show all types.
    """
    if len(tiers) < 2:
        return spec
    found = node or cloud.find_queued_resource(spec.request_name(name), version=V2ALPHA1)
    tier = made_as.tier if made_as and made_as.tier else found.tier if found else None
    return with_tier(spec, tier) if tier in tiers else spec


def bring_up_somewhere(
    context: ActionContext,
    find_offers: Callable[[], Sequence[Offer]],
    tasks: Sequence[Goal],
    spec: NodeSpec,
    *,
    is_begun: bool = False,
    wait: bool = True,
    announce: Callable[[str], None],
) -> list[NodeResult | TpuctlError]:
    """Bring a node, or all slices of a group, up in the first offer that has capacity; return the results.

    `announce` gets the zone before each attempt. With `is_begun` the node of the task, or a slice, exists or is requested: no
    offer is needed unless that ends without capacity, and nothing of it stays. Raises the error of the search, or the first
    that no other zone can resolve.
    """
    clock = context.clock
    began = clock.monotonic() if tasks[0].since is None else tasks[0].since
    tasks = [replace(task, policy=replace(task.policy, leaves_no_record=True), since=began) for task in tasks]
    task = tasks[0]
    # From the first attempt to the last: `down` must find who would create the node, in a pause too.
    leases: dict[NodeName, LeaseGuard] = {}
    with released_at_end(leases):
        if is_begun:
            for one in tasks:
                leases[one.name] = LeaseGuard(context, one.name, "up", force_lease=one.force_lease)
                leases[one.name].take()  # another client may hold it: then this run waits
            results = _bring_up(context, [replace(one, lease=leases[one.name]) for one in tasks], wait=wait)
            if not isinstance(result := results[0], TpuctlError):
                return results
            is_over = task.policy.timeout is not None and clock.monotonic() - began >= task.policy.timeout
            if not wait or is_over or not isinstance(result, _MOVE_ON):
                raise result
            if len(tasks) > 1 and context.cloud.find_nodes([one.name for one in tasks]):
                raise result  # a group is in one zone
            context.report(EventKind.NOTE, task.name, f"{task.name.zone}: {result.message}", error=result.kind)
        search = _Search(context, tasks, spec, find_offers())
        search.take_leases(leases)
        return _try_offers(context, search, wait=wait, announce=announce)


def _bring_up(context: ActionContext, goals: Sequence[Goal], *, wait: bool) -> list[NodeResult | TpuctlError]:
    return bring_up_nodes(context, goals, wait=wait) if len(goals) == 1 else bring_up_slices(context, goals, wait=wait)


def bring_up_several(
    context: ActionContext, tasks: Sequence[Goal], searches: Mapping[NodeName, Sequence[Offer]], *, wait: bool = True
) -> list[NodeResult | TpuctlError]:
    """Bring nodes up at the same time, those of `searches` each in the first of its offers that has capacity.

    The goal of such a node is for its first offer. Return the results in the order of the tasks.
    """
    leases: dict[NodeName, LeaseGuard] = {}
    with released_at_end(leases):
        running: dict[NodeName, _Search] = {}
        goals = list(tasks)
        for index, task in enumerate(tasks):
            if wait and task.spec is not None and (offers := searches.get(task.name)):
                began = context.clock.monotonic() if task.since is None else task.since
                started = replace(task, policy=replace(task.policy, leaves_no_record=True), since=began)
                search = _Search(context, [started], task.spec, offers)
                own: dict[NodeName, LeaseGuard] = {}
                search.take_leases(own)
                leases |= own
                (goals[index],) = search.goals_for(offers[0])
                running[goals[index].name] = search

        def move(goal: Goal, error: TpuctlError) -> tuple[Goal, timedelta] | TpuctlError:
            search = running.pop(goal.name, None)
            if search is None or not isinstance(error, _MOVE_ON):
                return error
            try:
                search.record(error)
                match step := search.next_step():
                    case EndSearch(ended):
                        return ended
                    case TryNext(offer):
                        pause, (following,) = timedelta(), search.goals_for(offer)
                    case PauseSearch(pause):
                        if search.left is not None and pause >= search.left:
                            return search.error
                        text = f"no zone has capacity: next round in {format_duration(pause)}"
                        context.report(EventKind.NOTE, goal.name, text, next_look=pause.total_seconds())
                        (following,) = search.goals_for(search.first_open_offer)
                    case _:
                        assert_never(step)
            except TpuctlError as failure:
                return failure
            running[following.name] = search
            return following, pause

        return bring_up_nodes(context, goals, wait=wait, move=move)


class _Search:
    """The search for the place of one node, or of all slices of a group.

    Its tasks have the time of its begin, and leave no record behind.
    """

    def __init__(self, context: ActionContext, tasks: Sequence[Goal], spec: NodeSpec, offers: Sequence[Offer]) -> None:
        self._context, self._tasks, self._spec, self._offers = context, tasks, spec, tuple(offers)
        self._leases: Mapping[NodeName, LeaseGuard] = {}
        self._attempts: list[Attempt] = []
        self._began = self._last_answer = self.task.since or timedelta()
        self._offer: Offer | None = None

    @property
    def task(self) -> Goal:
        """The first task, which stands for all."""
        return self._tasks[0]

    @property
    def left(self) -> timedelta | None:
        """The time until the deadline."""
        timeout = self.task.policy.timeout
        return None if timeout is None else timeout - (self._context.clock.monotonic() - self._began)

    @property
    def error(self) -> TpuctlError:
        """The error of the search, if it ends now."""
        return search_error(self._spec.accelerator_type, self._attempts)

    @property
    def first_open_offer(self) -> Offer:
        """The first offer that a further attempt may get."""
        final = {attempt.offer for attempt in self._attempts if attempt.is_final}
        return next(offer for offer in self._offers if offer not in final)

    def take_leases(self, leases: dict[NodeName, LeaseGuard]) -> None:
        """Take the leases of all places, from the first attempt to the last: `down` must find who would create the node."""
        self._leases = leases
        for zone in sorted({offer.zone for offer in self._offers}):
            for name in (replace(task.name, zone=zone) for task in self._tasks):
                guard = LeaseGuard(self._context, name, "up", force_lease=self.task.force_lease)
                leases.setdefault(name, guard).require()

    def next_step(self) -> TryNext | PauseSearch | EndSearch:
        """Return what to do next."""
        return choose_offer(
            self._offers,
            self._attempts,
            self.task.policy,
            accelerator_type=self._spec.accelerator_type,
            left=self.left,
            since_last=self._context.clock.monotonic() - self._last_answer,
        )

    def goals_for(self, offer: Offer) -> list[Goal]:
        """Return the goals of an attempt, and report it. Raises the error of a lease that is lost."""
        for lease in self._leases.values():
            lease.find_other_holder()
        context, offers, left = self._context, self._offers, self.left
        here = [replace(task.name, zone=offer.zone) for task in self._tasks]
        goals = [
            replace(task, name=name, lease=self._leases[name]) for task, name in zip(self._tasks, here, strict=True)
        ]
        wanted, policy, self._offer = with_tier(self._spec, offer.tier), self.task.policy, offer
        if self._attempts and (there := _find_elsewhere(context, here[0], wanted)):
            # Another client was faster: two nodes of one name would both be billed.
            zone = there.name.zone if isinstance(there, Node) else there.zone
            goals = [replace(task, name=replace(task.name, zone=zone)) for task in self._tasks]
            if there.tier in {offer.tier for offer in offers}:
                wanted = with_tier(self._spec, there.tier)
        elif wanted.is_queued and policy.queue_for is None and left is not None:
            tried = Counter(attempt.offer for attempt in self._attempts)
            to_try = sum(tried[other] <= tried[offer] for other in offers)
            policy = _with_share_of_time(policy, left, to_try, context.server_now())
        name, number = goals[0].name, f"{offers.index(offer) + 1} of {len(offers)}"
        text = f"trying {offer}, {number}" if name.zone == offer.zone else f"{name.zone} has it already"
        context.report(EventKind.NOTE, name, text, tried=str(offer))
        return [replace(goal, spec=wanted, policy=policy) for goal in goals]

    def record(self, error: TpuctlError) -> None:
        """Record the answer of the last attempt, after which the next offer is tried."""
        if self._offer is None:
            raise AssertionError("an answer without an attempt")
        attempt = Attempt(self._offer, error, self._context.server_now())
        self._attempts.append(attempt)
        self._last_answer = self._context.clock.monotonic()
        name = replace(self.task.name, zone=self._offer.zone)
        self._context.report(EventKind.NOTE, name, f"{self._offer}: {attempt.answer}", error=error.kind)

    @property
    def has_several_offers(self) -> bool:
        """Whether another offer is left if one has no capacity."""
        return len(self._offers) > 1


def _try_offers(
    context: ActionContext, search: _Search, *, wait: bool, announce: Callable[[str], None]
) -> list[NodeResult | TpuctlError]:
    """Try the offers in turn, and return the results of the first that has capacity."""

    def take_round() -> list[NodeResult | TpuctlError] | TpuctlError | Wait:
        while isinstance(step := search.next_step(), TryNext):
            goals = search.goals_for(step.offer)
            announce(goals[0].name.zone)
            results = _bring_up(context, goals, wait=wait)
            result = next((one for one in results if isinstance(one, TpuctlError)), results[0])
            if not wait and not isinstance(result, TpuctlError) and search.has_several_offers:
                text = f"not waited for: if {step.offer} has no capacity, the others are tried only without `--no-wait`"
                context.report(EventKind.NOTE, goals[0].name, text)
            if not isinstance(result, TpuctlError):
                return results
            if not isinstance(result, _MOVE_ON):
                return result
            search.record(result)
        if isinstance(step, EndSearch):
            return step.error
        if not wait:
            return search.error
        text = f"no zone has capacity: next round in {format_duration(step.pause)}"
        return Wait(text, step.pause, {"next_look": step.pause.total_seconds()})

    # `choose_offer` knows the deadline.
    return poll(context, search.task.name, take_round, until=None, late=lambda *_: search.error)


def _with_share_of_time(policy: Policy, left: timedelta, to_try: int, now: datetime) -> Policy:
    """Return the policy of one of the offers of a round: its share of the time in which the service may look for capacity."""
    idle = timedelta() if policy.start_after is None else policy.start_after - now
    idle = min(max(idle, timedelta()), left)
    share = idle + max((left - idle) / to_try, SHORTEST_QUEUE)
    return replace(policy, queue_for=share, queue_ends_with_run=True)


def _find_elsewhere(context: ActionContext, name: NodeName, spec: NodeSpec) -> Node | QueuedResource | None:
    """Return the node of this name, or the request for it, that another client has made in another zone since.

    Raises `ConflictError` for several nodes. A zone that does not answer now is no reason to stop: it did before the search.
    """
    try:
        nodes = context.cloud.list_nodes(name.project).nodes
        requests = context.cloud.list_queued_resources(name.project).queued_resources if spec.is_queued else ()
    except (ServiceUnavailableError, QuotaError):
        return None
    living = [node for node in nodes if not node.state.is_dead and node.state is not NodeState.DELETING]
    if any(node.name == name for node in living):
        return None
    if node := only_node(living, name.node_id):
        return node
    ended = {QueuedState.FAILED, QueuedState.SUSPENDED, QueuedState.DELETING}
    waiting = [request for request in requests if request.owns(name.node_id) and request.state not in ended]
    return next(iter(waiting), None) if all(request.zone != name.zone for request in waiting) else None


class ZoneRing:
    """The zones in which `watch` recreates a node, in turn, while they have no capacity for it."""

    def __init__(self, context: ActionContext, zones: Callable[[NodeSpec], Sequence[str]]) -> None:
        # `zones` are found when they are needed first: most nodes are never preempted.
        self._context, self._zones = context, zones
        self._left: dict[str, list[str]] = {}
        self._rounds: dict[str, int] = {}
        # Where waiting does not help: a quota of 0, say.
        self._hopeless: set[NodeName] = set()

    def successor(self, node: NodeReconciler) -> tuple[Goal, timedelta] | None:
        """Return the same node in the next zone, and the pause before it; None unless its zone has no capacity for it.

        The journal of the new zone gets the spec first, so that the next run goes on there.
        """
        seen, spec, old = node.seen, node.spec, node.name
        if spec is not None and spec.slices:
            return None  # a group is in one zone
        is_empty = seen.node is None and seen.request is None
        if not is_empty or spec is None or seen.failure is None or not isinstance(seen.failure.error, _MOVE_ON):
            return None
        if seen.failure.error.is_lasting:
            self._hopeless.add(old)
        if not self._left.get(old.node_id):
            ring = [zone for zone in self._zones(spec) if replace(old, zone=zone) not in self._hopeless]
            if not ring:
                return None
            start = ring.index(old.zone) + 1 if old.zone in ring else 0
            self._left[old.node_id] = ring[start:] + ring[:start]
            self._rounds[old.node_id] = self._rounds.get(old.node_id, -1) + 1
        zone = self._left[old.node_id].pop(0)
        if zone == old.zone:
            return None  # it is the only one
        policy, name = node.policy, replace(old, zone=zone)
        self._context.record(name, "delete", reason=f"moved from {old.zone}", spec=spec.to_json(), repair=False)
        self._context.record(old, "gave-up", text=f"moved to {zone}", error=seen.failure.error.kind)
        is_new_round = self._rounds[old.node_id] > 0 and len(self._left[old.node_id]) == 0
        pause = min(policy.backoff * 2 ** min(self._rounds[old.node_id], 10), policy.longest_backoff)
        text = f"{old.zone}: {Attempt(Offer(old.zone), seen.failure.error, self._context.server_now()).answer}; trying {zone}"
        self._context.report(EventKind.NOTE, name, text, moved_from=old.zone)
        return replace(node.goal, name=name, spec=spec), pause if is_new_round else timedelta()
