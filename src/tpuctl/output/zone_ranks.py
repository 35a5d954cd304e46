"""How the ranking of zones is shown: table, JSON and notes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tpuctl.colocation.places import Relation
from tpuctl.escaping import visible
from tpuctl.output.findings import wrapped
from tpuctl.output.tables import Cell, columns, styled, text_width
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from decimal import Decimal

    from tpuctl.output.terminal import Terminal
    from tpuctl.preflight.zones import BucketFrom, Ranking, ZoneRank

HEADER = ("ZONE", "BUCKETS", "TO READ 1 TB", "NOTES")
# Version of the JSON. Within a version fields may be added; none is removed or changes its meaning.
SCHEMA_VERSION = 1

_WORDS = {
    Relation.SAME_ZONE: "same zone",
    Relation.SAME_REGION: "same region",
    Relation.DUAL_REGION: "in its dual-region",
    Relation.MULTI_REGION: "in its multi-region",
    Relation.SAME_AREA: "same continent",
    Relation.OTHER_AREA: "other continent",
    Relation.UNKNOWN: "unknown",
}
_STYLES = {
    Relation.MULTI_REGION: "yellow",
    Relation.SAME_AREA: "red",
    Relation.OTHER_AREA: "red",
    Relation.UNKNOWN: "magenta",
}
# Up to this many buckets are named; more are counted by relation.
_LISTED = 2
# Up to this many regions are named with their co-located bucket locations.
_NAMED = 3


def show_zones(terminal: Terminal, ranking: Ranking, form: Format, *, sandbox: bool = False) -> None:
    """Show the zones on stdout, the best first, and notes on stderr."""
    if form in {Format.JSON, Format.YAML}:
        terminal.data(to_json(ranking, sandbox=sandbox), form)
        return
    if form is Format.NAME:
        terminal.names(zone.zone for zone in ranking.zones)
        return
    rows = [row(zone) for zone in ranking.zones]
    if not terminal.is_interactive:
        terminal.table(HEADER, rows)
    elif rows:
        terminal.page(page(rows, width=terminal.streams.width, colored=terminal.colors_out))
    for note in notes(ranking):
        lines = wrapped(note, first="", rest="  ", width=terminal.streams.width) if terminal.is_interactive else (note,)
        terminal.note(*lines)


def row(zone: ZoneRank) -> tuple[Cell, ...]:
    """Return the table row of one zone."""
    style = _STYLES.get(zone.worst, "green") if zone.worst else ""
    # For a pipe each location of each bucket; for a single one only the relation.
    words = [(seen.use.url, _relation(seen)) for seen in zone.buckets]
    listed = words[0][1] if len(words) == 1 else ", ".join(f"{url} {where}" for url, where in words)
    return (Cell(zone.zone), Cell(_where(zone), listed, style), Cell(_price(zone)), Cell("; ".join(_notes(zone))))


def page(rows: Sequence[Sequence[Cell]], *, width: int, colored: bool) -> Iterator[str]:
    """Yield the lines for a terminal: columns if they fit, else notes below their row, else each zone on its own lines.

    Words are never broken, at any width.
    """
    if _fits(HEADER, rows, width):
        yield from columns(HEADER, rows, width=None, colored=colored)
        return
    shorter = [each[:-1] for each in rows]
    if _fits(HEADER[:-1], shorter, width):
        header, *lines = columns(HEADER[:-1], shorter, width=None, colored=colored)
        yield header
        for line, each in zip(lines, rows, strict=True):
            yield line
            yield from _below(each[-1:], width)
        return
    for zone, where, price, further in rows:
        yield styled(visible(zone.text), "bold", colored=colored)
        to_read = Cell(f"to read 1 TB: {price.text}" if price.text else "")
        yield from _below((where, to_read, further), width)


def _fits(header: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> bool:
    return all(text_width(line) <= width for line in columns(header, rows, width=None, colored=False))


def _below(cells: Iterable[Cell], width: int) -> Iterator[str]:
    for cell in cells:
        if cell.text:
            yield from wrapped(cell.text, first="  ", rest="    ", width=width)


def notes(ranking: Ranking) -> Iterator[str]:
    """Yield notes about the whole ranking: what is unknown, and which bucket locations would be co-located."""
    what = ranking.accelerator_type
    for bucket in ranking.unplaced:
        missing = f"; reading it takes the permission `{bucket.permission}`" if bucket.permission else ""
        yield f"`gs://{bucket.use.bucket}` is ignored: {bucket.reason}{missing}"
    if ranking.offline is not None:
        yield f"the zones are from the documentation, and may be outdated: {ranking.offline}"
    if not ranking.zones:
        yield f"no known zone offers {what}; `tpuctl types` lists all types"
        return
    if all(zone.is_apart for zone in ranking.zones):
        regions = {zone.zone.rpartition("-")[0]: " or ".join(zone.locations) for zone in ranking.zones}
        places = [f"{locations} for {region}" for region, locations in regions.items()][:_NAMED]
        yield f"no zone with {what} is near every bucket; co-located buckets would be in {', '.join(places)}"


def to_json(ranking: Ranking, *, sandbox: bool) -> dict[str, Any]:
    """Return the ranking for scripts. Every field is always present; null or empty without a value."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "acceleratorType": ranking.accelerator_type,
        "zones": [_zone_to_json(zone) for zone in ranking.zones],
        "unplaced": [
            {"bucket": bucket.use.url, "reason": bucket.reason, "permission": bucket.permission}
            for bucket in ranking.unplaced
        ],
        "offline": ranking.offline,
        **({"sandbox": True} if sandbox else {}),
    }


