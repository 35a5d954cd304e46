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
@click.option("--last", type=click.IntRange(1), default=100, metavar="N", help="Only the newest N. [default: 100]")
@click.option("--remove", multiple=True, metavar="JOB", help="Remove a job that has ended, with its output.")
@click.option("--prune", is_flag=True, help="Remove all jobs that ended long ago, with their output.")
@click.option("--older-than", type=Duration(), metavar="TIME", help="With --prune: how long ago. [default: 7d]")
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
    """List the jobs of nodes, with how each has ended on its workers. The workers keep that, and the output.

    They are those that were started with `tpuctl run --detach`, and other commands of `tpuctl run` while they run, or that lost
    who followed them. A job that does not run and whose end nobody wrote down is lost: the worker was rebooted, or out of
    memory.

    \b
    Examples:
      tpuctl jobs trainer
      tpuctl jobs trainer -o json | jq '.[0].workers[] | select(.exitCode != 0)'
      tpuctl jobs trainer --prune --older-than 1d
    """
    from tpuctl.actions.jobs import list_jobs  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.remote.jobs.values import check_job_name  # noqa: PLC0415  # as above

    if older_than is not None and not (prune and isinstance(older_than, timedelta)):
        raise InvalidInputError("`--older-than` goes with `--prune`", hint="`--prune --older-than 7d`")
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
    from tpuctl.output import jobs as shown  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    terminal = app.terminal
    match app.format:
        case Format.JSON | Format.YAML:
            terminal.data([shown.to_json(job, sandbox=app.is_sandbox) for job in listing.jobs], app.format)
        case Format.NAME:
            terminal.names(job.name for job in listing.jobs)
        case Format.TABLE if listing.jobs or not terminal.is_interactive:
            terminal.table(shown.HEADER, [shown.row(job) for job in listing.jobs])
        case Format.TABLE if not listing.silent:
            terminal.note(f"no jobs on `{nodes}`")
    if listing.left_out:
        terminal.note(f"{listing.left_out} older jobs are not shown: `--last N` shows more, `--prune` removes old ones")


def _remove(app: App, workers: Workers, names: Sequence[str], older: timedelta, nodes: str) -> int:
    """Remove jobs, say which, and which were left alone."""
    from tpuctl.actions.job_changes import remove_jobs  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    removal = remove_jobs(workers, names, older=older, nodes=nodes)
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data([{"job": name} for name in removal.removed], app.format)
    else:
        app.terminal.names(removal.removed)
    if not removal.removed and not removal.errors:
        app.terminal.note("no job ended so long ago")
    return tell_errors(app, removal.errors)
