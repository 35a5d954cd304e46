"""`tpuctl ssh-config`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, yes_option
from tpuctl.app.route_options import route_options
from tpuctl.app.value_completion import complete_node


@cli_command("ssh-config")
@click.argument("nodes", metavar="[NODE...]", nargs=-1, shell_complete=complete_node)
@grouped_option(
    "--all",
    "all_nodes",
    group=OptionGroup.SELECTION,
    is_flag=True,
    help="Write entries for all nodes of the project, or of --zone, that ssh can reach.",
)
@grouped_option(
    "--prefix",
    group=OptionGroup.FILES,
    default=None,
    metavar="PREFIX",
    help="Text before the host names, such as tpu-. [default: none]",
)
@grouped_option(
    "--remove",
    group=OptionGroup.FILES,
    is_flag=True,
    help="Remove the entries of the nodes; with --all those of all nodes.",
)
@grouped_option(
    "--print", "prints", group=OptionGroup.FILES, is_flag=True, help="Print the entries instead of writing them."
)
@grouped_option(
    "--file",
    group=OptionGroup.FILES,
    metavar="FILE",
    default=None,
    help="File to write, for `ssh -F FILE`. [default: ~/.ssh/tpuctl_config]",
)
@route_options
@yes_option
@body_in("tpuctl.workers.commands.ssh_config_run:run_ssh_config")
def command() -> None:
    """Write ssh host entries for workers, for plain ssh, rsync and editors: NODE and NODE-0 are worker 0, NODE-3 is worker 3.

    The entries are in ~/.ssh/tpuctl_config. ~/.ssh/config includes that file with one line at its top, which is added when you
    agree. `up` refreshes the entries, `down` and `delete` remove them. Without a node: show the existing entries.

    \b
    Examples:
      tpuctl ssh-config trainer && ssh trainer-3 hostname
      tpuctl ssh-config --all --prefix tpu-
      tpuctl ssh-config trainer --print >> my_config
      tpuctl ssh-config trainer --file ./hosts && rsync -e 'ssh -F hosts' -a data trainer:
    """
