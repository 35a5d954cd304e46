"""`tpuctl check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tpuctl.app.lazy_import import body_in
from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import cli_command, option, takes_options, yes_option
from tpuctl.app.route_options import route_options
from tpuctl.app.spec_options import spec_options
from tpuctl.app.value_completion import complete_node, complete_type_or_file
from tpuctl.check.commands.preflight_options import check_options
from tpuctl.models.spec import MAX_SLICES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class CheckCommandOptions:
    """The options of `check` itself, as given."""

    vm: str | None = option(
        "--vm", metavar="NAME", help="Virtual machine that works with the node, whose location and scopes are checked."
    )
    purpose: str | None = option(
        "--for",
        type=click.Choice(["train", "serve"]),
        help="Purpose of the node; serve needs no write access. [default: train]",
    )
    slices: int | None = option(
        "--slices",
        group=OptionGroup.NODE,
        type=click.IntRange(2, MAX_SLICES),
        metavar="N",
        help="Number of slices of a group: their quota, price and ports are checked together.",
    )
    where: bool = option(
        "--where",
        group=OptionGroup.WHERE,
        is_flag=True,
        help="Rank the zones that offer the type, even if a zone is set.",
    )
    shows_all: bool = option(
        "--all", group=OptionGroup.OUTPUT, is_flag=True, help="Also name the checks that were run."
    )
    strict: bool = option("--strict", is_flag=True, help="Also fail on warnings and on values that could not be read.")
    fix: bool = option("--fix", is_flag=True, help="Apply safe fixes after confirmation; never touches data.")
    ai_platform: str | None = option(
        "--ai-platform",
        group=OptionGroup.FILES,
        metavar="FILE",
        help="Job file of AI Platform Training to convert to a tpuctl.yaml.",
    )
    write: str | None = option(
        "--write",
        group=OptionGroup.FILES,
        metavar="FILE",
        help="File for the tpuctl.yaml that --ai-platform converts to. [default: stdout]",
    )


def _complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [*complete_node(ctx, param, incomplete), *complete_type_or_file(ctx, param, incomplete)]


@cli_command(
    "check",
    asks_trust=False,
    shows={"zone": "Zone of the node, or several as ZONE,ZONE. [default: the zones that offer the type, ranked]"},
)
@click.argument("target", metavar="[NODE|TYPE|FILE]", required=False, shell_complete=_complete_target)
@check_options
@takes_options(CheckCommandOptions, "options", group=OptionGroup.CHECKS)
@yes_option
@spec_options
@route_options
@body_in("tpuctl.check.commands.check_run:run_check_command")
def command() -> None:
    """Check that a TPU works with its buckets, network and quota, before money is spent.

    Checks the location of the buckets and the cost of reading them, IAM access, the zone's offers, quota, network, firewall,
    disks, machines, APIs and policies. Nothing is created. Without a zone, it ranks the zones by their distance to the
    buckets. `tpuctl up` runs the same checks right before it creates a node.

    \b
    Examples:
      tpuctl check v4-8 --zone us-central2-b --bucket gs://my-data
      tpuctl check v6e-8 --bucket gs://my-data          (where could it run?)
      tpuctl check trainer --checkpoint-bucket gs://my-checkpoints --fix
    """
