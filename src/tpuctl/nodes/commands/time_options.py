"""The options for the end of a node's time, and times as users write them: `8h`, `18:30`, RFC 3339."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.option_help import OptionGroup
from tpuctl.app.options import DurationType, option, takes_options
from tpuctl.app.spec_options import GivenOptions
from tpuctl.durations import format_duration, format_timestamp, parse_long_duration, parse_timestamp
from tpuctl.errors import InvalidInputError
from tpuctl.nodes.time_limits import TimeLimit, check_time_left, next_moment

if TYPE_CHECKING:
    from tpuctl.app.app import App


class MomentType(click.ParamType["timedelta | time | datetime"]):
    """A duration from now, a local time of day, or a time: `8h`, `18:30`, `2026-01-31T18:30:00Z`."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta | time | datetime:
        """Return the duration, the time of day, or the time with its zone."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]  # converted before
        try:
            return parse_long_duration(value)
        except ValueError:
            pass
        if "T" in value and (moment := parse_timestamp(value)):
            return moment
        try:
            return datetime.strptime(value, "%H:%M").time()  # noqa: DTZ007  # a time of day has no zone
        except ValueError:
            self.fail(f"`{value}` is not a time; write 8h, 18:30 or 2026-01-31T18:30:00Z", param, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimitOptions(GivenOptions):
    """When the time of a node ends. `ttl` is a setting too."""

    ttl: timedelta | str | None = option(
        "--ttl",
        type=DurationType(parse_long_duration),
        metavar="TIME",
        help="Time from now until the node may be deleted, at least 5m, such as 8h or 2d; forever for no limit. "
        "[default: none]",
    )
    until: timedelta | time | datetime | None = option(
        "--until",
        type=MomentType(),
        metavar="TIME",
        help="Time at which the node may be deleted: 18:30, or a time in RFC 3339. [default: none]",
    )


time_limit_options = takes_options(TimeLimitOptions, "limits", group=OptionGroup.LIFETIME)


def time_limit(app: App, options: TimeLimitOptions) -> TimeLimit:
    """Return the limit that the options name. Raises `InvalidInputError` unless it ends within a year from now."""
    if options.ttl is not None and options.until is not None:
        raise InvalidInputError("cannot combine `--ttl` and `--until`", hint="remove one of them")
    if isinstance(options.ttl, str):
        return TimeLimit(is_unlimited=True)
    if options.ttl is not None:
        check_time_left(f"--ttl {format_duration(options.ttl)}", options.ttl)
        return TimeLimit(until=options.ttl)
    if options.until is not None:
        now = app.clock.now()  # before the first answer of the API
        until = next_moment(options.until, now)
        check_time_left(f"--until {format_timestamp(until)}", until - now)
        return TimeLimit(until=options.until)
    return TimeLimit()
