"""`tpuctl logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.job_choice import chosen, job_options, tell_errors
from tpuctl.cli.options import cli_command
from tpuctl.errors import ExitCode, RemoteCommandError
from tpuctl.escaping import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.actions.jobs import Job, Listing
    from tpuctl.cli.app import App
    from tpuctl.cli.job_choice import Choice
    from tpuctl.remote.member import Member
    from tpuctl.remote.running.values import Ending


@cli_command("logs", without=("output",))
@job_options
@click.option(
    "--follow", "-f", is_flag=True, help="Continue until the job has ended; reconnects when a connection breaks."
)
@click.option("--tail", "-n", type=click.IntRange(0), metavar="N", help="Number of last lines to print of each worker.")
def command(
    app: App, *, words: tuple[str, ...], selector: tuple[str, ...], worker: str, follow: bool, tail: int | None
) -> int:
    """Print the output of a job on its workers; without JOB that of the newest.

    The last of several words is the job. With several workers each line is marked with its worker; the workers follow one
    another, or with --follow their lines appear as they arrive. The exit code is 0 even if the job failed: see `tpuctl attach`.
    A detached job's stdout and stderr are one stream; of other jobs stderr follows stdout. Ctrl-C never reaches the job.

    \b
    Examples:
      tpuctl logs trainer -f
      tpuctl logs trainer 0412-093001-5e1f --worker 3 --tail 100
      tpuctl logs -l team=vision nightly
    """
    from tpuctl.actions.jobs import Job, choose, list_jobs  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.output.jobs import state  # noqa: PLC0415  # as above

    choice = chosen(app, words, selector, worker)
    if follow and choice.job and tail is None:
        # Asking for the state of the job first would double the time.
        return _follow(app, choice, Job(choice.job, ()), choice.workers.members)
    listing = list_jobs(choice.workers, names=[choice.job] if choice.job else (), tail=tail)
    job = choose(listing, choice.job, choice.nodes)
    if choice.job is None and app.terminal.is_interactive:
        app.terminal.note(f"job {job.name} ({state(job.shares)}): {job.command}")
    if follow:
        return _follow(app, choice, job, [one.member for one in listing.silent])
    return _read(app, choice, listing, job)


def _read(app: App, choice: Choice, listing: Listing, job: Job) -> int:
    from tpuctl.actions.run_diagnosis import LastWords, diagnose  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.running import tell_diagnosis  # noqa: PLC0415  # as above
    from tpuctl.clock import SystemClock  # noqa: PLC0415  # as above
    from tpuctl.output.streams import Streams  # noqa: PLC0415  # as above
    from tpuctl.remote.jobs.asking import failures  # noqa: PLC0415  # as above
    from tpuctl.remote.jobs.reading import Reader  # noqa: PLC0415  # as above

    with Streams(app.terminal, [share.member for share in job.shares]) as streams:
        tail = LastWords(streams, len(job.shares))
        silent = Reader(tail, choice.workers.ssh_options, SystemClock()).read(job.shares)
    endings = [share.ending for share in job.shares]
    _warn(app, endings)
    code = tell_errors(app, failures([*listing.silent, *silent]))
    tell_diagnosis(app, diagnose(endings, tail))
    return code


def _warn(app: App, endings: Sequence[Ending]) -> None:
    from tpuctl.actions.run_report import warnings  # noqa: PLC0415  # completion and --help need not wait for it

    for text in warnings(endings, tells_ends=False):
        app.terminal.warn(text)


def _follow(app: App, choice: Choice, job: Job, others: Sequence[Member]) -> int:
    from tpuctl.actions.jobs import missing  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.actions.run_report import labels  # noqa: PLC0415  # as above
    from tpuctl.cli.job_following import follow  # noqa: PLC0415  # as above
    from tpuctl.cli.running import tell_diagnosis  # noqa: PLC0415  # as above

    result = follow(app, choice, job, others)
    if not result.endings:
        raise missing(job.name, choice.nodes)
    _warn(app, result.endings)
    tell_diagnosis(app, result.diagnosis)
    cut = [ending for ending in result.endings if ending.code is None]
    if not cut:
        return ExitCode.OK
    whys = dict.fromkeys(ending.explain(ending.member.label) for ending in cut)
    text = f"job `{job.name}` could not be followed to its end on worker {labels(cut)}"
    return tell_errors(app, [RemoteCommandError(text, hint="\n".join(map(visible, whys)))])
