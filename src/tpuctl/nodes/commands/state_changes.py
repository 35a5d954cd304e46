"""What `start` and `stop` do in the frame of a change."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from tpuctl.app.ssh_options import close_shared_connections
from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.errors import TpuctlError
from tpuctl.models.node import Node, NodeState
from tpuctl.nodes.actions import needs_start, needs_stop, start_node, stop_node
from tpuctl.nodes.commands.change_frame import NodeChange, full_names
from tpuctl.nodes.commands.selected_changes import hourly_price, name_nodes, show_selected
from tpuctl.nodes.conditions import Condition, Policy, Verb
from tpuctl.nodes.controller import reconcile_nodes
from tpuctl.nodes.plan import PlanStep
from tpuctl.nodes.tracker import ReconcileRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext, RequestedChange
    from tpuctl.nodes.controller import NodeResult


@dataclass(kw_only=True)
class StateChange(NodeChange[Verb]):
    """A change of the state of nodes: all are requested, and then awaited."""

    verb: ClassVar[Verb]
    goal: ClassVar[Condition]

    @abstractmethod
    def request(self, context: ActionContext, node: Node) -> RequestedChange:
        """Send the request for one node."""

    def send(self, items: Sequence[tuple[Node, Verb | None]]) -> Sequence[NodeResult | TpuctlError]:
        """Request the change of each node that needs it, and wait for all."""
        names, policy = (
            full_names(node for node, _ in items),
            Policy(goal=self.goal, may_start=True, timeout=self.timeout),
        )
        tasks: dict[NodeName, ReconcileRequest] = {}
        results: dict[NodeName, NodeResult | TpuctlError] = {}
        with self.working(
            f"{self.verb} of {names} was requested and continues", resume=f"tpuctl wait {names} --for {self.goal}"
        ) as context:
            for node, verb in items:
                tasks[node.name] = ReconcileRequest(name=node.name, policy=policy)
                if verb is None:
                    continue
                try:
                    with limit_cloud_calls(self.app.clock, self.request_timeout, grace=DEADLINE_GRACE):
                        self.recheck(node)
                        tasks[node.name] = replace(tasks[node.name], pending=self.request(context, node))
                except TpuctlError as error:
                    results[tasks.pop(node.name).name] = error
            if self.interrupts:
                close_shared_connections(self.app, [node for node, verb in items if verb is not None])
            reconciled = reconcile_nodes(context, [*tasks.values()], once=not self.options.wait)
        results |= zip(tasks, reconciled, strict=True)
        return [results[node.name] for node, _ in items]


@dataclass(kw_only=True)
class Start(StateChange):
    """Start nodes and wait until they are READY. Asks only about what a selection matched."""

    verb, goal, interrupts = Verb.START, Condition.READY, False

    def plan(self, node: Node) -> Verb | None:
        """Return the start, unless the node runs."""
        return self.verb if needs_start(node, skip_validation=self.options.skip_validation) else None

    def step(self, node: Node, work: Verb) -> PlanStep:
        """Return the start."""
        return PlanStep(work, node.name, "requested")

    def show(self, items: Sequence[tuple[Node, Verb | None]]) -> None:
        """Show the nodes with what they cost once they run."""
        nodes = [node for node, _ in items]
        show_selected(self.app, nodes, priced=_as_started(nodes))

    def question(self, items: Sequence[tuple[Node, Verb | None]]) -> str:
        """Return the nodes of a selection and what they will cost."""
        nodes = [node for node, _ in items]
        names, price = name_nodes([node.name for node in nodes]), hourly_price(self.app, _as_started(nodes))
        return "" if self.selection.is_by_name else f"start {names}, for {price}/h"

    def request(self, context: ActionContext, node: Node) -> RequestedChange:
        """Request the start."""
        return start_node(context, node, force_lease=self.options.force_lease)


@dataclass(kw_only=True)
class Stop(StateChange):
    """Stop nodes and wait until they are STOPPED. Asks about each: what runs on them ends."""

    verb, goal = Verb.STOP, Condition.STOPPED

    def plan(self, node: Node) -> Verb | None:
        """Return the stop, unless the node is stopped."""
        return self.verb if needs_stop(node, skip_validation=self.options.skip_validation) else None

    def step(self, node: Node, work: Verb) -> PlanStep:
        """Return the stop."""
        return PlanStep(work, node.name, f"requested; {_FOR_GOOD}" if _lost([node]) else "requested")

    def question(self, items: Sequence[tuple[Node, Verb | None]]) -> str:
        """Return the nodes, and which of them cannot be started again."""
        nodes = [node for node, _ in items]
        lost, then = _lost(nodes), ""
        if lost:
            tiers = " and ".join(sorted({str(node.tier) for node in lost}))
            then = f" ({_FOR_GOOD}: {name_nodes([node.name for node in lost])}, {tiers})"
        return f"stop {name_nodes([node.name for node in nodes])}{then}"

    def request(self, context: ActionContext, node: Node) -> RequestedChange:
        """Request the stop, with a last look."""
        return stop_node(context, node, self.require_meant)


_FOR_GOOD = "cannot be started again once stopped"


def _lost(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes whose stop is for good."""
    return [node for node in nodes if not node.tier.can_start_again]


def _as_started(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes as they are after a start, so that their prices are those of chips."""
    return [Node(node.name, {**node.raw, "state": str(NodeState.READY)}) for node in nodes]
