"""The body of `tpuctl reset`."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import with_reachable_goal
from tpuctl.check.preflight import preflight_check
from tpuctl.durations import parse_timestamp
from tpuctl.errors import TpuctlError
from tpuctl.models.node import NodeState
from tpuctl.nodes.actions import NodeReset, request_reset
from tpuctl.nodes.actuator import REBOOT_PAUSE
from tpuctl.nodes.commands.change_frame import NodeVerb, Planned, change_nodes
from tpuctl.nodes.commands.selected_changes import name_nodes
from tpuctl.nodes.conditions import Policy, Verb
from tpuctl.nodes.plan import PlanStep, ResetMode, reset_mode
from tpuctl.nodes.policies import choose_goal, deadline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.names import NodeName
    from tpuctl.nodes.actions import StillSelected
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.commands.change_options import ChangeOptions
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.nodes.goal import Goal
    from tpuctl.nodes.journal import Journal


# The first request of each reset.
_MODES = {
    Verb.STOP: ResetMode.RESTART,
    Verb.START: ResetMode.RESTART,
    Verb.REBOOT: ResetMode.REBOOT,
    Verb.DELETE: ResetMode.RECREATE,
}


_VERBS = {mode: verb for verb, mode in reversed(_MODES.items())}


_QUESTIONS = {
    ResetMode.RESTART: "restart {} (terminates what runs on it, keeps its boot disk; the start needs free capacity)",
    ResetMode.REBOOT: "reboot every worker of {} (terminates what runs on it, keeps its boot disk)",
    ResetMode.RECREATE: "delete {} and its boot disk, and recreate it",
}


# What an interruption leaves, by the last event of the journal.
_LEFT = {
    "delete": "its deletion was sent, its creation was not",
    "create": "its deletion and its creation were sent; it is not usable yet",
    "restart": "its stop was sent, its start was not",
    "start": "its start was sent; it is not usable yet",
    "reboot": "its reboot was sent; it is not usable yet",
}


def run_reset(app: App, *, selection: GivenSelection, options: ChangeOptions, mode: str, goal: str | None) -> int:
    """Restart, reboot or recreate nodes, and wait until they are usable again."""
    rebooted: list[Node] = []

    @cache
    def policy() -> Policy:
        return Policy(goal=choose_goal(app, goal), timeout=deadline(app, options.timeout))

    def send(context: ActionContext, node: Node, step: PlanStep | None, still_meant: StillSelected) -> Goal:
        own_policy = with_reachable_goal(app, policy(), node.name, goal=goal, node=node)
        reset = NodeReset(node, _MODES[step.verb if step else Verb.WAIT], own_policy)
        task = request_reset(context, reset, still_meant, force_lease=options.force_lease)
        rebooted.extend([node] if reset.mode is ResetMode.REBOOT else [])
        return task

    verb = NodeVerb(
        plan=partial(_plan, ResetMode(mode)),
        question=_question,
        send=send,
        leaves=partial(_leaves, app.services.journal, app.clock.now().replace(microsecond=0)),
        resume="tpuctl up {}",
        preflight=preflight_check(app, {}, only_limits=True),
        settle=lambda context: context.clock.sleep(REBOOT_PAUSE) if rebooted else None,
    )
    return change_nodes(app, selection.parse(app), verb, options)


def _leaves(journal: Journal, begun: datetime, names: Sequence[NodeName]) -> str:
    """Return what the reset has sent for each node since it began, and what it has not."""
    return "; ".join(f"`{name.zone}/{name.node_id}`: {_left(journal, begun, name)}" for name in names)


def _left(journal: Journal, begun: datetime, name: NodeName) -> str:
    try:
        entries = journal.entries(name)
    except TpuctlError as error:
        return f"what was sent is not known: {error.message}"
    unsent = set()
    for entry in reversed(entries):
        at, event = parse_timestamp(entry.get("at")), entry.get("event")
        if at is None or at < begun:
            break
        unsent.add(entry.get("unsent"))
        if event in _LEFT and event not in unsent:
            return _LEFT[event]
    return "nothing was sent"


def _plan(mode: ResetMode, node: Node) -> PlanStep:
    """Return the first request of a reset. Raises `ConflictError` if the mode is impossible."""
    chosen = reset_mode(node, mode)
    is_restart = chosen is ResetMode.RESTART
    verb = Verb.START if is_restart and node.state is NodeState.STOPPED else _VERBS[chosen]
    return PlanStep(verb, node.name, "requested", is_recreation=verb is Verb.DELETE)


def _question(planned: Planned) -> tuple[str, Sequence[Node]]:
    """Return what happens to which nodes."""
    parts = []
    for mode, text in _QUESTIONS.items():
        names = [node.name for node, step in planned if _MODES[step.verb] is mode]
        parts += [text.format(name_nodes(names))] if names else []
    kept = [node.name for node, step in planned if step.verb is Verb.DELETE and node.is_kept]
    parts += [f"kept by the label `tpuctl-keep`: {name_nodes(kept)}"] if kept else []
    return "; ".join(parts), [node for node, _ in planned]
