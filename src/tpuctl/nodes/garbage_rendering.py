"""Show what `tpuctl gc` deletes and what it leaves alone: rows, JSON, and the lines about what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.models.billing import Billing, billing_in, sum_dollars
from tpuctl.nodes.garbage import freed_quota
from tpuctl.nodes.rendering import dollars_cell, state_style
from tpuctl.output.column_widths import KEPT, Column, Kind
from tpuctl.output.terminal import Cell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.nodes.garbage import GarbageItem
    from tpuctl.nodes.garbage_removal import RemovalResult

GARBAGE_COLUMNS = (
    Column("name", Kind.NAME),
    Column("zone", Kind.ZONE, priority=14),
    Column("type", Kind.TYPE, priority=13),
    Column("tier", Kind.WORD, priority=10),
    Column("state", Kind.STATE, priority=KEPT),
    Column("age", Kind.TIME, priority=15),
    Column("quota", Kind.NUMBER, priority=11),
    Column("price", Kind.NUMBER, "$/H", unit="$/h", priority=16),
    Column("owner", priority=12),
    Column("why", Kind.TEXT, priority=KEPT + 1),
)
_MOST_LINES = 20
_MOST_NAMES = 3


def garbage_row(item: GarbageItem) -> tuple[Cell, ...]:
    """Return the row of an item."""
    group, created = item.group, item.group.created
    age = Cell("?")
    if item.age is not None and created is not None:
        age = Cell(format_duration(item.age), plain=format_timestamp(created))
    return (
        Cell(group.id),
        Cell(group.zone),
        Cell(group.accelerator_type),
        Cell(str(group.tier)),
        Cell(group.state, style=state_style(group.state)),
        age,
        Cell("?" if item.quota is None else f"{item.quota.amount} {item.quota.unit}"),
        _price_cell(item),
        Cell(group.described[0].owner or ""),
        Cell(item.why, plain=f"{item.why}; {item.in_use}" if item.in_use else None),
    )


def _price_cell(item: GarbageItem) -> Cell:
    if item.per_hour.amount is not None:
        return dollars_cell(item.per_hour)
    # Its disk is billed, at a price that is in no list.
    is_stopped = {billing_in(node.state) for node in item.group.nodes} <= {Billing.DISK, Billing.NOTHING}
    return Cell("disk only" if is_stopped else "?", plain="?")


def garbage_json(item: GarbageItem, result: RemovalResult | None = None) -> dict[str, Any]:
    """Return the form for scripts; `outcome` after a deletion was tried."""
    group = item.group
    first = group.described[0]
    quota = item.quota and {"of": str(item.quota.pool), "amount": item.quota.amount, "unit": item.quota.unit}
    return {
        "name": group.id,
        "zone": group.zone,
        "project": group.project,
        "nodes": [node.name.node_id for node in group.nodes],
        "queuedResource": group.request.queued_resource_id if group.request else None,
        "acceleratorType": group.accelerator_type,
        "tier": str(group.tier),
        "state": group.state,
        "createTime": format_timestamp(group.created) if group.created else None,
        "expires": format_timestamp(first.expires) if first.expires else None,
        "owner": first.owner,
        "reason": item.reason and str(item.reason),
        "why": item.why,
        "inUse": item.in_use or None,
        "quota": quota,
        "perHour": item.per_hour.to_json(),
        "delete": item.is_deleted,
        "leftBecause": (result.text if result else item.left_because) or None,
        **({"outcome": str(result.outcome)} if result else {}),
    }


def left_lines(items: Sequence[GarbageItem], results: Mapping[str, str]) -> list[str]:
    """Return a line for each item in use, for each that a rule applies to and that is left alone, and one for those of others.

    `results` has why others were not deleted, by their labels.
    """
    lines = [
        f"`{item.group.label}`, created by {item.group.described[0].owner or 'others'}, is or may be in use: {item.in_use}; "
        "`--if-idle` leaves it alone"
        for item in items
        if item.is_deleted and item.in_use and not results
    ]
    lines += [f"left alone: `{item.group.label}` ({item.why}): {why}" for item, why in _kept(items, results)]
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"left alone: {len(lines) - _MOST_LINES} more; `-o json` has all"]
    foreign = [item.group.label for item in items if item.is_of_others]
    if foreign:
        more = f" and {len(foreign) - _MOST_NAMES} more" if len(foreign) > _MOST_NAMES else ""
        named = ", ".join(f"`{label}`" for label in foreign[:_MOST_NAMES])
        lines.append(f"left alone: {named}{more}: created by others; `--everyones` includes them")
    return lines


def _kept(items: Sequence[GarbageItem], results: Mapping[str, str]) -> list[tuple[GarbageItem, str]]:
    found = [(item, results.get(item.group.label) or item.left_because) for item in items if not item.is_of_others]
    return [(item, why) for item, why in found if why]


def sum_line(items: Sequence[GarbageItem]) -> str:
    """Return what these items hold together: `12 chips of on-demand v5p, $8.40/h`."""
    quota = [str(held) for held in freed_quota(items)]
    return ", ".join([*quota, f"{sum_dollars(item.per_hour for item in items).short}/h"])
