"""Several zones and capacity types for one node: which ones to try, in which order."""

from __future__ import annotations

from dataclasses import dataclass

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import option, takes_options
from tpuctl.app.spec_options import GivenOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneOptions(GivenOptions):
    """The options of several zones."""

    race: bool = option(
        "--race", is_flag=True, help="Request the node in all given zones at once, keep the first, cancel the others."
    )


zone_options = takes_options(ZoneOptions, "zoning", group=OptionGroup.WHERE)
