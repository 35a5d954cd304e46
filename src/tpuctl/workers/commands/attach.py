"""`tpuctl attach`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command
from tpuctl.workers.commands.jobs import job_options


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
@body_in("tpuctl.workers.commands.attach_run:run_attach")
def command() -> None:
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
