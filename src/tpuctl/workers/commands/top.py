"""`tpuctl top`."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, TableOptions, cli_command, takes_options
from tpuctl.app.value_completion import complete_columns, complete_node
from tpuctl.errors import ExitCode, InvalidInputError
from tpuctl.output.terminal import OutputFormat
from tpuctl.workers.commands.jobs import worker_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.output.column_widths import Column
    from tpuctl.output.tables import TableLayout
    from tpuctl.ssh.tpu_metrics import MetricsStream

_SHORTEST, _LONGEST = timedelta(seconds=0.5), timedelta(minutes=10)


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
def command(
    app: App,
    *,
    nodes: tuple[str, ...],
    selector: tuple[str, ...],
    worker: str,
    interval: timedelta | str,
    once: bool,
    table: TableOptions,
) -> int:
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
    from tpuctl.ssh.tpu_metrics import MetricsStream  # noqa: PLC0415  # not needed by --help
    from tpuctl.workers.commands.jobs_run import job_targets, show_errors  # noqa: PLC0415  # as above
    from tpuctl.workers.worker_metrics import TOP_COLUMNS, failures, top_view  # noqa: PLC0415  # as above

    if not nodes and not selector:
        raise InvalidInputError("no node given", hint="name one, or use `-l KEY=VALUE`")
    if not isinstance(interval, timedelta) or not _SHORTEST <= interval <= _LONGEST:
        raise InvalidInputError("`--interval` is from 0.5s to 10m", hint="write it like `--interval 2s`")
    layout = table.layout(app, TOP_COLUMNS)
    scope = job_targets(app, nodes, selector, worker)
    is_live = app.terminal.is_interactive and not once and app.format in {OutputFormat.TABLE, OutputFormat.WIDE}
    with MetricsStream(scope.targets, scope.ssh_options, interval if is_live else None) as stream:
        if is_live:
            with suppress(KeyboardInterrupt):
                _show_live(app, stream, layout, interval)
            return ExitCode.OK
        stream.collect()
    app.show(top_view(stream.workers, layout))
    errors = failures(stream.workers)
    return show_errors(app, errors) if errors else ExitCode.OK


def _show_live(app: App, stream: MetricsStream, layout: TableLayout, interval: timedelta) -> None:
    """Redraw the table when workers have reported, until the user ends it; twice in an interval at most.

    To lay out 64 rows takes 10 ms.
    """
    from tpuctl.output.screen import LiveTable  # noqa: PLC0415  # rich takes 40 ms
    from tpuctl.workers.worker_metrics import top_rows, top_summary  # noqa: PLC0415  # as above

    with LiveTable(app.terminal) as screen:
        has_news, due = True, 0.0
        while not screen.wants_to_end():
            if has_news and time.monotonic() >= due:
                _, rows = layout.sort(stream.workers, top_rows(stream.workers))
                screen.show(layout, rows, top_summary(stream.workers))
                has_news, due = False, time.monotonic() + min(interval.total_seconds() / 2, 1.0)
            has_news |= stream.serve(0.25)
