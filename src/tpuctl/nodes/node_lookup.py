"""Lookup of nodes that may not exist yet: their zone, and the spec they had before."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.accelerators import (
    documented_zones_of,
    find_accelerator_type,
    smallest_type_in_zone,
    suggest_listed_type,
)
from tpuctl.clock import deadline_has_passed
from tpuctl.cloud.errors import is_connection_refused
from tpuctl.command_text import join_command
from tpuctl.durations import format_duration
from tpuctl.errors import (
    AccessError,
    ConflictError,
    CredentialsError,
    ExitCode,
    InvalidInputError,
    NodeNotFoundError,
    NodeNotInProjectError,
    NotConfirmedError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    SettingError,
    TpuctlError,
    worst_exit_code,
)
from tpuctl.models.node import NodeState, Tier
from tpuctl.names import NodeName, check_new_node_id, closest_match
from tpuctl.nodes.conditions import Condition
from tpuctl.nodes.garbage import GarbageFacts, group_resources
from tpuctl.nodes.locate import (
    IncompleteListError,
    find_listed_request,
    list_requests,
    queued_resources_or_none,
    search_node,
    search_requested_name,
    several_nodes_error,
    unreachable_zones_error,
)
from tpuctl.nodes.rendering import by_zone_and_name
from tpuctl.nodes.selection import GroupMatch, check_selection_project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.app.app import App
    from tpuctl.cloud.tpu import NodeListing
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import NodeSpec, SpecDifference
    from tpuctl.names import NodeReference
    from tpuctl.nodes.locate import ListRequests
    from tpuctl.nodes.selection import Selection
    from tpuctl.prices import Price

    # Returns the price of a type in a zone and tier for an hour.
    PriceOf = Callable[[str, str, str | None], Price]

_NEVER = datetime.min.replace(tzinfo=UTC)
_DIGITS = re.compile(r"[0-9]+")
# How similar a misspelled name is: `trianer` and `trainer`, not `train` and `eval`.
_MISSPELLED = 0.75


def locate_for_create(
    app: App, text: str, spec: NodeSpec | None, *, is_patient: bool = False
) -> tuple[NodeName, Node | None]:
    """Return the full name of a node, existing or new, and the node if it exists.

    A zone from gcloud's configuration is used only for a new node: an existing one is found in any zone. With `is_patient`
    the node counts as missing if the API does not answer for the named zone, because the caller polls again. A refused
    connection and a passed deadline are still raised.
    """
    reference, place = app.reference(text), app.place
    name = place.name(reference)
    if name is not None:
        began = app.clock.monotonic()
        try:
            found = app.client.find_node(name)
        except (ServiceUnavailableError, QuotaError) as error:
            if not is_patient or is_connection_refused(error) or deadline_has_passed():
                raise
            app.silent_since = began if app.silent_since is None else app.silent_since
            return name, None
    elif found := search_node(app.client, place, reference):
        name = found.name
    else:
        name = NodeName(reference.project or place.project, zone_to_create(app, reference, spec), reference.node_id)
    if found is None:
        check_may_be_created(app, name)
    return name, found


def check_may_be_created(app: App, name: NodeName) -> None:
    """Raise `InvalidInputError` for a name that no new node can have; not for one that a node or a request had before."""
    try:
        check_new_node_id(name.node_id)
    except InvalidInputError:
        if app.journal.past(name).spec is None and app.client.find_queued_resource(name) is None:
            raise


def zone_to_create(app: App, reference: NodeReference, spec: NodeSpec | None) -> str:
    """Return the zone for a new node: of the settings, of past commands, or the only one that offers its type.

    Says which zone it is unless it is that of the settings. Raises `SettingError`, with zones that offer the type, if none is
    known.
    """
    accelerator = find_accelerator_type(spec.accelerator_type) if spec else None
    zone = likely_zone(app, reference, accelerator)
    if zone is not None:
        return zone
    zones = documented_zones_of(accelerator) if accelerator and accelerator.is_listed else ()
    if accelerator and len(zones) == 1:
        app.terminal.note(f"{reference.node_id}: in {zones[0]}, the only zone with {accelerator.name}")
        return zones[0]
    error = app.missing_zone()
    if accelerator and zones:
        hint = f"{accelerator.name} is offered in {', '.join(zones[:6])}\n{error.hint or ''}"
        raise SettingError(error.message, hint=hint)
    if spec and (near := suggest_listed_type(spec.accelerator_type)):
        hint = f"`{spec.accelerator_type}` is not a known type: did you mean `{near}`?\n{error.hint or ''}"
        raise SettingError(error.message, hint=hint)
    raise error


def likely_zone(app: App, reference: NodeReference, accelerator: AcceleratorType | None = None) -> str | None:
    """Return the zone of the settings, else that of past commands, which is said; None if none is known.

    A zone of past commands that is known not to offer the type does not count.
    """
    if app.place.default_zone is not None:
        return app.place.default_zone
    zone = _remembered_zone(app, reference.node_id)
    offered = documented_zones_of(accelerator, single_tenant=True) if accelerator else ()
    if zone is None or (offered and zone not in offered):
        return None
    app.terminal.note(f"{reference.node_id}: in {zone}, where it was before")
    return zone


def remembered_spec(app: App, name: NodeName, *, yes: bool) -> NodeSpec:
    """Return the spec that the node had when tpuctl last created or deleted it, if the user agrees.

    Raises `InvalidInputError` if the journal has none, `NotConfirmedError` if the user refuses.
    """
    past = app.journal.past(name)
    spec = past.spec
    if spec is None:
        offered = smallest_type_in_zone(name.zone)
        example = f"name one, such as `tpuctl up {name.node_id} --type {offered}`; " if offered else ""
        raise InvalidInputError(
            f"cannot create `{name.node_id}` in {name.zone}: no accelerator type given",
            hint=f"{example}see `tpuctl types --zone {name.zone}`",
        )
    if past.is_being_recreated:
        # An earlier run was interrupted between the deletion and the creation; its user had agreed to both.
        app.terminal.note(f"{name.node_id}: continuing the recreation of an interrupted run")
        return spec
    if spec.is_queued and (request := app.client.find_queued_resource(name)):
        app.terminal.note(f"{name.node_id}: continuing with its queued resource, which is {request.state}")
        return spec
    age = f", from {format_duration(app.clock.now() - past.spec_at)} ago" if past.spec_at else ""
    what = f"{spec.accelerator_type} with {spec.runtime_version}, {spec.tier or Tier.ON_DEMAND}{age}"
    if not app.terminal.confirm(f"create `{name.node_id}` in {name.zone} with the spec it had ({what})?", yes=yes):
        raise NotConfirmedError("nothing was done", hint="name another type: `--type TYPE`")
    return spec


def as_it_was(app: App, name: NodeName, found: Node | None, wanted: NodeSpec, *, price: PriceOf) -> NodeSpec:
    """Return the spec of a node that exists or existed: as it was, but for what flags of this run change.

    Settings of files count only for a new node, and in the comparison with one that the journal does not know. Says what a
    flag changes of the tier or the price of a node that is recreated, and what of the files is not applied. Raises
    `ConflictError` if a node that was deleted for good would come back in another tier or type without a flag for it.
    """
    exists = found is not None and not (found.state.is_dead or found.state is NodeState.DELETING)
    past = app.journal.past(name)
    if found is not None:
        is_known = past.made_as(found) is not None
        former = past.spec_as_it_is(found)
        spec = wanted.over(former, () if is_known else wanted.named, exists=exists)
    else:
        if past.former_spec is None:
            if past.is_ended and past.spec:
                _check_same_tier(name, past.spec, wanted, price)
            return wanted
        former, is_known, spec = past.former_spec, True, wanted.over(past.former_spec)
    if is_known and (ignored := wanted.changes_of(spec, sorted(wanted.named - {*wanted.flagged}))):
        what = ", ".join(f"{one.field} {one.shown_wanted}" for one in ignored)
        app.terminal.note(
            f"{name.node_id}: {'it is' if exists else 'recreated'} as it was created; not changed without a flag: {what}"
        )
    if not exists and (text := _describe_change(name, former, spec, price)):
        app.terminal.note(f"{name.node_id}: {text}")
    return spec


def as_it_was_somewhere(app: App, text: str, zones: Sequence[str], wanted: NodeSpec, *, price: PriceOf) -> NodeSpec:
    """Return the spec of a node that is in none of these zones (none named: in none): as it was where it was last.

    See `as_it_was`.
    """
    reference = app.reference(text)
    project = reference.project or app.project
    known = app.journal.namesakes(project, reference.node_id)
    names = [name for name in known if not zones or name.zone in zones]
    latest = max(names, key=lambda name: app.journal.past(name).spec_at or _NEVER, default=None)
    return wanted if latest is None else as_it_was(app, latest, None, wanted, price=price)


def differences_of(app: App, found: Node | None, spec: NodeSpec | None) -> tuple[SpecDifference, ...]:
    """Return in which fields an existing node differs from a spec, by the API and the journal."""
    return spec.differences(found, made_as=made_as(app, found)) if found is not None and spec is not None else ()


def differences_of_request(
    app: App, name: NodeName, request: QueuedResource | None, spec: NodeSpec | None
) -> tuple[SpecDifference, ...]:
    """Return in which fields the node of a queued resource differs from a spec, by the API and the journal."""
    if request is None or spec is None:
        return ()
    node = request.requested_node(name.project)
    return spec.differences(node, made_as=app.journal.past(name).made_as(node, created=request.created))


def made_as(app: App, found: Node | None) -> NodeSpec | None:
    """Return the spec that tpuctl created a node with; None if the journal does not have it."""
    return None if found is None else app.journal.past(found.name).made_as(found)


def _check_same_tier(name: NodeName, former: NodeSpec, wanted: NodeSpec, price: PriceOf) -> None:
    """Raise `ConflictError` if a new node has another tier or type than the last of its name, and no flag says so."""
    if {"tier", "accelerator_type"} & {*wanted.flagged}:
        return
    if text := _describe_change(name, former, wanted, price):
        kept, new = (
            join_command(["--type", spec.accelerator_type or "", "--tier", spec.tier or Tier.ON_DEMAND])
            for spec in (former, wanted)
        )
        raise ConflictError(
            f"`{name.node_id}` would not be created as it was: {text}",
            hint=f"`{join_command(['tpuctl', 'up', name.node_id])} {kept}` creates it as it was; `{new}` accepts the change",
        )


def _describe_change(name: NodeName, former: NodeSpec, spec: NodeSpec, price: PriceOf) -> str:
    """Return in which type, tier and price a spec differs from the former one; empty if in none."""
    old, new = former.tier or Tier.ON_DEMAND, spec.tier or Tier.ON_DEMAND
    words = [
        f"{what} was `{before}`, now `{after}`"
        for what, before, after in (
            ("type", former.accelerator_type, spec.accelerator_type),
            ("tier", old, new),
        )
        if before != after
    ]
    if words:
        before, after = (price(one.accelerator_type, name.zone, one.tier) for one in (former, spec))
        if before.per_hour is not None or after.per_hour is not None:
            words.append(f"{after} instead of {before}")
    return "; ".join(words)


def _remembered_zone(app: App, node_id: str) -> str | None:
    """Return the zone in which past commands had a node of that name; None unless it was one, in which they did not fail."""
    found = app.journal.without_losers(app.journal.namesakes(app.project, node_id))
    if len({name.zone for name in found}) != 1 or app.journal.past(found[0]).has_failed_creation:
        return None
    return found[0].zone


class WaitTarget(NamedTuple):
    """A node to wait for; `is_queued`: a queued resource requests, or requested, it."""

    name: NodeName
    is_queued: bool = False


def locate_for_wait(app: App, texts: Iterable[str], *, goal: Condition) -> list[WaitTarget]:
    """Return the nodes to wait for, with each node of a queued resource, but not those that no zone has if the goal is gone."""
    # One list for all names.
    list_zones = cache(partial(list_requests, app.client))
    return [target for text in texts for target in _locate_for_wait(app, text, goal, list_zones)]


def _locate_for_wait(app: App, text: str, goal: Condition, list_zones: ListRequests) -> tuple[WaitTarget, ...]:
    reference = app.reference(text, allow_queued=True)
    project, named = reference.project or app.place.project, app.place.name(reference)
    found = None if named else search_node(app.client, app.place, reference)
    if goal.is_usable and found is None:
        request = _request_or_none(app, reference, list_zones, is_optional=named is not None)
        if request and (named is None or request.owns(named.node_id) or app.client.find_node(named) is None):
            names = request.full_names(project)
            its_own = [each for each in names if each.node_id == reference.node_id]
            return tuple(WaitTarget(each, is_queued=True) for each in its_own or names)
    name = found.name if found else named
    if name is None and goal is not Condition.GONE:
        raise NodeNotInProjectError(reference.node_id, project)
    return () if name is None else (WaitTarget(name),)


def _request_or_none(
    app: App, reference: NodeReference, list_zones: ListRequests, *, is_optional: bool
) -> QueuedResource | None:
    """Return the queued resource of a name; with `is_optional` None also if the API does not answer."""
    try:
        return find_listed_request(list_zones, app.place, reference)
    except CredentialsError:
        raise
    except AccessError:
        # A user who may see nodes may lack the permission to list queued resources.
        return None
    except (ServiceUnavailableError, QuotaError):
        if is_optional:
            return None
        raise


def locate_for_watch(app: App, text: str) -> NodeName:
    """Return the full name of a node to watch. It may not exist: it may be requested, or another run may be recreating it."""
    reference = app.reference(text)
    project, name = reference.project or app.place.project, app.place.name(reference)
    if name is None and (found := search_node(app.client, app.place, reference)):
        name = found.name
    name = name or search_requested_name(app.client, project, reference, ())
    if name is not None:
        return name
    zone = _remembered_zone(app, reference.node_id) or app.place.default_zone
    if zone is None:
        raise NodeNotInProjectError(reference.node_id, project)
    return NodeName(project, zone, reference.node_id)


@dataclass(frozen=True, slots=True)
class SelectedNodes:
    """The nodes that a selection matched, by zone and name, and the zones that did not answer."""

    nodes: tuple[Node, ...]
    unreachable: tuple[str, ...] = ()

    def complete(self) -> tuple[Node, ...]:
        """Return the nodes. Raises `ServiceUnavailableError` if a zone did not answer: nodes of it may be missing."""
        if self.unreachable:
            raise IncompleteListError(self.unreachable)
        return self.nodes


def report_silent_zones(app: App, zones: Sequence[str], code: int) -> int:
    """Say which zones did not answer, after work on what the others have. Return the worse of both exit codes."""
    if not zones:
        return code
    error = IncompleteListError(zones)
    app.show_error(error)
    return worst_exit_code([error.exit_code, ExitCode(code)])


def select_nodes(app: App, selection: Selection, *, may_be_none: bool = False) -> SelectedNodes:
    """Return the nodes that a selection matches now.

    Raises `NotFoundError` for a name that does not exist, and if no node matches, unless `may_be_none`. Raises
    `ServiceUnavailableError` if nothing was found and a zone did not answer.
    """
    if selection.is_by_name:
        return SelectedNodes(
            tuple({node.name: node for node in (app.find(name.text) for name in selection.names)}.values())
        )
    selection, owner = bind_names(app, selection), selection_owner(app, selection)
    listing = app.client.list_nodes(app.project, app.zones)
    there = sorted(listing.nodes, key=by_zone_and_name)
    check_names_exist(app, selection, [node.name for node in there], listing.unreachable, may_be_none=may_be_none)
    now = app.now()
    found = tuple(node for node in there if selection.matches(node, now, owner))
    note_left_out(app, selection, [node.name for node in there], [node.name for node in found])
    if not found and listing.unreachable:
        raise IncompleteListError(listing.unreachable)
    if not found and not may_be_none:
        raise nothing_selected_error(app, selection)
    return SelectedNodes(found, listing.unreachable)


def narrow_listing(
    app: App, selection: Selection, listing: NodeListing, requests: Sequence[QueuedResource]
) -> tuple[NodeListing, tuple[QueuedResource, ...]]:
    """Return the nodes and queued resources of a list that a selection matches, and notes names that match nothing.

    A queued resource matches by its nodes if it has any.
    """
    if selection.is_all and not selection.has_conditions:
        return listing, tuple(requests)
    selection, owner = bind_names(app, selection), selection_owner(app, selection)
    facts = GarbageFacts(project=app.project, nodes=listing.nodes, requests=requests)
    groups, now = group_resources(facts), app.now()
    there = [name for group in groups for name in group.all_names]
    nodes = tuple(node for node in listing.nodes if selection.matches(node, now, owner))
    found = {node.name for node in nodes}
    matching = tuple(
        group.request
        for group in groups
        if group.request is not None
        and (
            not found.isdisjoint(group.names)
            if group.nodes
            else selection.matches_group(group, now, owner) is not GroupMatch.NONE
        )
    )
    note_left_out(
        app, selection, there, [*found, *(name for request in matching for name in request.full_names(app.project))]
    )
    return replace(listing, nodes=nodes), matching


def select_nodes_and_requests(
    app: App, selection: Selection
) -> tuple[tuple[Node, ...], tuple[QueuedResource, ...], tuple[str, ...]]:
    """Return the nodes that a selection matches, the matching queued resources without a node, and the silent zones."""
    listing = app.client.list_nodes(app.project, app.zones)
    requests = queued_resources_or_none(app.client, app.project, app.zones)
    narrowed, matching = narrow_listing(app, selection, listing, requests)
    there = {node.name for node in listing.nodes}
    waiting = tuple(request for request in matching if there.isdisjoint(request.full_names(app.project)))
    nodes = tuple(sorted(narrowed.nodes, key=by_zone_and_name))
    return nodes, waiting, listing.unreachable


def is_in_journal(app: App, reference: NodeReference) -> bool:
    """Return whether the journal has a node of that name, in any zone."""
    return bool(app.journal.namesakes(reference.project or app.project, reference.node_id))


def near_node(app: App, reference: NodeReference) -> Node | None:
    """Return the node whose name is most similar to one that does not exist; None if none is, or the API does not answer.

    A name with another number is another node, not a misspelled one: `sweep-1` and `sweep-2`.
    """
    try:
        nodes = app.client.list_nodes(reference.project or app.project).nodes
    except TpuctlError:
        return None  # the name itself was looked up without a failure
    by_id = {
        node.name.node_id: node
        for node in nodes
        if _DIGITS.sub("", node.name.node_id) != _DIGITS.sub("", reference.node_id)
    }
    near = closest_match(reference.node_id, by_id, similarity=_MISSPELLED)
    return by_id[near] if near else None


def nothing_selected_error(app: App, selection: Selection) -> NotFoundError:
    """Return the error for a selection that matches no node although every zone answered."""
    return NotFoundError(
        f"no node of project {app.project} matches: {selection}", hint="run `tpuctl list` to see all nodes"
    )


def bind_names(app: App, selection: Selection) -> Selection:
    """Return the selection with the zone of the settings for names without one, as for a command that only names nodes.

    Raises `InvalidInputError` for a name of another project.
    """
    check_selection_project(selection, app.project)
    if app.zone_flags or all(name.is_glob or name.zone for name in selection.names):
        return selection
    names = (name if name.is_glob or name.zone else replace(name, zone=app.place.zone) for name in selection.names)
    return replace(selection, names=tuple(names))


def selection_owner(app: App, selection: Selection) -> str | None:
    """Return the label of the user for `--mine`; None if the selection does not need it."""
    return user_label(app) if selection.is_mine else None


def user_label(app: App) -> str:
    """Return the label of the user, which the nodes have that the user creates."""
    from tpuctl.app.app import owner_identity  # noqa: PLC0415  # few commands ask for it
    from tpuctl.nodes.expiry import owner_label  # noqa: PLC0415  # as above

    return owner_label(owner_identity(app))


def check_names_exist(
    app: App, selection: Selection, there: Sequence[NodeName], unreachable: Sequence[str], *, may_be_none: bool
) -> None:
    """Check the names of a selection that are no globs: each must exist, unless `may_be_none`, and once.

    Raises `NotFoundError`, `ConflictError`, and `ServiceUnavailableError` if a zone that might have it did not answer.
    """
    for pattern in selection.names:
        if pattern.is_glob:
            continue
        found = [name for name in there if pattern.matches(name)]
        if len(found) > 1:
            raise several_nodes_error(pattern.node_id, found)
        if not found and unreachable:
            raise unreachable_zones_error(pattern.node_id, unreachable)
        if found or may_be_none:
            continue
        if pattern.zone:
            raise NodeNotFoundError(pattern.node_id, pattern.zone)
        raise NodeNotInProjectError(pattern.node_id, app.project)


def note_left_out(app: App, selection: Selection, there: Sequence[NodeName], found: Sequence[NodeName]) -> None:
    """Note globs that match nothing, and names that a condition leaves out."""
    for pattern in selection.unmatched_names(there):
        if pattern.is_glob and len(selection.names) > 1:
            app.terminal.note(f"`{pattern.text}` matches nothing")
    for pattern in selection.unmatched_names(found):
        if not pattern.is_glob and any(map(pattern.matches, there)):
            app.terminal.note(f"`{pattern.text}` does not meet the conditions: left alone")
