"""`tpuctl gc`: show, and with `--yes` delete, what is dead, has expired, or is forgotten."""

# a call that declares an option returns a field

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import DurationType, cli_command, events_option, option, takes_options, timeout_option
from tpuctl.nodes.commands.selection_options import label_option


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageOptions:
    """What is deleted besides dead records."""

    expired: bool = option(
        "--expired", is_flag=True, help="Delete nodes and waiting requests whose time limit has passed."
    )
    older_than: timedelta | str | None = option(
        "--older-than",
        type=DurationType(),
        metavar="TIME",
        help="Age beyond which nodes are deleted, such as 3d.",
    )
    idle: timedelta | str | None = option(
        "--idle",
        type=DurationType(),
        metavar="TIME",
        help="Time without use after which nodes are deleted, such as 1d.",
    )
    waiting_for: timedelta | str | None = option(
        "--waiting-for",
        type=DurationType(),
        metavar="TIME",
        help="Time of waiting for capacity after which requests are deleted, such as 6h.",
    )
    everyones: bool = option(
        "--everyones", is_flag=True, help="Include what others created, and what has no label `tpuctl-owner`."
    )
    yes: bool = option(
        "--yes", "-y", group=OptionGroup.SAFETY, is_flag=True, help="Delete what is found. [default: only show it]"
    )
    if_idle: bool = option(
        "--if-idle",
        group=OptionGroup.SAFETY,
        is_flag=True,
        help="Leave alone READY nodes that a job, a TPU process or an ssh session uses, or whose workers do not answer.",
    )
    dry_run: bool = option(
        "--dry-run", group=OptionGroup.SAFETY, is_flag=True, help="Only show what would be deleted; the default."
    )


@cli_command("gc")
@takes_options(GarbageOptions, "options", group=OptionGroup.SELECTION)
@label_option
@timeout_option
@events_option
@body_in("tpuctl.nodes.commands.gc_run:run_gc")
def command() -> None:
    """Show what is dead or forgotten in all zones, with what it costs and holds of the quota; with --yes delete it.

    Dead are PREEMPTED and TERMINATED nodes, and SUSPENDED and FAILED requests; forgotten is what lost a race (`up --race`) that
    was killed, if the journal here has its winner. What else is alive is deleted only by a rule that is named: --expired,
    --older-than, --idle, --waiting-for. Left alone are nodes with the label `tpuctl-keep`, what others created, and what is
    being brought up. Right before each deletion everything is looked at again. The exit code is 1 if a zone did not answer.

    \b
    Examples:
      tpuctl gc
      tpuctl gc --expired --yes
      tpuctl gc --older-than 3d --everyones --if-idle -l team=research
    """
