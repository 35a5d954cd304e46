"""`tpuctl scp`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, fanout_option, worker_option
from tpuctl.app.route_options import route_options
from tpuctl.app.value_completion import complete_file, complete_label, complete_node, completion_item

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a local file, or the node of a path on workers."""
    if ":" in incomplete:
        return []
    nodes = [completion_item(f"{node.value}:", help=node.help) for node in complete_node(ctx, param, incomplete)]
    return [*nodes, *complete_file(ctx, param, incomplete)]


@cli_command("scp")
@click.argument(
    "places", metavar="SRC... DST", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=_complete
)
@worker_option
@grouped_option("-r", "--recurse", group=OptionGroup.FILES, is_flag=True, help="Copy folders with all their contents.")
@grouped_option("-p", "--preserve", group=OptionGroup.FILES, is_flag=True, help="Keep modification times and modes.")
@grouped_option(
    "-l",
    "--selector",
    group=OptionGroup.SELECTION,
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=complete_label,
    help="Copy to or from all nodes with this label; write the path as :PATH. Repeatable.",
)
@fanout_option("copies")
@route_options
@body_in("tpuctl.workers.commands.scp_run:run_scp")
def command() -> None:
    """Copy files to or from all workers of a node.

    One side is NODE:PATH, USER@NODE:PATH, ZONE/NODE:PATH or several nodes A,B:PATH; with -l it is :PATH. Paths on workers
    are relative to the login's home, and each worker expands ~ and wildcards. A copy from several workers creates a folder
    for each: DST/0, DST/1, or DST/NODE-0 for several nodes.

    Files appear under their names when all have arrived, each complete; a new folder appears at once.

    \b
    Examples:
      tpuctl scp train.py config.yaml trainer:
      tpuctl scp -r data trainer:/mnt/disks/data --worker 0
      tpuctl scp 'trainer:/tmp/tpu_logs/*' logs
    """
