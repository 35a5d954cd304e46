"""Several zones and capacity types for one node: which ones to try, in which order."""

from __future__ import annotations

from dataclasses import dataclass

import click

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import option, takes_options
from tpuctl.app.spec_options import GivenOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneOptions(GivenOptions):
    """The options of several zones."""

    zone_order: str | None = option(
        "--zone-order",
        type=click.Choice(["ranked", "as-given"]),
        help="Order in which several zones are tried: near the buckets and cheap first, or as given. [default: ranked]",
    )
    race: bool = option(
        "--race", is_flag=True, help="Request the node in all given zones at once, keep the first, cancel the others."
    )


zone_options = takes_options(ZoneOptions, "zoning", group=OptionGroup.WHERE)
