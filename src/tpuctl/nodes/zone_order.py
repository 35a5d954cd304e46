"""The order in which `up` tries several zones. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.check.zone_ranking import ZoneRank
    from tpuctl.nodes.journal_entries import ZoneMemory
    from tpuctl.prices import Price


def order_zones(
    ranked: Iterable[ZoneRank], prices: Mapping[str, Price], memories: Mapping[str, ZoneMemory]
) -> tuple[str, ...]:
    """Return the zones, the best first.

    The ranking of `check` for the named buckets counts most. Among equals: the lower price, an unknown one last; what the
    journal remembers (`Journal.zone_memories`), the last success first and the last stock-out last; then the name. `prices`
    are those of the tier that is tried. Both mappings may lack zones.
    """

    def sort_key(zone: ZoneRank) -> tuple[object, ...]:
        price = prices.get(zone.zone)
        per_hour = price.per_hour if price else None
        return (zone.rank, per_hour is None, per_hour or 0, _memory_key(memories.get(zone.zone)), zone.zone)

    return tuple(zone.zone for zone in sorted(ranked, key=sort_key))


def _memory_key(memory: ZoneMemory | None) -> tuple[int, float]:
    """Return the key of the last event: successes, the most recent first; no memory; stock-outs, the most recent last."""
    success, stockout = (memory.success, memory.stockout) if memory else (None, None)
    if success is not None and (stockout is None or success >= stockout):
        return (0, -success.timestamp())
    return (1, 0) if stockout is None else (2, stockout.timestamp())
