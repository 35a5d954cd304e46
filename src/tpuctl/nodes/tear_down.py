"""`tpuctl down` and `delete`: delete nodes and queued resources. What the API did not show is never called deleted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import (
    AccessError,
    ConflictError,
    NodeNotInProjectError,
    TpuctlError,
)
from tpuctl.models.events import EventKind
from tpuctl.models.node import Node, NodeState, QueuedState
from tpuctl.models.operation import Operation
from tpuctl.models.queued import QueuedResource
from tpuctl.names import NodeName, NodeReference
from tpuctl.nodes.actuator import NoLongerMeantError, RequestedChange, require_same
from tpuctl.nodes.conditions import Condition, Policy, Verb
from tpuctl.nodes.controller import NodeResult, reconcile_nodes
from tpuctl.nodes.deletion_retry import RefusedDeletion, add_what_is_left, repeat_deletions
from tpuctl.nodes.expiry import expiry_note, is_expired
from tpuctl.nodes.garbage import group_of
from tpuctl.nodes.idleness import IdleAction
from tpuctl.nodes.journal import current_spec
from tpuctl.nodes.lease import end_lease
from tpuctl.nodes.locate import SearchPlace, unreachable_zones_error
from tpuctl.nodes.queueing import UNDECIDED
from tpuctl.nodes.race import Race, delete_race, find_race
from tpuctl.nodes.race_rules import race_id_of
from tpuctl.nodes.request_actions import RequestRemoval
from tpuctl.nodes.request_steps import DeletionRefusedError
from tpuctl.nodes.tracker import ReconcileRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.garbage import ResourceGroup
    from tpuctl.nodes.idleness import IdleLimit
    from tpuctl.nodes.request_actions import StillMeant


@dataclass(frozen=True, slots=True)
class DeletionTarget:
    """A node to delete, the queued resource that owns it, or both."""

    # The node; if the user named the queued resource, its first node.
    name: NodeName
    # None if the node does not exist.
    node: Node | None
    # The queued resource that owns the node, or will own it.
    request: QueuedResource | None
    # The id that the user typed.
    asked: str = ""
    is_request_named: bool = False
    # tpuctl's own request for the same node, besides the one that owns it: the next try of a run that was killed.
    next_request: QueuedResource | None = None
    # The race that requested the node in other zones too: those requests are deleted with it.
    race: Race | None = None

    @property
    def requests(self) -> tuple[QueuedResource, ...]:
        """The queued resources to delete."""
        return tuple(request for request in (self.next_request, self.request) if request)

    @property
    def has_own_node(self) -> bool:
        """Whether the node exists, is meant, and belongs to none of the queued resources."""
        node = self.node
        is_meant = node is not None and not self.is_request_named
        return is_meant and not any(_is_of(node, request) for request in self.requests if node)

    @property
    def full_name(self) -> str:
        """The resource name of what the user named."""
        return self.request.name if self.request and self.is_request_named else str(self.name)

    @property
    def race_id(self) -> str:
        """The id of the race that its request is one of; empty if it is not."""
        return race_id_of(self.request, self.name.node_id) if self.request else ""

    @property
    def other_requests(self) -> tuple[QueuedResource, ...]:
        """The requests of its race in other zones."""
        found = self.race.requests if self.race else {}
        return tuple(request for name, request in found.items() if name != self.name)

    @property
    def deleted(self) -> str:
        """The resource name in the delete request."""
        return self.request.name if self.request else str(self.name)


def distinct_targets(targets: Iterable[DeletionTarget]) -> list[DeletionTarget]:
    """Return the targets without those that an earlier one includes: the same node, or a node of the same queued resource."""
    first: dict[str, DeletionTarget] = {}
    for target in targets:
        first.setdefault(target.deleted, target)
    return list(first.values())


def find_deletion_target(context: ActionContext, place: SearchPlace, reference: NodeReference) -> DeletionTarget | None:
    """Return the node or queued resource of a name; None if every zone answered that it has neither.

    A queued resource is found by the names of its nodes, by their prefix and by its own name. Raises `ConflictError` if
    the name is ambiguous or belongs to another zone than the one named, and `ServiceUnavailableError` if a zone did not
    answer.
    """
    project = reference.project or place.project
    name = place.name(reference)
    if name is not None and reference.kind != "queuedResources":
        node = context.cloud.find_node(name)
        if node is not None:
            return _with_race(context, _in_zone(context, node, reference), is_in_named_zone=True)
    nodes = context.cloud.list_nodes(project)
    queued = context.cloud.list_queued_resources(project)
    found: list[DeletionTarget] = []
    if reference.kind != "queuedResources":
        found += _nodes_named(nodes.nodes, queued.queued_resources, reference, project)
    if reference.kind != "nodes":
        named = [request for request in queued.queued_resources if request.is_named(reference.node_id)]
        owners = {request.name for target in found for request in target.requests}
        found += [
            request_target(request, nodes.nodes, reference, project) for request in named if request.name not in owners
        ]
    here = [target for target in found if name is None or target.name.zone == name.zone]
    if here and len({target.race_id for target in found}) == 1 and found[0].race_id:
        # Requests of one race are one target, if they are this user's.
        target = _with_race(context, here[0], is_in_named_zone=name is not None)
        if name is not None or {other.name for other in found} <= {
            here[0].name,
            *(target.race.names if target.race else ()),
        }:
            return target
    if len(here) == 1 and (name is not None or len(found) == 1):
        return _with_race(context, here[0], is_in_named_zone=name is not None)
    if found:
        raise _ambiguous(here or found, name, reference)
    blind = tuple(dict.fromkeys((*nodes.unreachable, *queued.unreachable)))
    if blind:
        raise unreachable_zones_error(reference.node_id, blind)
    return None


def _with_race(context: ActionContext, target: DeletionTarget, *, is_in_named_zone: bool) -> DeletionTarget:
    """Return the target with its race, if that has other requests or has not ended."""
    if not target.race_id:
        return target
    return replace(target, race=find_race(context, target.name, target.race_id, of_owner=not is_in_named_zone))


def _in_zone(context: ActionContext, node: Node, reference: NodeReference) -> DeletionTarget:
    """Return a node with the request that owns it. Raises `ConflictError` if another request has the node's name."""
    try:
        listing = context.cloud.list_queued_resources(node.name.project, (node.name.zone,))
    except AccessError:
        # A user who may delete nodes may lack the permission to list queued resources. The node itself names its owner.
        if node.queued_resource:
            raise
        return DeletionTarget(node.name, node, None, reference.node_id)
    requests = listing.queued_resources
    owner, others = _owner(node, [request for request in requests if request.owns(node.name.node_id)])
    if owner is None and node.queued_resource and listing.unreachable:
        raise unreachable_zones_error(node.name.node_id, listing.unreachable)
    others += [
        request for request in requests if request.is_named(reference.node_id) and request not in (owner, *others)
    ]
    target, others = _with_next_request(DeletionTarget(node.name, node, owner, reference.node_id), others)
    if others and reference.kind is None:
        requested = (request_target(request, (node,), reference, node.name.project) for request in others)
        raise _ambiguous([target, *requested], None, reference)
    return target


