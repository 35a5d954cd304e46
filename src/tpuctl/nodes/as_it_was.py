"""What a node was before, by the journal: the spec of one that is created again, and what differs from the spec wanted now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tpuctl.accelerators import smallest_type_in_zone
from tpuctl.command_text import join_command
from tpuctl.durations import format_duration
from tpuctl.errors import ConflictError, InvalidInputError, NotConfirmedError
from tpuctl.models.node import NodeState, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import NodeSpec, SpecDifference
    from tpuctl.names import NodeName
    from tpuctl.prices import Price

    # Returns the price of a type in a zone and tier for an hour.
    PriceOf = Callable[[str, str, str | None], Price]

_NEVER = datetime.min.replace(tzinfo=UTC)


def remembered_spec(app: App, name: NodeName, *, yes: bool) -> NodeSpec:
    """Return the spec that the node had when tpuctl last created or deleted it, if the user agrees.

    Raises `InvalidInputError` if the journal has none, `NotConfirmedError` if the user refuses.
    """
    past = app.services.journal.past(name)
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
    if spec.is_queued and (request := app.services.client.find_queued_resource(spec.request_name(name))):
        app.terminal.note(f"{name.node_id}: continuing with its queued resource, which is {request.state}")
        return spec
    age = f", from {format_duration(app.clock.now() - past.spec_at)} ago" if past.spec_at else ""
    what = f"{spec.accelerator_type} with {spec.runtime_version}, {spec.tier or Tier.ON_DEMAND}{age}"
    if not app.terminal.confirm(f"create `{name.node_id}` in {name.zone} with the spec it had ({what})?", yes=yes):
        raise NotConfirmedError(hint="name another type: `--type TYPE`")
    return spec


def as_it_was(app: App, name: NodeName, found: Node | None, wanted: NodeSpec, *, price: PriceOf) -> NodeSpec:
    """Return the spec of a node that exists or existed: as it was, but for what flags of this run change.

    Settings of files count only for a new node, and in the comparison with one that the journal does not know. Says what a
    flag changes of the tier or the price of a node that is recreated, and what of the files is not applied. Raises
    `ConflictError` if a node that was deleted for good would come back in another tier or type without a flag for it.
    """
    exists = found is not None and not (found.state.is_dead or found.state is NodeState.DELETING)
    past = app.services.journal.past(name)
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
    known = app.services.journal.namesakes(reference.project or app.project, reference.node_id)
    names = [name for name in known if not zones or name.zone in zones]
    latest = max(names, key=lambda name: app.services.journal.past(name).spec_at or _NEVER, default=None)
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
    return spec.differences(node, made_as=app.services.journal.past(name).made_as(node, created=request.created))


def made_as(app: App, found: Node | None) -> NodeSpec | None:
    """Return the spec that tpuctl created a node with; None if the journal does not have it."""
    return None if found is None else app.services.journal.past(found.name).made_as(found)


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
