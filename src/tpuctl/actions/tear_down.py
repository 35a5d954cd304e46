"""`tpuctl down` and `delete`: end a node and its billing, and never claim that what could not be seen is gone."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.actions.ensure_ready import Outcome, ensure_all
from tpuctl.actions.history import spec_as_it_is
from tpuctl.actions.holding import end_watch
from tpuctl.actions.locate import Place, unreachable
from tpuctl.actions.observation import Task
from tpuctl.actions.steps import Pending, check_same
from tpuctl.clock import GRACE, format_duration, limit_calls
from tpuctl.errors import (
    AccessError,
    ConflictError,
    NodeNowhereError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.events import Event, EventKind
from tpuctl.model import Node, Operation, QueuedResource
from tpuctl.names import NodeName, NodeReference
from tpuctl.readiness import Goal, Policy, Verb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tpuctl.actions.cloud import Context

_ASK_AGAIN = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be ended: a node, the queued resource that owns it, or both.

    `name` is that of the node; of a queued resource's first node where the resource itself was named (`is_request_named`).
    `node` is None where that node does not exist. `asked` is the id that the user typed.
    """

    name: NodeName
    node: Node | None
    request: QueuedResource | None
    asked: str = ""
    is_request_named: bool = False

    @property
    def full_name(self) -> str:
        """The resource name of what would be deleted first."""
        return self.request.name if self.request and self.is_request_named else str(self.name)

    @property
    def deleted(self) -> str:
        """The resource name of what the service is asked to delete."""
        return self.request.name if self.request else str(self.name)


def distinct(targets: Iterable[Target]) -> list[Target]:
    """Return the targets without those that end with an earlier one: the same node, or a node of the same request."""
    first: dict[str, Target] = {}
    for target in targets:
        first.setdefault(target.deleted, target)
    return list(first.values())


def find_target(context: Context, place: Place, reference: NodeReference) -> Target | None:
    """Return what a name stands for, among nodes and queued resources; None where every zone says that it has none.

    A queued resource is found by the names of its nodes, by their prefix and by its own name. Raises `ConflictError` where
    the name stands for several things, or for one in another zone than the one named, and `ServiceUnavailableError` where a
    zone could not be asked.
    """
    project = reference.project or place.project
    name = place.name(reference)
    if name is not None and reference.kind != "queuedResources":
        node = context.cloud.find_node(name)
        if node is not None:
            return _in_zone(context, node, reference)
    nodes = context.cloud.list_nodes(project)
    queued = context.cloud.list_queued_resources(project)
    found: list[Target] = []
    if reference.kind != "queuedResources":
        found += _nodes_named(nodes.nodes, queued.queued_resources, reference, project)
    if reference.kind != "nodes":
        named = [request for request in queued.queued_resources if request.is_named(reference.node_id)]
        owners = {target.request.name for target in found if target.request}
        found += [
            _of_request(request, nodes.nodes, reference, project) for request in named if request.name not in owners
        ]
    here = [target for target in found if name is None or target.name.zone == name.zone]
    if len(here) == 1 and (name is not None or len(found) == 1):
        return here[0]
    if found:
        raise _ambiguous(here or found, name, reference)
    blind = tuple(dict.fromkeys((*nodes.unreachable, *queued.unreachable)))
    if blind:
        raise unreachable(reference.node_id, blind)
    return None


def _in_zone(context: Context, node: Node, reference: NodeReference) -> Target:
    """Return a node with the request that owns it. Raises `ConflictError` where another request has the node's name."""
    try:
        listing = context.cloud.list_queued_resources(node.name.project, (node.name.zone,))
    except AccessError:
        # Who may delete nodes need not be allowed to see requests; whether one owns the node says the node itself.
        if node.queued_resource:
            raise
        return Target(node.name, node, None, reference.node_id)
    requests = listing.queued_resources
    owner, others = _owner(node, [request for request in requests if request.owns(node.name.node_id)])
    if owner is None and node.queued_resource and listing.unreachable:
        raise unreachable(node.name.node_id, listing.unreachable)
    target = Target(node.name, node, owner, reference.node_id)
    others += [
        request for request in requests if request.is_named(reference.node_id) and request not in (owner, *others)
    ]
    if others and reference.kind is None:
        requested = (_of_request(request, (node,), reference, node.name.project) for request in others)
        raise _ambiguous([target, *requested], None, reference)
    return target


