"""Renderers of nodes: rows of a table, JSON, details of one node."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from tpuctl.clock import format_duration, format_timestamp
from tpuctl.model import Health, Node, NodeState, QueuedResource, Tier
from tpuctl.names import short
from tpuctl.output.tables import Cell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

HEADER = ("NAME", "ZONE", "TYPE", "STATE", "HEALTH", "WORKERS", "AGE", "TIER", "NOTE")

_STATE_STYLES = {
    NodeState.READY: "green",
    NodeState.STOPPED: "dim",
    NodeState.PREEMPTED: "red",
    NodeState.TERMINATED: "red",
    NodeState.UNKNOWN: "red",
    NodeState.HIDDEN: "red",
}


def rows(nodes: Sequence[Node], now: datetime) -> list[tuple[Cell, ...]]:
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
                Cell(str(node.state), style=_STATE_STYLES.get(node.state, "yellow")),
                Cell(health, style=_health_style(node.health)),
                Cell(str(node.workers)),
                age,
                Cell(str(node.tier), style="dim" if node.tier is Tier.ON_DEMAND else ""),
                Cell(note(node, now), plain=note(node, None), style="yellow"),
            )
        )
    return table


def unreachable_rows(zones: Sequence[str]) -> list[tuple[Cell, ...]]:
    """Return one row for each zone that did not answer."""
    blank = Cell("?", style="yellow")
    return [(blank, Cell(zone), *[Cell("")] * 6, Cell("zone did not answer", style="yellow")) for zone in zones]


def to_json(node: Node, *, sandbox: bool) -> dict[str, Any]:
    """Return the API's own fields, and those that users look for: nodeId, zone, project, workers."""
    added: dict[str, Any] = {
        "nodeId": node.name.node_id,
        "zone": node.name.zone,
        "project": node.name.project,
        "workers": node.workers,
    }
    return {**node.raw, **added, **({"sandbox": True} if sandbox else {})}


def details(node: Node, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and style of each detail of a node."""
    yield "name", node.name.node_id, "bold"
    yield "zone", node.name.zone, ""
    yield "project", node.name.project, ""
    yield "state", str(node.state), _STATE_STYLES.get(node.state, "yellow")
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
    if text := note(node, now):
        yield "note", text, "yellow"


def note(node: Node, now: datetime | None) -> str:
    """Return what users need to know beyond the state, most urgent first. Without `now` times are absolute."""
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
    if node.queued_resource:
        parts.append(f"of queued resource {short(node.queued_resource)}")
    if not node.state.is_known:
        parts.append("this version of tpuctl does not know this state")
    return "; ".join(parts)


def held_by_dead(requests: Sequence[QueuedResource]) -> str | None:
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


def _health_style(health: Health) -> str:
    return "green" if health is Health.HEALTHY else "red"
