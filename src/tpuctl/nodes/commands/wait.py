"""`tpuctl wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, events_option, timeout_option
from tpuctl.app.route_options import route_options
from tpuctl.errors import ExitCode, InvalidInputError
from tpuctl.nodes.commands.policy_options import failed_startup_option, probe_option
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.conditions import Condition
from tpuctl.nodes.request_steps import RequestGoal

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.nodes.commands.selection_options import GivenSelection


@cli_command("wait")
@selection_options()
@grouped_option(
    "--for",
    "goal",
    group=OptionGroup.READINESS,
    type=click.Choice([str(goal) for goal in (RequestGoal.ACTIVE, *Condition)]),
    help="Condition to wait for. [default: ssh]",
)
@probe_option
@failed_startup_option
@route_options
@timeout_option
@events_option
def command(
    app: App,
    *,
    selection: GivenSelection,
    goal: str | None,
    probe: str | None,
    allow_failed_startup: bool,
    timeout: timedelta | str | None,
    events: str | None,
) -> int:
    """Wait until nodes are usable, stopped, gone or preempted. Changes nothing.

    A node that is requested and does not exist yet is waited for with its queued resource, whose states are shown.

    Conditions, each including those before it: ready (the state is READY), healthy (the health too, and each worker has an
    address), ssh (each worker answers), startup (its startup script has ended), devices (it sees all chips of its type). The
    condition active is that of a queued resource: its nodes exist.

    \b
    Examples:
      tpuctl wait trainer
      tpuctl wait trainer --for healthy --timeout 2h
      tpuctl wait --all --for devices
      tpuctl wait 'sweep-*' --for gone
    """
    from tpuctl.nodes.commands.request_views import await_named_request  # noqa: PLC0415  # not needed by --help
    from tpuctl.nodes.commands.results import show_results  # noqa: PLC0415  # as above
    from tpuctl.nodes.controller import reconcile_nodes  # noqa: PLC0415  # as above
    from tpuctl.nodes.lookup import WaitTarget, locate_for_wait, select_nodes  # noqa: PLC0415  # as above
    from tpuctl.nodes.waiting import plan_wait  # noqa: PLC0415  # as above

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
