"""`tpuctl jobs`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from tpuctl.cli.job_choice import ask, tell_errors, worker_options
from tpuctl.cli.options import Duration, cli_command, complete_node
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.actions.jobs import Listing
    from tpuctl.cli.app import App
    from tpuctl.remote.jobs.asking import Workers


@cli_command("jobs")
@click.argument("nodes", metavar="NODE...", nargs=-1, shell_complete=complete_node)
@worker_options
@click.option(
    "--last", type=click.IntRange(1), default=100, metavar="N", help="Number of newest jobs to show. [default: 100]"
)
@click.option("--remove", multiple=True, metavar="JOB", help="Job to remove, with its output; it must have ended.")
@click.option("--prune", is_flag=True, help="Remove old jobs that have ended, with their output.")
@click.option(
    "--older-than", type=Duration(), metavar="TIME", help="With --prune: minimum time since their end. [default: 7d]"
)
def command(
    app: App,
    *,
    nodes: tuple[str, ...],
    selector: tuple[str, ...],
    worker: str,
    last: int,
    remove: tuple[str, ...],
    prune: bool,
    older_than: timedelta | str | None,
) -> int:
    """List the jobs of nodes and their results. The workers store both, with the output.

    A job is a command started by `tpuctl run --detach`, or any other command of `tpuctl run` while it runs or after its client
    has gone. A job is lost if it does not run and has no recorded exit code: the worker was rebooted, or out of memory.

    \b
    Examples:
      tpuctl jobs trainer
      tpuctl jobs trainer -o json | jq '.[0].workers[] | select(.exitCode != 0)'
      tpuctl jobs trainer --prune --older-than 1d
    """
    from tpuctl.actions.jobs import list_jobs  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.remote.jobs.values import check_job_name  # noqa: PLC0415  # as above

    if older_than is not None and not (prune and isinstance(older_than, timedelta)):
        raise InvalidInputError("`--older-than` needs `--prune`", hint="add it: `--prune --older-than 7d`")
    if prune and remove:
        raise InvalidInputError("`--prune` and `--remove` exclude each other", hint="leave one of them out")
    for name in remove:
        check_job_name(name)
    choice = ask(app, nodes, selector, worker)
    if prune or remove:
        older = older_than if isinstance(older_than, timedelta) else timedelta(days=7)
        return _remove(app, choice.workers, remove, older, choice.nodes)
    listing = list_jobs(choice.workers, limit=last)
    _show(app, listing, choice.nodes)
    return tell_errors(app, listing.errors)


def _show(app: App, listing: Listing, nodes: str) -> None:
    from tpuctl.output.jobs import HEADER, row, to_json  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    terminal = app.terminal
    match app.format:
        case Format.JSON | Format.YAML:
            terminal.data([to_json(job, sandbox=app.is_sandbox) for job in listing.jobs], app.format)
        case Format.NAME:
            terminal.names(job.name for job in listing.jobs)
        case Format.TABLE if listing.jobs or not terminal.is_interactive:
            terminal.table(HEADER, [row(job) for job in listing.jobs])
        case Format.TABLE if not listing.silent:
            terminal.note(f"no jobs on `{nodes}`")
    if listing.left_out:
        terminal.note(
            f"{listing.left_out} older jobs not shown: list more with `--last N`, remove old ones with `--prune`"
        )


def _remove(app: App, workers: Workers, names: Sequence[str], older: timedelta, nodes: str) -> int:
    """Remove jobs; show which were removed, and why others were not."""
    from tpuctl.actions.job_changes import remove_jobs  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    removal = remove_jobs(workers, names, older=older, nodes=nodes)
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data([{"job": name} for name in removal.removed], app.format)
    else:
        app.terminal.names(removal.removed)
    if not removal.removed and not removal.errors:
        app.terminal.note("no jobs to remove")
    return tell_errors(app, removal.errors)
