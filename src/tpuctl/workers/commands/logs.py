"""`tpuctl logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import cli_command
from tpuctl.errors import ExitCode, RemoteCommandError
from tpuctl.escaping import escape_unprintable
from tpuctl.ssh.channel import explain_agent_errors
from tpuctl.workers.commands.jobs import choose_targets_and_job, job_options, show_errors
from tpuctl.workers.execution import (
    WorkerOutputStreams,
    diagnose_output,
    follow_job,
    run_warnings,
    show_diagnosis,
    worker_labels,
)
from tpuctl.workers.worker_jobs import Job, choose_job, job_not_found, job_state, list_jobs, read_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.worker_jobs import JobScope
    from tpuctl.workers.worker_session import WorkerResult


@cli_command("logs", without=("output",))
@job_options
@grouped_option(
    "--follow", "-f", is_flag=True, help="Continue until the job has ended; reconnects when a connection breaks."
)
@grouped_option(
    "--tail",
    "-n",
    type=click.IntRange(0),
    metavar="N",
    help="Number of last lines to print of each worker. [default: all]",
)
def command(
    app: App, *, words: tuple[str, ...], selector: tuple[str, ...], worker: str, follow: bool, tail: int | None
) -> int:
    """Print the output of a job on its workers; without JOB that of the newest.

    Of several arguments the last is the job. With several workers each line is marked with its worker; the workers follow one
    another, or with --follow their lines appear as they arrive. The exit code is 0 even if the job failed: see `tpuctl attach`.
    A detached job's stdout and stderr are one stream; of other jobs stderr follows stdout. Ctrl-C never reaches the job.

    \b
    Examples:
      tpuctl logs trainer -f
      tpuctl logs trainer 0412-093001-5e1f --worker 3 --tail 100
      tpuctl logs -l team=vision nightly
    """
    scope = choose_targets_and_job(app, words, selector, worker)
    if follow and scope.job and tail is None:
        # Asking for the state of the job first would double the time.
        return _follow(app, scope, Job(scope.job, ()), scope.targets)
    listing = list_jobs(scope, tail=tail)
    job = choose_job(scope, listing)
    if scope.job is None and app.terminal.is_interactive:
        app.terminal.note(f"job {job.name} ({job_state(job.shares)}): {job.command}")
    if follow:
        return _follow(app, scope, job, listing.silent)
    with WorkerOutputStreams(app.terminal, job.targets) as streams:
        unread = read_output(scope, job.shares, streams)
    results = [share.result for share in job.shares if share.result is not None]
    _warn(app, results)
    code = show_errors(app, explain_agent_errors([*listing.failures, *unread]))
    show_diagnosis(app, diagnose_output(results, streams.tail))
    return code


def _warn(app: App, results: Sequence[WorkerResult]) -> None:
    for text in run_warnings(results, tells_ends=False):
        app.terminal.warn(text)


def _follow(app: App, scope: JobScope, job: Job, others: Sequence[Target]) -> int:
    result = follow_job(app, scope, job, others)
    if not result.results:
        raise job_not_found(scope, job.name)
    _warn(app, result.results)
    show_diagnosis(app, result.diagnosis)
    cut = [one for one in result.results if one.code is None]
    if not cut:
        return ExitCode.OK
    whys = dict.fromkeys(one.explain(one.target.label) for one in cut)
    text = f"job `{job.name}` could not be followed to its end on worker {worker_labels(cut)}"
    return show_errors(app, [RemoteCommandError(text, hint="\n".join(map(escape_unprintable, whys)))])
