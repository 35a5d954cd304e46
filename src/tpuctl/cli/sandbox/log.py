"""`tpuctl sandbox log`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import OF_THE_CLOUD, Duration, cli_command
from tpuctl.clock import SystemClock, format_timestamp
from tpuctl.output.tables import Cell
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.cli.app import App
    from tpuctl.sandbox.request_log import Entry

_INTERVAL = timedelta(milliseconds=200)
_HEADER = ("TIME", "METHOD", "STATUS", "CLIENT", "PATH")


@cli_command("log", asks_trust=False, without=OF_THE_CLOUD)
@click.option(
    "--since", type=Duration(), metavar="TIME", help="Age of the oldest request, in sandbox time. [default: all]"
)
@click.option("--follow", "-f", is_flag=True, help="Continue with new requests until Ctrl-C.")
def command(app: App, *, since: timedelta | str | None, follow: bool) -> None:
    """Show the last requests to the sandbox (about 20 000), with client and response status.

    Times are in sandbox time. EVENT: an event that a scenario or `fault --after` planned. Status `-`: a fault dropped the
    connection. Headers and bodies are not stored.

    \b
    Examples:
      tpuctl sandbox log --since 10m
      tpuctl sandbox log --follow -o json
    """
    from tpuctl.cli.signals import TerminatedError  # noqa: PLC0415  # loaded long before
    from tpuctl.sandbox import request_log  # noqa: PLC0415  # only for the sandbox

    world = app.world
    with world.read() as session:
        begin = session.now - since if isinstance(since, timedelta) else None
    coming = request_log.follow(world.path)
    next(coming) if follow else ()
    _show(app, request_log.entries(world.path, since=begin), is_part=follow)
    try:
        while follow:
            app.terminal.flush()
            SystemClock().sleep(_INTERVAL)
            _show(app, next(coming), is_part=True)
    except (KeyboardInterrupt, TerminatedError):
        # The normal end of `--follow`.
        return


def _show(app: App, entries: Iterable[Entry], *, is_part: bool) -> None:
    """Show requests. In JSON: a list, or with `is_part` one object per line."""
    if app.format in {Format.JSON, Format.YAML}:
        shown: list[dict[str, Any]] = [
            {
                "at": format_timestamp(entry.at),
                "method": entry.method,
                "path": entry.path,
                "status": entry.status or None,
                "client": entry.client,
            }
            for entry in entries
        ]
        if not is_part:
            app.terminal.data(shown, app.format)
        for record in shown if is_part else ():
            app.terminal.record(record)
        return
    from tpuctl.sandbox.request_log import EVENT, client_name  # noqa: PLC0415  # only for the sandbox

    rows = []
    for entry in entries:
        client = "-" if entry.method == EVENT else client_name(entry.client)
        status = str(entry.status) if entry.status else "-"
        rows.append((format_timestamp(entry.at), entry.method, status, client, entry.path))
    if is_part:
        for row in rows:
            app.terminal.rows([[Cell(text) for text in row]])
    else:
        app.terminal.table(_HEADER, [[Cell(text) for text in row] for row in rows])