def _nodes_named(
    nodes: Sequence[Node], requests: Sequence[QueuedResource], reference: NodeReference, project: str
) -> Iterator[DeletionTarget]:
    """Yield each existing or requested node of a name with the request that owns it, then other requests for that name."""
    there = {node.name: node for node in nodes if node.name.node_id == reference.node_id}
    asked_for = [request for request in requests if request.owns(reference.node_id)]
    for name in dict.fromkeys((*there, *(NodeName(project, request.zone, reference.node_id) for request in asked_for))):
        node = there.get(name)
        owner, others = _owner(node, [request for request in asked_for if request.zone == name.zone])
        if node or not others:
            target, others = _with_next_request(DeletionTarget(name, node, owner, reference.node_id), others)
            yield target
        elif owner:
            others = [owner, *others]
        for request in others:
            yield request_target(request, nodes, reference, project)


def _owner(node: Node | None, requests: Sequence[QueuedResource]) -> tuple[QueuedResource | None, list[QueuedResource]]:
    """Return the request that owns a node, and the others. The node names its owner; else it is the first request."""
    named = [request for request in requests if node and _is_of(node, request)]
    owner = next(iter(named or requests), None)
    return owner, [request for request in requests if request is not owner]


def _with_next_request(
    target: DeletionTarget, others: Sequence[QueuedResource]
) -> tuple[DeletionTarget, list[QueuedResource]]:
    """Return the target with tpuctl's own request for the same node, if there is one, and the requests that are left."""
    own = next((request for request in others if request.is_from_tpuctl and request.owns(target.name.node_id)), None)
    return replace(target, next_request=own), [request for request in others if request is not own]


