"""Start the guard of a node on its worker 0, and say in words what it will do, or what remains if it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import NotFoundError, RemoteCommandError, TpuctlError
from tpuctl.models.node import KEEP_LABEL

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.models.node import Node
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.idle_limit import IdleAction, IdleChange, IdleLimit
    from tpuctl.nodes.past import Past


@dataclass(frozen=True, slots=True)
class GuardStart:
    """The result of a start, in one line for the user and the journal. `works`: the guard does its work."""

    text: str
    works: bool


def start_node_guard(context: ActionContext, node: Node, change: IdleChange, *, has_ssh: bool) -> GuardStart:
    """Start the guard of a node with a time limit, of expiry or of idleness, and return the result.

    An error of ssh or of the worker is a part of the result: the node is usable without a guard.
    """
    limit = change.limit
    what_remains = _what_remains(node, limit)
    try:
        several = _nodes_of_its_request(context, node)
    except TpuctlError as error:
        text = f"no guard was started on worker 0, because its queued resource could not be read: {error.message}"
        return GuardStart(f"{text}: {what_remains}", works=False)
    if several > 1:
        text = f"no guard was started on worker 0, because its queued resource has {several} nodes, which end together"
        return GuardStart(f"{text}: {_what_ends_several(node, limit)}", works=False)
    if not has_ssh:
        return GuardStart(f"no guard was started on worker 0, because ssh was not used: {what_remains}", works=False)
    action = limit.action_for(node) if limit else None
    notes = _idle_notes(node, limit, action)
    is_guarded_idle = limit is not None and action is not None and node.workers == 1
    if node.expires is None and not is_guarded_idle:
        return GuardStart("; ".join(notes), works=False)
    idle = (limit.after, str(action)) if limit is not None and is_guarded_idle else None
    try:
        report = context.workers.start_guard(node, idle, keeps_idle=change.keeps)
    except RemoteCommandError as error:
        return GuardStart(f"the guard on worker 0 did not start: {error.message}: {what_remains}", works=False)
    if problem := report.problem():
        text = f"{problem}; it tries again, and until then {what_remains}"
        if report.status is not None and report.status.problem == "permission":
            text += f"; this allows it that and nothing else: `{report.grant_command(node)}`"
        return GuardStart(text, works=False)
    if node.is_kept:
        return GuardStart(what_remains, works=False)
    deeds = []
    if node.expires is not None:
        deeds.append(f"deletes it when its time ends ({format_timestamp(node.expires)}, unless it is extended)")
    if report.idle is not None and report.on_idle is not None:
        after, verb = report.idle, report.on_idle
        deeds.append(f"{verb}s it after {format_duration(after)} without use")
    notes += [f"the guard on worker 0 {' and '.join(deeds)}"]
    if report.mode != "service":
        notes.append("it does not survive a reboot of the worker: there is no systemd, or sudo needs a password")
    if clock := report.clock_note():
        notes.append(f"{clock}; the service's time decides")
    return GuardStart("; ".join(notes), works=True)


def remove_node_guard(context: ActionContext, node: Node, *, has_ssh: bool) -> str:
    """Remove the guard of a node that has no limit any more, and return the result in one line; empty if there was none."""
    again = f"`tpuctl up {node.name.node_id} --for ssh --idle forever` removes it"
    if not has_ssh:
        return f"a guard on worker 0 would keep its idle limit, because ssh was not used: {again}"
    try:
        was_there = context.workers.remove_guard(node)
    except RemoteCommandError as error:
        return f"a guard on worker 0 may keep its idle limit: {error.message}: {again}"
    return "the guard on worker 0 is removed: no limit is left" if was_there else ""


def describe_guard(past: Past, node: Node, now: datetime) -> str:
    """Return what the journal knows about the guard of a node: no worker is asked. Empty for a node without a limit."""
    up = f"`tpuctl up {node.name.node_id}` starts one"
    last = past.guards.get(node.id)
    if last is None:
        return "" if node.expires is None else f"none that the journal knows of; {up}"
    if not last.ok:
        return last.text
    ago = format_duration(max(now - last.at, timedelta()))
    return f"started {ago} ago; `tpuctl doctor {node.name.node_id}` asks whether it runs"


def _nodes_of_its_request(context: ActionContext, node: Node) -> int:
    """Return how many nodes end together with a node: those of its queued resource, which cannot change. Raises `TpuctlError`.

    The guard knows its own node only, and so one of several has none.
    """
    if node.queued_resource is None:
        return 1
    try:
        return len(context.cloud.get_queued_resource(node.queued_resource).node_ids)
    except NotFoundError:
        return 1


def _what_ends_several(node: Node, limit: IdleLimit | None) -> str:
    commands = []
    if node.expires is not None:
        commands.append(
            f"only `tpuctl gc --expired` and `tpuctl watch {node.name.node_id}` end it, when all have expired"
        )
    if limit is not None:
        commands.append(f"only `tpuctl gc --idle {format_duration(limit.after)}` ends it, when all are idle")
    return "; ".join(commands)


def _what_remains(node: Node, limit: IdleLimit | None) -> str:
    if node.is_kept:
        return f"nothing ends it while it has the label {KEEP_LABEL}"
    watch = f"tpuctl watch {node.name.node_id}" + (f" --idle {format_duration(limit.after)}" if limit else "")
    return f"only `{watch}` ends it" if node.expires is None else f"only `tpuctl gc --expired` and `{watch}` end it"


def _idle_notes(node: Node, limit: IdleLimit | None, action: IdleAction | None) -> list[str]:
    """Return why the guard does not enforce an idle limit, empty if it does."""
    if limit is None:
        return []
    if node.is_kept:
        return [f"an idle node is not ended: it has the label {KEEP_LABEL}"]
    if action is None:
        return [f"an idle node is not stopped: {node.why_not_stoppable()}; `--on-idle delete` deletes it"]
    if node.workers > 1:
        idle = format_duration(limit.after)
        return [
            f"worker 0 does not see the others: only `tpuctl watch {node.name.node_id} --idle {idle}` ends it when idle"
        ]
    return []
