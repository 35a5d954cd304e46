"""Change nodes for one command: `up`, `create`, `start`, `stop`, `reset` and `update`.

Each function checks what the service would refuse, takes the lease, writes to the journal and sends the request.
`controller` waits for the result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuctl.accelerators import find_accelerator_type
from tpuctl.durations import format_timestamp
from tpuctl.errors import (
    ConflictError,
    InvalidInputError,
    TpuctlError,
)
from tpuctl.models.events import EventKind
from tpuctl.models.node import OWNER_LABEL, Node, NodeState
from tpuctl.models.node_changes import changed_fields
from tpuctl.models.spec import REMOVAL_LABEL, NodeSpec
from tpuctl.names import parse_whole_number
from tpuctl.nodes.actuator import (
    PATCHABLE_STATES,
    RequestedChange,
    describe_file_choices,
    describe_spec,
    require_same,
)
from tpuctl.nodes.conditions import Policy, SshAnswer, Verb, describe_answers
from tpuctl.nodes.controller import MoveNode, NodeResult, reconcile_nodes
from tpuctl.nodes.expiry import ExpiryChange
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.journal import JournalError
from tpuctl.nodes.lease_guard import end_lease, hold_lease
from tpuctl.nodes.plan import ResetMode
from tpuctl.spelling import closest_match
from tpuctl.ssh.keys import add_metadata_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.operation import Operation
    from tpuctl.models.spec import QueueWindow
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext

# Gets a selected node, and what has its name right before a deletion or stop; raises if that is no longer meant.
StillSelected = Callable[[Node, Node], None]


def bring_up_nodes(
    context: ActionContext,
    tasks: Sequence[Goal],
    *,
    wait: bool = True,
    together: bool = False,
    move: MoveNode | None = None,
) -> list[NodeResult | TpuctlError]:
    """Create, start or repair nodes in parallel until they are usable; without `wait`, only take the next step.

    A node without a spec must exist. Labels, tags, metadata and description that the user named are patched at the end
    if they differ. Return the results in the order of the tasks; `together` is that of `reconcile_nodes`. `move` may go on with
    a failed node elsewhere.
    """

    def with_key(task: Goal) -> Goal:
        return replace(task, spec=spec_with_ssh_key(context, task.spec)) if task.spec and not task.only_looks else task

    def move_with_key(goal: Goal, error: TpuctlError) -> tuple[Goal, timedelta] | TpuctlError:
        moved = move(goal, error) if move is not None else error
        return moved if isinstance(moved, TpuctlError) else (with_key(moved[0]), moved[1])

    goals = [with_key(task) for task in tasks]
    results = reconcile_nodes(context, goals, wait=wait, together=together, move=move_with_key)
    if len(results) < len(tasks):
        return results
    for index, (task, result) in enumerate(zip(tasks, results, strict=True)):
        may_patch = wait and not task.only_looks
        if isinstance(result, NodeResult) and result.node is not None and task.spec is not None and may_patch:
            try:
                _patch(context, result.node, task.spec)
            except TpuctlError as error:
                results[index] = error
    return results


def create_node(
    context: ActionContext,
    name: NodeName,
    spec: NodeSpec,
    window: QueueWindow | None = None,
    *,
    force_lease: bool = False,
) -> Operation:
    """Create a node, or with a `window` request it through the queue, at most once. The spec is written to the journal first.

    Raises `ConflictError` if another client holds the lease of that name.
    """
    context.check(name, spec)
    spec = context.stamped(spec)
    with (
        hold_lease(context, name, "create", force_lease=force_lease),
        context.recorded(name, "create", spec=spec.to_json()),
    ):
        chosen = describe_file_choices(context, name, spec)
        if chosen or window:
            verb = "requesting" if window else "creating"
            text = f"{verb} {describe_spec(context, spec, name.zone)}{chosen}"
            context.report(EventKind.ACTION, name, text, verb=str(Verb.CREATE))
        with_key = spec_with_ssh_key(context, spec)
        if window is not None:
            return context.cloud.create_queued_resource(name, with_key, window.ended_by(spec.expires))
        operation = context.cloud.create_node(name, with_key)
    context.warn_if_over_budget(name, spec)
    return operation


def spec_with_ssh_key(context: ActionContext, spec: NodeSpec) -> NodeSpec:
    """Return the spec with our ssh key in its metadata, so that no later change is needed to log in."""
    entry = context.workers.key_entry()
    if entry is None:
        return spec
    present = spec.metadata.get("ssh-keys", "")
    return replace(spec, metadata={**spec.metadata, "ssh-keys": add_metadata_key(present, entry)})


def check_accelerator_type(cloud: TpuClient, project: str, zone: str, spec: NodeSpec) -> None:
    """Check with the API that the zone offers a type that the table does not list.

    Raises `InvalidInputError` with the nearest type that the zone offers.
    """
    accelerator = find_accelerator_type(spec.accelerator_type)
    if spec.topology or (accelerator and accelerator.is_listed):
        return
    offered = cloud.accelerator_types(project, zone)
    if offered and spec.accelerator_type not in offered:
        near = _nearest_size(spec.accelerator_type, offered) or closest_match(spec.accelerator_type, offered)
        raise InvalidInputError(
            f"{zone} does not offer `{spec.accelerator_type}`",
            hint=(f"did you mean `{near}`? " if near else "") + f"see `tpuctl types --zone {zone}`",
        )


def _nearest_size(wanted: str, offered: Sequence[str]) -> str | None:
    """Return the type of the same generation with the nearest size; of two, the larger."""
    prefix, _, text = wanted.rpartition("-")
    size = parse_whole_number(text)
    named = (name.rpartition("-") for name in offered)
    sizes = [
        found for before, _, after in named if before == prefix and (found := parse_whole_number(after)) is not None
    ]
    if not sizes or size is None:
        return None
    return f"{prefix}-{min(sizes, key=lambda found: (abs(found - size), -found))}"


def _patch(context: ActionContext, node: Node, spec: NodeSpec) -> None:
    changes = spec_changes(node, spec)
    if not changes:
        return
    what = ", ".join(changes)
    if node.state not in PATCHABLE_STATES:
        text = f"{what} differ and cannot be changed while it is {node.state}"
        context.report(EventKind.NOTE, node.name, text)
        return
    context.cloud.change_node(node.name, partial(spec_changes, spec=spec), expected_id=node.id)
    context.report(EventKind.ACTION, node.name, f"{what} updated", verb=str(Verb.UPDATE), fields=list(changes))


def spec_changes(node: Node, spec: NodeSpec) -> dict[str, Any]:
    """Return the labels, tags, metadata and description to set so that the node has what the user named.

    Other values of the node are kept.
    """
    # A spec that was completed from the node has its values of that time, which other clients may have changed since.
    spec = spec.asked or spec
    # The one marks a node that this run created: on another node it would lead to a deletion. The other says who created it.
    labels = {key: value for key, value in spec.labels.items() if key not in {REMOVAL_LABEL, OWNER_LABEL}}
    metadata = {key: value for key, value in spec.metadata.items() if key != "ssh-keys"}
    tags = node.raw.get("tags") or []
    wanted: dict[str, Any] = {
        "labels": {**node.labels, **labels},
        "metadata": {**node.metadata, **metadata},
        "tags": [*tags, *(tag for tag in spec.tags if tag not in tags)],
    }
    if spec.description is not None:
        wanted["description"] = spec.description
    return changed_fields(node, wanted)


def change_expiry(
    context: ActionContext, node: Node, new_end: Callable[[Node], datetime | None], *, timeout: timedelta | None
) -> Node:
    """Set the end of a node's time, or remove it for None. Return the node as it is then.

    `new_end` gets the node as it is right before the change. Raises `ConflictError` in a state in which the service refuses
    a change of labels, and if another client recreated the node.
    """
    name = node.name
    if node.state not in PATCHABLE_STATES:
        hint = f"wait until it is READY: `tpuctl wait {name.zone}/{name.node_id} --for ready`"
        if node.state.is_dead or node.state is NodeState.DELETING:
            hint = f"`tpuctl up {name.node_id} --ttl 8h` recreates it with a new time limit"
        raise ConflictError(f"`{name.node_id}` is {node.state}: its time limit cannot be changed", hint=hint)
    change = ExpiryChange(new_end)
    changed = context.cloud.change_node(name, change, expected_id=node.id, timeout=timeout)
    text = "never" if change.end is None else format_timestamp(change.end)
    with suppress(JournalError):  # nothing is destroyed
        until = {} if change.end is None else {"until": text}
        context.record(name, "extend", reason=f"expires {text}", id=node.id, **until)
    return changed


_RESET_SURVEY_TIMEOUT = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class NodeReset:
    """A node to reset, how, and until when it is waited for."""

    node: Node
    mode: ResetMode  # as `plan.reset_mode` chose
    policy: Policy


def request_reset(
    context: ActionContext, reset: NodeReset, still_meant: StillSelected = lambda *_: None, *, force_lease: bool = False
) -> Goal:
    """Send the first request of a reset, and return what is left to do.

    `still_meant` raises if the node is no longer meant right before it is stopped or deleted. Raises `ConflictError` if another
    client holds its lease, unless `force_lease`.
    """
    node, policy = reset.node, reset.policy
    match reset.mode:
        case ResetMode.RESTART:
            pending = None
            if node.state is not NodeState.STOPPED:
                with hold_lease(context, node.name, "reset", force_lease=force_lease, keep=True):
                    context.record(node.name, "restart", reason="reset", id=node.id, repair=False)
                    _report(context, node, "restarting", verb="stop")
                    operation = context.cloud.stop_node(node.name, _judge(node, still_meant))
                    pending = RequestedChange(Verb.STOP, operation, node.id)
            policy = replace(policy, may_start=True)
            return Goal(name=node.name, policy=policy, pending=pending, purpose="reset")
        case ResetMode.REBOOT:
            _reboot(context, node, force_lease=force_lease)
            return Goal(name=node.name, policy=policy, purpose="reset")
        case ResetMode.RECREATE:
            policy = replace(policy, may_start=True, may_create=True)
            return _recreate(context, node, policy, still_meant, force_lease=force_lease)
        case ResetMode.AUTO:
            raise AssertionError("plan.reset_mode returns a definite mode")


def needs_start(node: Node, *, skip_validation: bool = False) -> bool:
    """Return whether a start request is needed: not if the node already runs.

    Raises `ConflictError` if the service would refuse it, unless `skip_validation`.
    """
    name = node.name.node_id
    if node.state in {NodeState.READY, NodeState.STARTING}:
        return False
    why_not = node.why_not_startable()
    if (node.state is not NodeState.STOPPED or why_not) and not skip_validation:
        what = why_not or f"it is {node.state}"
        hint = f"`tpuctl up {name}` brings it up from any state that allows it"
        if why_not:
            hint = f"recreate it with `tpuctl reset {name} --mode recreate` (its boot disk is lost)"
        raise ConflictError(f"`{name}` cannot be started: {what}", hint=hint)
    return True


def start_node(context: ActionContext, node: Node, *, force_lease: bool = False) -> RequestedChange:
    """Start a node that `needs_start`. Raises `ConflictError` if another client holds its lease, unless `force_lease`."""
    with hold_lease(context, node.name, "start", force_lease=force_lease):
        _report(context, node, f"starting (was {node.state})", verb="start")
        _write_to_journal(context, node, "start")
        return RequestedChange(Verb.START, context.cloud.start_node(node.name), node.id)


def needs_stop(node: Node, *, skip_validation: bool = False) -> bool:
    """Return whether a stop request is needed: not if the node is already stopped.

    Raises `ConflictError` if the service would refuse it, unless `skip_validation`.
    """
    name = node.name.node_id
    if node.state in {NodeState.STOPPED, NodeState.STOPPING}:
        return False
    why_not = node.why_not_stoppable()
    if why_not and not skip_validation:
        hint = f"`tpuctl down {name}` deletes it and ends the billing; `tpuctl reset {name} --mode reboot` reboots its workers"
        raise ConflictError(f"`{name}` cannot be stopped: {why_not}", hint=hint)
    if node.state is not NodeState.READY and not skip_validation:
        hint = f"wait until it is READY: `tpuctl wait {name} --for ready`; or pass `--skip-validation`"
        if node.state.is_dead:
            hint = f"`tpuctl down {name}` deletes its record; `tpuctl up {name}` creates it again"
        raise ConflictError(f"`{name}` cannot be stopped: it is {node.state}", hint=hint)
    return True


def stop_node(context: ActionContext, node: Node, still_meant: StillSelected = lambda *_: None) -> RequestedChange:
    """Stop a node that `needs_stop`, keeping its boot disk. The lease of any other holder is ended first."""
    if not node.tier.can_start_again:
        text = f"it is a {node.tier} node: once stopped it cannot be started again"
        context.report(EventKind.NOTE, node.name, text)
        # A stop ends such a node for good: it is not sent unless the journal has it.
        context.record(node.name, "stop", reason="asked for", id=node.id, repair=False)
    end_lease(context, node.name, "stop")
    _report(context, node, "stopping it", verb="stop")
    if node.tier.can_start_again:
        _write_to_journal(context, node, "stop")
    return RequestedChange(Verb.STOP, context.cloud.stop_node(node.name, _judge(node, still_meant)), node.id)


def _judge(node: Node, still_meant: StillSelected) -> Callable[[Node], None]:
    """Return the check of what has the name of a node right before its deletion or stop."""

    def judge(current: Node) -> None:
        require_same(node, current)
        still_meant(node, current)

    return judge


def _reboot(context: ActionContext, node: Node, *, force_lease: bool) -> None:
    workers = context.workers.survey(node, inspect=False, probe=None, timeout=_RESET_SURVEY_TIMEOUT)
    if any(worker.answer is not SshAnswer.YES for worker in workers):
        name, why_not = node.name.node_id, node.why_not_restartable()
        others = "" if why_not else f"`tpuctl reset {name} --mode restart` stops and starts it; "
        raise ConflictError(
            f"`{name}` cannot be rebooted from inside: {describe_answers([worker.answer for worker in workers])}",
            hint=f"{others}`tpuctl reset {name} --mode recreate` deletes and recreates it (its boot disk is lost)",
        )
    with hold_lease(context, node.name, "reset", force_lease=force_lease, keep=True):
        _write_to_journal(context, node, "reboot")
        _report(context, node, "rebooting every worker", verb="reboot")
        context.workers.reboot(node)


def _recreate(
    context: ActionContext, node: Node, policy: Policy, still_meant: StillSelected, *, force_lease: bool
) -> Goal:
    spec = spec_with_ssh_key(context, context.journal.past(node.name).spec_as_it_is(node))
    # Checked before the deletion: a node that could not be created again is better kept.
    context.check(node.name, spec, replaces=node)
    with hold_lease(context, node.name, "reset", force_lease=force_lease, keep=True):
        with context.recorded(node.name, "delete", reason="reset", id=node.id, spec=spec.to_json()):
            _report(context, node, "deleting it, to create it again", verb="delete", id=node.id)
            operation = context.cloud.delete_node(node.name, _judge(node, still_meant))
        pending = RequestedChange(Verb.DELETE, operation, node.id)
    return Goal(name=node.name, policy=policy, spec=spec, pending=pending, purpose="reset")


def _write_to_journal(context: ActionContext, node: Node, event: str) -> None:
    try:
        context.record(node.name, event, reason="asked for", id=node.id, repair=False)
    except JournalError as error:  # nothing is destroyed
        context.report(EventKind.NOTE, node.name, error.message)


def _report(context: ActionContext, node: Node, text: str, **data: object) -> None:
    context.report(EventKind.ACTION, node.name, text, **data)
