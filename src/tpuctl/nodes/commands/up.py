"""`tpuctl up`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, force_lease_option, no_wait_option, nodes_argument, skip_validation_option
from tpuctl.app.route_options import route_options
from tpuctl.app.spec_options import spec_options
from tpuctl.check.commands.preflight_options import check_options
from tpuctl.models.events import EventKind
from tpuctl.models.spec import MAX_SLICES
from tpuctl.nodes.commands.change_options import change_options
from tpuctl.nodes.commands.idle_options import idle_options
from tpuctl.nodes.commands.policy_options import (
    failed_startup_option,
    hook_options,
    level_option,
    probe_option,
    repair_options,
)
from tpuctl.nodes.commands.queue_options import queue_options
from tpuctl.nodes.commands.time_options import time_limit_options


@cli_command("up", shows={"zone": "Zone of the node; of several (ZONE,ZONE) or any the first that has capacity."})
@nodes_argument
@spec_options
@queue_options
@grouped_option(
    "--race",
    group=OptionGroup.WHERE,
    is_flag=True,
    help="Request the node in all given zones at once, keep the first, cancel the others.",
)
@grouped_option(
    "--slices",
    group=OptionGroup.NODE,
    type=click.IntRange(2, MAX_SLICES),
    metavar="N",
    help="Number of slices of a group: NODE-0 to NODE-(N-1) in one zone, all usable or none kept.",
)
@time_limit_options
@idle_options
@level_option
@probe_option
@failed_startup_option
@grouped_option(
    "--replace",
    group=OptionGroup.REPAIR,
    is_flag=True,
    help="Delete and recreate a node that differs from the given options.",
)
@repair_options
@hook_options(EventKind.REACHED, EventKind.RECOVERED)
@check_options
@route_options
@change_options(
    no_wait_option,
    skip_validation_option,
    force_lease_option,
    asks=grouped_option(
        "--yes",
        "-y",
        group=OptionGroup.SAFETY,
        is_flag=True,
        help="Do not ask for confirmation, and repair nodes even if they may be in use.",
    ),
)
@body_in("tpuctl.nodes.commands.up_run:run_up")
def command() -> None:
    """Create, start or repair nodes, and wait until they are usable.

    Creates missing nodes, starts stopped ones, recreates preempted ones, and repairs those that come up broken. Run it again
    at any time: it continues from the present state.

    \b
    Examples:
      tpuctl up trainer --type v4-8 --zone us-central2-b
      tpuctl up trainer --type v5litepod-16 --spot --timeout 2h
      tpuctl up worker-0 worker-1 worker-2 --type v4-8 --for devices --ttl 8h
      tpuctl up train --slices 3 --type v4-16      (train-0 to train-2)
      tpuctl up trainer          (with the spec it had before)
    """