def _nodes_named(
    nodes: Sequence[Node], requests: Sequence[QueuedResource], reference: NodeReference, project: str
) -> Iterator[Target]:
    """Return each node of a name, there or asked for, with the request that owns it, and other requests for that name."""
    there = {node.name: node for node in nodes if node.name.node_id == reference.node_id}
    asked_for = [request for request in requests if request.owns(reference.node_id)]
    for name in dict.fromkeys((*there, *(NodeName(project, request.zone, reference.node_id) for request in asked_for))):
        node = there.get(name)
        owner, others = _owner(node, [request for request in asked_for if request.zone == name.zone])
        if node or not others:
            yield Target(name, node, owner, reference.node_id)
        elif owner:
            others = [owner, *others]
        for request in others:
            yield _of_request(request, nodes, reference, project)


def _owner(node: Node | None, requests: Sequence[QueuedResource]) -> tuple[QueuedResource | None, list[QueuedResource]]:
    """Return which of the requests for a node owns it, and the others: the node says it, else the first does."""
    named = [request for request in requests if node and _is_of(node, request)]
    owner = next(iter(named or requests), None)
    return owner, [request for request in requests if request is not owner]


def _of_request(request: QueuedResource, nodes: Sequence[Node], reference: NodeReference, project: str) -> Target:
    """Return a request that was itself named, with the first of its nodes that exists."""
    there = [node for node in nodes if node.name.zone == request.zone and request.owns(node.name.node_id)]
    own = [node for node in there if not node.queued_resource or _is_of(node, request)]
    node = own[0] if own else None
    # A node that another request owns stays, and is not waited for.
    others = {node.name.node_id for node in there if node not in own}
    awaited = (node_id for node_id in request.node_ids if node_id not in others)
    node_id = node.name.node_id if node else next(awaited, request.queued_resource_id)
    name = NodeName(project, request.zone, node_id)
    return Target(name, node, request, reference.node_id, is_request_named=True)


def _is_of(node: Node, request: QueuedResource) -> bool:
    """Tell whether the node says that it belongs to this request."""
    return (node.queued_resource or "").rpartition("/")[2] == request.queued_resource_id


def tear_down(
    context: Context, targets: Sequence[Target], policy: Policy, *, by: str, wait: bool
) -> list[Outcome | TpuctlError]:
    """Delete what was found, through the queued resource where one owns it, and wait until all of it is gone.

    Whoever looks after a node loses it first; `by` is the command that they are told of. Call `check_whole` before. Returns
    how each ended, in order; the failure of one does not keep the others.
    """
    policy = replace(policy, goal=Goal.GONE)
    endings: dict[str, Outcome | TpuctlError] = {}
    tasks: dict[str, Task] = {}
    once = distinct(targets)
    for target in once:
        try:
            with limit_calls(context.clock, policy.timeout if wait else None, grace=GRACE):
                pending = _request(context, target, by=by)
        except TpuctlError as error:
            endings[target.deleted] = error
            continue
        tasks[target.deleted] = Task(name=target.name, policy=policy, pending=pending)
        endings[target.deleted] = Outcome(None, timedelta(), 0)
    if wait:
        endings |= zip(tasks, ensure_all(context, tuple(tasks.values())), strict=True)
        for target in once:
            task = tasks.get(target.deleted)
            if target.request and task and task.pending and isinstance(endings[target.deleted], Outcome):
                try:
                    _see_out(context, target.request, task.pending.operation, policy)
                except TpuctlError as error:
                    endings[target.deleted] = error
    return [endings[target.deleted] for target in targets]


def _request(context: Context, target: Target, *, by: str) -> Pending:
    """Ask for the deletion. Raises `ConflictError` when the node is not the one that was looked at."""
    request = target.request
    for node_id in request.node_ids if request else (target.name.node_id,):
        end_watch(context, NodeName(target.name.project, target.name.zone, node_id), by)
    _record(context, target)
    if target.node is not None:
        check_same(context, target.node)
    seen_id = target.node.id if target.node else None
    if request:
        _tell(context, target.name, f"deleting its queued resource `{request.queued_resource_id}`")
        operation = context.cloud.delete_queued_resource(request.name, force=True)
    else:
        _tell(context, target.name, "deleting it")
        operation = context.cloud.delete_node(target.name, expected_id=seen_id)
    return Pending(Verb.DELETE, operation, seen_id)


