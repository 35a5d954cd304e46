"""Which node a command that may create is about: where it is, where it would be, and what it was."""

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
    """Return where a node is, or where it is to be made, and the node if there is one.

    A zone from gcloud's configuration is a place to create in; it does not hide a node that is elsewhere. With `is_patient`
    an API that does not answer about the zone that was named is no error, unless nothing listens there: no node is
    returned, and who waits for it looks again, unless the deadline has passed.
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
    """Return the zone where a node that is in none is to be made. Raises `SettingError` where nothing says so."""
    zone = likely_zone(app, reference)
    if zone is None:
        raise _no_zone(app, spec)
    return zone


def likely_zone(app: App, reference: NodeReference) -> str | None:
    """Return the zone that settings, or past commands, say of a node for which none was named."""
    return app.place.default_zone or _remembered_zone(app, reference.node_id)


def remembered_spec(app: App, name: NodeName, *, yes: bool) -> NodeSpec:
    """Return the spec that the node had when tpuctl last made or deleted it, after asking.

    Raises `InvalidInputError` where none is remembered, `NotConfirmedError` where the answer is no.
    """
    remembered = app.journal.last_spec(name)
    if remembered is None:
        offered = smallest_in(name.zone)
        example = f"name one, such as `tpuctl up {name.node_id} --type {offered}`; " if offered else ""
        raise InvalidInputError(
            f"there is no node `{name.node_id}` in {name.zone} yet: which accelerator type should it have?",
            hint=f"{example}see `tpuctl types --zone {name.zone}`",
        )
    spec = remembered.spec
    if is_being_made_anew(app.journal, name):
        # An earlier run was cut off between its deletion and its creation, to which somebody had agreed.
        app.terminal.note(f"{name.node_id}: going on where an earlier run was cut off")
        return spec
    age = f", from {format_duration(app.clock.now() - remembered.at)} ago" if remembered.at else ""
    what = f"{spec.accelerator_type} with {spec.runtime_version}, {spec.tier or Tier.ON_DEMAND}{age}"
    if not app.terminal.confirm(f"create `{name.node_id}` in {name.zone} as it was ({what})?", yes=yes):
        raise NotConfirmedError("nothing was done", hint="name what you want: `--type TYPE`")
    return spec


def _remembered_zone(app: App, node_id: str) -> str | None:
    """Return the zone where past commands had a node of that name, if it was one zone only."""
    zones = {name.zone for name in app.journal.names() if name.node_id == node_id and name.project == app.project}
    return zones.pop() if len(zones) == 1 else None


def _no_zone(app: App, spec: NodeSpec | None) -> SettingError:
    error = app.settings.missing("zone")
    accelerator = find(spec.accelerator_type) if spec else None
    zones = zones_of(accelerator) if accelerator else ()
    if zones:
        hint = f"{spec.accelerator_type if spec else ''} is offered in {', '.join(zones[:6])}\n{error.hint or ''}"
        return SettingError(error.message, hint=hint)
    return error


def name_to_watch(app: App, text: str, *, goal: Goal) -> NodeName | None:
    """Return the full name of a node to wait for; nothing when it is to be gone and is in no zone."""
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
    """Return the full name of a node to keep usable, which need not be there: it may be about to be made anew."""
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
