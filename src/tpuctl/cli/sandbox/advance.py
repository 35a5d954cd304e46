"""`tpuctl sandbox advance`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import OF_THE_CLOUD, Duration, cli_command
from tpuctl.cli.sandbox.told import tell
from tpuctl.clock import format_duration, format_timestamp
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.cli.app import App


@cli_command("advance", asks_trust=False, without=OF_THE_CLOUD)
@click.argument("time", type=Duration(), metavar="TIME")
def command(app: App, *, time: timedelta | str) -> None:
    """Advance the clock of the sandbox, for every process that uses it.

    \b
    Examples:
      tpuctl sandbox advance 10m
    """
    from tpuctl.sandbox import admin  # noqa: PLC0415  # only for the sandbox

    if isinstance(time, str):
        raise InvalidInputError("the sandbox cannot advance by `forever`", hint="give a duration such as 10m")
    now = admin.advance(app.world, time)
    text = f"sandbox time is now {format_timestamp(now)}, {format_duration(time)} later"
    tell(app, text, now=format_timestamp(now))
