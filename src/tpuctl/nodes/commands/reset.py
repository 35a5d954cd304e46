"""`tpuctl reset`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, force_lease_option, if_idle_option
from tpuctl.app.route_options import route_options
from tpuctl.nodes.commands.change_options import change_options
from tpuctl.nodes.commands.policy_options import level_option
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.plan import ResetMode


@cli_command("reset")
@selection_options()
@grouped_option(
    "--mode",
    group=OptionGroup.REPAIR,
    type=click.Choice([str(mode) for mode in ResetMode]),
    default="auto",
    show_default=True,
    help="How the node is reset: restart (stop and start), reboot (its workers, over ssh), recreate (delete and create), "
    "or auto: restart if the API allows it, else reboot.",
)
@level_option
@route_options
@change_options(force_lease_option, if_idle_option)
@body_in("tpuctl.nodes.commands.reset_run:run_reset")
def command() -> None:
    """Restart, reboot or recreate nodes, and wait until they are usable again.

    The mode auto stops and starts a node if the API allows that, else it reboots the workers over ssh. Both keep the boot
    disk. Only recreate deletes it. A reboot needs workers that answer ssh.

    \b
    Examples:
      tpuctl reset trainer
      tpuctl reset trainer --mode recreate --yes
      tpuctl reset -l team=vision --mode reboot
    """
