"""End nodes for good, with the leases of their holders: `tpuctl down` and `delete`, the ends of time and of idleness."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import TpuctlError
from tpuctl.models.events import EventKind
from tpuctl.models.node import NodeState
from tpuctl.names import NodeName, NodeReference
from tpuctl.nodes.actuator import NoLongerMeantError, require_same
from tpuctl.nodes.conditions import EndReason
from tpuctl.nodes.deletion import Deletion, Ended, LeaseUse, ReplacedRequestError, delete, fetch_group
from tpuctl.nodes.expiry import expiry_note, is_expired
from tpuctl.nodes.group_lookup import find_group
from tpuctl.nodes.idle_limit import IdleAction, require_recent_use
from tpuctl.nodes.lease_guard import end_lease
from tpuctl.nodes.lookup import SearchPlace
from tpuctl.nodes.race import end_race, race_deletions, require_deleted
from tpuctl.nodes.request_steps import DeletionRefusedError
from tpuctl.nodes.resource_group import ResourceGroup, distinct_groups, group_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from tpuctl.models.events import NodeEvent
    from tpuctl.models.node import Node
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.conditions import End
    from tpuctl.nodes.idle_limit import IdleLimit
    from tpuctl.nodes.resource_group import StillMeant


def tear_down(
    context: ActionContext,
    groups: Sequence[ResourceGroup],
    *,
    by: str,
    timeout: timedelta | None,
    wait: bool = True,
    still_meant: StillMeant | None = None,
) -> list[Ended | TpuctlError]:
    """Delete groups, and the requests of their races in other zones, and wait until they are gone; see `delete`.

    The lease of any other holder is ended first; `by` is the command that the holder's error names. `still_meant` gets each
    request and node as it was just read, and raises if it must stay: a race stays with each of its requests. Return the results
    in order.
    """
    meant = still_meant or (lambda _: None)
    once = distinct_groups(groups)
    deletions: dict[tuple[int, NodeName], Deletion] = {}
    for index, group in enumerate(once):
        look = partial(_look_at_race, context, group, meant) if still_meant and group.race else lambda: None
        others = race_deletions(context, group.race, keep=group.name, meant=meant) if group.race else {}
        names = group.race.names if group.race else ()
        own = Deletion(group, reason="asked for", meant=meant, also_ends=names)
        for name, deletion in {group.name: own, **others}.items():
            deletions[index, name] = replace(deletion, ask=look)
    zones = {name.node_id: {one.zone for _, one in deletions if one.node_id == name.node_id} for _, name in deletions}

    def emit(event: NodeEvent) -> None:
        is_in_several = len(zones.get(event.node.node_id, ())) > 1
        context.emit(replace(event, text=f"{event.node.zone}: {event.text}") if is_in_several else event)

    context_of_all = replace(context, emit=emit)
    found = delete(context_of_all, [*deletions.values()], leases=LeaseUse.END, by=by, timeout=timeout, wait=wait)
    ends = dict(zip(deletions, found, strict=True))
    results: list[tuple[ResourceGroup, Ended | TpuctlError]] = []
    for index, group in enumerate(once):
        result = ends[index, group.name]
        others_of_race = {name: end for (of, name), end in ends.items() if of == index and name != group.name}
        try:
            require_deleted(
                {name: end for name, end in others_of_race.items() if not isinstance(end, ReplacedRequestError)}
            )
        except TpuctlError as error:
            result = error
        if group.race is not None and not isinstance(result, TpuctlError):
            end_race(context, group.race)
        results.append((group, result))
    return [next(result for one, result in results if one.includes(group)) for group in groups]


def _look_at_race(context: ActionContext, group: ResourceGroup, meant: StillMeant) -> None:
    """Raise what `meant` raises for one of the race of a group: it stays with each of its requests."""
    for one in (group, *(ResourceGroup(group.project, (), request) for request in group.other_requests)):
        current = fetch_group(context.cloud, one)
        if current is not None and not current.is_being_deleted:
            meant(current)


def end_node(
    context: ActionContext, name: NodeName, node: Node | None, end: End, limit: IdleLimit | None, *, by: str
) -> bool:
    """End a node for good, or with None for `node` its queued resource. Return False, and do nothing, if it is no longer meant.

    `limit` is that of an idle node. Raises `DeletionRefusedError` while its queued resource forbids the deletion, and what
    the API raises.
    """
    if end.reason is EndReason.EXPIRED:
        return delete_expired_node(context, name, node, by=by)
    return node is not None and limit is not None and end_idle_node(context, node, limit, by=by)


def delete_expired_node(context: ActionContext, name: NodeName, node: Node | None, *, by: str) -> bool:
    """Request the deletion of a node whose time has ended, through its queued resource if it has one.

    `node` is None for the request of a node that does not exist. Return False, and delete nothing, if it has more time now,
    must be kept, or is another node. Raises `DeletionRefusedError` while its queued resource forbids the deletion, or has a
    node whose time has not ended.
    """

    def is_over(one: Node) -> bool:
        return is_expired(one, context.server_now()) and not one.is_kept

    group = _find_named(context, name)
    own = [one for one in group.nodes if one.name == name] if group else []
    if group is None or [one.id for one in own] != ([node.id] if node else []):
        return False
    requested = [one for request in group.requests for one in request.requested_nodes(name.project)]
    meant = own or requested
    if not meant or not all(map(is_over, meant)):
        return False
    if not all(map(is_over, group.nodes)):
        raise DeletionRefusedError(f"its queued resource has {len(group.names)} nodes, and not all have expired")

    def require_expired(current: ResourceGroup) -> None:
        nodes = list(current.nodes)
        if not nodes and own:
            # A request for the next try goes with the node that has its name now.
            nodes = [one for one in [context.cloud.find_node(name)] if one]
        if not all(map(is_over, nodes or current.described)):
            raise NoLongerMeantError(f"`{name.node_id}` was given more time meanwhile: left alone")

    if not _end_for(context, Deletion(group, reason="expired", meant=require_expired), by=by):
        return False
    what = "it" if node else "its queued resource"
    text = f"its time has ended, it {expiry_note(meant[0], context.server_now())}: {what} is being deleted"
    end = meant[0].expires and format_timestamp(meant[0].expires)
    context.report(EventKind.EXPIRED, name, text, id=node and node.id, expires=end)
    return True


def end_idle_node(context: ActionContext, node: Node, limit: IdleLimit, *, by: str) -> bool:
    """Stop or delete a node that was idle for the time of its limit. Return False, and do nothing, if that is not possible.

    Raises what the API raises.
    """
    name, idle = node.name, f"it was idle for {format_duration(limit.after)}"
    group = _find_named(context, name)
    current = next((one for one in group.nodes if one.name == name), None) if group else None
    is_same = current is not None and current.id == node.id and current.state is NodeState.READY
    if group is None or current is None or not is_same or current.is_kept:
        return False
    chosen = limit.action_for(current)

    asked_at = context.clock.monotonic()

    def require_idle() -> None:
        nonlocal asked_at
        asked_at = context.clock.monotonic()
        if used := context.workers.find_activity(current, since=None, has_probe=True):
            raise NoLongerMeantError(f"`{name.node_id}` is used again: {used[0]}")

    def judge(found: ResourceGroup) -> None:
        require_recent_use(name.node_id, context.clock.monotonic() - asked_at)
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
            if len(group.names) > 1:
                text = f"{idle}, but its queued resource has {len(group.names) - 1} other nodes: not deleted"
                context.report(EventKind.NOTE, name, text)
                return False
            if not _end_for(context, Deletion(group, reason="idle", meant=judge, ask=require_idle), by=by):
                return False
    context.report(EventKind.ACTION, name, f"{idle}: it is being {chosen.past}", verb=str(chosen))
    return True


def _find_named(context: ActionContext, name: NodeName) -> ResourceGroup | None:
    return find_group(
        context, SearchPlace(name.project, name.zone), NodeReference(name.node_id, name.zone, name.project)
    )


def _end_for(context: ActionContext, deletion: Deletion, *, by: str) -> bool:
    """Request a deletion for `by`, which goes on. Return False if it is no longer meant; its lease stays ours."""
    name = deletion.group.name
    was_ours = context.leases.holds(name)
    (result,) = delete(context, [deletion], leases=LeaseUse.END, by=by, timeout=None, wait=False)
    if isinstance(result, NoLongerMeantError):
        if was_ours and not context.leases.holds(name):
            context.leases.acquire(name, by, force_lease=True)
        return False
    if isinstance(result, TpuctlError):
        raise result
    return True


def end_creations(
    context: ActionContext,
    place: SearchPlace,
    groups: Sequence[ResourceGroup],
    missing: Sequence[NodeReference],
    *,
    by: str,
) -> list[NodeReference]:
    """End the leases with which other clients create these nodes next; return what they may have created meanwhile.

    The holder of a group's lease may create its node in another zone. A node that existed there before is another one.
    """
    leases, cloud = context.leases, context.cloud

    def living(names: Sequence[NodeName]) -> dict[NodeName, str]:
        """Return who holds the leases of these nodes."""
        found = {name: leases.holder(name) for name in dict.fromkeys(names)}
        return {name: one.record.owner for name, one in found.items() if one is not None and one.record.ended is None}

    created = []
    for reference in missing:
        anywhere = NodeName(reference.project or place.project, "", reference.node_id)
        # A search holds the leases of all its zones, and the journal has only those in which it has tried.
        known = context.journal.namesakes(anywhere.project, anywhere.node_id)
        named = place.name(reference)
        held = living([named] if named else [*known, *leases.namesakes(anywhere)])
        for name in held:
            end_lease(context, name, by)
        created += [reference] if held else []
    for group in groups:
        owner = living([group.name]).get(group.name)
        others = living([name for name in leases.namesakes(group.name) if name != group.name]) if owner else {}
        absent = [name for name, holder in others.items() if holder == owner and cloud.find_node(name) is None]
        for name in absent:
            end_lease(context, name, by)
        created += [NodeReference(one.node_id, one.zone, one.project) for one in absent if cloud.find_node(one)]
    return created
