"""`tpuctl watch`: nodes, as `nodes/commands/watch.py` does, or the kept job of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command
from tpuctl.app.value_completion import complete_job
from tpuctl.errors import InvalidInputError
from tpuctl.models.events import EventKind
from tpuctl.nodes.commands.policy_options import build_hooks, hook_options
from tpuctl.nodes.commands.watch import watch, watch_options

if TYPE_CHECKING:
    from tpuctl.app.app import App

# Of the options of `watch`, those that a job has too.
_OF_JOBS = frozenset({"nodes", "force_lease"})


@cli_command("watch")
@grouped_option(
    "--job",
    group=OptionGroup.EFFECT,
    metavar="JOB",
    shell_complete=complete_job,
    help="Job of `tpuctl run --keep` to supervise until it is done, on one node.",
)
@hook_options(EventKind.JOB_STALLED, EventKind.JOB_ENDED)
@watch_options
def command(
    app: App, *, job: str | None, on_job_stall: str | None, on_job_end: str | None, **given: Any
) -> int:  # the options of `watch`
    """Keep nodes usable until stopped: recreate preempted ones, repair broken ones, report maintenance.

    Prints a line for each change, and retries while there is no capacity. If it gives up a node it says why, and continues
    with the others. A node or request whose time has ended (`tpuctl up --ttl`) is deleted, and its watch ends. The journal is
    the only state: a watch can be stopped, and started again on any machine.

    With --job it supervises a job of `tpuctl run NODE --keep`, follows its output and restarts it, and ends with the job.

    \b
    Examples:
      tpuctl watch trainer
      tpuctl watch trainer-0 trainer-1 --repair recreate --until 18:30
      tpuctl watch trainer --job train
    """
    if job is None:
        for flag, command in (("--on-job-stall", on_job_stall), ("--on-job-end", on_job_end)):
            if command is not None:
                raise InvalidInputError(f"`{flag}` needs `--job`", hint="add `--job JOB`, or leave it out")
        code: int = watch(app, **given)
        return code
    from tpuctl.workers.keep_start import watch_job  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.workers.worker_jobs import check_job_name  # noqa: PLC0415  # as above

    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        is_named = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in given and name not in _OF_JOBS and is_named:
            raise InvalidInputError(
                f"cannot combine `--job` and `{parameter.opts[0]}`",
                hint="a job is restarted as it was started: leave the option out",
            )
    names: tuple[str, ...] = given["nodes"]
    if len(names) != 1:
        raise InvalidInputError("`--job` takes one node", hint="name it: `tpuctl watch NODE --job JOB`")
    hooks = build_hooks(app, {EventKind.JOB_STALLED: on_job_stall, EventKind.JOB_ENDED: on_job_end})
    # After SIGTERM it ends with 143: 0 would say that the job is done.
    return watch_job(app, names[0], check_job_name(job), hooks, force_lease=given["force_lease"])
