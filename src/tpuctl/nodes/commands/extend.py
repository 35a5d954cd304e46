"""`tpuctl extend`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, yes_option
from tpuctl.app.value_completion import complete_node
from tpuctl.nodes.commands.selection_options import label_option
from tpuctl.nodes.commands.time_options import MomentType


@cli_command("extend")
@click.argument("words", metavar="NODE... [TIME]", nargs=-1, shell_complete=complete_node)
@label_option
@grouped_option(
    "--until",
    group=OptionGroup.LIFETIME,
    type=MomentType(),
    metavar="TIME",
    help="New end, instead of TIME: 18:30, 8h from now, or a time in RFC 3339.",
)
@grouped_option("--no-expiry", group=OptionGroup.LIFETIME, is_flag=True, help="Remove the time limit of the nodes.")
@yes_option
@body_in("tpuctl.nodes.commands.extend_run:run_extend")
def command() -> None:
    """Move the end of the time of nodes: TIME is added to their present end, or to now if they have none or passed it.

    The nodes keep running. The label `tpuctl-expires` has the end, which `tpuctl watch` and `tpuctl gc --expired` read. Asks
    before it moves an end to an earlier time, gives one to a node in use, or changes that of another owner.

    \b
    Examples:
      tpuctl extend trainer 2h
      tpuctl extend -l team=vision --until 18:30
      tpuctl extend trainer --no-expiry
    """
