"""Lookup of nodes that may not exist yet: their zone, and the spec they had before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.accelerators import find, smallest_in, zones_of
from tpuctl.actions.history import is_being_made_anew
from tpuctl.actions.locate import search
from tpuctl.cli.remedies import nothing_listens
from tpuctl.clock import format_duration, is_late
from tpuctl.errors import (
    InvalidInputError,
    NodeNowhereError,
    NotConfirmedError,
    QuotaError,
    ServiceUnavailableError,
    SettingError,
)
from tpuctl.model import Tier
from tpuctl.names import NodeName
from tpuctl.readiness import Goal

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.model import Node, NodeSpec
    from tpuctl.names import NodeReference


def where_to_create(
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
            if not is_patient or nothing_listens(error) or is_late():
                raise
            app.silent_since = began if app.silent_since is None else app.silent_since
            return name, None
    found = search(app.client, place, reference)
    if found is not None:
        return found.name, found
    zone = zone_to_create(app, reference, spec)
    return NodeName(reference.project or place.project, zone, reference.node_id), None


def zone_to_create(app: App, reference: NodeReference, spec: NodeSpec | None) -> str:
    """Return the zone for a new node. Raises `SettingError`, with zones that offer its type, if none is known."""
    zone = likely_zone(app, reference)
    if zone is not None:
        return zone
    error = app.settings.missing("zone")
    accelerator = find(spec.accelerator_type) if spec else None
    zones = zones_of(accelerator) if accelerator else ()
    if not zones:
        raise error
    hint = f"{spec.accelerator_type if spec else ''} is offered in {', '.join(zones[:6])}\n{error.hint or ''}"
    raise SettingError(error.message, hint=hint)


def likely_zone(app: App, reference: NodeReference) -> str | None:
    """Return the zone of the settings or of past commands for a node named without one, None if none is known."""
    return app.place.default_zone or _remembered_zone(app, reference.node_id)


def remembered_spec(app: App, name: NodeName, *, yes: bool) -> NodeSpec:
    """Return the spec that the node had when tpuctl last created or deleted it, if the user agrees.

    Raises `InvalidInputError` if the journal has none, `NotConfirmedError` if the user refuses.
    """
    remembered = app.journal.last_spec(name)
    if remembered is None:
        offered = smallest_in(name.zone)
        example = f"name one, such as `tpuctl up {name.node_id} --type {offered}`; " if offered else ""
        raise InvalidInputError(
            f"cannot create `{name.node_id}` in {name.zone}: no accelerator type given",
            hint=f"{example}see `tpuctl types --zone {name.zone}`",
        )
    spec = remembered.spec
    if is_being_made_anew(app.journal, name):
        # An earlier run was interrupted between the deletion and the creation; its user had agreed to both.
        app.terminal.note(f"{name.node_id}: continuing the recreation of an interrupted run")
        return spec
    age = f", from {format_duration(app.clock.now() - remembered.at)} ago" if remembered.at else ""
    what = f"{spec.accelerator_type} with {spec.runtime_version}, {spec.tier or Tier.ON_DEMAND}{age}"
    if not app.terminal.confirm(f"create `{name.node_id}` in {name.zone} with the spec it had ({what})?", yes=yes):
        raise NotConfirmedError("nothing was done", hint="name another type: `--type TYPE`")
    return spec


def _remembered_zone(app: App, node_id: str) -> str | None:
    """Return the zone in which past commands had a node of that name, None unless it was exactly one."""
    zones = {name.zone for name in app.journal.names() if name.node_id == node_id and name.project == app.project}
    return zones.pop() if len(zones) == 1 else None


def name_to_watch(app: App, text: str, *, goal: Goal) -> NodeName | None:
    """Return the full name of a node to wait for; None if the goal is gone and the node is in no zone."""
    reference, place = app.reference(text), app.place
    name = place.name(reference)
    if name is not None:
        return name
    found = search(app.client, place, reference)
    if found is not None:
        return found.name
    if goal is Goal.GONE:
        return None
    raise NodeNowhereError(reference.node_id, reference.project or place.project)


def where_to_watch(app: App, text: str) -> NodeName:
    """Return the full name of a node to watch. It may not exist: another run may be recreating it."""
    reference, place = app.reference(text), app.place
    name = place.name(reference)
    if name is not None:
        return name
    found = search(app.client, place, reference)
    if found is not None:
        return found.name
    zone = _remembered_zone(app, reference.node_id) or place.default_zone
    if zone is None:
        raise NodeNowhereError(reference.node_id, reference.project or place.project)
    return NodeName(reference.project or place.project, zone, reference.node_id)
