"""Bring the slices of a group up together: all become usable, or those that this run made are deleted again.

Without the queue each slice is created on its own, and all in one zone; through the queue one queued resource requests them,
and the reconciler of the first slice deals with it. A slice that was there before the run is never deleted, unless it was
still CREATING for an interrupted run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import (
    AccessError,
    ConflictError,
    InvalidInputError,
    NoCapacityError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.models.events import EventKind
from tpuctl.models.node import Node, NodeState, QueuedState
from tpuctl.models.spec import GROUP_LABEL, NodeSpec
from tpuctl.names import NodeName, check_new_node_id, slice_ids
from tpuctl.nodes.actions import bring_up_nodes
from tpuctl.nodes.actuator import NoLongerMeantError
from tpuctl.nodes.deletion import Deletion, Ended, LeaseUse, delete
from tpuctl.nodes.journal import JournalError
from tpuctl.nodes.lease import LeaseError
from tpuctl.nodes.lease_guard import DeletedByOtherError, LeaseGuard, TakenOverError, released_at_end
from tpuctl.nodes.lookup import IncompleteListError, slices_named
from tpuctl.nodes.poll import Wait, poll
from tpuctl.nodes.queueing import CLEAN_UP_TIME, UNDECIDED
from tpuctl.nodes.resource_group import ResourceGroup, belongs_to

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpuctl.cloud.tpu import NodeListing, QueuedListing
    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.goal import Goal

# As the journal stores it.
GIVEN_UP = "given up"
# A node may show some time after its creation was accepted [unverified].
_VISIBILITY_LAG = timedelta(seconds=20)


def check_slices(nodes: Sequence[str], count: int, node_id: str) -> tuple[str, ...]:
    """Return the ids of the slices of a new group. Raises `InvalidInputError` for several names, and a name too long."""
    if len(nodes) > 1:
        raise InvalidInputError(
            f"`--slices` makes one group, and {len(nodes)} names are given", hint="run the command once for each group"
        )
    ids = slice_ids(node_id, count)
    try:
        check_new_node_id(ids[-1])
    except InvalidInputError as error:
        raise InvalidInputError(
            f"`{node_id}` is not a name for {count} slices: `{ids[-1]}` is not a node name", hint=error.hint
        ) from None
    return ids


def as_slice(spec: NodeSpec, group: str, count: int) -> NodeSpec:
    """Return the spec of each slice of a group."""
    return replace(
        spec,
        slices=count,
        labels={**spec.labels, GROUP_LABEL: group},
        flagged={**spec.flagged, "slices": count},
    )


@dataclass(frozen=True, slots=True)
class ExistingSlices:
    """The zone of the slices of a group that exist, or are requested, and those that exist; None if there are none."""

    zone: str | None = None
    nodes: tuple[Node, ...] = ()


def find_slices(
    group: str,
    ids: Sequence[str],
    nodes: NodeListing,
    requests: QueuedListing,
    *,
    zones: Sequence[str],
    may_replace: bool = False,
) -> ExistingSlices:
    """Return what exists of a group, in one of `zones` if the user named any.

    Raises `ConflictError` for slices in several zones, or in another zone, and for a group of another size; `may_replace`: its
    queued resource may be requested again. Raises `IncompleteListError` if a zone did not answer that may have slices.
    """
    places: dict[str, list[str]] = {}
    for node in nodes.nodes:
        if node.name.node_id in ids and not node.state.is_dead:
            places.setdefault(node.name.zone, []).append(f"`{node.name.node_id}` ({node.state})")
    alive = [
        request
        for request in requests.queued_resources
        if request.queued_resource_id == group
        and len(request.node_ids) > 1
        and not (request.state.is_dead or request.state is QueuedState.DELETING)
    ]
    for request in alive:
        places.setdefault(request.zone, []).append(f"the queued resource `{group}` ({request.state})")
        count = len(request.node_ids)
        if count != len(ids) and not (may_replace and request.state in UNDECIDED):
            raise ConflictError(
                f"the queued resource `{group}` ({request.state}) is for {count} slices, not {len(ids)}",
                hint=f"to bring these up, run `tpuctl up {request.zone}/{group} --slices {count}`; to delete them, run "
                f"`tpuctl down {request.zone}/{group} --all-nodes`",
            )
    found = "; ".join(f"{', '.join(what[:8])} in {where}" for where, what in places.items())
    if len(places) > 1:
        raise ConflictError(
            f"the slices of `{group}` are in {len(places)} zones: {found}",
            hint=f"a group is in one zone; delete those in another: `tpuctl down '{group}-*' --zone ZONE`",
        )
    if places and zones and not {*zones} & places.keys():
        zone = next(iter(places))
        raise ConflictError(
            f"the group `{group}` is not in {', '.join(zones)}; found {found}",
            hint=f"to bring it up there, run `tpuctl up {zone}/{group} --slices {len(ids)}`",
        )
    blind = tuple(dict.fromkeys((*nodes.unreachable, *requests.unreachable)))
    if not places and (blind := tuple(one for one in blind if one in zones or not zones)):
        raise IncompleteListError(blind, name=ids[0])
    if not places:
        # The record of a request that is over: the zone in which a run ended before it deleted that.
        records = [one.zone for one in requests.queued_resources if one.queued_resource_id == group]
        return ExistingSlices(next((one for one in records if one in zones or not zones), None))
    zone = next(iter(places))
    here = [node for node in nodes.nodes if node.name.zone == zone and not node.state.is_dead]
    more = [node.name.node_id for node in slices_named(group, here) if node.name.node_id not in ids]
    if more:
        names = " ".join(f"{zone}/{node_id}" for node_id in more[:8])
        raise ConflictError(
            f"`{group}` has more than {len(ids)} slices, also {', '.join(more[:8])}",
            hint=f"delete these first: `tpuctl down {names}`",
        )
    return ExistingSlices(zone, tuple(node for node in here if node.name.node_id in ids))


@dataclass(frozen=True, slots=True)
class _Before:
    """What was there before a run, and stays: the ids of nodes, and the creation time of a queued resource."""

    nodes: frozenset[str] = frozenset()
    request: datetime | None = None
    names: tuple[str, ...] = ()


def bring_up_slices(
    context: ActionContext, goals: Sequence[Goal], *, wait: bool = True
) -> list[NodeResult | TpuctlError]:
    """Bring all slices of a group up. Return their results, or the only error after which the group was given up.

    Without `wait`, only take the next step: what it made stays. Raises `ConflictError` if another client holds a lease.
    """
    names = [goal.name for goal in goals]
    if goals[0].only_looks:
        return bring_up_nodes(context, goals)
    own = {
        goal.name: LeaseGuard(context, goal.name, "up", force_lease=goal.force_lease)
        for goal in goals
        if goal.lease is None
    }
    with released_at_end(own):
        goals = [goal if goal.lease else replace(goal, lease=own[goal.name]) for goal in goals]
        for goal in goals:
            if goal.lease is not None:
                goal.lease.require()
        spec = goals[0].spec
        is_queued = bool(spec and spec.queued_slices(names[0]))
        if not wait:
            # One request is for all of them.
            return bring_up_nodes(context, goals[:1] if is_queued else goals, wait=False)
        before = _look_before(context, names, spec)
        results = bring_up_nodes(context, goals, together=True)
        # With as many results as slices all are usable, even if a label could not be changed.
        if len(results) < len(goals) and isinstance(failure := results[0], TpuctlError):
            return [_give_up(context, names, spec, before, failure)]
        return results


def _look_before(context: ActionContext, names: Sequence[NodeName], spec: NodeSpec | None) -> _Before:
    """Return what must stay: each node that may be in use, unlike one that an interrupted run of tpuctl is still creating."""
    now = context.clock.now()
    stays = [
        node
        for node in context.cloud.find_nodes(names)
        if not (node.state.is_dead or node.state is NodeState.DELETING)
        and not (node.state is NodeState.CREATING and context.journal.past(node.name).is_left(node, now))
    ]
    request = _find_request(context, names, spec)
    owner = [node for node in stays if request is not None and belongs_to(node, request)]
    return _Before(
        frozenset(node.id for node in stays),
        request.created if request and owner else None,
        tuple(node.name.node_id for node in stays),
    )


def _find_request(context: ActionContext, names: Sequence[NodeName], spec: NodeSpec | None) -> QueuedResource | None:
    if spec is None or not spec.queued_slices(names[0]):
        return None
    return context.cloud.find_queued_resource(spec.request_name(names[0]), version=spec.version_to_read_request)


# After these nothing can be known, or sent.
_LEAVES_ALL = (AccessError, LeaseError, JournalError, TakenOverError, DeletedByOtherError)


def _give_up(
    context: ActionContext, names: Sequence[NodeName], spec: NodeSpec | None, before: _Before, failure: TpuctlError
) -> TpuctlError:
    """Delete what this run made of a group, and return its failure with what is left."""
    first, group = names[0], names[0].node_id.rpartition("-")[0]
    command = f"`tpuctl down -l {GROUP_LABEL}={group} --zone {first.zone}`"
    if isinstance(failure, _LEAVES_ALL):
        return _with_hint(failure, f"what exists of `{group}` is left, and bills: {command} deletes it")
    try:
        groups = _made(context, names, spec, before, failure)
        failed = failure.node or group
        if groups:
            text = f"giving the group `{group}` up, because of `{failed}`: what this run made is deleted"
            context.report(EventKind.NOTE, first, text, given_up=group)
        deletions = [
            Deletion(
                one,
                reason=GIVEN_UP,
                why=f"the group `{group}` is given up",
                meant=lambda current: _require_made(context, current, before),
            )
            for one in groups
        ]
        ends = delete(context, deletions, leases=LeaseUse.HELD, by="up", timeout=CLEAN_UP_TIME)
    except TpuctlError as error:
        return _with_hint(failure, f"`{group}` could not be deleted: {error.message}\n{command} deletes what is left")
    errors = [end for end in ends if not isinstance(end, Ended)]
    left = [f"`{node_id}`" for node_id in before.names]
    if errors:
        why = "; ".join(dict.fromkeys(error.message for error in errors))
        return _with_hint(failure, f"not all of `{group}` could be deleted: {why}\n{command} deletes what is left")
    if left:
        text = f"{', '.join(left)} {'were' if len(left) > 1 else 'was'} there before and stays: {command}"
        return _with_hint(failure, text.replace("stays", "stay") if len(left) > 1 else text)
    again = f"tpuctl up {group} --slices {len(names)}"
    text = f"nothing is left of the group `{group}`"
    match failure:
        # Their own hints are about a node that exists, or for one node.
        case TimedOutError():
            failure.hint = f"{text}; give it more time with `{again} --timeout 2h`"
        case NoCapacityError():
            failure.hint = (
                f"{text}; try every zone that has the type with `{again} --zone any`\n"
                f"or let one request wait for capacity in {first.zone} with `{again} --queue`"
            )
        case _:
            _with_hint(failure, text)
    return failure


def _made(
    context: ActionContext,
    names: Sequence[NodeName],
    spec: NodeSpec | None,
    before: _Before,
    failure: TpuctlError,
) -> list[ResourceGroup]:
    """Return what this run made. A creation that was accepted is waited for until it shows."""
    until = context.clock.monotonic() + _VISIBILITY_LAG
    sent = [name for name in names if context.journal.past(name).requested and name.node_id != failure.node]

    def look() -> list[ResourceGroup] | Wait:
        nodes, request = context.cloud.find_nodes(names), _find_request(context, names, spec)
        there = {node.name for node in nodes}
        if request is None and not there.issuperset(sent) and context.clock.monotonic() < until:
            return Wait("a creation that was requested does not show yet")
        return _groups(first.project, nodes, request, before)

    first = names[0]
    return poll(context, first, look, until=until + CLEAN_UP_TIME, late=lambda *_: ServiceUnavailableError("no answer"))


def _groups(
    project: str, nodes: Sequence[Node], request: QueuedResource | None, before: _Before
) -> list[ResourceGroup]:
    made = [node for node in nodes if node.id not in before.nodes]
    if request is None:
        return [ResourceGroup(project, (node,)) for node in made if node.queued_resource is None]
    if request.created == before.request:
        return []
    return [ResourceGroup(project, tuple(node for node in made if belongs_to(node, request)), request)]


def _require_made(context: ActionContext, current: ResourceGroup, before: _Before) -> None:
    """Raise `NoLongerMeantError` unless everything that was just read is what tpuctl made since the run began."""
    for node in current.nodes:
        is_made = context.journal.past(node.name).made_as(node) is not None
        if node.id in before.nodes or not is_made:
            raise NoLongerMeantError(f"`{node.name.node_id}` was not created by this run: left alone")
    request = current.request
    if request is not None and not current.nodes:
        asked = request.requested_node(current.project)
        made = context.journal.past(asked.name).made_as(asked, created=request.created)
        if made is None or request.created == before.request:
            raise NoLongerMeantError(
                f"the queued resource `{request.queued_resource_id}` is not of this run: left alone"
            )


def _with_hint(error: TpuctlError, text: str) -> TpuctlError:
    error.hint = f"{text}\n{error.hint}" if error.hint else text
    return error
