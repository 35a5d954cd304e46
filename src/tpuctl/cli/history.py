"""`tpuctl history`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click

from tpuctl.cli.options import Duration, cli_command, node_argument
from tpuctl.clock import format_duration, parse_timestamp
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.names import check_zone, nearest
from tpuctl.output import timeline
from tpuctl.output.terminal import Format
from tpuctl.settings import SourceKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.cli.app import App
    from tpuctl.journal import Entry
    from tpuctl.names import NodeName, NodeReference

_NOT_OURS = frozenset({SourceKind.GCLOUD, SourceKind.CLOUDSDK})


@cli_command("history", is_short=True)
@node_argument
@click.option("--since", type=Duration(), metavar="TIME", help="Only the last 90m, 2h, 7d, …")
@click.option("--last", "-n", type=click.IntRange(1), metavar="N", help="Only the last N lines.")
@click.option("--all", "rotated", is_flag=True, help="Also the oldest lines, which were put aside when they grew many.")
def command(app: App, *, node: str, since: timedelta | str | None, last: int | None, rotated: bool) -> None:
    """Show what became of a node: the states that were seen and how long each lasted, what tpuctl did and why.

    It is read from the journal, not from the cloud: what nobody watched is not in it.

    \b
    Examples:
      tpuctl history trainer
      tpuctl history trainer --since 1d -n 20
      tpuctl history trainer -o json | jq -r '.[] | select(.event == "preempted").at'
    """
    name = _named(app, app.reference(node))
    app.journal.check(name)
    now = app.clock.now()
    begin = now - since if isinstance(since, timedelta) else None
    entries = app.journal.entries(name, rotated=rotated)
    if app.format in {Format.JSON, Format.YAML}:
        kept = [entry for entry in entries if not begin or ((at := parse_timestamp(entry.get("at"))) and at >= begin)]
        _show_data(app, kept[-last:] if last else kept)
        return
    found = timeline.shown_since(timeline.lines(entries), begin, last)
    if not found:
        when = f" in the last {format_duration(since)}" if isinstance(since, timedelta) else ""
        app.terminal.note(f"nothing is known of `{name.node_id}`{when}")
    elif app.format is Format.NAME:
        app.terminal.names(line.what for line in found)
    elif not app.terminal.is_interactive:
        app.terminal.table((), timeline.plain_rows(found, now))
    else:
        app.terminal.table(timeline.HEADER, timeline.rows(found, now, width=app.terminal.streams.width))
        app.terminal.write("")
        app.terminal.details(timeline.totals(entries, now, since=begin))


def _show_data(app: App, entries: Sequence[Entry]) -> None:
    mark = {"sandbox": True} if app.is_sandbox else {}
    app.terminal.data([{**entry, **mark} for entry in entries], app.format)


def _named(app: App, reference: NodeReference) -> NodeName:
    """Return the one node of the journal that the user means; nothing is asked of the cloud."""
    known = app.journal.names()
    project = reference.project or (app.project if app.is_sandbox or app.settings["project"] else None)
    zone = reference.zone or next(iter(app.zones), None)
    there = [name for name in known if project in {None, name.project} and zone in {None, name.zone}]
    found = [name for name in there if name.node_id == reference.node_id]
    setting = app.settings["zone"]
    if len(found) > 1 and setting and setting.source.kind not in _NOT_OURS:
        preferred = check_zone(app.settings.required("zone"))
        found = [name for name in found if name.zone == preferred] or found
    if len(found) > 1:
        where = ", ".join(f"{name.zone}/{name.node_id}" for name in found)
        raise ConflictError(
            f"the journal knows {len(found)} nodes `{reference.node_id}`: {where}",
            hint="name the zone: `--zone ZONE` or `ZONE/NODE`; where the projects differ `--project ID`",
        )
    if not found:
        app.journal.check()
        raise _unknown(reference, zone, [name.node_id for name in there])
    return found[0]


def _unknown(reference: NodeReference, zone: str | None, known: Sequence[str]) -> NotFoundError:
    near = nearest(reference.node_id, known)
    meant = f"did you mean `{near}`?\n" if near else ""
    where = f" in {zone}" if zone else ""
    return NotFoundError(
        f"the journal knows no node `{reference.node_id}`{where}",
        hint=f"{meant}`tpuctl status {reference.node_id}` asks the cloud; the journal has what tpuctl itself did and saw",
    )
