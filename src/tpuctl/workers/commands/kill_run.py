"""The body of `tpuctl kill`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import ConflictError, InvalidInputError, NotConfirmedError, NotFoundError, TimedOutError
from tpuctl.output.terminal import Cell, table_view
from tpuctl.workers.commands.jobs_run import choose_targets_and_job, show_errors
from tpuctl.workers.worker_jobs import (
    LINUX_SIGNALS,
    choose_job,
    job_json,
    job_state,
    list_jobs,
    parse_signal,
    signal_job,
    signal_name,
    worker_names,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.workers.worker_jobs import JobScope


# A job that is kept is not started again after one of these: INT, QUIT, ABRT, KILL and TERM end a program.
_ENDING = frozenset(LINUX_SIGNALS[name] for name in ("HUP", "INT", "QUIT", "ABRT", "KILL", "TERM"))


_NODE_AND_JOB = 2


# Most programs end by then, and the state shown is their last.
_MOMENT = timedelta(seconds=1)


def run_kill(
    app: App,
    *,
    words: tuple[str, ...],
    selector: tuple[str, ...],
    worker: str,
    name: str,
    wait: bool,
    timeout: timedelta | str,
    yes: bool,
) -> int:
    """Send a signal to all processes of a job, on all its workers; succeeds if the job has already ended."""
    number = parse_signal(name)
    if not isinstance(timeout, timedelta):
        raise InvalidInputError(
            "`--timeout forever` is longer than a session may last", hint="give a time, such as `10m`"
        )
    try:
        scope = choose_targets_and_job(app, words, selector, worker)
    except (NotFoundError, ConflictError) as error:
        if len(words) != _NODE_AND_JOB or number not in _ENDING or not _end_kept_job(app, [words[0]], words[1], number):
            raise
        app.terminal.warn(f"no signal was sent: {error.message}")
        return 0
    owners, hint = _other_owners(app, scope), None
    job, facts = scope.job, [owners] if owners else []
    what = f"job `{job}`"
    if job is None:
        listing = list_jobs(scope)
        newest = choose_job(scope, listing, running_first=True)
        running = sum(one.is_running for one in listing.jobs)
        what = f"{'the newest,' if running > 1 else 'job'} `{newest.name}` ({newest.command})"
        if running > 1:
            facts.append(f"{running} jobs run on `{scope.nodes}`")
            hint = f"name the job; list them: `tpuctl jobs {scope.nodes}`"
        job = newest.name
    if facts and not app.terminal.confirm(f"{'; '.join(facts)}; send {signal_name(number)} to {what}?", yes=yes):
        raise NotConfirmedError(hint=hint)
    if number in _ENDING:
        _end_kept_job(app, sorted({target.node.name.node_id for target in scope.targets}), job, number)
    done = signal_job(scope, job, number, wait=timeout if wait else _MOMENT)
    if done.sent:
        where = worker_names(done.sent, len(done.job.shares))
        app.terminal.note(f"{signal_name(number)} sent to job `{job}` on {where}")
    else:
        app.terminal.note(f"job `{job}` is not running: no signal was sent")
    app.show(
        table_view(
            ("JOB", "STATE"),
            [(Cell(job), Cell(job_state(done.job.shares)))],
            value=lambda: job_json(done.job),
            names=lambda: [done.job.name],
        )
    )
    errors = list(done.errors)
    if wait and done.job.is_running:
        hint = f"kill it: `tpuctl kill {scope.nodes} {job} --signal KILL`"
        errors.append(TimedOutError(f"job `{job}` still runs after {timeout.total_seconds():g} s", hint=hint))
    return show_errors(app, errors)


def _end_kept_job(app: App, nodes: Sequence[str], name: str, number: int) -> bool:
    """Write to the journal that a kept job is over, so that no supervisor starts it again. Return whether there is one."""
    found = False
    for node in nodes:
        reference = app.reference(node)
        for place in app.services.journal.kept_jobs(reference.project or app.project, reference.node_id):
            if place.job.name == name and not place.job.is_over:
                text = f"`tpuctl kill` sent {signal_name(number)}"
                app.services.journal.append(place.home, "job-stop", app.now(), job=name, text=text)
                app.terminal.note(f"job `{name}` is not started again")
                found = True
    return found


def _other_owners(app: App, scope: JobScope) -> str:
    """Return which nodes other accounts created, by their labels; empty if there are none."""
    owners = {target.node.name.node_id: target.node.owner for target in scope.targets if target.node.owner}
    mine = app.services.owner_label if owners else None
    return ", ".join(f"`{node}` was created by {owner}" for node, owner in owners.items() if owner != mine)
