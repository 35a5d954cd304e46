"""Render nodes in every format: table, JSON, details, results of commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import ExitCode, TpuctlError, worst_exit_code
from tpuctl.models.node import EXPIRY_LABEL, Health, Node, NodeState, Tier
from tpuctl.models.queued import QueuedResource
from tpuctl.names import last_segment
from tpuctl.nodes.expiry import expiry_note, is_expired
from tpuctl.output.terminal import Cell, View

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.output.terminal import Terminal

NODE_HEADER = ("NAME", "ZONE", "TYPE", "STATE", "HEALTH", "WORKERS", "AGE", "TIER", "NOTE")

_NODE_STATE_STYLES = {
    NodeState.READY: "green",
    NodeState.STOPPED: "dim",
    NodeState.PREEMPTED: "red",
    NodeState.TERMINATED: "red",
    NodeState.UNKNOWN: "red",
    NodeState.HIDDEN: "red",
}


def node_rows(nodes: Sequence[Node], now: datetime) -> list[tuple[Cell, ...]]:
    """Return one row for each node."""
    table: list[tuple[Cell, ...]] = []
    for node in nodes:
        created = node.created
        age = Cell(format_duration(now - created), plain=format_timestamp(created)) if created else Cell("")
        health = "" if node.health is Health.HEALTH_UNSPECIFIED else str(node.health)
        table.append(
            (
                Cell(node.name.node_id),
                Cell(node.name.zone),
                Cell(node.accelerator_type),
                Cell(str(node.state), style=_NODE_STATE_STYLES.get(node.state, "yellow")),
                Cell(health, style=_health_style(node.health)),
                Cell(str(node.workers)),
                age,
                Cell(str(node.tier), style="dim" if node.tier is Tier.ON_DEMAND else ""),
                Cell(node_note(node, now), plain=node_note(node, None), style="yellow"),
            )
        )
    return table


def unreachable_rows(zones: Sequence[str]) -> list[tuple[Cell, ...]]:
    """Return one row for each zone that did not answer."""
    blank = Cell("?", style="yellow")
    return [(blank, Cell(zone), *[Cell("")] * 6, Cell("zone did not answer", style="yellow")) for zone in zones]


def node_json(node: Node) -> dict[str, Any]:
    """Return the API's own fields, and those that users look for: nodeId, zone, project, workers.

    A node with the label of its end also has `expires`, null if the label is not a time.
    """
    name = node.name
    added = {"nodeId": name.node_id, "zone": name.zone, "project": name.project, "workers": node.workers}
    expires = {"expires": node.expires and format_timestamp(node.expires)} if EXPIRY_LABEL in node.labels else {}
    return {**node.raw, **added, **expires}


def node_details(node: Node, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and style of each detail of a node."""
    yield "name", node.name.node_id, "bold"
    yield "zone", node.name.zone, ""
    yield "project", node.name.project, ""
    yield "state", str(node.state), _NODE_STATE_STYLES.get(node.state, "yellow")
    if node.health is not Health.HEALTH_UNSPECIFIED:
        text = f"{node.health} ({node.health_description})" if node.health_description else str(node.health)
        yield "health", text, _health_style(node.health)
    shape = (node.raw.get("acceleratorConfig") or {}).get("topology")
    workers = f"{node.workers} worker{'s' if node.workers > 1 else ''}"
    yield "type", f"{node.accelerator_type}{f' ({shape})' if shape else ''}, {workers}", ""
    yield "version", node.runtime_version, ""
    yield "tier", str(node.tier), ""
    if node.created:
        yield "created", f"{format_timestamp(node.created)} ({format_duration(now - node.created)} ago)", ""
    if node.expires:
        yield (
            "expires",
            f"{format_timestamp(node.expires)} ({expiry_note(node, now).removeprefix('expires ')})",
            _expiry_style(node, now),
        )
    for index, endpoint in enumerate(node.endpoints[:8]):
        addresses = " / ".join(filter(None, (endpoint.external, endpoint.internal)))
        yield f"worker {index}", addresses, ""
    if len(node.endpoints) > 8:
        yield "", f"and {len(node.endpoints) - 8} more workers", "dim"
    if node.labels:
        yield "labels", ", ".join(f"{key}={value}" for key, value in sorted(node.labels.items())), ""
    if node.raw.get("tags"):
        yield "tags", ", ".join(node.raw["tags"]), ""
    if node.raw.get("description"):
        yield "description", node.raw["description"], ""
    if text := node_note(node, now, has_expiry=node.expires is None):
        yield "note", text, "yellow"


def node_note(node: Node, now: datetime | None, *, has_expiry: bool = True) -> str:
    """Return what users need to know beyond the state, most urgent first. Without `now` times are absolute.

    Without `has_expiry` the end of its time is left out.
    """
    parts = []
    if node.is_preempted:
        parts.append("preempted: `up` recreates it, `down` frees its quota")
    elif node.state is NodeState.TERMINATED:
        parts.append("terminated: `down` frees its quota")
    if node.state is NodeState.READY and node.health_description:
        parts.append(node.health_description)
    symptoms = node.symptoms
    if symptoms:
        last = symptoms[-1]
        worker = f" on worker {last.worker}" if last.worker else ""
        more = f" (+{len(symptoms) - 1} more)" if len(symptoms) > 1 else ""
        parts.append(f"{last.kind}{worker}{more}")
    if maintenance := node.upcoming_maintenance:
        when = ""
        if maintenance.start and now is None:
            when = f" at {format_timestamp(maintenance.start)}"
        elif maintenance.start and now is not None:
            left = maintenance.start - now
            when = f" in {format_duration(left)}" if left.total_seconds() > 0 else " now"
        parts.append(f"maintenance{when}")
    if has_expiry and (expiry := expiry_note(node, now)):
        parts.append(expiry)
    if node.queued_resource:
        parts.append(f"of queued resource {last_segment(node.queued_resource)}")
    if not node.state.is_known:
        parts.append("this version of tpuctl does not know this state")
    return "; ".join(parts)


