"""`tpuctl attach`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.job_choice import chosen, job_options
from tpuctl.cli.options import cli_command

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("attach")
@job_options
@click.option("--tail", "-n", type=click.IntRange(0), metavar="N", help="Begin with the last N lines of each worker.")
def command(app: App, *, words: tuple[str, ...], selector: tuple[str, ...], worker: str, tail: int | None) -> int:
    """Follow a job to its end, and end as `tpuctl run` would have: with 0 only if it did so on all its workers.

    Without JOB it is the newest that runs, else the newest; of two words or more the last is the job. What it has printed so
    far comes first. Ctrl-C leaves a detached job running, and one that somebody else follows. To any other it is passed on, as
    `tpuctl run` does: INT, then QUIT, then KILL.

    \b
    Examples:
      tpuctl attach trainer
      tpuctl attach trainer nightly --tail 20
      tpuctl attach trainer -o json 2>/dev/null | jq '.workers[].exitCode'
    """
    from tpuctl.actions.jobs import choose, list_jobs  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.job_following import follow  # noqa: PLC0415  # as above
    from tpuctl.cli.running import show_result  # noqa: PLC0415  # as above

    choice = chosen(app, words, selector, worker)
    listing = list_jobs(choice.workers, names=[choice.job] if choice.job else (), tail=tail)
    job = choose(listing, choice.job, choice.nodes, running_first=True)
    # In place of a `run` that is gone: nobody else would end it.
    is_ours = job.is_detached is False and not job.is_followed
    if app.terminal.is_interactive:
        leaves = "sends INT to it" if is_ours else "leaves it running"
        app.terminal.note(f"job {job.name}: {job.command}" + (f" (Ctrl-C {leaves})" if job.is_running else ""))
    result = follow(app, choice, job, [one.member for one in listing.silent], passes_signals=is_ours)
    return show_result(app, result)
