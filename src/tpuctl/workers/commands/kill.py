"""`tpuctl kill`."""

from __future__ import annotations

from tpuctl.app.lazy_import import body_in, constant_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, cli_command, yes_option
from tpuctl.app.value_completion import complete_values
from tpuctl.workers.commands.jobs import job_options


@cli_command("kill")
@job_options
@grouped_option(
    "--signal",
    "-s",
    "name",
    group=OptionGroup.PROGRAM,
    metavar="NAME",
    shell_complete=complete_values(constant_in("tpuctl.workers.worker_jobs:LINUX_SIGNALS")),
    default="TERM",
    show_default=True,
    help="Signal: TERM, INT, QUIT, KILL, …, or a number.",
)
@grouped_option("--wait", group=OptionGroup.WAITING, is_flag=True, help="Wait until the job has ended on all workers.")
@grouped_option(
    "--timeout",
    group=OptionGroup.WAITING,
    type=DurationType(),
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Time limit of --wait.",
)
@yes_option
@body_in("tpuctl.workers.commands.kill_run:run_kill")
def command() -> None:
    """Send a signal to all processes of a job, on all its workers; succeeds if the job has already ended.

    Without JOB the running job receives the signal; if several run, the newest, after a confirmation. On a node that another
    account created it asks first; without a terminal it needs --yes. Of several arguments the last is the job. A process that
    has started its own session is not reached: see `tpuctl unstick`.

    \b
    Examples:
      tpuctl kill trainer
      tpuctl kill trainer nightly --signal INT --wait
      tpuctl kill trainer nightly -s KILL --worker 3
    """
