"""`tpuctl up` and `create`: create, start or repair nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.accelerators import find
from tpuctl.actions.ensure_ready import Outcome, ensure_all
from tpuctl.actions.holding import changing
from tpuctl.actions.steps import chosen_by_file, describe
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.events import Event, EventKind
from tpuctl.model import REMOVAL_LABEL, Node, NodeSpec, NodeState
from tpuctl.names import nearest, whole_number
from tpuctl.readiness import Verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.actions.cloud import Cloud, Context
    from tpuctl.actions.observation import Task
    from tpuctl.model import Operation
    from tpuctl.names import NodeName

# States in which the service accepts a change of labels or metadata [observed: it refuses others].
_PATCHABLE = frozenset({NodeState.READY, NodeState.STOPPED})


def bring_up(context: Context, tasks: Sequence[Task], *, once: bool = False) -> list[Outcome | TpuctlError]:
    """Create, start or repair nodes in parallel until they are usable; with `once`, only take the next step.

    A node without a spec must exist. Labels, tags, metadata and description that the user named are patched at the end
    if they differ. Return the results in the order of the tasks.
    """
    with_keys = [replace(task, spec=with_key(context, task.spec) if task.spec else None) for task in tasks]
    results = ensure_all(context, with_keys, once=once)
    for index, (task, result) in enumerate(zip(tasks, results, strict=True)):
        if isinstance(result, Outcome) and result.node is not None and task.spec is not None and not once:
            try:
                _patch(context, result.node, task.spec)
            except TpuctlError as error:
                results[index] = error
    return results


def create(context: Context, name: NodeName, spec: NodeSpec, *, steal: bool = False) -> Operation:
    """Request a node, at most once. The spec is written to the journal first.

    Raises `ConflictError` if another client holds the lease of that name.
    """
    context.check(name, spec)
    with changing(context, name, "create", steal=steal):
        context.journal.append(name, "create", context.clock.now(), spec=spec.to_json())
        if chosen := chosen_by_file(context, name, spec):
            text = f"creating {describe(spec)}{chosen}"
            context.tell(Event(EventKind.ACTION, context.clock.now(), name, text, {"verb": str(Verb.CREATE)}))
        return context.cloud.create_node(name, with_key(context, spec))


def with_key(context: Context, spec: NodeSpec) -> NodeSpec:
    """Return the spec with our ssh key in its metadata, so that no later change is needed to log in."""
    entry = context.workers.key_entry()
    if entry is None:
        return spec
    from tpuctl.remote import keys  # noqa: PLC0415  # starts programs, which not every action needs

    present = spec.metadata.get("ssh-keys", "")
    return replace(spec, metadata={**spec.metadata, "ssh-keys": keys.with_key(present, entry)})


def check_type(cloud: Cloud, project: str, zone: str, spec: NodeSpec) -> None:
    """Check with the API that the zone offers a type that the table does not list.

    Raises `InvalidInputError` with the nearest type that the zone offers.
    """
    accelerator = find(spec.accelerator_type)
    if spec.topology or (accelerator and accelerator.is_listed):
        return
    offered = cloud.accelerator_types(project, zone)
    if offered and spec.accelerator_type not in offered:
        near = _nearest_size(spec.accelerator_type, offered) or nearest(spec.accelerator_type, offered)
        raise InvalidInputError(
            f"{zone} does not offer `{spec.accelerator_type}`",
            hint=(f"did you mean `{near}`? " if near else "") + f"see `tpuctl types --zone {zone}`",
        )


def _nearest_size(wanted: str, offered: Sequence[str]) -> str | None:
    """Return the type of the same generation with the nearest size; of two, the larger."""
    prefix, _, text = wanted.rpartition("-")
    size = whole_number(text)
    named = (name.rpartition("-") for name in offered)
    sizes = [found for before, _, after in named if before == prefix and (found := whole_number(after)) is not None]
    if not sizes or size is None:
        return None
    return f"{prefix}-{min(sizes, key=lambda found: (abs(found - size), -found))}"


def _patch(context: Context, node: Node, spec: NodeSpec) -> None:
    changes = changes_to(node, spec)
    if not changes:
        return
    what = ", ".join(changes)
    if node.state not in _PATCHABLE:
        text, kind = f"{what} differ and cannot be changed while it is {node.state}", EventKind.NOTE
    else:
        context.cloud.update_node(node.name, changes)
        text, kind = f"{what} updated", EventKind.ACTION
    context.tell(Event(kind, context.clock.now(), node.name, text, {"fields": list(changes)}))


def changes_to(node: Node, spec: NodeSpec) -> dict[str, Any]:
    """Return the labels, tags, metadata and description to set so that the node has what the user named.

    Other values of the node are kept.
    """
    changes: dict[str, Any] = {}
    # The label marks a node that this run created. On another node it would lead to a deletion.
    labels = {key: value for key, value in spec.labels.items() if key != REMOVAL_LABEL}
    if any(node.labels.get(key) != value for key, value in labels.items()):
        changes["labels"] = {**node.labels, **labels}
    if any(node.metadata.get(key) != value for key, value in spec.metadata.items() if key != "ssh-keys"):
        wanted = {key: value for key, value in spec.metadata.items() if key != "ssh-keys"}
        changes["metadata"] = {**node.metadata, **wanted}
    tags = node.raw.get("tags") or []
    if not set(spec.tags) <= set(tags):
        changes["tags"] = [*tags, *(tag for tag in spec.tags if tag not in tags)]
    if spec.description is not None and spec.description != (node.raw.get("description") or ""):
        changes["description"] = spec.description
    return changes
