"""`tpuctl kill`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from tpuctl.cli.job_choice import chosen, job_options, tell_errors
from tpuctl.cli.options import Duration, cli_command, yes_option
from tpuctl.errors import InvalidInputError, NotConfirmedError, TimedOutError

if TYPE_CHECKING:
    from tpuctl.actions.job_changes import Signaling
    from tpuctl.cli.app import App
    from tpuctl.cli.job_choice import Choice

# Most programs end by then, and the state shown is their last.
_MOMENT = timedelta(seconds=1)


@cli_command("kill")
@job_options
@click.option(
    "--signal",
    "-s",
    "name",
    metavar="NAME",
    default="TERM",
    show_default=True,
    help="Signal: TERM, INT, QUIT, KILL, …, or a number.",
)
@click.option("--wait", is_flag=True, help="Wait until the job has ended on all workers.")
@click.option(
    "--timeout", type=Duration(), default="60s", show_default=True, metavar="TIME", help="With --wait: time limit."
)
@yes_option
def command(
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
    """Send a signal to all processes of a job, on all its workers; succeeds if the job has already ended.

    Without JOB it is the one that runs; of several the newest, after a confirmation. The last of several words is the job.
    A process that has started its own session is not reached: see `tpuctl unstick`.

    \b
    Examples:
      tpuctl kill trainer
      tpuctl kill trainer nightly --signal INT --wait
      tpuctl kill trainer nightly -s KILL --worker 3
    """
    from tpuctl.actions.job_changes import signal_job  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.remote.jobs.values import parse_signal, signal_name  # noqa: PLC0415  # as above

    number = parse_signal(name)
    if not isinstance(timeout, timedelta):
        raise InvalidInputError(
            "`--timeout forever` is longer than a session may last", hint="give a time, such as `10m`"
        )
    choice = chosen(app, words, selector, worker)
    job = choice.job or _newest(app, choice, signal_name(number), yes=yes)
    done = signal_job(choice.workers, job, number, wait=timeout if wait else _MOMENT, nodes=choice.nodes)
    _show(app, done, signal_name(number))
    errors = done.errors
    if wait and done.job.is_running:
        hint = f"kill it: `tpuctl kill {choice.nodes} {job} --signal KILL`"
        errors.append(TimedOutError(f"job `{job}` still runs after {timeout.total_seconds():g} s", hint=hint))
    return tell_errors(app, errors)


def _newest(app: App, choice: Choice, signal: str, *, yes: bool) -> str:
    """Return the job to signal when none is named. Raises `NotConfirmedError` if the user refuses."""
    from tpuctl.actions.jobs import choose, list_jobs  # noqa: PLC0415  # completion and --help need not wait for it

    listing = list_jobs(choice.workers)
    job = choose(listing, None, choice.nodes, running_first=True)
    running = sum(one.is_running for one in listing.jobs)
    question = f"{running} jobs run on `{choice.nodes}`; send {signal} to the newest, `{job.name}` ({job.command})?"
    if running > 1 and not app.terminal.confirm(question, yes=yes):
        raise NotConfirmedError("nothing was done", hint=f"name the job; list them: `tpuctl jobs {choice.nodes}`")
    return job.name


def _show(app: App, done: Signaling, signal: str) -> None:
    from tpuctl.output.jobs import state, to_json, workers  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output.tables import Cell  # noqa: PLC0415  # as above
    from tpuctl.output.terminal import Format  # noqa: PLC0415  # as above

    if done.sent:
        app.terminal.note(f"{signal} sent to job `{done.job.name}` on {workers(done.sent, len(done.job.shares))}")
    else:
        app.terminal.note(f"job `{done.job.name}` is not running: no signal was sent")
    match app.format:
        case Format.JSON | Format.YAML:
            app.terminal.data(to_json(done.job, sandbox=app.is_sandbox), app.format)
        case Format.NAME:
            app.terminal.names([done.job.name])
        case Format.TABLE:
            app.terminal.table(("JOB", "STATE"), [(Cell(done.job.name), Cell(state(done.job.shares)))])
