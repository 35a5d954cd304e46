"""`tpuctl logs`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import cli_command
from tpuctl.workers.commands.jobs import job_options


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
@body_in("tpuctl.workers.commands.logs_run:run_logs")
def command() -> None:
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
