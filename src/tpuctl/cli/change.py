"""What `start` and `stop` share: request a change of several nodes, then wait for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tpuctl.actions.ensure_ready import ensure_all
from tpuctl.actions.observation import Task
from tpuctl.cli.dry_run import show_plan
from tpuctl.cli.keeping import let_go
from tpuctl.cli.policy import deadline, in_time
from tpuctl.cli.results import show_endings
from tpuctl.clock import GRACE, limit_calls
from tpuctl.errors import ExitCode
from tpuctl.plan import Step
from tpuctl.readiness import Goal, Policy, Verb

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from tpuctl.actions.cloud import Context
    from tpuctl.actions.steps import Pending
    from tpuctl.cli.app import App
    from tpuctl.model import Node


class Change(Protocol):
    """An action on a node that returns what it requested, None if no request was needed."""

    def __call__(self, context: Context, node: Node) -> Pending | None:
        """Request the change."""


def change_nodes(
    app: App,
    texts: tuple[str, ...],
    change: Change,
    *,
    is_needed: Callable[[Node], bool],
    verb: Verb,
    goal: Goal,
    timeout: timedelta | str | None,
    wait: bool,
    events: str | None,
    dry_run: bool,
) -> int:
    """Request a change of each node, wait for all of them, show what the API reports. Return the exit code.

    `is_needed` raises if a change is not possible: then no node is changed.
    """
    timeout = deadline(app, timeout)
    with in_time(app, timeout if wait else None):
        found = [app.find(text) for text in texts]
    needed = [node for node in found if is_needed(node)]
    if dry_run:
        steps = tuple(Step(verb, node.name, "requested") for node in needed)
        show_plan(app, steps, spec=None, node=None)
        return ExitCode.OK
    names = " ".join(texts)
    with (
        app.progress(events=events) as progress,
        app.in_flight(f"{verb} of {names} was requested and continues", resume=f"tpuctl wait {names} --for {goal}"),
    ):
        context = app.context(progress)
        with limit_calls(app.clock, timeout if wait else None, grace=GRACE):
            requested = [(node, change(context, node)) for node in found]
        if verb is Verb.STOP:
            let_go(app, needed)
        policy = Policy(goal=goal, may_start=True, timeout=timeout)
        tasks = [Task(name=node.name, policy=policy, pending=pending) for node, pending in requested]
        outcomes = ensure_all(context, tasks, once=not wait)
    return show_endings(app, outcomes)
