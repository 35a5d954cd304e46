"""The body of `tpuctl logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import ExitCode, RemoteCommandError
from tpuctl.escaping import escape_unprintable
from tpuctl.ssh.channel import explain_agent_errors
from tpuctl.workers.commands.jobs_run import choose_targets_and_job, show_errors
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


def run_logs(
    app: App, *, words: tuple[str, ...], selector: tuple[str, ...], worker: str, follow: bool, tail: int | None
) -> int:
    """Print the output of a job on its workers; without JOB that of the newest."""
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
