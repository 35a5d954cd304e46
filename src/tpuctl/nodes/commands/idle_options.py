"""The options for nodes that are not used: `--idle` and `--on-idle`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import click

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import DurationType, option, takes_options
from tpuctl.app.spec_options import GivenOptions
from tpuctl.durations import parse_long_duration
from tpuctl.nodes.idle_limit import IdleAction


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleOptions(GivenOptions):
    """How long a node may be idle, and what happens then. `idle` is a setting too."""

    idle: timedelta | str | None = option(
        "--idle",
        type=DurationType(parse_long_duration),
        metavar="TIME",
        help="Time without TPU process, job and ssh session after which a node is deleted or stopped, such as 2h; "
        "forever for no limit. [default: none]",
    )
    on_idle: str | None = option(
        "--on-idle",
        type=click.Choice([str(action) for action in IdleAction]),
        help="Action for a node that was idle for the time of --idle. "
        "[default: delete what you created with tpuctl, stop other nodes]",
    )


idle_options = takes_options(IdleOptions, "idling", group=OptionGroup.LIFETIME)
