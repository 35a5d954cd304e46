"""`tpuctl list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.options import FORMATS, cli_command
from tpuctl.fan_out import fan_out
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.locate import incomplete_list_error, queued_resources_or_none
from tpuctl.nodes.rendering import NODE_HEADER, dead_request_line, node_json, node_rows, unreachable_rows
from tpuctl.output.terminal import Cell, OutputFormat, View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.cloud.tpu import NodeListing
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.output.terminal import Terminal


_WIDE = "wide"


class _ListFormat(click.Choice[str]):
    """The output format; `wide` is a table with more columns, which only this command has."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the format."""
        form = super().convert(value, param, ctx)
        if form != _WIDE:
            return form
        click.get_current_context().meta[_WIDE] = True
        return OutputFormat.TABLE


@cli_command("list", is_short=True)
@selection_options()
def command(app: App, *, selection: GivenSelection) -> None:
    """List nodes in all zones of the project, or those that match.

    Searches all zones even if one is configured; `--zone` limits the search. The exit code is 1 if a zone did not answer. On a
    terminal, queued resources without a node have rows too; elsewhere there are only nodes: use `tpuctl queue list`. With
    `-o wide` a table also shows dollars per hour.

    \b
    Examples:
      tpuctl list
      tpuctl list --zone us-central2-b,us-central1-a
      tpuctl list -o wide
      tpuctl list 'sweep-*' --older-than 2d
      tpuctl list -o json | jq -r '.[] | select(.state == "READY") | .nodeId'
    """
    is_wide = bool(click.get_current_context().meta.get(_WIDE))
    chosen = selection.parse(app) if selection.is_given else None
    listing, requests = _fetch(app)
    if chosen is not None:
        from tpuctl.nodes.commands.node_lookup import narrow_listing  # noqa: PLC0415  # most lists show all

        listing, requests = narrow_listing(app, chosen, listing, requests)
    nodes = sorted(listing.nodes, key=lambda node: (node.name.zone, node.name.node_id))

    def show(terminal: Terminal) -> None:
        table = node_rows(nodes, app.now())
        if requests:
            from tpuctl.nodes.queue_rendering import waiting_rows  # noqa: PLC0415  # most projects have no queued resources

            table += waiting_rows(requests, {(node.name.zone, node.name.node_id) for node in nodes}, app.now())
        if terminal.is_interactive:
            table += unreachable_rows(listing.unreachable)
        if is_wide and table:
            rates = [*_hourly_rates(app, nodes, requests), *[""] * (len(table) - len(nodes))]
            wide = [(*row[:-1], Cell(rate), row[-1]) for row, rate in zip(table, rates, strict=True)]
            terminal.table((*NODE_HEADER[:-1], "$/HOUR", NODE_HEADER[-1]), wide)
        elif table or not terminal.is_interactive:
            terminal.table(NODE_HEADER, table)
        else:
            matching = f" match: {chosen}" if chosen else ""
            terminal.note(f"no nodes in {', '.join(app.zones) or 'any zone'} of project {app.project}{matching}")
        if line := dead_request_line(requests):
            terminal.note(line)

    app.show(
        View(
            value=lambda: [node_json(node) for node in nodes],
            names=lambda: [node.name.node_id for node in nodes],
            text=show,
        )
    )
    if listing.unreachable:
        raise incomplete_list_error(listing.unreachable)


def _fetch(app: App) -> tuple[NodeListing, tuple[QueuedResource, ...]]:
    """Return the nodes, and for a table on a terminal the queued resources, listed at the same time."""
    shows_requests = app.terminal.is_interactive and app.format is OutputFormat.TABLE
    client, project, zones = app.client, app.project, app.zones
    if not shows_requests:
        return client.list_nodes(project, zones), ()
    requests: list[QueuedResource] = []

    def list_them(kind: str) -> NodeListing | None:
        if kind == "nodes":
            return client.list_nodes(project, zones)
        requests.extend(queued_resources_or_none(client, project, zones))
        return None

    nodes, _ = fan_out(list_them, ("nodes", "requests"), limit=2)
    listing = nodes.get()
    if listing is None:
        raise AssertionError("the first outcome is that of the nodes")
    return listing, tuple(requests)


def _hourly_rates(app: App, nodes: Sequence[Node], requests: Sequence[QueuedResource]) -> list[str]:
    """Return the dollars per hour of each node, and note where the prices are from."""
    from tpuctl.nodes.costs import CostFacts, node_costs  # noqa: PLC0415  # only for `-o wide`

    if not requests and any(node.queued_resource for node in nodes):
        # Not in the table, but they know the tiers of their nodes.
        requests = queued_resources_or_none(app.client, app.project, app.zones)
    prices = app.prices
    facts = CostFacts(app.now(), prices, lambda _: (), requests, app.settings.grants())
    app.terminal.note(f"dollars per hour: {prices}")
    return [str(cost.per_hour) for cost in node_costs(nodes, facts)]


for _option in command.params:
    if _option.name == "output":
        _option.type = _ListFormat((*FORMATS, _WIDE))
