"""The options of a queued resource: how long it waits for capacity, and from when on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import DurationType, option, takes_options
from tpuctl.app.spec_options import GivenOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(GivenOptions):
    """The options of a queued resource besides those of the node."""

    queue_for: timedelta | str | None = option(
        "--queue-for",
        "--valid-until-duration",
        type=DurationType(),
        metavar="TIME",
        help="Time that the queued resource waits for capacity, at least 1m. [default: as long as the command waits]",
    )
    start_after: str | None = option(
        "--start-after",
        "--valid-after-time",
        "--valid-after-duration",
        metavar="TIME",
        help="Earliest time to create a queued node: 2026-12-01T08:00:00Z, or from now, such as 8h.",
    )


queue_options = takes_options(QueueOptions, "queueing", group=OptionGroup.PURCHASE)
