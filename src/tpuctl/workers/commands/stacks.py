"""`tpuctl stacks`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in, constant_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command
from tpuctl.app.value_completion import complete_job, complete_node, complete_values
from tpuctl.workers.commands.jobs import worker_options


@cli_command("stacks")
@click.argument("nodes", metavar="NODE...", nargs=-1, shell_complete=complete_node)
@worker_options
@grouped_option(
    "--job",
    group=OptionGroup.PROGRAM,
    metavar="JOB",
    shell_complete=complete_job,
    help="Job whose processes to show. [default: the processes that hold the TPU]",
)
@grouped_option(
    "--signal",
    group=OptionGroup.PROGRAM,
    metavar="NAME",
    shell_complete=complete_values(constant_in("tpuctl.workers.worker_jobs:LINUX_SIGNALS")),
    help="Signal for which the programs have called faulthandler.register, such as USR1. [default: none is sent]",
)
@grouped_option(
    "--device",
    group=OptionGroup.PROGRAM,
    is_flag=True,
    help="Also show the launch that the cores of each worker are at, and which worker the others wait for.",
)
@body_in("tpuctl.workers.commands.stacks_run:run_stacks")
def command() -> None:
    """Show where the programs on workers are: the Python stacks of the processes that hold the TPU.

    Workers at the same place are shown together, so that the one which hangs elsewhere stands out. The stacks are those of
    py-spy where it is installed; without it those that faulthandler prints on --signal, which is sent only to processes that
    handle it; otherwise the calls in which the kernel keeps each thread. Processes of other users need sudo without a password.

    \b
    Examples:
      tpuctl stacks trainer
      tpuctl stacks trainer --job 0714-101500-ab12
      tpuctl stacks trainer --device
      tpuctl stacks trainer -o json | jq '.groups | length'
    """
