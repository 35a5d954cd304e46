"""`tpuctl unstick`."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, cli_command, node_argument, worker_option, yes_option
from tpuctl.app.route_options import route_options


@cli_command("unstick")
@node_argument
@worker_option
@grouped_option(
    "--grace",
    group=OptionGroup.PROGRAM,
    type=DurationType(),
    metavar="TIME",
    help="Time between TERM and KILL. [default: 10s]",
)
@grouped_option(
    "--pid",
    group=OptionGroup.PROGRAM,
    type=click.IntRange(2),
    metavar="PID",
    help="Terminate only this process, if it holds the TPU.",
)
@grouped_option(
    "--started-before",
    group=OptionGroup.PROGRAM,
    metavar="TIME",
    help="Terminate only processes that started before this time, in RFC 3339: a pid may be used again.",
)
@grouped_option(
    "--dry-run", group=OptionGroup.SAFETY, is_flag=True, help="Show what holds the TPU, and change nothing."
)
@grouped_option(
    "--if-idle",
    group=OptionGroup.SAFETY,
    is_flag=True,
    help="Fail if a process holds the TPU, or if a worker does not answer: only remove a lock file that is left.",
)
@route_options
@yes_option
@body_in("tpuctl.workers.commands.unstick_run:run_unstick")
def command() -> None:
    """Terminate the processes that hold the TPU ("The TPU is already in use by process with pid 1234").

    These have the TPU's device files or /tmp/libtpu_lockfile open. The lock file is removed only if no process holds it.
    Processes that have only loaded libtpu are shown, and not terminated. Processes of other users and of containers need sudo
    without a password on the workers. In a pipe, ages are in seconds.

    \b
    Examples:
      tpuctl unstick trainer
      tpuctl unstick trainer --worker 3 --grace 60s --yes
      tpuctl unstick trainer --worker 3 --pid 1234 --started-before 2026-11-23T10:00:00Z
      tpuctl unstick trainer --dry-run -o json
    """