def _zone_to_json(zone: ZoneRank) -> dict[str, Any]:
    low, high = zone.span or (None, None)
    return {
        "zone": zone.zone,
        "region": zone.zone.rpartition("-")[0],
        "relation": str(zone.worst) if zone.worst else None,
        "pricePerTBLow": _number(low),
        "pricePerTBHigh": _number(high),
        "singleTenant": zone.single_tenant,
        "grants": [str(grant) for grant in zone.grants],
        "quotaLimit": zone.quota.limit if zone.quota else None,
        "quotaLeft": zone.quota.left if zone.quota else None,
        "quotaSuffices": zone.quota.suffices if zone.quota else None,
        "coLocated": list(zone.locations),
        "buckets": [
            {
                "bucket": seen.use.url,
                "location": seen.placement.location if seen.placement else None,
                "relation": str(seen.relation),
                "pricePerTBLow": _number(seen.price.cost(10**12)[0]) if seen.price else None,
                "pricePerTBHigh": _number(seen.price.cost(10**12)[1]) if seen.price else None,
                "priceDate": seen.price.seen if seen.price else None,
            }
            for seen in zone.buckets
        ],
    }


def _where(zone: ZoneRank) -> str:
    """Return the relation of the buckets to the zone: of a single one, of two with names, else counts, the nearest first.

    Several locations in one bucket count once.
    """
    places = {seen.use.bucket: seen for seen in zone.buckets}
    if len(places) > _LISTED:
        relations = sorted((seen.relation for seen in places.values()), key=lambda relation: relation.rank)
        counts = Counter("co-located" if each.is_colocated else _WORDS[each] for each in relations)
        return ", ".join(f"{count} {group}" for group, count in counts.items())
    words = [_relation(seen) for seen in places.values()]
    if len(words) == 1:
        return words[0]
    return ", ".join(f"gs://{name} {where}" for name, where in zip(places, words, strict=True))


def _relation(seen: BucketFrom) -> str:
    place = f" ({seen.placement.location})" if seen.placement else ""
    return _WORDS[seen.relation] + place


def _price(zone: ZoneRank) -> str:
    if zone.span is None:
        return "unknown" if zone.buckets else ""
    low, high = zone.span
    more = " or more" if len(zone.prices) < len(zone.buckets) else ""
    if not high:
        return f"free{more}"
    billed = [price for price in zone.prices if not price.is_free]
    basis = ", ".join(sorted({"your settings" if price.is_own else f"list of {price.seen}" for price in billed}))
    return f"{f'${low:,}' if low == high else f'${low:,} to ${high:,}'}{more} ({basis})"


def _notes(zone: ZoneRank) -> Iterator[str]:
    quota = zone.quota
    if zone.grants:
        yield f"grant: {' and '.join(map(str, zone.grants))}"
    if quota and quota.limit == 0:
        yield "the quota is 0"
    elif quota and quota.limit is not None:
        needed = f", {quota.needed} needed" if quota.suffices is False else ""
        if quota.left is None:
            yield f"quota of {quota.limit} {quota.unit}{needed}"
        else:
            yield f"{quota.left} of {quota.limit} {quota.unit} of quota left{needed}"
    if zone.single_tenant:
        yield "single tenant: only by agreement with Google"


def _number(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)