def end_absent(context: Context, place: Place, reference: NodeReference, *, by: str) -> bool:
    """Take a node that is not there from whoever looks after it, and may be about to make it; tell whether somebody did."""
    project = reference.project or place.project
    named = place.name(reference)
    known = [name for name in context.journal.names() if (name.project, name.node_id) == (project, reference.node_id)]
    found = False
    for name in dict.fromkeys([named] if named else known):
        holder = context.leases.holder(name)
        if holder is not None and holder.ended is None:
            end_watch(context, name, by)
            found = True
    return found


def _see_out(context: Context, request: QueuedResource, operation: Operation, policy: Policy) -> None:
    """Wait until the queued resource is gone too: it holds quota longer than its nodes."""
    started = context.clock.monotonic()
    while operation.name is not None and not operation.done:
        waited = context.clock.monotonic() - started
        if policy.timeout is not None and waited >= policy.timeout:
            raise TimedOutError(
                f"the queued resource `{request.queued_resource_id}` is still being deleted after {format_duration(waited)}",
                hint="nothing was undone; its deletion goes on in the cloud",
            )
        context.clock.sleep(_ASK_AGAIN)
        left = None if policy.timeout is None else policy.timeout - waited
        # Asked again until the deadline.
        with suppress(ServiceUnavailableError, QuotaError), limit_calls(context.clock, left, grace=GRACE):
            operation = context.cloud.get_operation(operation.name)
    if operation.error is not None:
        raise context.cloud.operation_error(operation.error)


def check_whole(target: Target, *, all_nodes: bool) -> None:
    """Raise `ConflictError` where the deletion would take other nodes along, and nobody said that it may."""
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


def _record(context: Context, target: Target) -> None:
    """Write what is about to be deleted to the journal."""
    data: dict[str, Any] = {}
    if target.node:
        spec = spec_as_it_is(context.journal, target.node, context.clock.now())
        data = {"spec": spec.to_json(), "id": target.node.id}
    context.journal.append(target.name, "delete", context.clock.now(), reason="asked for", **data)


def _ambiguous(found: Sequence[Target], wanted: NodeName | None, reference: NodeReference) -> ConflictError:
    """Return the error for a name that stands for something in another zone, or for several things."""
    things = [_thing(target) for target in found]
    zones = {target.name.zone for target in found}
    if wanted is not None and wanted.zone not in zones:
        return ConflictError(
            f"`{reference.node_id}` is not in {wanted.zone}, but there is {', '.join(things)}",
            hint=f"if that is the one: `tpuctl down {_unique(found[0])}`",
        )
    if len(zones) == len(found):
        hint = "name the zone: `--zone ZONE` or `ZONE/NODE`"
    else:
        hint = "name the one you mean in full: " + " or ".join(f"`tpuctl down {target.full_name}`" for target in found)
    kind = "nodes" if not any(target.is_request_named for target in found) else "resources"
    return ConflictError(f"there are {len(found)} {kind} `{reference.node_id}`: {', '.join(things)}", hint=hint)


def _thing(target: Target) -> str:
    if target.request is None or not target.is_request_named:
        return f"{target.name.zone}/{target.name.node_id}"
    return f"the queued resource {target.request.zone}/{target.request.queued_resource_id} ({target.request.state})"


def _unique(target: Target) -> str:
    return target.full_name if target.is_request_named else f"{target.name.zone}/{target.name.node_id}"


def absent(reference: NodeReference, place: Place) -> NodeNowhereError:
    """Return the error of a strict `delete` for what is not there."""
    hint = "`--ignore-not-found` makes this a success; `tpuctl list` shows what there is"
    return NodeNowhereError(reference.node_id, reference.project or place.project, hint=hint)


def _tell(context: Context, name: NodeName, text: str) -> None:
    context.tell(Event(EventKind.ACTION, context.clock.now(), name, text, {"verb": "delete"}))
