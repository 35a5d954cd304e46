"""`tpuctl wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import cli_command, events_option, nodes_argument, timeout_option
from tpuctl.cli.policy import deadline, reachable_goal
from tpuctl.readiness import Goal, Policy

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.cli.app import App


@cli_command("wait")
@nodes_argument
@click.option("--for", "goal", type=click.Choice([str(goal) for goal in Goal]), help="What to wait for. [default: ssh]")
@timeout_option
@events_option
def command(
    app: App, *, nodes: tuple[str, ...], goal: str | None, timeout: timedelta | str | None, events: str | None
) -> None:
    """Wait until nodes are usable, stopped or gone. Changes nothing.

    ready: the state is READY. healthy: and so is its health, and each worker has an address. ssh: and each worker answers.

    \b
    Examples:
      tpuctl wait trainer
      tpuctl wait trainer --for healthy --timeout 2h
      tpuctl wait trainer-0 trainer-1 --for gone
    """
    from tpuctl.actions.ensure import ensure  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.results import show_states  # noqa: PLC0415  # as above
    from tpuctl.cli.target import name_to_watch  # noqa: PLC0415  # as above

    wanted = reachable_goal(app, goal)
    names = [name_to_watch(app, text, goal=wanted) for text in nodes]
    with app.progress(events=events) as progress, app.going_on("nothing was changed", resume=app.command_line()):
        context = app.context(progress)
        started = app.clock.monotonic()
        limit = deadline(app, timeout)
        outcomes = []
        for name in names:
            if name is None:
                continue
            # One deadline for all: what the first took is not there for the second.
            left = None if limit is None else limit - (app.clock.monotonic() - started)
            outcomes.append(ensure(context, name, Policy(goal=wanted, timeout=left)))
    show_states(app, [outcome.node for outcome in outcomes if outcome.node])
