"""Lookup of nodes that may not exist yet: their zone, and the spec they had before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.accelerators import documented_zones_of, find_accelerator_type, smallest_type_in_zone
from tpuctl.app.hints import is_connection_refused
from tpuctl.app.spec_options import parse_pairs
from tpuctl.clock import deadline_has_passed
from tpuctl.durations import format_duration
from tpuctl.errors import (
    InvalidInputError,
    NodeNotInProjectError,
    NotConfirmedError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    SettingError,
)
from tpuctl.models.node import Tier
from tpuctl.names import NodeName
from tpuctl.nodes.conditions import Condition
from tpuctl.nodes.journal import is_being_recreated
from tpuctl.nodes.journal_entries import has_failed_creation
from tpuctl.nodes.locate import incomplete_list_error, search_node, search_requested_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeReference


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
            return name, app.client.find_node(name)
        except (ServiceUnavailableError, QuotaError) as error:
            if not is_patient or is_connection_refused(error) or deadline_has_passed():
                raise
            app.silent_since = began if app.silent_since is None else app.silent_since
            return name, None
    found = search_node(app.client, place, reference)
    if found is not None:
        return found.name, found
    zone = zone_to_create(app, reference, spec)
    return NodeName(reference.project or place.project, zone, reference.node_id), None


def zone_to_create(app: App, reference: NodeReference, spec: NodeSpec | None) -> str:
    """Return the zone for a new node: of the settings, of past commands, or the only one that offers its type.

    Says which zone it is unless it is that of the settings. Raises `SettingError`, with zones that offer the type, if none is
    known.
    """
    accelerator = find_accelerator_type(spec.accelerator_type) if spec else None
    zone = likely_zone(app, reference, accelerator)
    if zone is not None:
        return zone
    zones = documented_zones_of(accelerator) if accelerator else ()
    if accelerator and len(zones) == 1:
        app.terminal.note(f"{reference.node_id}: in {zones[0]}, the only zone with {accelerator.name}")
        return zones[0]
    error = app.missing_zone()
    if accelerator and zones:
        hint = f"{accelerator.name} is offered in {', '.join(zones[:6])}\n{error.hint or ''}"
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
    remembered = app.journal.last_spec(name)
    if remembered is None:
        offered = smallest_type_in_zone(name.zone)
        example = f"name one, such as `tpuctl up {name.node_id} --type {offered}`; " if offered else ""
        raise InvalidInputError(
            f"cannot create `{name.node_id}` in {name.zone}: no accelerator type given",
            hint=f"{example}see `tpuctl types --zone {name.zone}`",
        )
    spec = remembered.spec
    if is_being_recreated(app.journal, name):
        # An earlier run was interrupted between the deletion and the creation; its user had agreed to both.
        app.terminal.note(f"{name.node_id}: continuing the recreation of an interrupted run")
        return spec
    if spec.is_queued and (request := app.client.find_queued_resource(name)):
        app.terminal.note(f"{name.node_id}: continuing with its queued resource, which is {request.state}")
        return spec
    age = f", from {format_duration(app.clock.now() - remembered.at)} ago" if remembered.at else ""
    what = f"{spec.accelerator_type} with {spec.runtime_version}, {spec.tier or Tier.ON_DEMAND}{age}"
    if not app.terminal.confirm(f"create `{name.node_id}` in {name.zone} with the spec it had ({what})?", yes=yes):
        raise NotConfirmedError("nothing was done", hint="name another type: `--type TYPE`")
    return spec


def _remembered_zone(app: App, node_id: str) -> str | None:
    """Return the zone in which past commands had a node of that name; None unless it was one, in which they did not fail."""
    names = [name for name in app.journal.names() if name.node_id == node_id and name.project == app.project]
    found = app.journal.without_losers(names)
    if len({name.zone for name in found}) != 1 or has_failed_creation(app.journal.entries(found[0], rotated=False)):
        return None
    return found[0].zone


def locate_for_wait(app: App, text: str, *, goal: Condition) -> NodeName | None:
    """Return the full name of a node to wait for; None if the goal is gone and the node is in no zone."""
    reference, name = _search(app, text)
    if name is None and goal is not Condition.GONE:
        raise NodeNotInProjectError(reference.node_id, reference.project or app.place.project)
    return name


def locate_for_watch(app: App, text: str) -> NodeName:
    """Return the full name of a node to watch. It may not exist: it may be requested, or another run may be recreating it."""
    reference, name = _search(app, text)
    project = reference.project or app.place.project
    name = name or search_requested_name(app.client, project, reference, ())
    if name is not None:
        return name
    zone = _remembered_zone(app, reference.node_id) or app.place.default_zone
    if zone is None:
        raise NodeNotInProjectError(reference.node_id, project)
    return NodeName(project, zone, reference.node_id)


def _search(app: App, text: str) -> tuple[NodeReference, NodeName | None]:
    """Return the full name of a node: as the user named it, or from a search in all zones."""
    reference = app.reference(text)
    name = app.place.name(reference)
    if name is None and (found := search_node(app.client, app.place, reference)):
        name = found.name
    return reference, name


def select_nodes(
    app: App, nodes: Sequence[str], *, all_nodes: bool | None, labels: Sequence[str]
) -> list[NodeName] | None:
    """Return the nodes that `--all` or `-l` select now; None if nodes are named.

    `all_nodes` is None for a command without `--all`. Raises `InvalidInputError` unless there is exactly one kind of selection,
    `NotFoundError` if no node matches, and `ServiceUnavailableError` if a zone did not answer.
    """
    kinds = sum((bool(nodes), bool(all_nodes), bool(labels)))
    if kinds != 1:
        what = "no nodes given" if kinds == 0 else "nodes are selected in several ways"
        all_option = "" if all_nodes is None else "`--all`, or "
        raise InvalidInputError(what, hint=f"name them, or use {all_option}`-l KEY=VALUE`")
    if nodes:
        return None
    wanted = parse_pairs("-l", tuple(labels))
    if labels and not wanted:
        # Without a label all nodes would match.
        raise InvalidInputError("`-l` names no label", hint="write `-l KEY=VALUE`")
    listing = app.client.list_nodes(app.project, app.zones)
    if listing.unreachable:
        raise incomplete_list_error(listing.unreachable)
    chosen = [node.name for node in listing.nodes if all(node.labels.get(key) == wanted[key] for key in wanted)]
    if not chosen:
        raise NotFoundError(f"no node of project {app.project} matches", hint="run `tpuctl list` to see all nodes")
    return chosen
