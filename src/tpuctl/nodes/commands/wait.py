"""`tpuctl wait`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, events_option, timeout_option
from tpuctl.app.route_options import route_options
from tpuctl.nodes.commands.policy_options import failed_startup_option, probe_option
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.conditions import Condition
from tpuctl.nodes.request_steps import RequestGoal


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
@body_in("tpuctl.nodes.commands.wait_run:run_wait")
def command() -> None:
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
