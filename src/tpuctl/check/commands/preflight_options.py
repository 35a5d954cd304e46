"""The options of the checks: what a node works with and what may be billed; and the gate with these options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import option, takes_options
from tpuctl.app.spec_options import GivenOptions
from tpuctl.app.value_completion import complete_project, complete_values

if TYPE_CHECKING:
    import click


def _check_ids(_ctx: click.Context) -> list[str]:
    from tpuctl.check.rules import RULES  # noqa: PLC0415  # only for completion

    return [*(rule.id for rule in RULES), "all"]


@dataclass(frozen=True, slots=True)
class CheckOptions(GivenOptions):
    """The options of the checks, as given; each is a setting too."""

    buckets: tuple[str, ...] = option(
        "--bucket", metavar="URL", multiple=True, help="gs:// location that the node reads and writes. Repeatable."
    )
    data_buckets: tuple[str, ...] = option(
        "--data-bucket", metavar="URL", multiple=True, help="gs:// location that the node only reads. Repeatable."
    )
    checkpoint_buckets: tuple[str, ...] = option(
        "--checkpoint-bucket",
        metavar="URL",
        multiple=True,
        help="gs:// location that the node only writes. Repeatable.",
    )
    dataset_size: str | None = option(
        "--dataset-size",
        metavar="SIZE",
        help="Size of the data that one epoch reads, such as 1.2TB, to estimate what reading it costs.",
    )
    billing_project: str | None = option(
        "--billing-project",
        metavar="ID",
        shell_complete=complete_project,
        help="Project that pays for requester-pays buckets.",
    )
    no_billing_outside_grants: bool = option(
        "--no-billing-outside-grants",
        group=OptionGroup.PURCHASE,
        is_flag=True,
        help="Refuse a node that no grant covers (setting `grants`).",
    )
    max_price: str | None = option(
        "--max-price",
        group=OptionGroup.PURCHASE,
        metavar="DOLLARS",
        help="Highest price of a new node, in dollars per hour. [default: no limit]",
    )
    budget: str | None = option(
        "--budget",
        group=OptionGroup.PURCHASE,
        metavar="DOLLARS",
        help="Highest price of all nodes of the project with a new one, in dollars per hour. [default: no limit]",
    )
    allow_unknown_price: bool = option(
        "--allow-unknown-price",
        group=OptionGroup.PURCHASE,
        is_flag=True,
        help="Accept a node whose price is unknown despite --max-price or --budget.",
    )
    skip_checks: tuple[str, ...] = option(
        "--skip-check",
        metavar="ID",
        multiple=True,
        shell_complete=complete_values(_check_ids),
        help="Ids of checks whose errors are ignored, such as TPU101,TPU401, or all. Repeatable.",
    )
    check_timeout: str | None = option(
        "--check-timeout", metavar="TIME", help="Time limit for all requests of the checks together. [default: 15s]"
    )


check_options = takes_options(CheckOptions, "checks", group=OptionGroup.CHECKS)
