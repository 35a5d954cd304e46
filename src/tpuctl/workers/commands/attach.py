"""`tpuctl attach`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command
from tpuctl.workers.commands.jobs import choose_targets_and_job, job_options
from tpuctl.workers.execution import follow_job, show_result
from tpuctl.workers.worker_jobs import choose_job, list_jobs

if TYPE_CHECKING:
    from tpuctl.app.app import App


@cli_command("attach")
@job_options
@grouped_option(
    "--tail",
    "-n",
    group=OptionGroup.OUTPUT,
    type=click.IntRange(0),
    metavar="N",
    help="Number of last lines of each worker to begin with. [default: all]",
)
def command(app: App, *, words: tuple[str, ...], selector: tuple[str, ...], worker: str, tail: int | None) -> int:
    """Follow a job to its end, with the exit code of `tpuctl run`: 0 only if it exits with 0 on all its workers.

    Without JOB the newest running job is followed, or the newest of all. Of several arguments the last is the job. Its output
    so far comes first. Ctrl-C leaves a detached job running, and one that another client follows. Any other job receives it as
    from `tpuctl run`: INT, then QUIT, then KILL.

    \b
    Examples:
      tpuctl attach trainer
      tpuctl attach trainer nightly --tail 20
      tpuctl attach trainer -o json 2>/dev/null | jq '.workers[].exitCode'
    """
    scope = choose_targets_and_job(app, words, selector, worker)
    listing = list_jobs(scope, tail=tail)
    job = choose_job(scope, listing, running_first=True)
    # Its `run` has gone, and no other client would terminate it.
    is_ours = job.is_detached is False and not job.is_followed
    if app.terminal.is_interactive:
        leaves = "sends INT to it" if is_ours else "leaves it running"
        app.terminal.note(f"job {job.name}: {job.command}" + (f" (Ctrl-C {leaves})" if job.is_running else ""))
    result = follow_job(app, scope, job, listing.silent, passes_signals=is_ours)
    return show_result(app, result)
