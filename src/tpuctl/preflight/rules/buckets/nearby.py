"""Which TPUs there are where a bucket is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tpuctl import accelerators
from tpuctl.colocation import regions_within, spans
from tpuctl.preflight.fact import known

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.model import NodeSpec
    from tpuctl.model.bucket import Placement
    from tpuctl.preflight.facts import Facts


@dataclass(frozen=True, slots=True)
class Nearby:
    """The zones of a bucket's regions: those that offer the wanted type, and what they offer at all.

    `generations` is by name, oldest first; `example` is a type like the wanted one and its zone. With `is_asked` the zones
    themselves said so, else the table that ships with tpuctl.
    """

    place: str
    zones: tuple[str, ...]
    generations: tuple[str, ...]
    example: tuple[str, str] | None
    is_asked: bool


def nearby(facts: Facts, placement: Placement) -> Nearby:
    """Return what TPUs there are where a bucket is."""
    wanted = facts.wanted.spec.accelerator_type
    asked = known(facts.offers)
    offers = _table(wanted) if asked is None else asked
    there = {zone: types for zone, types in offers.items() if spans(placement, zone.rpartition("-")[0])}
    place = " and ".join(regions_within(placement)) or f"the {placement.location} multi-region"
    return Nearby(
        place,
        tuple(sorted(zone for zone, types in there.items() if _offers(types, facts.wanted.spec))),
        _generations(there),
        _example(there, wanted),
        asked is not None,
    )


def _offers(types: Sequence[str], spec: NodeSpec) -> bool:
    """Tell whether a zone offers what is wanted. Types have default shapes: of another shape only the generation counts."""
    if spec.topology and (like := _find(spec.accelerator_type)):
        return any(name.startswith(f"{like.generation.prefix}-") for name in types)
    return spec.accelerator_type in types


def generation_of(accelerator_type: str) -> str:
    """Return the generation of a type, `v5e`; of one that the table lacks the part before the number."""
    found = _find(accelerator_type)
    return found.generation.name if found else accelerator_type.rpartition("-")[0]


def _generations(there: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    names = {generation_of(name) for types in there.values() for name in types} - {""}
    order = list(accelerators.load().generations)
    return tuple(sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name)))


def _example(there: Mapping[str, tuple[str, ...]], wanted: str) -> tuple[str, str] | None:
    """Return the type of the newest generation that is most like the wanted one, and a zone, of an AI region last."""
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
    """Return the offers of all zones by the table, single-tenant zones left out."""
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
