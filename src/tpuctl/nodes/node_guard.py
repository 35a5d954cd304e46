"""Start the guard of a node on its worker 0, and say in words what it will do, or what remains if it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import RemoteCommandError
from tpuctl.models.node import KEEP_LABEL

if TYPE_CHECKING:
    from tpuctl.models.node import Node
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.idleness import IdleAction, IdleLimit


@dataclass(frozen=True, slots=True)
class GuardStart:
    """The result of a start, in one line for the user and the journal. `works`: the guard does its work."""

    text: str
    works: bool


def start_node_guard(context: ActionContext, node: Node, limit: IdleLimit | None, *, has_ssh: bool) -> GuardStart:
    """Start the guard of a node with a time limit, of expiry or of idleness, and return the result.

    An error of ssh or of the worker is a part of the result: the node is usable without a guard.
    """
    what_remains = _what_remains(node, limit)
    if not has_ssh:
        return GuardStart(f"no guard was started on worker 0, because ssh was not used: {what_remains}", works=False)
    action = limit.action_for(node) if limit else None
    notes = _idle_notes(node, limit, action)
    is_guarded_idle = limit is not None and action is not None and node.workers == 1
    if node.expires is None and not is_guarded_idle:
        return GuardStart("; ".join(notes), works=False)
    idle = (limit.after, str(action)) if limit is not None and is_guarded_idle else None
    try:
        report = context.workers.start_guard(node, idle)
    except RemoteCommandError as error:
        return GuardStart(f"the guard on worker 0 did not start: {error.message}: {what_remains}", works=False)
    if problem := report.problem():
        return GuardStart(f"{problem}; it tries again, and until then {what_remains}", works=False)
    deeds = []
    if node.expires is not None:
        deeds.append(f"deletes it when its time ends ({format_timestamp(node.expires)}, unless it is extended)")
    if limit is not None and is_guarded_idle:
        deeds.append(f"{action}s it after {format_duration(limit.after)} without use")
    is_lasting = report.mode == "service"
    notes += [f"the guard on worker 0 {' and '.join(deeds)}"]
    if not is_lasting:
        notes.append("it does not survive a reboot of the worker: there is no systemd, or sudo needs a password")
    if clock := report.clock_note():
        notes.append(f"{clock}; the service's time decides")
    return GuardStart("; ".join(notes), works=True)


def _what_remains(node: Node, limit: IdleLimit | None) -> str:
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
