"""The body of `tpuctl logs`."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import SystemClock
from tpuctl.durations import format_duration, format_timestamp, local_time
from tpuctl.errors import ExitCode, InvalidInputError, RemoteCommandError
from tpuctl.escaping import escape_unprintable
from tpuctl.ssh.channel import explain_agent_errors
from tpuctl.workers.commands.jobs_run import choose_targets_and_job, show_errors
from tpuctl.workers.execution import (
    WorkerOutputStreams,
    diagnose_output,
    follow_job,
    run_error,
    run_warnings,
    show_diagnosis,
    worker_labels,
)
from tpuctl.workers.worker_jobs import Job, choose_job, job_not_found, job_state, list_jobs, read_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.ssh.connection import Target
    from tpuctl.workers.runner import RunResult
    from tpuctl.workers.worker_jobs import JobScope
    from tpuctl.workers.worker_session import WorkerResult


def run_logs(
    app: App,
    *,
    words: tuple[str, ...],
    selector: tuple[str, ...],
    worker: str,
    follow: bool,
    tail: int | None,
    since: timedelta | time | datetime | None,
) -> int:
    """Print the output of a job on its workers; without JOB that of the newest."""
    ago = _time_since(since)
    scope = choose_targets_and_job(app, words, selector, worker)
    if follow and scope.job and tail is None and ago is None:
        # Asking for the state of the job first would double the time.
        return _follow(app, scope, Job(scope.job, ()), scope.targets)
    listing = list_jobs(scope, tail=tail, since=ago)
    job = choose_job(scope, listing)
    if untimed := [share.target.label for share in job.shares if not share.has_times]:
        text = f"all output of worker {', '.join(untimed)} is shown: the job was started without records of time"
        app.terminal.note(text)
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


def _time_since(since: timedelta | time | datetime | None) -> timedelta | None:
    """Return how long ago a time was, by this machine; of a time of day the last one. Raises `InvalidInputError`."""
    if since is None or isinstance(since, timedelta):
        return since
    now = SystemClock().now()
    if isinstance(since, time):
        today = local_time(now)
        moment = today.replace(hour=since.hour, minute=since.minute, second=0, microsecond=0)
        since = moment if moment <= today else moment - timedelta(days=1)
    if since > now:
        raise InvalidInputError(
            f"`--since {format_timestamp(since)}` is in the future", hint="write it like `--since 10m`"
        )
    return now - since


def _warn(app: App, results: Sequence[WorkerResult]) -> None:
    for text in run_warnings(results, tells_ends=False):
        app.terminal.warn(text)


def _follow(app: App, scope: JobScope, job: Job, others: Sequence[Target]) -> int:
    result = follow_job(app, scope, job, others)
    if not result.results:
        raise job_not_found(scope, job.name)
    cut = [one for one in result.results if one.code is None]
    if not cut:
        return _show_result(app, job, result)
    _warn(app, result.results)
    show_diagnosis(app, result.diagnosis)
    whys = dict.fromkeys(one.explain(one.target.label) for one in cut)
    text = f"job `{job.name}` could not be followed to its end on worker {worker_labels(cut)}"
    return show_errors(app, [RemoteCommandError(text, hint="\n".join(map(escape_unprintable, whys)))])


def _show_result(app: App, job: Job, result: RunResult) -> int:
    """Show how a job ended that was followed to its end, and return the exit code of `attach`."""
    for text in run_warnings(result.results):
        app.terminal.warn(text)
    if error := run_error(result):
        app.show_error(error)
        show_diagnosis(app, result.diagnosis)
        return error.exit_code
    longest = max((one.duration for one in result.results if one.duration is not None), default=timedelta())
    app.terminal.note(f"job `{job.name}` exited 0 after {format_duration(longest)}")
    return ExitCode.OK
