"""The body of `tpuctl jobs`, and how commands about jobs choose workers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.app.options import TableOptions
from tpuctl.app.seen_jobs import note_seen_jobs
from tpuctl.app.ssh_options import shared_connection_options
from tpuctl.errors import ExitCode, InvalidInputError, worst_exit_code
from tpuctl.models.node import WorkerSet
from tpuctl.nodes.lookup import IncompleteListError
from tpuctl.output.terminal import View
from tpuctl.workers.commands.node_selection import find_nodes
from tpuctl.workers.node_jobs import list_all_jobs
from tpuctl.workers.targets import await_key, find_targets
from tpuctl.workers.worker_jobs import JOB_COLUMNS, JobScope, check_job_name, jobs_view, list_jobs, remove_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.app.app import App
    from tpuctl.errors import TpuctlError
    from tpuctl.models.node import Node
    from tpuctl.nodes.kept_jobs import KeptJob
    from tpuctl.output.tables import TableLayout
    from tpuctl.workers.worker_jobs import JobListing


def job_targets(
    app: App, nodes: Sequence[str], selector: Sequence[str], worker: str, *, job: str | None = None
) -> JobScope:
    """Return the workers of these nodes. Raises the errors of `targets`."""
    numbers = WorkerSet.parse(worker)
    found = find_targets(app, find_nodes(app, nodes, selector), numbers)
    await_key(app, found)
    typed = " ".join([*nodes, *(f"-l {one}" for one in selector)])
    return JobScope(found, shared_connection_options(app), typed, job)


def show_errors(app: App, errors: Sequence[TpuctlError]) -> int:
    """Show errors, and return the worst of their exit codes."""
    for error in errors:
        app.show_error(error)
    return worst_exit_code(error.exit_code for error in errors)


def choose_targets_and_job(app: App, words: Sequence[str], selector: Sequence[str], worker: str) -> JobScope:
    """Return the workers and the job: the last of several words is the job, with `-l` also a single one.

    Raises `InvalidInputError`, and the errors of `targets`.
    """
    has_job = len(words) > (0 if selector else 1)
    nodes, job = (words[:-1], words[-1]) if has_job else (words, None)
    if not nodes and not selector:
        raise InvalidInputError("no node given", hint="name one, or use `-l KEY=VALUE`; a job may follow")
    if job is not None:
        check_job_name(job)
    return job_targets(app, nodes, selector, worker, job=job)


def run_jobs(
    app: App,
    *,
    nodes: tuple[str, ...],
    selector: tuple[str, ...],
    worker: str,
    last: int,
    remove: tuple[str, ...],
    prune: bool,
    older_than: timedelta | str | None,
    table: TableOptions,
) -> int:
    """List the jobs of nodes and their results."""
    layout = table.layout(app, JOB_COLUMNS)
    if older_than is not None and not (prune and isinstance(older_than, timedelta)):
        raise InvalidInputError("`--older-than` needs `--prune`", hint="add it: `--prune --older-than 7d`")
    if prune and remove:
        raise InvalidInputError("`--prune` and `--remove` exclude each other", hint="leave one of them out")
    for name in remove:
        check_job_name(name)
    everywhere = not (nodes or selector or prune or remove)
    if everywhere:
        return _list_everywhere(app, WorkerSet.parse(worker), table, layout, last=last)
    scope = job_targets(app, nodes, selector, worker)
    if prune or remove:
        older = older_than if isinstance(older_than, timedelta) else timedelta(days=7)
        removed, errors = remove_jobs(scope, remove, older=older)
        app.show(
            View(
                value=lambda: [{"job": name} for name in removed],
                text=lambda terminal: terminal.names(removed),
                is_marked=False,
            )
        )
        if not removed and not errors:
            app.terminal.note("no jobs to remove")
        return show_errors(app, errors)
    listing = list_jobs(scope, limit=last)
    # Other workers may have jobs that were not listed.
    is_whole = not listing.silent and worker == "all"
    note_seen_jobs(
        app.invocation.environ,
        {target.node.name for target in scope.targets},
        [job.name for job in listing.jobs],
        replace=is_whole,
    )
    kept = _kept_jobs(app, [target.node for target in scope.targets])
    app.show(jobs_view(listing, scope.nodes, layout, kept=kept))
    _note_kept(app, kept, listing)
    return show_errors(app, listing.errors)


def _list_everywhere(app: App, workers: WorkerSet, table: TableOptions, layout: TableLayout, *, last: int) -> int:
    """List the jobs of all READY nodes. Changes nothing; a node that cannot be asked is a note."""
    found = list_all_jobs(app, workers, limit=last)
    kept = _kept_jobs(app, found.nodes)
    if table.columns is None:
        node_column = next(index for index, column in enumerate(layout.columns) if column.name == "node")
        layout = replace(layout, shown=(node_column, *layout.shown))
    app.show(jobs_view(found.listing, f"the nodes of {app.project}", layout, kept=kept))
    for name, why in found.silent.items():
        app.terminal.note(f"{name}: its jobs are unknown: {why}")
    _note_kept(app, kept, found.listing)
    if found.unreachable:
        raise IncompleteListError(found.unreachable)
    return ExitCode.OK


def _kept_jobs(app: App, nodes: Sequence[Node]) -> dict[tuple[str, str], KeptJob]:
    """Return the jobs of `run --keep` of nodes, by node and name."""
    names = sorted({(node.name.project, node.name.node_id) for node in nodes})
    journal = app.services.journal
    return {(name[1], place.job.name): place.job for name in names for place in journal.kept_jobs(*name)}


def _note_kept(app: App, kept: Mapping[tuple[str, str], KeptJob], listing: JobListing) -> None:
    for (node, _), job in kept.items():
        if not job.is_over:
            record = f"tpuctl history {node} --job {job.name}"
            app.terminal.note(f"{job.name}: kept until it is done, attempt {max(len(job.attempts), 1)}: `{record}`")
    if listing.left_out:
        hint = "list more with `--last N`, remove old ones with `--prune`"
        app.terminal.note(f"{listing.left_out} older jobs not shown: {hint}")
