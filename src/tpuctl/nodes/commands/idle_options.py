"""The options for nodes that are not used: `--idle` and `--on-idle`."""

# a call that declares an option returns a field

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import DurationType, option, takes_options
from tpuctl.app.spec_options import GivenOptions
from tpuctl.durations import format_duration, parse_long_duration
from tpuctl.errors import InvalidInputError
from tpuctl.nodes.idleness import IdleAction, IdleLimit

if TYPE_CHECKING:
    from tpuctl.app.app import App

# Workers are examined once a minute: a shorter time would be known from too few looks.
SHORTEST_IDLE: Final = timedelta(minutes=5)
LONGEST_IDLE: Final = timedelta(days=365)


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

    @property
    def is_unlimited(self) -> bool:
        """Return whether the user wants no limit (`--idle forever`), whatever the settings and an earlier guard say."""
        return isinstance(self.idle, str)


idle_options = takes_options(IdleOptions, "idling", group=OptionGroup.LIFETIME)


def idle_limit(app: App, options: IdleOptions) -> IdleLimit | None:
    """Return the limit of the options, else that of the setting; None without one. Raises `InvalidInputError`."""
    after = options.idle
    if after is None and app.settings["idle"]:
        after = app.settings.duration("idle")
    if after is None or isinstance(after, str):  # `--idle forever`
        if options.on_idle is not None:
            raise InvalidInputError("`--on-idle` needs a time", hint="add `--idle 2h`")
        return None
    if not SHORTEST_IDLE <= after <= LONGEST_IDLE:
        bounds = f"between {format_duration(SHORTEST_IDLE)} and {format_duration(LONGEST_IDLE)}"
        raise InvalidInputError(
            f"`--idle {format_duration(after)}` is not {bounds}", hint="name a time such as `--idle 2h`"
        )
    from tpuctl.app.app import owner_identity  # noqa: PLC0415  # most nodes have no limit
    from tpuctl.nodes.expiry import owner_label  # noqa: PLC0415  # as above

    return IdleLimit(after, IdleAction(options.on_idle) if options.on_idle else None, owner_label(owner_identity(app)))
