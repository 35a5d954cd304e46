"""`tpuctl create`."""

from __future__ import annotations

from tpuctl.app.lazy_import import body_in
from tpuctl.app.options import cli_command, force_lease_option, no_wait_option, node_argument, skip_validation_option
from tpuctl.app.spec_options import spec_options
from tpuctl.check.commands.preflight_options import check_options
from tpuctl.nodes.commands.change_options import change_options
from tpuctl.nodes.commands.queue_options import queue_options
from tpuctl.nodes.commands.time_options import time_limit_options


@cli_command("create", shows={"zone": "Zone of the node."})
@node_argument
@spec_options
@queue_options
@time_limit_options
@check_options
@change_options(no_wait_option, skip_validation_option, force_lease_option, asks=None)
@body_in("tpuctl.nodes.commands.create_run:run_create")
def command() -> None:
    """Create a node and wait until it is READY. Fails if a node of that name exists, even a preempted one.

    With `--queue`, make a queued resource and wait only until the service has accepted it. Without `--queue-for` it waits for
    capacity for 24 hours.

    \b
    Examples:
      tpuctl create trainer --type v4-8 --zone us-central2-b
      tpuctl create trainer --type v6e-8 --spot --no-wait
      tpuctl create trainer --type v5litepod-16 --queue --queue-for 6h
    """
