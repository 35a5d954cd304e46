"""The body of `tpuctl wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import ExitCode, InvalidInputError
from tpuctl.nodes.commands.request_views import await_named_request
from tpuctl.nodes.commands.results import show_results
from tpuctl.nodes.conditions import Condition
from tpuctl.nodes.controller import reconcile_nodes
from tpuctl.nodes.lookup import WaitTarget, locate_for_wait, select_nodes
from tpuctl.nodes.request_steps import RequestGoal
from tpuctl.nodes.waiting import plan_wait

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.nodes.commands.selection_options import GivenSelection


def run_wait(
    app: App,
    *,
    selection: GivenSelection,
    goal: str | None,
    probe: str | None,
    allow_failed_startup: bool,
    timeout: timedelta | str | None,
    events: str | None,
) -> int:
    """Wait until nodes are usable, stopped, gone or preempted."""
    chosen = selection.parse(app)
    if goal == RequestGoal.ACTIVE:
        if not chosen.is_by_name or len(chosen.names) > 1 or probe is not None:
            raise InvalidInputError(
                "`--for active` takes one name, and no `--probe`", hint="name a queued resource or one of its nodes"
            )
        await_named_request(app, chosen.names[0].text, RequestGoal.ACTIVE, timeout=timeout, events=events)
        return ExitCode.OK

    def find_targets(wanted: Condition) -> list[WaitTarget]:
        if chosen.is_by_name:
            return locate_for_wait(app, [name.text for name in chosen.names], goal=wanted)
        found = select_nodes(app, chosen, may_be_none=wanted is Condition.GONE).complete()
        return [WaitTarget(node.name) for node in found]

    tasks = plan_wait(
        app, find_targets, goal=goal, probe=probe, timeout=timeout, allow_failed_startup=allow_failed_startup
    )
    with app.progress(events=events) as progress, app.in_flight("nothing was changed", resume=app.command_line()):
        outcomes = reconcile_nodes(app.services.context(progress), tasks)
    return show_results(app, outcomes)
