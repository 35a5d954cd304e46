"""The body of `tpuctl top`."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import ExitCode, InvalidInputError
from tpuctl.output.screen import LiveTable
from tpuctl.output.terminal import OutputFormat
from tpuctl.ssh.tpu_metrics import MetricsStream
from tpuctl.workers.commands.jobs_run import job_targets, show_errors
from tpuctl.workers.worker_metrics import TOP_COLUMNS, failures, top_rows, top_summary, top_view

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.app.options import TableOptions
    from tpuctl.output.tables import TableLayout

_SHORTEST, _LONGEST = timedelta(seconds=0.5), timedelta(minutes=10)


def run_top(
    app: App,
    *,
    nodes: tuple[str, ...],
    selector: tuple[str, ...],
    worker: str,
    interval: timedelta | str,
    once: bool,
    table: TableOptions,
) -> int:
    """Show what the chips of nodes do: program, memory (HBM) and duty cycle of each worker."""
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
    with LiveTable(app.terminal) as screen:
        has_news, due = True, 0.0
        while not screen.wants_to_end():
            if has_news and time.monotonic() >= due:
                _, rows = layout.sort(stream.workers, top_rows(stream.workers))
                screen.show(layout, rows, top_summary(stream.workers))
                has_news, due = False, time.monotonic() + min(interval.total_seconds() / 2, 1.0)
            has_news |= stream.serve(0.25)
