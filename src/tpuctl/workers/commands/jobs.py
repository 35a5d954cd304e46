"""`tpuctl jobs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.lazy_import import body_in, constant_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, TableOptions, cli_command, takes_options, worker_option
from tpuctl.app.route_options import route_options
from tpuctl.app.value_completion import complete_columns, complete_job, complete_node, complete_node_and_job
from tpuctl.nodes.commands.selection_options import label_option

if TYPE_CHECKING:
    from collections.abc import Callable


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `NODE... [JOB]`, `-l`, `--worker` and the routes to workers."""
    function = worker_options(function)
    return click.argument("words", metavar="NODE... [JOB]", nargs=-1, shell_complete=complete_node_and_job)(function)


def worker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-l`, `--worker` and the routes to workers."""
    return label_option(worker_option(route_options(function)))


@cli_command("jobs")
@click.argument("nodes", metavar="[NODE...]", nargs=-1, shell_complete=complete_node)
@worker_options
@grouped_option(
    "--last",
    group=OptionGroup.OUTPUT,
    type=click.IntRange(1),
    default=100,
    metavar="N",
    help="Number of newest jobs to show. [default: 100]",
)
@grouped_option(
    "--remove",
    group=OptionGroup.EFFECT,
    multiple=True,
    metavar="JOB",
    shell_complete=complete_job,
    help="Job to remove, with its output; it must have ended. Repeatable.",
)
@grouped_option(
    "--prune", group=OptionGroup.EFFECT, is_flag=True, help="Remove old jobs that have ended, with their output."
)
@grouped_option(
    "--older-than",
    group=OptionGroup.EFFECT,
    type=DurationType(),
    metavar="TIME",
    help="Time since the end of a job after which --prune removes it. [default: 7d]",
)
@takes_options(
    TableOptions, "table", shell_complete=complete_columns(constant_in("tpuctl.workers.worker_jobs:JOB_COLUMNS"))
)
@body_in("tpuctl.workers.commands.jobs_run:run_jobs")
def command() -> None:
    """List the jobs of nodes and their results; without NODE of all nodes. The workers store both, with the output.

    A job is a command started by `tpuctl run --detach`, or any other command of `tpuctl run` while it runs or after its client
    has gone. A job is lost if it does not run and has no recorded exit code: the worker was rebooted, or out of memory.

    Without NODE the READY nodes of all zones, or of --zone, have 10 s to answer; no ssh key is registered for that, and a note
    names the nodes whose jobs are unknown.

    \b
    Examples:
      tpuctl jobs
      tpuctl jobs trainer
      tpuctl jobs trainer -o json | jq '.[0].workers[] | select(.exitCode != 0)'
      tpuctl jobs trainer --prune --older-than 1d
    """
