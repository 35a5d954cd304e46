"""The body of `tpuctl attach`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.workers.commands.jobs_run import choose_targets_and_job
from tpuctl.workers.execution import follow_job, show_result
from tpuctl.workers.worker_jobs import choose_job, list_jobs

if TYPE_CHECKING:
    from tpuctl.app.app import App


def run_attach(app: App, *, words: tuple[str, ...], selector: tuple[str, ...], worker: str, tail: int | None) -> int:
    """Follow a job to its end, with the exit code of `tpuctl run`: 0 only if it exits with 0 on all its workers."""
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
