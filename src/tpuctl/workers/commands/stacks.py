"""`tpuctl stacks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command
from tpuctl.app.value_completion import complete_job, complete_node, complete_values
from tpuctl.errors import ExitCode, InvalidInputError
from tpuctl.workers.commands.jobs import job_targets, show_errors, worker_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.app.app import App


def _signals(_ctx: click.Context) -> Iterable[str]:
    from tpuctl.workers.worker_jobs import LINUX_SIGNALS  # noqa: PLC0415  # only for completion

    return LINUX_SIGNALS


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
    shell_complete=complete_values(_signals),
    help="Signal for which the programs have called faulthandler.register, such as USR1. [default: none is sent]",
)
@grouped_option(
    "--device",
    group=OptionGroup.PROGRAM,
    is_flag=True,
    help="Also show the launch that the cores of each worker are at, and which worker the others wait for.",
)
def command(
    app: App,
    *,
    nodes: tuple[str, ...],
    selector: tuple[str, ...],
    worker: str,
    job: str | None,
    signal: str | None,
    device: bool,
) -> int:
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
    from tpuctl.workers.device_stacks import list_device_stacks  # noqa: PLC0415  # not needed by --help
    from tpuctl.workers.worker_jobs import check_job_name, parse_signal  # noqa: PLC0415  # not needed by --help
    from tpuctl.workers.worker_stacks import list_stacks, stacks_view  # noqa: PLC0415  # as above

    if not nodes and not selector:
        raise InvalidInputError("no node given", hint="name one, or use `-l KEY=VALUE`")
    number = parse_signal(signal) if signal is not None else None
    scope = job_targets(app, nodes, selector, worker, job=check_job_name(job) if job is not None else None)
    devices = list_device_stacks(scope) if device else None
    listing = list_stacks(scope, signal=number)
    app.show(stacks_view(listing, devices))
    for note in listing.notes:
        app.terminal.note(note)
    return show_errors(app, listing.errors) if listing.errors else ExitCode.OK
