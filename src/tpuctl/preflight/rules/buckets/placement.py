"""Whether a bucket is near the TPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.colocation.places import Relation, best_locations, relation, spans
from tpuctl.colocation.prices import TB, price
from tpuctl.preflight.fact import Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, rule
from tpuctl.preflight.rules.buckets.moving import remedies
from tpuctl.preflight.rules.buckets.nearby import nearby
from tpuctl.preflight.rules.buckets.uses import each_bucket, root, size_in_words, unread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from decimal import Decimal

    from tpuctl.colocation.prices import Price
    from tpuctl.model.bucket import Placement
    from tpuctl.preflight.facts import BucketFacts, Facts

_LEVELS = {
    Relation.MULTI_REGION: Level.WARNING,
    Relation.SAME_AREA: Level.ERROR,
    Relation.OTHER_AREA: Level.ERROR,
    Relation.UNKNOWN: Level.UNKNOWN,
}
_DISTANCES = {
    Relation.MULTI_REGION: "the data is somewhere in the multi-region: {each}s are slower, at varying speed",
    Relation.SAME_AREA: "every {each} crosses between regions: it is slower",
    Relation.OTHER_AREA: "every {each} crosses between continents: it is far slower",
}


@rule("TPU101", "the bucket is where the TPU is")
def in_place(facts: Facts) -> Iterator[Found]:
    """Compare the location of each bucket with the TPU's zone.

    Reads within a zone or region, or from a dual-region that contains the TPU, are fast and free. Reads from a multi-region of
    the continent are billed and slower: a warning. Another region of the continent, including a multi-region without the TPU's
    region, and another continent are errors: the TPU waits for its data, and each epoch pays for the network again. For a
    read-only bucket, a running Anywhere Cache in the TPU's zone turns this into a note. A location that this version does not
    know is unknown (documentation, bucket locations; list prices, shown with their date).
    """
    for about in each_bucket(facts):
        placement = about.placement
        if placement is None:
            continue
        yield _judged(facts, about, placement)
        # A cache must be in a zone of the bucket's own location [documentation, Rapid Cache].
        may_be_cached = (
            spans(placement, facts.wanted.region) and not relation(placement, facts.wanted.zone).is_colocated
        )
        if isinstance(about.caches, Unknown) and may_be_cached:
            name = root(about.use.bucket)
            what, permission = f"the Anywhere Caches of `{name}` in {facts.wanted.zone}", "storage.anywhereCaches.list"
            yield unread(about.caches, name, what, permission=permission, role="roles/storage.admin")


def _judged(facts: Facts, about: BucketFacts, placement: Placement) -> Found:
    wanted, name = facts.wanted, root(about.use.bucket)
    how = relation(placement, wanted.zone)
    costs = price(placement, wanted.zone, own=wanted.egress_prices)
    values = _values(facts, about, placement, costs)
    place = f"the TPU in {wanted.region} (zone {wanted.zone})"
    if how.is_colocated:
        text = f"`{name}` is in {described(placement)}, {place}"
        return Found(level=Level.OK, subject=name, text=text, facts=values)
    if how is Relation.UNKNOWN:
        word = f"a {placement.kind}" if placement.kind else "a location without type"
        return Found(
            level=Level.UNKNOWN,
            subject=name,
            text=f"`{name}` is in {placement.location or 'an unnamed location'}, {word} that this version does not know; "
            f"unknown whether it is near {place}",
            remedies=(
                Remedy(
                    "look up the location in https://cloud.google.com/storage/docs/locations; a bucket in "
                    f"{' or '.join(best_locations(wanted.region))} would be co-located"
                ),
            ),
            facts=values,
        )
    is_cached = _is_cached(facts, about)
    why = _why(how, costs, about, facts)
    if is_cached:
        serves = "repeated reads, but no writes" if about.use.writes else "repeated reads"
        why += f"; an Anywhere Cache in {wanted.zone} serves {serves}"
    return Found(
        level=Level.NOTE if is_cached and not about.use.writes else _LEVELS[how],
        subject=name,
        text=f"`{name}` is in {described(placement)}, {place}",
        why=why,
        remedies=remedies(facts, about, placement, has_cache=is_cached),
        facts=values,
    )


def described(placement: Placement) -> str:
    """Return a bucket's location as text: `EUROPE-WEST4`, `US (multi-region)`, `US (us-east1 and us-west1)`."""
    if placement.data_locations:
        return f"{placement.location} ({' and '.join(placement.data_locations).lower()})"
    return placement.location if placement.kind in {"region", "zone"} else f"{placement.location} ({placement.kind})"


def _why(how: Relation, costs: Price | None, about: BucketFacts, facts: Facts) -> str:
    text = _DISTANCES[how].format(each="read" if about.use.reads else "write")
    if costs is None:
        return text
    if costs.is_free:
        return f"{text}; it is free according to the price in your settings"
    text += f", and billed: {costs}" if about.use.reads else f", and reading it back is billed: {costs}"
    if size := _epoch(facts, about):
        text += f"; one epoch, reading all {size_in_words(size)} once, costs {costs.of(size)}"
    return text


def _epoch(facts: Facts, about: BucketFacts) -> int | None:
    """Return the bytes that one epoch reads, from the user or from a complete listing; None if unknown."""
    if not about.use.reads:
        return None
    contents = known(about.contents)
    measured = contents.size if contents and contents.is_complete and contents.objects else None
    return facts.wanted.dataset_size if facts.wanted.dataset_size is not None else measured


def _is_cached(facts: Facts, about: BucketFacts) -> bool:
    caches = known(about.caches) or ()
    return any(cache.is_running and cache.zone == facts.wanted.zone for cache in caches)


def _values(facts: Facts, about: BucketFacts, placement: Placement, costs: Price | None) -> dict[str, Any]:
    wanted, size = facts.wanted, _epoch(facts, about)
    how = relation(placement, wanted.zone)
    near = None if how.is_colocated else nearby(facts, placement)
    epoch = costs.cost(size) if costs and size is not None else (None, None)
    per_gib, per_tb = (costs.low, costs.high) if costs else (None, None), costs.cost(TB) if costs else (None, None)
    return {
        "location": placement.location,
        "locationType": placement.kind,
        "dataLocations": list(placement.data_locations),
        "zone": wanted.zone,
        "region": wanted.region,
        "relation": str(how),
        "pricePerGiBLow": _number(per_gib[0]),
        "pricePerGiBHigh": _number(per_gib[1]),
        "pricePerTBLow": _number(per_tb[0]),
        "pricePerTBHigh": _number(per_tb[1]),
        "priceDate": costs.seen if costs else None,
        "datasetSize": size,
        "costPerEpochLow": _number(epoch[0]),
        "costPerEpochHigh": _number(epoch[1]),
        "coLocated": list(best_locations(wanted.region)),
        "zonesWithType": list(near.zones) if near else None,
        "typesThere": list(near.generations) if near else None,
        "anywhereCache": _is_cached(facts, about),
    }


def _number(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)
