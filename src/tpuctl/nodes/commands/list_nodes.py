"""`tpuctl list`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuctl.app.options import TableOptions, cli_command, takes_options, watch_option
from tpuctl.app.value_completion import complete_columns
from tpuctl.errors import TpuctlError
from tpuctl.fan_out import fan_out
from tpuctl.models.billing import UNKNOWN_AMOUNT, sum_dollars
from tpuctl.models.node import NodeState
from tpuctl.models.spec import RACE_LABEL
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.lookup import (
    IncompleteListError,
    by_zone_and_name,
    list_requests,
    narrow_listing,
)
from tpuctl.nodes.rendering import (
    NODE_COLUMNS,
    dead_request_line,
    node_labels,
    node_rows,
    node_totals,
    nodes_json,
    unreachable_row,
)
from tpuctl.output.terminal import Cell, OutputFormat, View
from tpuctl.prices import price_source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.app.app import App
    from tpuctl.cloud.tpu import NodeListing
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.nodes.costs import NodeRate
    from tpuctl.output.tables import Row
    from tpuctl.output.terminal import Terminal


@cli_command(
    "list", is_short=True, shows={"zone": "Zone to list, or several as ZONE,ZONE. [default: all]", "output": None}
)
@selection_options()
@takes_options(TableOptions, "table", shell_complete=complete_columns(lambda: NODE_COLUMNS))
@watch_option
def command(app: App, *, selection: GivenSelection, table: TableOptions, watch: bool) -> int | None:
    """List nodes in all zones of the project, or those that match.

    Searches all zones even if one is configured; `--zone` limits the search. The exit code is 1 if a zone did not answer.
    A queued resource that waits for its node is listed as WAITING under the name of the node; in JSON and YAML `kind` tells
    them apart. With `-o wide` a table has all columns, however wide the terminal is, among them the run of tpuctl that holds
    the lease and what runs on the workers. The column duty, which asks the workers, is shown only if it is named.

    \b
    Examples:
      tpuctl list
      tpuctl list --watch
      tpuctl list --zone us-central2-b,us-central1-a
      tpuctl list 'sweep-*' --older-than 2d
      tpuctl list --sort -price
      tpuctl list --columns name,state,age,labels
      tpuctl list --columns name,duty --sort duty
      tpuctl list -o json | jq -r '.[] | select(.state == "READY") | .nodeId'
    """
    if not watch:
        _list_nodes(app, selection, table)
        return None
    from tpuctl.app.live_view import watch_view  # noqa: PLC0415  # only for `--watch`

    return watch_view(app, lambda look: _list_nodes(look, selection, table))


def _list_nodes(app: App, selection: GivenSelection, table: TableOptions) -> None:
    """List nodes once."""
    layout, form = table.layout(app, NODE_COLUMNS), app.format
    chosen = selection.parse(app) if selection.is_given else None
    listing, requests = _fetch(app)
    if chosen is not None:
        listing, requests = narrow_listing(app, chosen, listing, requests)
    nodes = sorted(listing.nodes, key=by_zone_and_name)
    waiting = _waiting_requests(app, nodes, requests)
    items: list[Node | _WaitingRequest] = [*nodes, *waiting]
    rows: list[Row] = []
    rates: Sequence[NodeRate] = ()
    if layout.keys or form in {OutputFormat.TABLE, OutputFormat.TSV}:
        rates = _rates(app, nodes, requests, is_asked=table.columns is not None) if layout.needs("price") else ()
        holders = _lease_holders(app, nodes) if layout.needs("lease") else {}
        uses = _uses(app, nodes, is_named=table.columns is not None) if layout.needs("use") else {}
        duties = _duties(app, nodes) if layout.needs("duty") else {}
        rows = node_rows(nodes, app.now(), rates, holders=holders, uses=uses, duties=duties, is_wide=layout.has_wide)
        rows = [*rows, *(one.row for one in waiting)]
        items, rows = layout.sort(items, rows)

    found = [item for item in items if not isinstance(item, _WaitingRequest)]

    def value() -> list[dict[str, Any]]:
        made = iter(nodes_json(app, found, requests))
        return [item.value if isinstance(item, _WaitingRequest) else next(made) for item in items]

    def show(terminal: Terminal) -> None:
        missing = [unreachable_row(NODE_COLUMNS, zone) for zone in listing.unreachable]
        shown = [*rows, *missing] if terminal.is_interactive else rows
        if shown or not terminal.is_interactive:
            layout.write(terminal, shown)
            totals = node_totals(nodes, len(waiting), is_complete=not missing)
            terminal.summary(f"{totals}{_hourly_words(rates, is_complete=not missing)}")
        else:
            matching = f" match: {chosen}" if chosen else ""
            terminal.note(f"no nodes in {', '.join(app.zones) or 'any zone'} of project {app.project}{matching}")
        if terminal.is_interactive and (line := dead_request_line(requests)):
            terminal.note(line)
        if any(RACE_LABEL in labels for labels in [*(one.labels for one in nodes), *(one.labels for one in requests)]):
            from tpuctl.nodes.commands.race_views import race_lines  # noqa: PLC0415  # most projects have no race

            for line in race_lines(app, nodes, requests):
                terminal.note(line)

    app.show(
        View(
            value=value,
            names=lambda: [*node_labels(found), *(name for one in waiting for name in one.names)],
            text=show,
        )
    )
    if listing.unreachable:
        raise IncompleteListError(listing.unreachable)


def _fetch(app: App) -> tuple[NodeListing, tuple[QueuedResource, ...]]:
    """Return the nodes and the queued resources, listed at the same time."""
    client, project, zones = app.services.client, app.project, app.zones
    listers: tuple[Callable[..., Any], ...] = (client.list_nodes, partial(list_requests, client))
    nodes, requests = fan_out(lambda list_them: list_them(project, zones), listers, limit=2)
    listing: NodeListing = nodes.get()
    if requests.error is None:
        return listing, tuple(requests.get().queued_resources)
    # Some users may list nodes only: on a terminal queued resources are only extra information.
    if not (app.terminal.is_interactive and app.format is OutputFormat.TABLE):
        app.terminal.warn(f"the list has no queued resources: {requests.error.message}")
    return listing, ()


def _lease_holders(app: App, nodes: Sequence[Node]) -> dict[NodeName, str]:
    """Return the runs of tpuctl that hold the leases of nodes; `?` for all nodes if their store does not answer."""
    try:
        held = app.services.leases.holders([node.name for node in nodes])
    except TpuctlError as error:
        app.terminal.warn(f"the holders of leases are unknown: {error.message}")
        return dict.fromkeys((node.name for node in nodes), "?")
    return {name: lease.record.who for name, lease in held.items()}


# Without the name of the column the workers of at most so many nodes are asked.
_MOST_ASKED = 32


def _uses(app: App, nodes: Sequence[Node], *, is_named: bool) -> dict[NodeName, str]:
    """Return what runs on READY nodes, as their workers say within 5 s; in a pipe only if the column is named."""
    from tpuctl.nodes.usage import find_node_uses  # noqa: PLC0415  # only if workers are asked

    ready = [node for node in nodes if node.state is NodeState.READY]
    if not ready or not (is_named or (app.terminal.is_interactive and len(ready) <= _MOST_ASKED)):
        return {}
    found = find_node_uses(app, ready, counts_leases=False)
    return {
        name: "idle" if use.is_idle else "; ".join(use.uses) or "?" for name, use in found.items() if use.was_examined
    }


def _duties(app: App, nodes: Sequence[Node]) -> dict[NodeName, Cell]:
    """Return the duty cycle of the chips of READY nodes that a program holds, as their workers say within 5 s."""
    from tpuctl.nodes.usage import find_chip_duties  # noqa: PLC0415  # only if workers are asked

    found = find_chip_duties(app, [node for node in nodes if node.state is NodeState.READY])
    return {name: Cell(f"{min(each):.0f}-{max(each):.0f}%", rank=sum(each) / len(each)) for name, each in found.items()}


def _rates(app: App, nodes: Sequence[Node], requests: Sequence[QueuedResource], *, is_asked: bool) -> list[NodeRate]:
    """Return what each node costs. Note where the prices are from if the user asked for them."""
    from tpuctl.nodes.costs import CostFacts, node_rates  # noqa: PLC0415  # only for prices

    if is_asked or app.is_wide:
        app.terminal.note(f"dollars per hour: {price_source()}")
    return node_rates(nodes, CostFacts(app.now(), requests, app.settings.grants()))


def _hourly_words(rates: Sequence[NodeRate], *, is_complete: bool) -> str:
    """Return what the nodes cost for an hour, for the end of the totals; empty if no price is shown, or none is known."""
    if not rates:
        return ""
    missing = () if is_complete else (UNKNOWN_AMOUNT,)
    total = sum_dollars((*(rate.per_hour for rate in rates), *missing))
    return f", {total.short}/h" if total.amount is not None else ""


@dataclass(frozen=True, slots=True)
class _WaitingRequest:
    """A queued resource that waits for its nodes, as a table and as JSON show it, and the names of its nodes."""

    names: tuple[str, ...]
    row: Row
    value: dict[str, Any]


def _waiting_requests(app: App, nodes: Sequence[Node], requests: Sequence[QueuedResource]) -> list[_WaitingRequest]:
    if not requests:
        return []
    from tpuctl.nodes import queue_rendering  # noqa: PLC0415  # most projects have no queued resources

    waiting, now = queue_rendering.waiting_requests(requests, nodes), app.now()
    return [
        _WaitingRequest(
            tuple(f"{request.zone}/{node_id}" for node_id in request.node_ids),
            queue_rendering.waiting_row(request, now),
            queue_rendering.waiting_json(request, app.project, now),
        )
        for request in waiting
    ]
