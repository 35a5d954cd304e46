"""What `start` and `stop` do in the frame of a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.models.node import Node, NodeState
from tpuctl.nodes.actions import needs_start, needs_stop, start_node, stop_node
from tpuctl.nodes.commands.change_frame import NodeVerb, Planned, change_nodes
from tpuctl.nodes.commands.selected_changes import hourly_price, name_nodes, show_selected
from tpuctl.nodes.conditions import Condition, Policy, Verb
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.plan import PlanStep
from tpuctl.nodes.policies import deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.app.app import App
    from tpuctl.nodes.actions import StillSelected
    from tpuctl.nodes.actuator import ActionContext, RequestedChange
    from tpuctl.nodes.commands.change_options import ChangeOptions
    from tpuctl.nodes.selection import Selection

_FOR_GOOD = "cannot be started again once stopped"


def start_nodes(app: App, selection: Selection, options: ChangeOptions) -> int:
    """Start nodes and wait until they are READY. Ask only about what a selection matched. Return the exit code."""

    def question(planned: Planned) -> tuple[str, Sequence[Node]]:
        if selection.is_by_name or not planned:
            return "", ()
        return f"start {_names(planned)}, for {hourly_price(app, _as_started(planned))}/h", ()

    def start(context: ActionContext, node: Node, _: StillSelected) -> RequestedChange:
        return start_node(context, node, force_lease=options.force_lease)

    verb = NodeVerb(
        plan=lambda node: (
            PlanStep(Verb.START, node.name, "requested")
            if needs_start(node, skip_validation=options.skip_validation)
            else None
        ),
        show=lambda app, planned: show_selected(app, planned, priced=_as_started(planned)),
        question=question,
        send=_sending(app, options, Condition.READY, start),
        leaves="start of {} was requested and continues",
        resume="tpuctl wait {} --for ready",
        ends_work=False,
    )
    return change_nodes(app, selection, verb, options)


def stop_nodes(app: App, selection: Selection, options: ChangeOptions) -> int:
    """Stop nodes and wait until they are STOPPED. Ask about each: what runs on it ends. Return the exit code."""

    def plan(node: Node) -> PlanStep | None:
        if not needs_stop(node, skip_validation=options.skip_validation):
            return None
        return PlanStep(Verb.STOP, node.name, "requested" if node.tier.can_start_again else f"requested; {_FOR_GOOD}")

    def question(planned: Planned) -> tuple[str, Sequence[Node]]:
        lost, then = [(node, step) for node, step in planned if not node.tier.can_start_again], ""
        if lost:
            tiers = " and ".join(sorted({str(node.tier) for node, _ in lost}))
            then = f" ({_FOR_GOOD}: {_names(lost)}, {tiers})"
        return f"stop {_names(planned)}{then}" if planned else "", [node for node, _ in planned]

    verb = NodeVerb(
        plan=plan,
        question=question,
        send=_sending(app, options, Condition.STOPPED, stop_node),
        leaves="stop of {} was requested and continues",
        resume="tpuctl wait {} --for stopped",
    )
    return change_nodes(app, selection, verb, options)


def _sending(
    app: App,
    options: ChangeOptions,
    goal: Condition,
    request: Callable[[ActionContext, Node, StillSelected], RequestedChange],
) -> Callable[[ActionContext, Node, PlanStep | None, StillSelected], Goal]:
    """Return what requests the change of a node that needs it; each is awaited."""
    policy = Policy(goal=goal, may_start=True, timeout=deadline(app, options.timeout))

    def send(context: ActionContext, node: Node, step: PlanStep | None, still_meant: StillSelected) -> Goal:
        pending = request(context, node, still_meant) if step else None
        return Goal(name=node.name, policy=policy, pending=pending)

    return send


def _names(planned: Planned) -> str:
    return name_nodes([node.name for node, _ in planned])


def _as_started(planned: Planned) -> list[Node]:
    """Return nodes as they are after a start, so that their prices are those of chips."""
    return [Node(node.name, {**node.raw, "state": str(NodeState.READY)}) for node, _ in planned]
