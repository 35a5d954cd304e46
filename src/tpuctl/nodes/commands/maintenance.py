"""`tpuctl maintenance`: show the announced maintenance of a node, and start it."""

from __future__ import annotations

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import cli_command, if_idle_option, no_wait_option, node_argument, timeout_option, yes_option


@cli_command("maintenance")
@node_argument
@grouped_option("--perform", is_flag=True, help="Start the announced maintenance now, instead of in its window.")
@timeout_option
@no_wait_option
@if_idle_option
@yes_option
@body_in("tpuctl.nodes.commands.maintenance_run:run_maintenance")
def command() -> None:
    """Show the maintenance that Google has announced for a node: its window, and whether you may start it earlier.

    Programs on the node end when its maintenance starts. With --perform that is now, for example between two runs.

    \b
    Examples:
      tpuctl maintenance trainer
      tpuctl maintenance trainer --perform
    """
