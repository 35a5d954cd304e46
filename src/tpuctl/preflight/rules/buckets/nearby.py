"""Which TPUs are offered where a bucket is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tpuctl import accelerators
from tpuctl.colocation.places import regions_within, spans
from tpuctl.preflight.fact import known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.model.bucket import Placement
    from tpuctl.preflight.facts import Facts


@dataclass(frozen=True, slots=True)
class Nearby:
    """The zones in a bucket's regions: those that offer the wanted type, and the generations that they offer.

    `generations` are names, oldest first. `example` is a similar type and its zone. `is_asked`: the offers come from
    the API, not from the table that ships with tpuctl.
    """

    place: str
    zones: tuple[str, ...]
    generations: tuple[str, ...]
    example: tuple[str, str] | None
    is_asked: bool


def nearby(facts: Facts, placement: Placement) -> Nearby:
    """Return which TPUs are offered where a bucket is."""
    wanted = facts.wanted.spec.accelerator_type
    asked = known(facts.offers)
    offers = _table(wanted) if asked is None else asked
    there = {zone: types for zone, types in offers.items() if spans(placement, zone.rpartition("-")[0])}
    names = {generation_of(name) for types in there.values() for name in types} - {""}
    order = list(accelerators.load().generations)
    spec, like = facts.wanted.spec, _find(wanted)
    if spec.topology and like:
        # Types have default shapes; for another shape only the generation counts.
        prefix = f"{like.generation.prefix}-"
        offering = [zone for zone, types in there.items() if any(name.startswith(prefix) for name in types)]
    else:
        offering = [zone for zone, types in there.items() if wanted in types]
    place = " and ".join(regions_within(placement)) or f"the {placement.location} multi-region"
    return Nearby(
        place,
        tuple(sorted(offering)),
        tuple(sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name))),
        _example(there, wanted),
        asked is not None,
    )


def generation_of(accelerator_type: str) -> str:
    """Return the generation of a type, such as `v5e`; for an unknown type the part before the number."""
    found = _find(accelerator_type)
    return found.generation.name if found else accelerator_type.rpartition("-")[0]


def _example(there: Mapping[str, tuple[str, ...]], wanted: str) -> tuple[str, str] | None:
    """Return the most similar type of the newest generation, and a zone; AI regions last."""
    like = _find(wanted)
    order = list(accelerators.load().generations)
    best: tuple[tuple[int, bool, int, bool, str], str, str] | None = None
    for zone, types in there.items():
        for name in types:
            if found := _find(name):
                is_other_size = like is None or found.size != like.size
                key = (-order.index(found.generation.name), is_other_size, found.size, "-ai" in zone, zone)
                best = min(best, (key, name, zone)) if best else (key, name, zone)
    return best[1:] if best else None


@cache
def _table(wanted: str) -> Mapping[str, tuple[str, ...]]:
    """Return the offers of all zones according to the table, without single-tenant zones."""
    names = [
        generation.type_of(size) for generation in accelerators.load().generations.values() for size in generation.sizes
    ]
    offers: dict[str, list[str]] = {}
    for name in dict.fromkeys([*names, wanted]):
        if accelerator := _find(name):
            for zone in accelerators.zones_of(accelerator):
                offers.setdefault(zone, []).append(name)
    return {zone: tuple(types) for zone, types in offers.items()}


@cache  # every zone offers some dozens of types, and the same question comes for each bucket
def _find(name: str) -> AcceleratorType | None:
    return accelerators.find(name)
