"""`tpuctl logs`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import cli_command
from tpuctl.nodes.commands.time_options import MomentType
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
@grouped_option(
    "--since",
    type=MomentType(),
    metavar="TIME",
    help="Age or time of the oldest line: 10m, 18:30, or a time in RFC 3339. [default: all]",
)
@body_in("tpuctl.workers.commands.logs_run:run_logs")
def command() -> None:
    """Print the output of a job on its workers; without JOB that of the newest.

    Of several arguments the last is the job. With several workers each line is marked with its worker; the workers follow one
    another, or with --follow their lines appear as they arrive. A detached job's stdout and stderr are one stream; of other
    jobs stderr follows stdout. Ctrl-C never reaches the job.

    With --follow the job's result comes last, and the exit code is that of `tpuctl attach`: 11 if the job failed. Otherwise it
    is 0. Lines have no time of their own: the worker notes every 3 s how much was printed, so that --since may show lines that
    are 3 s older.

    \b
    Examples:
      tpuctl logs trainer -f
      tpuctl logs trainer --since 10m
      tpuctl logs trainer 0412-093001-5e1f --worker 3 --tail 100
      tpuctl logs -l team=vision nightly
    """