def request_target(
    request: QueuedResource, nodes: Sequence[Node], reference: NodeReference, project: str
) -> DeletionTarget:
    """Return a queued resource as the target, with the first of its nodes that exists."""
    there = [node for node in nodes if node.name.zone == request.zone and request.owns(node.name.node_id)]
    may_have_nodes = request.state not in {*UNDECIDED, QueuedState.FAILED}
    own = [node for node in there if _is_of(node, request) or (may_have_nodes and not node.queued_resource)]
    node = own[0] if own else None
    # A node that another request owns is not deleted, so the run does not wait for it.
    others = {node.name.node_id for node in there if node not in own}
    awaited = (node_id for node_id in request.node_ids if node_id not in others)
    node_id = node.name.node_id if node else next(awaited, request.queued_resource_id)
    name = NodeName(project, request.zone, node_id)
    return DeletionTarget(name, node, request, reference.node_id, is_request_named=True)


def group_target(context: ActionContext, group: ResourceGroup, requests: Sequence[QueuedResource]) -> DeletionTarget:
    """Return what deletes a group: its node with the request that owns it, or the request with all its nodes.

    `requests` are those of all zones: one of tpuctl's own for the same node belongs to it, as for a name.
    """
    request, reference = group.request, NodeReference(group.id, group.zone, group.project)
    if request is not None and (len(request.node_ids) != 1 or len(group.nodes) != 1):
        return _with_race(
            context, request_target(request, group.nodes, reference, group.project), is_in_named_zone=True
        )
    (node,) = group.nodes
    others = [one for one in requests if one is not request and one.zone == group.zone and one.owns(node.name.node_id)]
    target, _ = _with_next_request(DeletionTarget(node.name, node, request, reference.node_id), others)
    return _with_race(context, target, is_in_named_zone=True)


def _is_of(node: Node, request: QueuedResource) -> bool:
    """Return whether the node names this request as its owner."""
    return (node.queued_resource or "").rpartition("/")[2] == request.queued_resource_id


def tear_down(
    context: ActionContext,
    targets: Sequence[DeletionTarget],
    policy: Policy,
    *,
    by: str,
    wait: bool,
    reason: str = "asked for",
    recheck: Callable[[DeletionTarget], None] = lambda _: None,
    still_meant: StillMeant = lambda _: None,
) -> list[NodeResult | TpuctlError]:
    """Delete the targets, through their queued resource if they have one, and wait until they are gone.

    The lease of any other holder is ended first; `by` is the command that the holder's error names, `reason` is that in the
    journal, one of `FINAL_REASONS`. Both checks raise if a target is no longer meant: `recheck` before its lease is ended, and
    once more after that; `still_meant` gets each request and node as it was read right before its deletion is sent. With
    `wait` a deletion that the service does not accept for now is sent again until the deadline. Call `check_whole_request`
    before. Return the results in order; the failure of one target does not stop the others.
    """
    policy = replace(policy, goal=Condition.GONE)
    started = context.clock.monotonic()
    until = None if policy.timeout is None or not wait else started + policy.timeout
    results: dict[str, NodeResult | TpuctlError] = {}
    removals: dict[str, list[RequestRemoval]] = {}
    left_of_races: dict[str, TpuctlError] = {}
    pending: dict[str, RequestedChange] = {}

    def send(target: DeletionTarget) -> None:
        recheck(target)
        pending[target.deleted] = _send(context, target, removals[target.deleted], wait=wait, still_meant=still_meant)

    refused: list[tuple[DeletionTarget, RefusedDeletion]] = []
    for target in distinct_targets(targets):
        removals[target.deleted] = [
            RequestRemoval(
                context, target.name, request, until=until, still_meant=partial(_require_meant, target, still_meant)
            )
            for request in target.requests
        ]
        results[target.deleted] = NodeResult(None)
        is_meant = is_announced = False
        try:
            with limit_cloud_calls(context.clock, policy.timeout if wait else None, grace=DEADLINE_GRACE):
                recheck(target)
                is_meant = True
                _announce(context, target, by=by, reason=reason)
                is_announced = True
                send(target)
        except TpuctlError as error:
            results[target.deleted] = error
            if not is_meant:
                continue
            if is_announced:
                refused.append((target, RefusedDeletion(target.name, error, partial(send, target))))
        # The node may be billed: its deletion does not wait for a zone of the race that does not answer.
        if target.race is not None:
            try:
                delete_race(
                    context,
                    target.race,
                    by=by,
                    keep=target.name,
                    timeout=policy.timeout,
                    wait=wait,
                    meant=still_meant,
                )
            except TpuctlError as error:
                left_of_races[target.deleted] = error
    if wait:
        errors = repeat_deletions(context, [one for _, one in refused], until=until)
        results |= {
            target.deleted: error or NodeResult(None) for (target, _), error in zip(refused, errors, strict=True)
        }
    for target, _ in refused:
        if isinstance(result := results[target.deleted], TpuctlError):
            add_what_is_left(result, target.node)
    accepted = [target for target in distinct_targets(targets) if target.deleted in pending]
    tasks = {
        target.deleted: ReconcileRequest(
            name=target.name, policy=policy, pending=pending[target.deleted], since=started
        )
        for target in accepted
        # A node of that name may be another one's: only the queued resource was named.
        if target.node or not target.is_request_named
    }
    if wait:
        results |= _await_gone(context, accepted, tasks, removals)
    results |= left_of_races
    return [results[target.deleted] for target in targets]


