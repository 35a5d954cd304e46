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
from typing import TYPE_CHECKING

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
        offers = find_offers()
        for zone in sorted({offer.zone for offer in offers}):
            for name in (replace(task.name, zone=zone) for task in tasks):
                leases.setdefault(name, LeaseGuard(context, name, "up", force_lease=task.force_lease)).require()
        return _search(context, tasks, spec, offers, leases, wait=wait, announce=announce)


def _bring_up(context: ActionContext, goals: Sequence[Goal], *, wait: bool) -> list[NodeResult | TpuctlError]:
    return bring_up_nodes(context, goals, wait=wait) if len(goals) == 1 else bring_up_slices(context, goals, wait=wait)


def _search(
    context: ActionContext,
    tasks: Sequence[Goal],
    spec: NodeSpec,
    offers: Sequence[Offer],
    leases: Mapping[NodeName, LeaseGuard],
    *,
    wait: bool,
    announce: Callable[[str], None],
) -> list[NodeResult | TpuctlError]:
    """Try the offers in turn, and return the results of the first that has capacity."""
    clock, task = context.clock, tasks[0]
    began = task.since or timedelta()
    attempts: list[Attempt] = []
    last_answer = began

    def next_step() -> TryNext | PauseSearch | EndSearch:
        now = clock.monotonic()
        left = None if task.policy.timeout is None else task.policy.timeout - (now - began)
        return choose_offer(
            offers,
            attempts,
            task.policy,
            accelerator_type=spec.accelerator_type,
            left=left,
            since_last=now - last_answer,
        )

    def attempt_offer(offer: Offer) -> list[NodeResult | TpuctlError] | TpuctlError:
        for lease in leases.values():
            lease.find_other_holder()
        here = [replace(one.name, zone=offer.zone) for one in tasks]
        goals = [replace(one, name=name, lease=leases[name]) for one, name in zip(tasks, here, strict=True)]
        name = here[0]
        wanted, policy = with_tier(spec, offer.tier), task.policy
        left = None if policy.timeout is None else policy.timeout - (clock.monotonic() - began)
        if attempts and (there := _find_elsewhere(context, name, wanted)):
            # Another client was faster: two nodes of one name would both be billed.
            zone = there.name.zone if isinstance(there, Node) else there.zone
            goals = [replace(one, name=replace(one.name, zone=zone)) for one in tasks]
            name = goals[0].name
            if there.tier in {offer.tier for offer in offers}:
                wanted = with_tier(spec, there.tier)
        elif wanted.is_queued and policy.queue_for is None and left is not None:
            tried = Counter(attempt.offer for attempt in attempts)
            to_try = sum(tried[other] <= tried[offer] for other in offers)
            policy = _with_share_of_time(policy, left, to_try, context.server_now())
        announce(name.zone)
        number = f"{offers.index(offer) + 1} of {len(offers)}"
        text = f"trying {offer}, {number}" if name.zone == offer.zone else f"{name.zone} has it already"
        context.report(EventKind.NOTE, name, text, tried=str(offer))
        goals = [replace(goal, spec=wanted, policy=policy) for goal in goals]
        results = _bring_up(context, goals, wait=wait)
        result = next((one for one in results if isinstance(one, TpuctlError)), results[0])
        if not wait and not isinstance(result, TpuctlError) and len(offers) > 1:
            text = f"not waited for: if {offer} has no capacity, the others are tried only without `--no-wait`"
            context.report(EventKind.NOTE, name, text)
        if isinstance(result, _MOVE_ON):
            attempts.append(Attempt(offer, result, context.server_now()))
            context.report(EventKind.NOTE, name, f"{offer}: {attempts[-1].answer}", error=result.kind)
        return result if isinstance(result, TpuctlError) else results

    def take_round() -> list[NodeResult | TpuctlError] | TpuctlError | Wait:
        nonlocal last_answer
        while isinstance(step := next_step(), TryNext):
            result = attempt_offer(step.offer)
            if not isinstance(result, _MOVE_ON):
                return result
            last_answer = clock.monotonic()
        if isinstance(step, EndSearch):
            return step.error
        if not wait:
            return search_error(spec.accelerator_type, attempts)
        text = f"no zone has capacity: next round in {format_duration(step.pause)}"
        return Wait(text, step.pause, {"next_look": step.pause.total_seconds()})

    # `choose_offer` knows the deadline.
    return poll(
        context, task.name, take_round, until=None, late=lambda *_: search_error(spec.accelerator_type, attempts)
    )


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
