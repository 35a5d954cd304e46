"""The frame of every command that changes nodes: select, refuse, dry run, table, question, last look, act, exit code.

`run_change` is the frame; `change_nodes` fills it for a verb that changes nodes one by one: a `NodeVerb` has what is special.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from tpuctl.app.ssh_options import close_shared_connections
from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.errors import ExitCode, NotConfirmedError, TpuctlError, worst_exit_code
from tpuctl.nodes.commands.dry_run import show_plan
from tpuctl.nodes.commands.results import show_results
from tpuctl.nodes.commands.selected_changes import require_selected, show_selected, without_kept
from tpuctl.nodes.controller import NodeResult, reconcile_nodes
from tpuctl.nodes.lookup import report_silent_zones, select_nodes
from tpuctl.nodes.policies import deadline, within_deadline
from tpuctl.nodes.usage import use_in_question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.models.node import Node
    from tpuctl.names import NodeName
    from tpuctl.nodes.actions import StillSelected
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.commands.change_options import ChangeOptions
    from tpuctl.nodes.goal import Goal
    from tpuctl.nodes.plan import PlanStep
    from tpuctl.nodes.selection import Selection

# Nodes with the next request for each.
Planned: TypeAlias = "Sequence[tuple[Node, PlanStep]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """What a command is about to do."""

    steps: Sequence[PlanStep]  # its next requests
    act: Callable[[], int]  # asks with `confirm`, makes the changes, shows the results and returns the exit code
    refused: Sequence[TpuctlError] = ()  # why selected nodes are left out
    unreachable: Sequence[str] = ()  # the zones that did not answer


def run_change(app: App, options: ChangeOptions, plan: Callable[[], ChangePlan]) -> int:
    """Plan a change and make it, or show its next requests. Return the exit code."""
    with within_deadline(app, time_to_answer(app, options)):
        planned = plan()
    if options.dry_run:
        show_plan(app, planned.steps)
        code = show_errors(app, planned.refused)
    else:
        code = planned.act()
    return report_silent_zones(app, planned.unreachable, code)


def time_to_answer(app: App, options: ChangeOptions) -> timedelta | None:
    """Return the time limit of a command that waits; None for one that does not, whose calls have their own."""
    return deadline(app, options.timeout) if options.wait else None


def confirm(app: App, options: ChangeOptions, question: str, interrupted: Sequence[Node]) -> None:
    """Ask, unless the question is empty. Who uses the nodes whose work is `interrupted` is said before.

    Raises `NotConfirmedError` if the user refuses, `InvalidInputError` without a terminal and `--yes`, and `ConflictError` with
    `--if-idle` if one is in use.
    """
    in_use = use_in_question(app, interrupted, if_idle=options.if_idle, yes=options.yes)
    if question and not app.terminal.confirm(f"{in_use}{question}?", yes=options.yes):
        raise NotConfirmedError


def show_errors(app: App, errors: Iterable[TpuctlError]) -> int:
    """Show the errors of what was left out or failed. Return the exit code."""
    codes = []
    for error in errors:
        app.show_error(error)
        codes.append(error.exit_code)
    return worst_exit_code(codes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerb:
    """What one command does with each of its nodes."""

    # Returns the next request for a node, None if it needs none. Raises if it is impossible: then no named node is changed,
    # and of selected ones the others are.
    plan: Callable[[Node], PlanStep | None]
    # Returns what to ask, without a question mark, or nothing; and the nodes whose work ends.
    question: Callable[[Planned], tuple[str, Sequence[Node]]]
    # Sends the request for a node, if it needs one. Returns what is awaited then, or the result. The check gets the node, and
    # what has its name right before it is stopped or deleted.
    send: Callable[[ActionContext, Node, PlanStep | None, StillSelected], Goal | NodeResult]
    # What an interruption leaves, and the command that goes on with it; `{}` stands for the nodes.
    leaves: str | Callable[[Sequence[NodeName]], str]
    resume: str
    ends_work: bool = True  # of a selection, kept nodes are left alone
    show: Callable[[App, Planned], None] = show_selected
    preflight: PreflightCheck | None = None
    settle: Callable[[ActionContext], None] = lambda _: None  # between the requests and the wait


def change_nodes(app: App, selection: Selection, verb: NodeVerb, options: ChangeOptions) -> int:
    """Change the nodes of a selection, each after a last look, and wait for all of them. Return the exit code."""
    items: list[tuple[Node, PlanStep | None]] = []
    refused: list[TpuctlError] = []

    def plan() -> ChangePlan:
        selected = select_nodes(app, selection)
        for node in without_kept(app, selection, selected.nodes) if verb.ends_work else selected.nodes:
            try:
                items.append((node, verb.plan(node)))
            except TpuctlError as error:
                if selection.is_by_name:
                    raise
                refused.append(error)
        steps = [step for _, step in items if step is not None]
        return ChangePlan(steps=steps, act=act, refused=refused, unreachable=selected.unreachable)

    def require_meant(node: Node, current: Node) -> None:
        require_selected(app, selection, node, current, leaves_kept=verb.ends_work)

    def act() -> int:
        planned = [(node, step) for node, step in items if step is not None]
        if not selection.is_by_name:
            verb.show(app, planned)
        question, interrupted = verb.question(planned)
        has_noted = bool(question) and not options.yes
        for refusal in refused if has_noted else ():
            app.terminal.note(f"left out: {refusal.message}")
        confirm(app, options, question, interrupted)
        names = " ".join(f"{node.name.zone}/{node.name.node_id}" for node, _ in items)
        left = verb.leaves
        leaves = left.format(names) if isinstance(left, str) else partial(left, [node.name for node, _ in items])
        results: dict[NodeName, NodeResult | TpuctlError] = {}
        tasks: list[Goal] = []
        with (
            app.progress(events=options.events) as progress,
            app.in_flight(leaves, resume=verb.resume.format(names)),
        ):
            context = app.services.context(progress, preflight=verb.preflight)
            for node, step in items:
                try:
                    with limit_cloud_calls(app.clock, time_to_answer(app, options), grace=DEADLINE_GRACE):
                        if step is not None and not selection.is_by_name:
                            require_meant(node, app.services.client.get_node(node.name))
                        sent = verb.send(context, node, step, require_meant)
                    if isinstance(sent, NodeResult):
                        results[node.name] = sent
                    else:
                        tasks.append(sent)
                except TpuctlError as error:
                    error.node = error.node or (node.name.node_id if len(items) > 1 else None)
                    results[node.name] = error
            if verb.ends_work:
                close_shared_connections(app, [node for node, _ in planned])
            verb.settle(context)
            reconciled = reconcile_nodes(context, tasks, wait=options.wait)
            results |= zip((task.name for task in tasks), reconciled, strict=True)
        code = show_results(app, [*(results[node.name] for node, _ in items), *(() if has_noted else refused)])
        return worst_exit_code((ExitCode(code), *(refusal.exit_code for refusal in refused)))

    return run_change(app, options, plan)