def _await_gone(
    context: ActionContext,
    targets: Sequence[DeletionTarget],
    tasks: Mapping[str, ReconcileRequest],
    removals: Mapping[str, Sequence[RequestRemoval]],
) -> dict[str, NodeResult | TpuctlError]:
    """Wait until targets are gone whose deletion was accepted: the nodes of the tasks, and the queued resources."""
    results: dict[str, NodeResult | TpuctlError] = {target.deleted: NodeResult(None) for target in targets}

    def follow(deleted: str) -> None:
        try:
            for removal in removals[deleted]:
                removal.follow()
                if deleted not in tasks:
                    removal.report_gone()
        except TpuctlError as error:
            results[deleted] = error

    # A request without a node: nothing is gone before the request is.
    nodeless = [target.deleted for target in targets if not target.node and target.deleted in tasks]
    for deleted in nodeless:
        follow(deleted)
    left = {deleted: task for deleted, task in tasks.items() if isinstance(results[deleted], NodeResult)}
    results |= zip(left, reconcile_nodes(context, tuple(left.values())), strict=True)
    # A queued resource uses quota for longer than its nodes.
    for deleted in [deleted for deleted, result in results.items() if isinstance(result, NodeResult)]:
        if deleted not in nodeless:
            follow(deleted)
    return results


def _announce(context: ActionContext, target: DeletionTarget, *, by: str, reason: str) -> None:
    """End the leases of other holders, and write the deletion to the journal."""
    node_ids = [node_id for request in target.requests for node_id in request.node_ids]
    for node_id in dict.fromkeys((*node_ids, *([] if target.request else [target.name.node_id]))):
        end_lease(context, NodeName(target.name.project, target.name.zone, node_id), by)
    data: dict[str, Any] = {}
    if target.node:
        spec = current_spec(context.journal, target.node, context.clock)
        data = {"spec": spec.to_json(), "id": target.node.id}
    elif target.request and len(target.request.node_ids) == 1 and context.journal.last_spec(target.name) is None:
        data = {"spec": target.request.spec(target.name.project).to_json()}
    context.record(target.name, "delete", reason=reason, **data)


def _require_meant(target: DeletionTarget, still_meant: StillMeant, current: ResourceGroup) -> None:
    """Check what was just read: its node must be the one that was found before, and `still_meant` must agree."""
    for node in current.nodes:
        if target.node is not None and node.name == target.name:
            require_same(target.node, node)
    still_meant(current)


def _send(
    context: ActionContext,
    target: DeletionTarget,
    removals: Sequence[RequestRemoval],
    *,
    wait: bool,
    still_meant: StillMeant,
) -> RequestedChange:
    """Request the deletion. Raises `ConflictError` if another client recreated the node since it was fetched."""
    seen_id = target.node.id if target.node else None
    operation = Operation(None, done=True)
    for removal in removals:
        removal.send(wait=wait)
        operation = removal.operation or operation
    node = target.node
    is_included = node is not None and any(removal.has_forced and _is_of(node, removal.request) for removal in removals)
    is_meant = node is not None and (not target.is_request_named or any(_is_of(node, one) for one in target.requests))
    if is_meant and not is_included:
        # No deletion of a request includes the node, unless the service has begun to delete it.
        context.report(EventKind.ACTION, target.name, "deleting it", verb=str(Verb.DELETE))

        def judge(current: Node) -> None:
            _require_meant(target, still_meant, group_of(target.name.project, None, [current]))

        operation = context.cloud.delete_node(target.name, judge)
    return RequestedChange(Verb.DELETE, operation, seen_id)


