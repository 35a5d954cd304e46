"""`tpuctl cost`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.app.option_help import grouped_option
from tpuctl.app.options import TableOptions, cli_command, takes_options
from tpuctl.app.value_completion import complete_columns, complete_project, complete_values
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import InvalidInputError, ServiceUnavailableError, worst_exit_code
from tpuctl.fan_out import fan_out
from tpuctl.names import check_project
from tpuctl.nodes.costs import CostFacts, CostSum, Grouping, costliest_first, group_costs, node_costs
from tpuctl.nodes.lookup import by_zone_and_name, queued_resources_or_none
from tpuctl.nodes.rendering import dollars_cell, node_labels
from tpuctl.output.column_widths import KEPT, Column, Kind
from tpuctl.output.terminal import Cell, View
from tpuctl.prices import PRICE_SOURCE, price_date, price_source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.costs import NodeCost
    from tpuctl.output.tables import Row, TableLayout
    from tpuctl.output.terminal import Terminal

_MAX_PROJECTS = 100
_AT_ONCE = 8


@cli_command("cost", is_short=True)
@grouped_option(
    "--by",
    metavar="WHAT",
    shell_complete=complete_values(lambda _: (*Grouping, "label:")),
    help="What a row sums up: label:KEY, owner, zone, type, tier or project. [default: each node]",
)
@grouped_option(
    "--all-projects",
    metavar="ID,ID",
    shell_complete=complete_project,
    help="Projects whose nodes are counted. [default: the project in use]",
)
@takes_options(TableOptions, "table", shell_complete=complete_columns(lambda: node_columns(has_projects=True)))
def command(app: App, *, by: str | None, all_projects: str | None, table: TableOptions) -> int:
    """Show what nodes cost: dollars per hour now, so far, and in 24 hours. The costliest come first.

    A node is billed while it is READY; a stopped one for its disk, whose price is unknown. The cost so far counts from the
    creation or from the last start by tpuctl, while the node is READY; that in 24 hours ends with nodes that expire. `~` is
    about, `≥` at least, `?` unknown. Grants in the settings make nodes free. Prices are list prices with a date. The exit code
    is 1 if a zone did not answer.

    \b
    Examples:
      tpuctl cost
      tpuctl cost --sort -so-far
      tpuctl cost --by label:team
      tpuctl cost --all-projects vision,speech --by project
      tpuctl cost -o json | jq .total.perHour
    """
    if by is not None:
        _check_grouping(by)
    projects = _parse_projects(all_projects) if all_projects is not None else (app.project,)
    layout = table.layout(app, _sum_columns(by) if by else node_columns(has_projects=len(projects) > 1))
    bills = fan_out(lambda project: _fetch(app, project), projects, limit=_AT_ONCE)
    errors = [bill.error for bill in bills if bill.error is not None]
    if errors and len(projects) == 1:
        raise errors[0]
    found = [bill.value for bill in bills if bill.value is not None]
    now = app.now()
    costs = sorted((cost for project in found for cost in _project_costs(app, project, now)), key=costliest_first)
    groups = group_costs(costs, by) if by else []
    rows: list[Row] = [_sum_row(group) for group in groups] if by else [_node_row(cost, now) for cost in costs]
    if by:
        groups, rows = layout.sort(groups, rows)
    else:
        costs, rows = layout.sort(costs, rows)
    report = CostReport(
        tuple(costs),
        tuple(groups) if by else None,
        tuple(zone for project in found for zone in project.unreachable),
        tuple(bill.item for bill in bills if bill.error is not None),
    )
    app.show(
        View(
            value=report.to_json,
            names=lambda: [one.value for one in groups] if by else node_labels([cost.node for cost in costs]),
            text=lambda terminal: report.show(terminal, layout, rows),
        )
    )
    if report.unreachable:
        errors.append(
            ServiceUnavailableError(
                f"the costs are incomplete: {', '.join(report.unreachable)} did not answer",
                hint="nodes in these zones are not counted; try again later",
            )
        )
    for error in errors:
        app.show_error(error)
    return worst_exit_code(error.exit_code for error in errors) if errors else 0


@dataclass(frozen=True, slots=True)
class _ProjectNodes:
    """The nodes of one project, their queued resources, and the zones that did not answer."""

    project: str
    nodes: tuple[Node, ...]
    requests: tuple[QueuedResource, ...]
    unreachable: tuple[str, ...]


def _fetch(app: App, project: str) -> _ProjectNodes:
    listing = app.services.client.list_nodes(project, app.zones)
    nodes = tuple(sorted(listing.nodes, key=by_zone_and_name))
    # Only they know the nodes whose tier a node does not show.
    is_queued = any(node.queued_resource for node in nodes)
    requests = queued_resources_or_none(app.services.client, project, app.zones) if is_queued else ()
    return _ProjectNodes(project, nodes, requests, tuple(listing.unreachable))


def _project_costs(app: App, found: _ProjectNodes, now: datetime) -> list[NodeCost]:
    own_project = app.project if app.is_sandbox or app.settings["project"] else None
    # A grant belongs to one project: that of the settings.
    grants = app.settings.grants() if found.project == own_project else ()
    # In a bucket, the journal of each node is a request.
    journals = fan_out(app.services.journal.past, (node.name for node in found.nodes), limit=_AT_ONCE)
    pasts = {journal.item: journal.get() for journal in journals}
    facts = CostFacts(now, found.requests, grants, pasts.__getitem__)
    return node_costs(found.nodes, facts)


def _check_grouping(by: str) -> None:
    is_label = by.startswith("label:") and len(by) > len("label:")
    if not is_label and by not in list(Grouping):
        raise InvalidInputError(
            f"`--by {by}` is not a grouping", hint=f"use `--by label:KEY`, or one of {', '.join(Grouping)}"
        )


def _parse_projects(text: str) -> tuple[str, ...]:
    projects = tuple(dict.fromkeys(check_project(part.strip()) for part in text.split(",") if part.strip()))
    if not projects or len(projects) > _MAX_PROJECTS:
        raise InvalidInputError(
            f"`--all-projects` names {len(projects)} projects; 1 to {_MAX_PROJECTS} are possible",
            hint="name them: `--all-projects ID,ID`",
        )
    return projects


_AMOUNTS = (
    Column("price", Kind.NUMBER, "$/H", unit="$/h", priority=KEPT + 2),
    Column("so-far", Kind.NUMBER, unit="$", priority=KEPT + 1),
)


def node_columns(*, has_projects: bool) -> tuple[Column, ...]:
    """Return the columns of nodes. Names and order are a contract with scripts (docs/nodes.md)."""
    return (
        Column("project", is_wide=not has_projects),
        Column("name", Kind.NAME),
        Column("zone", Kind.ZONE),
        Column("type", Kind.TYPE, priority=KEPT),
        Column("tier", Kind.WORD),
        Column("state", Kind.STATE),
        _AMOUNTS[0],
        Column("since", Kind.TIME),
        _AMOUNTS[1],
        Column("note", Kind.TEXT),
    )


def _sum_columns(by: str) -> tuple[Column, ...]:
    return (Column(by, Kind.NAME), Column("nodes", Kind.NUMBER), *_AMOUNTS)


@dataclass(frozen=True, slots=True)
class CostReport:
    """The costs of nodes, and their sums."""

    costs: tuple[NodeCost, ...]
    # The sums by what the user asked for; None if nodes are shown.
    groups: tuple[CostSum, ...] | None
    unreachable: tuple[str, ...]
    # The projects whose nodes could not be listed.
    unread: tuple[str, ...]

    @property
    def total(self) -> CostSum:
        """The sum of all nodes. If a zone or a project did not answer, it is not complete."""
        return CostSum.of("", self.costs, is_complete=not (self.unreachable or self.unread))

    def to_json(self) -> dict[str, Any]:
        """Return the costs for scripts."""
        groups = [{"value": one.value, "nodes": list(one.nodes), **one.to_json()} for one in self.groups or ()]
        return {
            "nodes": [cost.to_json() for cost in self.costs],
            **({"groups": groups} if self.groups is not None else {}),
            "total": self.total.to_json(),
            "prices": {"source": PRICE_SOURCE, "asOf": price_date()},
            "unreachable": list(self.unreachable),
            **({"unreadProjects": list(self.unread)} if self.unread else {}),
        }

    def show(self, terminal: Terminal, layout: TableLayout, rows: Sequence[Row]) -> None:
        """Write the rows, the total, and where the prices are from; in a pipe these two are notes."""
        total = self.total
        source = f"{price_source()}, without discounts, disks and network"
        if rows:
            layout.write(terminal, rows)
        else:
            terminal.note("no nodes")
        if terminal.is_interactive:
            if self.costs:
                terminal.write("")
            terminal.details([("total", str(total), "bold"), ("prices", source, "")])
        else:
            terminal.note(f"total: {total}", f"prices: {source}")


def _node_row(cost: NodeCost, now: datetime) -> Row:
    name = cost.node.name
    since = Cell("")
    if cost.since is not None:
        age = now - cost.since
        since = Cell(f"{format_duration(age)} ago", plain=format_timestamp(cost.since), rank=age.total_seconds())
    return (
        Cell(name.project),
        Cell(name.node_id),
        Cell(name.zone),
        Cell(cost.node.accelerator_type),
        Cell(str(cost.tier)),
        Cell(str(cost.node.state)),
        dollars_cell(cost.per_hour),
        since,
        dollars_cell(cost.so_far),
        Cell(cost.note, style="dim"),
    )


def _sum_row(group: CostSum) -> Row:
    return (
        Cell(group.value or "(none)", plain=group.value),
        Cell(str(len(group.nodes))),
        dollars_cell(group.per_hour),
        dollars_cell(group.so_far),
    )
