"""`tpuctl reset`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.dry_run import show_plan
from tpuctl.cli.options import (
    cli_command,
    dry_run_option,
    events_option,
    node_argument,
    steal_option,
    timeout_option,
    yes_option,
)
from tpuctl.cli.policy import deadline, in_time, level_option, reachable_goal
from tpuctl.cli.reach_options import reach_options, with_reachable_goal
from tpuctl.errors import NotConfirmedError
from tpuctl.plan import ResetMode, Step, reset_mode
from tpuctl.readiness import Policy, Verb

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from tpuctl.cli.app import App
    from tpuctl.model import Node

_VERBS = {
    ResetMode.RESTART: (Verb.STOP, Verb.START),
    ResetMode.REBOOT: (Verb.REBOOT,),
    ResetMode.RECREATE: (Verb.DELETE, Verb.CREATE),
}
_QUESTIONS = {
    ResetMode.RESTART: "restart `{}` (what runs on it ends, its disk stays; starting needs free capacity)?",
    ResetMode.REBOOT: "reboot every worker of `{}` (what runs on it ends, its disk stays)?",
    ResetMode.RECREATE: "delete `{}` and its boot disk, and make it anew?",
}


@cli_command("reset")
@node_argument
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in ResetMode]),
    default="auto",
    show_default=True,
    help="How to do it.",
)
@level_option
@reach_options
@timeout_option
@steal_option
@events_option
@dry_run_option
@yes_option
def command(
    app: App,
    *,
    node: str,
    mode: str,
    goal: str | None,
    timeout: timedelta | str | None,
    events: str | None,
    dry_run: bool,
    steal: bool,
    yes: bool,
) -> None:
    """Make a node fresh, and wait until it is usable again.

    auto restarts it (stop, start) where that is possible, else reboots its workers over ssh; neither loses the disk. Only
    recreate destroys, and only when you name it. For reboot the workers must answer ssh.

    \b
    Examples:
      tpuctl reset trainer
      tpuctl reset trainer --mode recreate --yes
    """
    from tpuctl.actions.reset import reset  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.keeping import let_go  # noqa: PLC0415  # as above
    from tpuctl.cli.results import show_node  # noqa: PLC0415  # as above

    with in_time(app, deadline(app, timeout)):
        found = app.find(node)
    chosen = reset_mode(found, ResetMode(mode))
    if dry_run:
        steps = tuple(Step(verb, found.name, "asked for") for verb in _VERBS[chosen])
        show_plan(app, steps, spec=None, node=found)
        return
    if not app.terminal.confirm(_QUESTIONS[chosen].format(found.name.node_id), yes=yes):
        raise NotConfirmedError("nothing was done")
    policy = _policy(app, found, goal=goal, timeout=timeout)
    with app.progress(events=events) as progress, _going_on(app, found):
        outcome = reset(app.context(progress), found, chosen, policy, steal=steal)
    let_go(app, [found])
    if outcome.node is not None:
        show_node(app, outcome.node)


def _going_on(app: App, node: Node) -> AbstractContextManager[None]:
    where = f"{node.name.zone}/{node.name.node_id}"
    text = f"the reset of `{where}` has begun; it may be stopped, or gone, for the moment"
    return app.going_on(text, resume=f"tpuctl up {where}")


def _policy(app: App, node: Node, *, goal: str | None, timeout: timedelta | str | None) -> Policy:
    policy = Policy(goal=reachable_goal(app, goal), timeout=deadline(app, timeout))
    return with_reachable_goal(app, policy, node.name, goal=goal, node=node)
