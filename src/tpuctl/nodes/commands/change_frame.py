"""The frame of every command that changes nodes: select, refuse, dry run, table, question, last look, act, exit code.

What is special about a command is in its subclass of `Change`, or of `NodeChange` if it changes existing nodes one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from tpuctl.errors import NotConfirmedError, TpuctlError, worst_exit_code
from tpuctl.nodes.busy_nodes import use_in_question
from tpuctl.nodes.commands.dry_run import show_plan
from tpuctl.nodes.commands.selected_changes import require_selected, show_selected, without_kept
from tpuctl.nodes.node_lookup import SelectedNodes, report_silent_zones, select_nodes
from tpuctl.nodes.policies import deadline, within_deadline
from tpuctl.nodes.rendering import show_results

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.commands.change_options import ChangeOptions
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.plan import PlanStep
    from tpuctl.nodes.selection import Selection

T = TypeVar("T")
Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class Chosen(Generic[T]):
    """What a command changes."""

    items: tuple[T, ...]
    refused: tuple[TpuctlError, ...] = ()  # why selected nodes are left out
    unreachable: tuple[str, ...] = ()  # the zones that did not answer


@dataclass(kw_only=True)
class Change(ABC, Generic[T]):
    """A command that changes nodes or queued resources."""

    app: App
    options: ChangeOptions

    @abstractmethod
    def choose(self) -> Chosen[T]:
        """Look up what is changed. Raises for what is named and impossible."""

    @abstractmethod
    def steps(self, items: Sequence[T]) -> Iterable[PlanStep]:
        """Return the requests that come next, for `--dry-run`."""

    @abstractmethod
    def question(self, items: Sequence[T]) -> str:
        """Return what to ask, without a question mark; empty to ask nothing."""

    @abstractmethod
    def interrupted_nodes(self, items: Sequence[T]) -> Sequence[Node]:
        """Return the nodes whose work ends: who uses them is said before the question."""

    @abstractmethod
    def act(self, chosen: Chosen[T]) -> int:
        """Ask, make the changes and show the results. Return the exit code."""

    @property
    def timeout(self) -> timedelta | None:
        """The time limit of the command, None for `forever`."""
        return deadline(self.app, self.options.timeout)

    @property
    def request_timeout(self) -> timedelta | None:
        """The time limit for an answer of the API; None: that of one call, because the command does not wait."""
        return self.timeout if self.options.wait else None

    def run(self) -> int:
        """Run the command. Return the exit code. Raises `NotConfirmedError` if the user refuses."""
        with within_deadline(self.app, self.request_timeout):
            chosen = self.choose()
        if self.options.dry_run:
            show_plan(self.app, self.steps(chosen.items))
            code = show_refusals(self.app, chosen.refused)
        else:
            code = self.act(chosen)
        return report_silent_zones(self.app, chosen.unreachable, code)

    def ask(self, items: Sequence[T]) -> None:
        """Ask whether these may be changed, if that is a question.

        Raises `NotConfirmedError` if the user refuses, `InvalidInputError` without a terminal and `--yes`, and `ConflictError`
        with `--if-idle` if one is in use.
        """
        question = self.question(items) if items else ""
        if not question:
            return
        yes, nodes = self.options.yes, self.interrupted_nodes(items)
        in_use = use_in_question(self.app, nodes, if_idle=self.options.if_idle, yes=yes)
        if not self.app.terminal.confirm(f"{in_use}{question}?", yes=yes):
            raise NotConfirmedError("nothing was done")

    @contextmanager
    def working(self, what: str, *, resume: str, **context: Any) -> Iterator[ActionContext]:
        """Show the events of a block. `what` continues if it is interrupted, and the command `resume` waits for it."""
        with self.app.progress(events=self.options.events) as progress, self.app.in_flight(what, resume=resume):
            yield self.app.context(progress, **context)


@dataclass(kw_only=True)
class NodeChange(Change[tuple["Node", "Work | None"]], Generic[Work]):
    """A command that changes each node of a selection, and plans the `Work` on each first."""

    selection: Selection
    # Whether the work on the nodes ends: of a selection, kept nodes are left alone then.
    interrupts: ClassVar[bool] = True

    @abstractmethod
    def plan(self, node: Node) -> Work | None:
        """Return what to do with a node, None for nothing.

        Raises if that is impossible: then no named node is changed, and of selected ones the others are.
        """

    @abstractmethod
    def step(self, node: Node, work: Work) -> PlanStep:
        """Return the next request of the work."""

    @abstractmethod
    def send(self, items: Sequence[tuple[Node, Work | None]]) -> Sequence[NodeResult | TpuctlError]:
        """Make the changes and return the results in order, also of the nodes that need none.

        Calls `recheck` for each node before its change. The failure of one node does not stop the others.
        """

    def select(self) -> SelectedNodes:
        """Return the nodes that are named or match."""
        return select_nodes(self.app, self.selection)

    def choose(self) -> Chosen[tuple[Node, Work | None]]:
        """Select nodes, and plan the work on each."""
        selected = self.select()
        nodes = without_kept(self.app, self.selection, selected.nodes) if self.interrupts else selected.nodes
        items: list[tuple[Node, Work | None]] = []
        refused: list[TpuctlError] = []
        for node in nodes:
            try:
                items.append((node, self.plan(node)))
            except TpuctlError as error:
                if self.selection.is_by_name:
                    raise
                refused.append(error)
        return Chosen(tuple(items), tuple(refused), selected.unreachable)

    def steps(self, items: Sequence[tuple[Node, Work | None]]) -> Iterable[PlanStep]:
        """Return the next request for each node that needs one."""
        return [self.step(node, work) for node, work in items if work is not None]

    def interrupted_nodes(self, items: Sequence[tuple[Node, Work | None]]) -> Sequence[Node]:
        """Return the nodes, if their work ends."""
        return [node for node, _ in items] if self.interrupts else []

    def show(self, items: Sequence[tuple[Node, Work | None]]) -> None:
        """Show what a selection changes, before the question."""
        show_selected(self.app, [node for node, _ in items])

    def act(self, chosen: Chosen[tuple[Node, Work | None]]) -> int:
        """Show a selection, ask, and change the nodes. Return the exit code."""
        changed = [(node, work) for node, work in chosen.items if work is not None]
        if not self.selection.is_by_name:
            self.show(changed)
            for error in chosen.refused:
                self.app.terminal.note(f"left out: {error.message}")
        self.ask(changed)
        return show_results(self.app, [*self.send(chosen.items), *chosen.refused])

    def recheck(self, node: Node) -> None:
        """Raise `NoLongerSelectedError` if a selected node has changed since it was selected. Named nodes are not read."""
        if not self.selection.is_by_name:
            self.require_meant(node, self.app.client.get_node(node.name))

    def require_meant(self, node: Node, current: Node) -> None:
        """Raise `NoLongerSelectedError` if a node that was just read is not the selected one now."""
        require_selected(self.app, self.selection, node, current, leaves_kept=self.interrupts)


def show_refusals(app: App, errors: Iterable[TpuctlError]) -> int:
    """Show the errors of what was left out or failed. Return the exit code."""
    codes = []
    for error in errors:
        app.show_error(error)
        codes.append(error.exit_code)
    return worst_exit_code(codes)


def full_names(nodes: Iterable[Node]) -> str:
    """Return nodes as the arguments of a command."""
    return " ".join(f"{node.name.zone}/{node.name.node_id}" for node in nodes)
