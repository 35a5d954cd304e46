"""`tpuctl history`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.options import DurationType, cli_command, node_argument
from tpuctl.config.settings import SourceKind
from tpuctl.durations import format_duration, parse_timestamp
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.names import check_zone, closest_match
from tpuctl.nodes.rendering import (
    TIMELINE_HEADER,
    timeline_lines,
    timeline_plain_rows,
    timeline_rows,
    timeline_since,
    timeline_totals,
)
from tpuctl.output.views import View

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.names import NodeName, NodeReference
    from tpuctl.output.terminal import Terminal

_GCLOUD_SOURCES = frozenset({SourceKind.GCLOUD, SourceKind.CLOUDSDK})


@cli_command("history", is_short=True)
@node_argument
@click.option(
    "--since",
    type=DurationType(),
    metavar="TIME",
    help="Age of the oldest entry to show: 90m, 2h or 7d. [default: all]",
)
@click.option(
    "--last", "-n", type=click.IntRange(1), metavar="N", help="Number of lines to show, the newest. [default: all]"
)
@click.option(
    "--all", "rotated", is_flag=True, help="Include the older half of a long journal, which is in a second file."
)
def command(app: App, *, node: str, since: timedelta | str | None, last: int | None, rotated: bool) -> None:
    """Show the states of a node, how long each lasted, and what tpuctl did to it and why.

    Reads the journal, not the cloud: it has only what tpuctl did and saw.

    \b
    Examples:
      tpuctl history trainer
      tpuctl history trainer --since 1d -n 20
      tpuctl history trainer -o json | jq -r '.[] | select(.event == "preempted").at'
    """
    name = _find_in_journal(app, app.reference(node))
    app.journal.check(name)
    now = app.clock.now()
    begin = now - since if isinstance(since, timedelta) else None
    entries = app.journal.entries(name, rotated=rotated)
    found = timeline_since(timeline_lines(entries), begin, last)

    def recent_entries() -> list[dict[str, Any]]:
        recent = [entry for entry in entries if not begin or ((at := parse_timestamp(entry.get("at"))) and at >= begin)]
        return recent[-last:] if last else recent

    def show(terminal: Terminal) -> None:
        if not found:
            when = f" in the last {format_duration(since)}" if isinstance(since, timedelta) else ""
            terminal.note(f"the journal has no entry of `{name.node_id}`{when}")
        elif not terminal.is_interactive:
            terminal.table((), timeline_plain_rows(found, now))
        else:
            terminal.table(TIMELINE_HEADER, timeline_rows(found, now, width=terminal.streams.width))
            terminal.write("")
            terminal.details(timeline_totals(entries, now, since=begin))

    names = (lambda: [line.what for line in found]) if found else None
    app.show(View(value=recent_entries, names=names, text=show))


def _find_in_journal(app: App, reference: NodeReference) -> NodeName:
    """Return the one node of the journal with this name, without a request to the cloud.

    Raises `NotFoundError` or `ConflictError` if it is not exactly one.
    """
    known = app.journal.names()
    project = reference.project or (app.project if app.is_sandbox or app.settings["project"] else None)
    zone = reference.zone or next(iter(app.zones), None)
    there = [name for name in known if project in {None, name.project} and zone in {None, name.zone}]
    found = [name for name in there if name.node_id == reference.node_id]
    setting = app.settings["zone"]
    if len(found) > 1 and setting and setting.source.kind not in _GCLOUD_SOURCES:
        preferred = check_zone(app.settings.required("zone"))
        found = [name for name in found if name.zone == preferred] or found
    if len(found) > 1:
        where = ", ".join(f"{name.zone}/{name.node_id}" for name in found)
        raise ConflictError(
            f"the journal has {len(found)} nodes `{reference.node_id}`: {where}",
            hint="name the zone: `--zone ZONE` or `ZONE/NODE`; for different projects `--project ID`",
        )
    if not found:
        app.journal.check()
        near = closest_match(reference.node_id, [name.node_id for name in there])
        suggestion = f"did you mean `{near}`?\n" if near else ""
        where = f" in {zone}" if zone else ""
        raise NotFoundError(
            f"the journal has no node `{reference.node_id}`{where}",
            hint=f"{suggestion}`tpuctl status {reference.node_id}` asks the cloud; "
            "the journal has only what tpuctl did and saw",
        )
    return found[0]
