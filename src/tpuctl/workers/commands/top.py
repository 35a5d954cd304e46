"""`tpuctl top`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, TableOptions, cli_command, takes_options
from tpuctl.app.value_completion import complete_columns, complete_node
from tpuctl.workers.commands.jobs import worker_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.output.column_widths import Column


def _columns() -> Sequence[Column]:
    from tpuctl.workers.worker_metrics import TOP_COLUMNS  # noqa: PLC0415  # only for completion

    return TOP_COLUMNS


@cli_command("top")
@click.argument("nodes", metavar="NODE...", nargs=-1, shell_complete=complete_node)
@worker_options
@grouped_option(
    "--interval",
    group=OptionGroup.TIMING,
    type=DurationType(),
    metavar="TIME",
    default="2s",
    help="Time between two reports of a worker. [default: 2s]",
)
@grouped_option("--once", group=OptionGroup.OUTPUT, is_flag=True, help="Show one report of each worker, and end.")
@takes_options(TableOptions, "table", shell_complete=complete_columns(_columns))
@body_in("tpuctl.workers.commands.top_run:run_top")
def command() -> None:
    """Show what the chips of nodes do: program, memory (HBM) and duty cycle of each worker.

    On a terminal the table is live until q or Ctrl-C; in a pipe, and with -o json, each worker reports once. The figures are
    those that libtpu measures in the program which holds the chips; without such a program there are none. HBM is that of
    the fullest chip; -o wide shows each. A duty cycle far from the median of the node is marked.

    \b
    Examples:
      tpuctl top trainer
      tpuctl top 'train-*' --sort duty
      tpuctl top trainer --once -o json | jq '.workers[] | select(.isOutlier)'
    """