def delete_expired_node(context: ActionContext, name: NodeName, node: Node | None, *, by: str) -> bool:
    """Request the deletion of a node whose time has ended, through its queued resource if it has one.

    `node` is None for the request of a node that does not exist. Return False, and delete nothing, if it has more time now,
    must be kept, or is another node. Raises `DeletionRefusedError` while its queued resource forbids the deletion, or has a
    node whose time has not ended.
    """
    target = find_deletion_target(
        context, SearchPlace(name.project, name.zone), NodeReference(name.node_id, name.zone, name.project)
    )
    now = context.server_now()
    if target is None or (target.node and target.node.id) != (node and node.id):
        return False
    requested = [one for request in target.requests for one in request.requested_nodes(name.project)]
    meant = [target.node] if target.node else requested
    if not meant or not all(is_expired(one, now) and not one.is_kept for one in meant):
        return False
    others = {node_id for request in target.requests for node_id in request.node_ids} - {name.node_id}
    if others:
        listing = context.cloud.list_nodes(name.project, (name.zone,))
        siblings = [one for one in listing.nodes if one.name.node_id in others]
        if listing.unreachable or not all(is_expired(one, now) and not one.is_kept for one in siblings):
            raise DeletionRefusedError(f"its queued resource has {len(others) + 1} nodes, and not all have expired")

    def require_expired(current: ResourceGroup) -> None:
        nodes = list(current.nodes)
        if not nodes and target.node is not None:
            # A request for the next try goes with the node that has its name now.
            nodes = [one for one in [context.cloud.find_node(name)] if one]
        moment = context.server_now()
        if not all(is_expired(one, moment) and not one.is_kept for one in nodes or current.described):
            raise NoLongerMeantError(f"`{name.node_id}` was given more time meanwhile: left alone")

    if not _end_for(context, target, by=by, reason="expired", still_meant=require_expired):
        return False
    what = "it" if node else "its queued resource"
    text = f"its time has ended, it {expiry_note(meant[0], now)}: {what} is being deleted"
    context.report(
        EventKind.EXPIRED,
        name,
        text,
        id=node and node.id,
        expires=meant[0].expires and format_timestamp(meant[0].expires),
    )
    return True


def end_idle_node(context: ActionContext, node: Node, limit: IdleLimit, *, by: str) -> bool:
    """Stop or delete a node that was idle for the time of its limit. Return False, and do nothing, if that is not possible.

    Raises what the API raises.
    """
    name, idle = node.name, f"it was idle for {format_duration(limit.after)}"
    target = find_deletion_target(
        context, SearchPlace(name.project, name.zone), NodeReference(name.node_id, name.zone, name.project)
    )
    current = target.node if target else None
    is_same = current is not None and current.id == node.id and current.state is NodeState.READY
    if target is None or current is None or not is_same or current.is_kept:
        return False
    chosen = limit.action_for(current)

    def require_idle() -> None:
        if used := context.workers.find_activity(current, since=None, has_probe=True):
            raise NoLongerMeantError(f"`{name.node_id}` is used again: {used[0]}")

    def judge(found: ResourceGroup) -> None:
        for one in found.nodes:
            if one.name == name:
                require_same(current, one)
            if one.state is not NodeState.READY or limit.action_for(one) is not chosen:
                raise NoLongerMeantError(f"`{name.node_id}` changed meanwhile: left alone")

    match chosen:
        case None:
            return False
        case IdleAction.STOP:
            context.record(name, "stop", reason="idle", id=current.id, repair=False)
            try:
                require_idle()
                context.cloud.stop_node(name, lambda found: judge(group_of(name.project, None, [found])))
            except NoLongerMeantError:
                return False
        case IdleAction.DELETE:
            others = {node_id for request in target.requests for node_id in request.node_ids} - {name.node_id}
            if others:
                text = f"{idle}, but its queued resource has {len(others)} other nodes: not deleted"
                context.report(EventKind.NOTE, name, text)
                return False
            if not _end_for(context, target, by=by, reason="idle", still_meant=judge, recheck=lambda _: require_idle()):
                return False
    context.report(EventKind.ACTION, name, f"{idle}: it is being {chosen.past}", verb=str(chosen))
    return True


