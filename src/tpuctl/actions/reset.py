"""`tpuctl reset`, `start` and `stop`: change an existing node, and wait for the result."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.actions.bring_up import with_key
from tpuctl.actions.ensure_ready import Outcome, ensure
from tpuctl.actions.history import spec_as_it_is
from tpuctl.actions.holding import changing, end_watch
from tpuctl.actions.steps import REBOOT_PAUSE, Pending, check_same
from tpuctl.errors import ConflictError
from tpuctl.events import Event, EventKind
from tpuctl.journal import JournalError
from tpuctl.model import Node, NodeState
from tpuctl.plan import ResetMode
from tpuctl.readiness import Answer, Policy, Verb
from tpuctl.readiness.words import describe_answers

if TYPE_CHECKING:
    from tpuctl.actions.cloud import Context

_SURVEY = timedelta(seconds=15)


def reset(context: Context, node: Node, mode: ResetMode, policy: Policy, *, steal: bool = False) -> Outcome:
    """Reboot, restart or recreate a node, as `plan.reset_mode` chose, and wait until it is usable again.

    Raises `ConflictError` if another client holds the lease of the node, unless `steal`.
    """
    match mode:
        case ResetMode.RESTART:
            return _restart(context, node, replace(policy, may_start=True), steal=steal)
        case ResetMode.REBOOT:
            return _reboot(context, node, policy, steal=steal)
        case ResetMode.RECREATE:
            return _recreate(context, node, replace(policy, may_start=True, may_create=True), steal=steal)
        case ResetMode.AUTO:
            raise AssertionError("plan.reset_mode returns a definite mode")


def needs_start(node: Node, *, anyway: bool = False) -> bool:
    """Return whether a start request is needed: not if the node already runs.

    Raises `ConflictError` if the service would refuse it, unless `anyway`.
    """
    name = node.name.node_id
    if node.state in {NodeState.READY, NodeState.STARTING}:
        return False
    why_not = node.why_not_startable()
    if (node.state is not NodeState.STOPPED or why_not) and not anyway:
        what = why_not or f"it is {node.state}"
        hint = f"`tpuctl up {name}` brings it up from any state that allows it"
        if why_not:
            hint = f"recreate it with `tpuctl reset {name} --mode recreate` (its boot disk is lost)"
        raise ConflictError(f"`{name}` cannot be started: {what}", hint=hint)
    return True


def start(context: Context, node: Node, *, anyway: bool = False, steal: bool = False) -> Pending | None:
    """Start a stopped node. Return None if it already runs.

    Raises `ConflictError` if the service would refuse it, before any call, unless `anyway`.
    """
    if not needs_start(node, anyway=anyway):
        return None
    with changing(context, node.name, "start", steal=steal):
        _tell(context, node, "starting it", verb="start")
        _note_down(context, node, "start")
        return Pending(Verb.START, context.cloud.start_node(node.name), node.id)


def needs_stop(node: Node, *, anyway: bool = False) -> bool:
    """Return whether a stop request is needed: not if the node is already stopped.

    Raises `ConflictError` if the service would refuse it, unless `anyway`.
    """
    name = node.name.node_id
    if node.state in {NodeState.STOPPED, NodeState.STOPPING}:
        return False
    why_not = node.why_not_stoppable()
    if why_not and not anyway:
        hint = f"`tpuctl down {name}` deletes it and ends the billing; `tpuctl reset {name} --mode reboot` reboots its workers"
        raise ConflictError(f"`{name}` cannot be stopped: {why_not}", hint=hint)
    if node.state is not NodeState.READY and not anyway:
        hint = f"wait until it is READY: `tpuctl wait {name} --for ready`; or pass `--skip-validation`"
        raise ConflictError(f"`{name}` cannot be stopped: it is {node.state}", hint=hint)
    return True


def stop(context: Context, node: Node, *, anyway: bool = False) -> Pending | None:
    """Stop a node, keeping its boot disk. Return None if it is already stopped.

    Raises `ConflictError` if the service would refuse it, before any call, unless `anyway`.
    """
    if not needs_stop(node, anyway=anyway):
        return None
    if not node.tier.can_start_again:
        text = f"it is a {node.tier} node: once stopped it cannot be started again"
        context.tell(Event(EventKind.NOTE, context.clock.now(), node.name, text))
        # A stop ends such a node for good: it is not sent unless the journal has it.
        context.journal.append(node.name, "stop", context.clock.now(), reason="asked for", id=node.id, repair=False)
    end_watch(context, node.name, "stop")
    _tell(context, node, "stopping it", verb="stop")
    if node.tier.can_start_again:
        _note_down(context, node, "stop")
    return Pending(Verb.STOP, context.cloud.stop_node(node.name), node.id)


def _reboot(context: Context, node: Node, policy: Policy, *, steal: bool) -> Outcome:
    workers = context.workers.survey(node, inspect=False, probe=None, timeout=_SURVEY)
    if any(worker.answer is not Answer.YES for worker in workers):
        name, why_not = node.name.node_id, node.why_not_restartable()
        others = "" if why_not else f"`tpuctl reset {name} --mode restart` stops and starts it; "
        raise ConflictError(
            f"`{name}` cannot be rebooted from inside: {describe_answers([worker.answer for worker in workers])}",
            hint=f"{others}`tpuctl reset {name} --mode recreate` deletes and recreates it (its boot disk is lost)",
        )
    with changing(context, node.name, "reset", steal=steal, keep=True):
        _note_down(context, node, "reboot")
        _tell(context, node, "rebooting every worker", verb="reboot")
        context.workers.reboot(node)
    context.clock.sleep(REBOOT_PAUSE)
    return ensure(context, node.name, policy, purpose="reset")


def _restart(context: Context, node: Node, policy: Policy, *, steal: bool) -> Outcome:
    pending = None
    if node.state is not NodeState.STOPPED:
        with changing(context, node.name, "reset", steal=steal, keep=True):
            context.journal.append(node.name, "restart", context.clock.now(), reason="reset", id=node.id, repair=False)
            _tell(context, node, "stopping it, to start it again", verb="stop")
            pending = Pending(Verb.STOP, context.cloud.stop_node(node.name), node.id)
    return ensure(context, node.name, policy, pending=pending, purpose="reset")


def _recreate(context: Context, node: Node, policy: Policy, *, steal: bool) -> Outcome:
    spec = with_key(context, spec_as_it_is(context.journal, node, context.clock.now()))
    with changing(context, node.name, "reset", steal=steal, keep=True):
        now = context.clock.now()
        context.journal.append(node.name, "delete", now, reason="reset", id=node.id, spec=spec.to_json())
        check_same(context, node)
        _tell(context, node, "deleting it, to create it again", verb="delete", id=node.id)
        pending = Pending(Verb.DELETE, context.cloud.delete_node(node.name, expected_id=node.id), node.id)
    return ensure(context, node.name, policy, spec=spec, pending=pending, purpose="reset")


def _note_down(context: Context, node: Node, event: str) -> None:
    try:
        context.journal.append(node.name, event, context.clock.now(), reason="asked for", id=node.id, repair=False)
    except JournalError as error:  # nothing is destroyed
        context.tell(Event(EventKind.NOTE, context.clock.now(), node.name, error.message))


def _tell(context: Context, node: Node, text: str, **data: object) -> None:
    context.tell(Event(EventKind.ACTION, context.clock.now(), node.name, text, data))