def dead_request_line(requests: Sequence[QueuedResource]) -> str | None:
    """Return a line about ended queued resources that still hold quota, None if there are none."""
    dead = [request for request in requests if request.state.is_dead]
    if not dead:
        return None
    shown = dead[:3]
    named = ", ".join(f"{request.zone}/{request.queued_resource_id}" for request in shown)
    more = f" and {len(dead) - 3} more" if len(dead) > 3 else ""
    count = f"{len(dead)} queued resource{'s' if len(dead) > 1 else ''}"
    verb = "hold" if len(dead) > 1 else "holds"
    nodes = [shlex.quote(f"{request.zone}/{request.node_ids[0]}") for request in shown if request.node_ids]
    together = " --all-nodes" if any(len(request.node_ids) > 1 for request in shown) else ""
    remedy = f"; to delete: `tpuctl down {' '.join(nodes)}{together}`" if nodes else ""
    return f"{count} ended and still {verb} quota: {named}{more}{remedy}"


def _expiry_style(node: Node, now: datetime) -> str:
    return "red" if is_expired(node, now) else ""


def _health_style(health: Health) -> str:
    return "green" if health is Health.HEALTHY else "red"


def nodes_view(nodes: Sequence[Node], now: datetime, *, is_list: bool = True) -> View:
    """Return the view of nodes that a command changed: name and state, or the whole nodes as JSON.

    Without `is_list` the JSON of one node is an object.
    """
    values = [node_json(node) for node in nodes]

    def show(terminal: Terminal) -> None:
        if terminal.is_interactive:
            terminal.table(NODE_HEADER, node_rows(nodes, now))
        else:
            terminal.table((), [(Cell(node.name.node_id), Cell(str(node.state))) for node in nodes])

    return View(
        value=lambda: values if is_list or len(values) != 1 else values[0],
        names=lambda: [node.name.node_id for node in nodes],
        text=show,
    )


def expiry_view(nodes: Sequence[Node], now: datetime, *, is_list: bool) -> View:
    """Return the view of nodes whose end a command changed: name and end, or the whole nodes as JSON."""
    values = [node_json(node) for node in nodes]

    def show(terminal: Terminal) -> None:
        header = ("NAME", "ZONE", "EXPIRES") if terminal.is_interactive else ()
        rows = [
            (
                Cell(node.name.node_id),
                Cell(node.name.zone),
                Cell(
                    expiry_note(node, now).removeprefix("expires ") or "never",
                    plain=format_timestamp(node.expires) if node.expires else "never",
                ),
            )
            for node in nodes
        ]
        terminal.table(header, rows)

    return View(
        value=lambda: values if is_list or len(values) != 1 else values[0],
        names=lambda: [node.name.node_id for node in nodes],
        text=show,
    )


def show_node(app: App, node: Node) -> None:
    """Show a node that a command changed, and update its entries in ssh's config."""
    from tpuctl.app.ssh_options import refresh_ssh_entries  # noqa: PLC0415  # `list` needs only the renderers

    refresh_ssh_entries(app, [node])
    app.show(nodes_view([node], app.now(), is_list=False))


def show_results(app: App, results: Sequence[NodeResult | TpuctlError]) -> int:
    """Show the nodes that reached their goal, then each error. Return the worst exit code.

    Updates the nodes' entries in ssh's config. Raises the error of a single node.
    """
    from tpuctl.app.ssh_options import refresh_ssh_entries  # noqa: PLC0415  # as above

    errors = [result for result in results if isinstance(result, TpuctlError)]
    if errors and len(results) == 1:
        raise errors[0]
    nodes = [result.node for result in results if not isinstance(result, TpuctlError) and result.node]
    refresh_ssh_entries(app, nodes)
    summarize_nodes(app, nodes)
    if nodes or not errors:
        app.show(nodes_view(nodes, app.now(), is_list=len(results) > 1))
    for error in errors:
        app.show_error(error)
    return worst_exit_code(error.exit_code for error in errors) if errors else ExitCode.OK


def summarize_nodes(app: App, nodes: Sequence[Node]) -> None:
    """Add the nodes, with what they cost, to the summary of a step of GitHub Actions, if this is one."""
    if app.summary is None:
        return
    from tpuctl.nodes.costs import CostFacts, node_costs  # noqa: PLC0415  # only in GitHub Actions
    from tpuctl.nodes.locate import queued_resources_or_none  # noqa: PLC0415  # as above

    requests = (
        queued_resources_or_none(app.client, app.project, ()) if any(node.queued_resource for node in nodes) else ()
    )
    for cost in node_costs(nodes, CostFacts(app.now(), app.prices, lambda _: (), requests, app.settings.grants())):
        node, note = cost.node, f" ({cost.note})" if cost.note else ""
        app.summary.describe(node.name, node.accelerator_type, str(cost.tier), f"{cost.per_hour}{note}")


def deleted_view(node_ids: Sequence[str]) -> View:
    """Return the view of deleted nodes; on a terminal the progress has shown them already."""
    return View(
        value=lambda: [{"nodeId": node_id, "state": None} for node_id in node_ids],
        names=lambda: node_ids,
        text=lambda terminal: None if terminal.is_interactive else terminal.names(node_ids),
    )