def _end_for(
    context: ActionContext,
    target: DeletionTarget,
    *,
    by: str,
    reason: str,
    still_meant: StillMeant,
    recheck: Callable[[DeletionTarget], None] = lambda _: None,
) -> bool:
    """Request the deletion of a target for `by`, which goes on. Return False if it is no longer meant; its lease stays ours."""
    name, was_ours = target.name, context.leases.holds(target.name)
    (result,) = tear_down(
        context,
        [replace(target, race=None)],
        Policy(goal=Condition.GONE, timeout=None),
        by=by,
        wait=False,
        reason=reason,
        recheck=recheck,
        still_meant=still_meant,
    )
    if isinstance(result, NoLongerMeantError):
        if was_ours:
            context.leases.acquire(name, by, force_lease=True)
        return False
    if isinstance(result, TpuctlError):
        raise result
    return True


def end_absent_node(context: ActionContext, place: SearchPlace, reference: NodeReference, *, by: str) -> bool:
    """End the lease of a node that does not exist, so that its holder does not create it. Return whether there was a holder."""
    project = reference.project or place.project
    named = place.name(reference)
    known = [name for name in context.journal.names() if (name.project, name.node_id) == (project, reference.node_id)]
    # A search holds the leases of all its zones, and the journal has only those in which it has tried.
    known += context.leases.namesakes(NodeName(project, "", reference.node_id))
    found = False
    for name in dict.fromkeys([named] if named else known):
        holder = context.leases.holder(name)
        if holder is not None and holder.record.ended is None:
            end_lease(context, name, by)
            found = True
    return found


def end_searches(context: ActionContext, name: NodeName, *, by: str) -> list[NodeName]:
    """End the leases of other zones that the holder of a node's lease has, so that it does not create the node there next.

    Return the zones in which it has created the node meanwhile. A node that existed in another zone before is another one.
    """
    holder = context.leases.holder(name)
    if holder is None or holder.record.ended is not None:
        return []
    ended = []
    for other in context.leases.namesakes(name):
        theirs = context.leases.holder(other) if other != name else None
        is_same = theirs is not None and theirs.record.owner == holder.record.owner and theirs.record.ended is None
        if is_same and context.cloud.find_node(other) is None:
            end_lease(context, other, by)
            ended.append(other)
    return [other for other in ended if context.cloud.find_node(other) is not None]


def check_whole_request(target: DeletionTarget, *, all_nodes: bool) -> None:
    """Raise `ConflictError` if the deletion includes other nodes, unless `all_nodes`."""
    request = target.request
    if request and target.is_request_named and len(request.node_ids) > 1 and not all_nodes:
        raise ConflictError(
            f"the queued resource `{request.queued_resource_id}` has {len(request.node_ids)} nodes: "
            f"{', '.join(request.node_ids)}",
            hint="add `--all-nodes` to delete them all",
        )
    if request and len(request.node_ids) > 1 and not all_nodes:
        others = ", ".join(node_id for node_id in request.node_ids if node_id != target.name.node_id)
        raise ConflictError(
            f"`{target.name.node_id}` belongs to the queued resource `{request.queued_resource_id}`, which also has {others}",
            hint="add `--all-nodes` to delete them all",
        )


def _ambiguous(found: Sequence[DeletionTarget], wanted: NodeName | None, reference: NodeReference) -> ConflictError:
    """Return the error for a name that belongs to another zone, or to several resources."""
    things = [
        f"the queued resource {target.request.zone}/{target.request.queued_resource_id} ({target.request.state})"
        if target.request and target.is_request_named
        else f"{target.name.zone}/{target.name.node_id}"
        for target in found
    ]
    zones = {target.name.zone for target in found}
    if wanted is not None and wanted.zone not in zones:
        first = found[0]
        full = first.full_name if first.is_request_named else f"{first.name.zone}/{first.name.node_id}"
        return ConflictError(
            f"`{reference.node_id}` is not in {wanted.zone}; found {', '.join(things)}",
            hint=f"to delete that one, run `tpuctl down {full}`",
        )
    if len(zones) == len(found):
        hint = "name the zone: `--zone ZONE` or `ZONE/NODE`"
    else:
        hint = "use a full name: " + " or ".join(f"`tpuctl down {target.full_name}`" for target in found)
    kind = "nodes" if not any(target.is_request_named for target in found) else "resources"
    return ConflictError(f"there are {len(found)} {kind} `{reference.node_id}`: {', '.join(things)}", hint=hint)


def absent_error(reference: NodeReference, place: SearchPlace) -> NodeNotInProjectError:
    """Return the error of a strict `delete` for a name that does not exist."""
    hint = "`--ignore-not-found` makes this a success; `tpuctl list` shows all nodes"
    return NodeNotInProjectError(reference.node_id, reference.project or place.project, hint=hint)
