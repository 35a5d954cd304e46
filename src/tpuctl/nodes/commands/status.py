"""`tpuctl status`."""

from __future__ import annotations

from tpuctl.app.lazy_import import body_in
from tpuctl.app.options import cli_command, watch_option
from tpuctl.nodes.commands.selection_options import selection_options


@cli_command("status", is_short=True)
@selection_options()
@watch_option
@body_in("tpuctl.nodes.commands.status_run:run_status")
def command() -> None:
    """Show all details of nodes: state, health, workers, addresses, symptoms, maintenance, queued resource.

    A node that does not exist yet is shown by the queued resource that requests it. JSON is always an array. On a terminal it
    also asks the workers, for at most 5 s, which jobs, TPU processes and ssh sessions use them; of one node in use, memory and
    duty cycle of its chips.

    \b
    Examples:
      tpuctl status trainer
      tpuctl status trainer --watch
      tpuctl status us-central2-b/trainer -o yaml
      tpuctl status --mine --state READY
      test "$(tpuctl status trainer -o json | jq -r '.[0].health')" = HEALTHY
    """
