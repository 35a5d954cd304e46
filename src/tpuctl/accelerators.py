"""Accelerator types: the chips, workers, topology and runtime version of a type name.

The table is `data/accelerators.yaml`. It may lack types that exist, so a well-formed type that is not in it is accepted, with
`is_listed` false.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil, prod
from typing import Any

from tpuctl.errors import InvalidInputError
from tpuctl.spelling import closest_match
from tpuctl.yaml_reader import load_data

_WELL_FORMED = re.compile(r"([a-z][a-z0-9]*)-([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of TPUs. Sizes are numbers of `unit`; `config_type` is the API's AcceleratorConfig.Type.

    `serving` are the sizes with a separate quota [observed: users' logs].
    """

    name: str
    prefix: str
    config_type: str
    unit: str
    cores_per_chip: int
    chips_per_worker: int
    single_worker_sizes: tuple[int, ...]
    sizes: tuple[int, ...]
    runtime_version: str
    devices: str
    dimensions: int
    hbm_gib_per_chip: int
    topologies: dict[int, str]
    multiples_of: int | None
    largest: int | None
    serving: tuple[int, ...] = ()

    def chips(self, size: int) -> int:
        """Return the number of chips of a size (the number in a type name)."""
        return size // self.cores_per_chip

    def size(self, chips: int) -> int:
        """Return the size (the number in a type name) of a number of chips."""
        return chips * self.cores_per_chip

    def has(self, size: int) -> bool:
        """Return whether the documentation lists this size."""
        if size in self.sizes:
            return True
        if not self.multiples_of or self.largest is None or size > self.largest:
            return False
        return size % self.multiples_of == 0 and _most_cubic_topology(self.chips(size)) is not None

    def topology(self, size: int) -> str | None:
        """Return the default topology of a size, None if it is unknown."""
        return self.topologies.get(size) or (_most_cubic_topology(self.chips(size)) if self.dimensions == 3 else None)

    def type_of(self, size: int) -> str:
        """Return the type name of a size."""
        return f"{self.prefix}-{size}"


@dataclass(frozen=True, slots=True)
class AcceleratorType:
    """A parsed type name. `topology` is the default one of its size, None if it is unknown."""

    name: str
    generation: Generation
    size: int
    topology: str | None

    @property
    def chips(self) -> int:
        """The number of chips of the whole slice."""
        return self.generation.chips(self.size)

    @property
    def workers(self) -> int:
        """The number of workers (virtual machines) of the slice."""
        if self.size in self.generation.single_worker_sizes:
            return 1
        return ceil(self.chips / self.generation.chips_per_worker)

    @property
    def chips_per_worker(self) -> int:
        """The number of chips, and of their device files, of each worker."""
        return self.chips if self.workers == 1 else self.generation.chips_per_worker

    @property
    def is_slice(self) -> bool:
        """Return whether it has more than one worker. Such nodes cannot be stopped [API field text of nodes.stop]."""
        return self.workers > 1

    @property
    def is_listed(self) -> bool:
        """Return whether the documentation lists it. A zone may offer types that are not listed."""
        return self.generation.has(self.size)

    @property
    def runtime_version(self) -> str:
        """The default image for this accelerator; a framework may need another one."""
        return self.generation.runtime_version


@dataclass(frozen=True, slots=True)
class AcceleratorTable:
    """The whole table."""

    generations: dict[str, Generation]
    zones: dict[str, dict[str, tuple[str, ...]]]
    other_services: dict[str, dict[str, str]]
    research_zone: str
    images: dict[str, dict[str, list[str]]]
    tensorflow_images: dict[str, Any]  # YAML

    def by_prefix(self, prefix: str) -> Generation | None:
        """Return the generation whose type names have this prefix, None if there is none."""
        return next((g for g in self.generations.values() if g.prefix == prefix), None)


@cache
def load_accelerators() -> AcceleratorTable:
    """Return the table, read once."""
    data = load_data("accelerators.yaml")
    generations = {
        name: Generation(
            name=name,
            prefix=entry["type_format"].removesuffix("-{n}"),
            config_type=entry["config_type"],
            unit=entry["unit"],
            cores_per_chip=entry["cores_per_chip"],
            chips_per_worker=entry["per_worker"],
            single_worker_sizes=tuple(entry["single"]),
            sizes=tuple(entry["sizes"]),
            runtime_version=entry["runtime_version"],
            devices=entry["devices"],
            dimensions=entry["topology_dimensions"],
            hbm_gib_per_chip=entry["hbm_gib_per_chip"],
            topologies=entry["topologies"],
            multiples_of=entry.get("multiples_of"),
            largest=entry.get("largest"),
            serving=tuple(entry.get("serving", ())),
        )
        for name, entry in data["generations"].items()
    }
    return AcceleratorTable(
        generations,
        {name: {size: tuple(where) for size, where in by.items()} for name, by in data["zones"].items()},
        data["elsewhere"],
        data["research_zone"],
        data["images"],
        data["tensorflow_images"],
    )


def parse_accelerator_type(text: str) -> AcceleratorType:
    """Parse a type name.

    Raises `InvalidInputError` for an invalid name, with the nearest valid one (`v5e-16` → `v5litepod-16`), and for a generation
    that is not in the table.
    """
    match = _WELL_FORMED.fullmatch(text)
    generation = load_accelerators().by_prefix(match[1]) if match else None
    if not match or not generation or int(match[2]) % generation.cores_per_chip:
        raise _invalid_type_error(text)
    size = int(match[2])
    return AcceleratorType(text, generation, size, generation.topology(size))


@lru_cache(maxsize=256)
def find_accelerator_type(text: str | None) -> AcceleratorType | None:
    """Parse a type name. None if it is invalid or not in the table."""
    try:
        return parse_accelerator_type(text or "")
    except InvalidInputError:
        return None


def check_accelerator_type(text: str) -> str:
    """Return the API's name of a type that the service may accept, listed or not: `v5litepod-16` for `v5e-16`.

    Raises `InvalidInputError` for a malformed name, for a misspelled one with the name that was probably meant, and for one
    that may mean several types.
    """
    if find_accelerator_type(text) is not None:
        return text
    if meant := canonical_type(text):
        return meant
    if not _WELL_FORMED.fullmatch(text) or _suggest_type(text) or find_type_of_other_service(text):
        raise _invalid_type_error(text)
    return text


def suggest_listed_type(text: str) -> str | None:
    """Return the nearest type in the table to a name that is not in it; None for a listed one, or if none is near."""
    found = find_accelerator_type(text)
    return None if found and found.is_listed else _suggest_type(text)


def canonical_type(text: str) -> str | None:
    """Return the API's name for a type in another spelling, of the same size; None unless exactly one type is meant.

    Capital letters, `_`, the prefix `tpu-`, and other names of a generation (`v5e`, `trillium`) are understood: `v5e-16` is
    `v5litepod-16`. The number keeps its unit, which the generation defines: `V4-8` is `v4-8`, 8 cores on 4 chips.
    """
    match = _NUMBERED.fullmatch(text.strip())
    generation = find_generation(match["generation"]) if match else None
    name = generation.type_of(int(match["size"])) if match and generation else None
    return name if find_accelerator_type(name) else None


def find_generation(text: str) -> Generation | None:
    """Return the generation of a name such as `v4`, `v5e`, `v5litepod`, `V5LITE_POD` or `trillium`; None if unknown."""
    word = re.sub(r"[-_]", "", text.lower()).removeprefix("tpu")
    word = _OTHER_NAMES.get(word, word)
    return next((one for one in load_accelerators().generations.values() if word in {one.name, one.prefix}), None)


def accelerator_types_of_size(text: str) -> tuple[str, ...]:
    """Return the known types with the size of a type name: `v2-8`, `v3-8`, … for `v99-8`."""
    match = _WELL_FORMED.fullmatch(text)
    size = int(match[2]) if match else 0
    return tuple(one.type_of(size) for one in load_accelerators().generations.values() if match and one.has(size))


def accelerator_type_from_topology(config_type: str, topology: str) -> AcceleratorType:
    """Return the accelerator of `--type v4 --topology 2x2x2`; the type is a generation or the API's enum name.

    Raises `InvalidInputError` that names the invalid part.
    """
    wanted = config_type.lower().replace("_", "-")
    for generation in load_accelerators().generations.values():
        if wanted in {generation.name, generation.prefix, generation.config_type.lower().replace("_", "-")}:
            break
    else:
        known = [generation.name for generation in load_accelerators().generations.values()]
        raise InvalidInputError(
            f"`{config_type}` is not a TPU generation", hint=f"use one of {', '.join(known)}, or a type such as `v4-8`"
        )
    sides = topology.lower().split("x")
    if len(sides) != generation.dimensions or not all(re.fullmatch(r"[1-9][0-9]{0,4}", side) for side in sides):
        example = next(iter(generation.topologies.values()))
        raise InvalidInputError(
            f"`{topology}` is not a topology of {generation.name}",
            hint=f"{generation.name} has {generation.dimensions} dimensions, like `{example}`",
        )
    size = generation.size(prod(int(side) for side in sides))
    return AcceleratorType(generation.type_of(size), generation, size, topology.lower())


def documented_zones_of(accelerator: AcceleratorType, *, single_tenant: bool = False) -> tuple[str, ...]:
    """Return the zones that offer a type, according to the documentation."""
    offered = load_accelerators().zones.get(accelerator.generation.name, {})
    zones = offered.get(str(accelerator.size), ()) + offered.get("all", ())
    return zones + (offered.get("single_tenant", ()) if single_tenant else ())


def documented_zones(accelerator: AcceleratorType | None) -> set[str]:
    """Return the zones that offer a type, or any type for None, also those that need an agreement with Google."""
    if accelerator is not None:
        return {*documented_zones_of(accelerator, single_tenant=True)}
    return {zone for offered in load_accelerators().zones.values() for zones in offered.values() for zone in zones}


def smallest_type_in_zone(zone: str) -> str | None:
    """Return the smallest type of the first generation that a zone offers, None for a zone that is not documented."""
    for name, offered in load_accelerators().zones.items():
        generation = load_accelerators().generations[name]
        for size in sorted(generation.sizes):
            if zone in (*offered.get(str(size), ()), *offered.get("all", ())):
                return generation.type_of(size)
    return None


def _most_cubic_topology(chips: int) -> str | None:
    """Return the most cubic topology with this number of chips, with sides that are multiples of four. None if impossible."""
    if chips % 64:
        return None
    cubes = chips // 64
    boxes = [
        (a, b, cubes // (a * b))
        for a in range(1, int(cubes ** (1 / 3)) + 2)
        if cubes % a == 0
        for b in range(a, int((cubes // a) ** 0.5) + 1)
        if (cubes // a) % b == 0
    ]
    if not boxes:
        return None
    best = min(boxes, key=lambda sides: max(sides) - min(sides))
    return "x".join(str(4 * side) for side in sorted(best))


def find_type_of_other_service(text: str) -> dict[str, str] | None:
    """Return `name` and `through` of a type that another service offers, by its type name or own name; else None."""
    bare = re.sub(r"[^a-z0-9]", "", text.lower())
    entries = load_accelerators().other_services.items()
    return next((e for prefix, e in entries if bare.startswith((prefix, e["name"].lower()))), None)


def _invalid_type_error(text: str) -> InvalidInputError:
    if where := find_type_of_other_service(text):
        return InvalidInputError(
            f"`{text}` ({where['name']}) is not served by the Cloud TPU API",
            hint=f"it is available through {where['through']}",
        )
    if choices := _choices(text):
        generation = find_generation(text.strip())
        problem = "is a generation without a size" if generation else "may mean two types"
        more = "name a size, such as " if generation else "choose "
        also = ", or add `--topology`" if generation else ""
        return InvalidInputError(f"`{text.strip()}` {problem}", hint=f"{more}{choices}{also}")
    if suggestion := _suggest_type(text.strip().lower().replace("_", "-")):
        return InvalidInputError(f"`{text}` is not an accelerator type", hint=f"did you mean `{suggestion}`?")
    return InvalidInputError(
        f"`{text}` is not an accelerator type",
        hint="types look like `v4-8`, `v5litepod-16` or `v6e-8`; see `tpuctl types`",
    )


# Names of generations beside those of the API and ours, without `-` and `_`; the last four are Kubernetes Engine's.
_OTHER_NAMES = {
    "v5lite": "v5litepod",
    "trillium": "v6e",
    "v4podslice": "v4",
    "v5litepodslice": "v5litepod",
    "v5pslice": "v5p",
    "v6eslice": "v6e",
}
_NUMBERED = re.compile(r"(?P<generation>[A-Za-z][A-Za-z0-9_-]*?)[-_](?P<size>[1-9][0-9]{0,5})", re.ASCII)
_UNNUMBERED = re.compile(r"v\d+", re.ASCII)


def _choices(text: str) -> str | None:
    """Return the types that a name without a size or without the letter of its generation may mean, with their chips."""
    word, _, number = text.strip().lower().partition("-")
    generation = find_generation(text.strip())
    if generation:
        found = [AcceleratorType(generation.type_of(size), generation, size, None) for size in generation.sizes[:4]]
    elif _UNNUMBERED.fullmatch(word):
        letters = [one for one in load_accelerators().generations.values() if one.name[:-1] == word]
        types = [find_accelerator_type(one.type_of(int(number))) for one in letters] if number.isdecimal() else []
        found = [one for one in types if one]
    else:
        return None
    named = [f"`{one.name}` ({one.chips} chip{'' if one.chips == 1 else 's'})" for one in found]
    return " or ".join(filter(None, (", ".join(named[:-1]), named[-1]))) if len(named) > 1 else None


def _suggest_type(word: str) -> str | None:
    table = load_accelerators()
    match = re.fullmatch(r"(?:tpu-?)?(v\d+[a-z-]*?)-?(\d{1,9})?", word)
    generation = find_generation(match[1]) if match else None
    if match and generation:
        if match[2] is None:
            return generation.type_of(generation.sizes[0])
        wanted = int(match[2])
        size = wanted if generation.has(wanted) else min(generation.sizes, key=lambda size: (abs(size - wanted), -size))
        return generation.type_of(size)
    if match and not any(name.startswith(match[1][:2]) for name in table.generations):
        return None  # of a generation newer than the table
    every = [generation.type_of(size) for generation in table.generations.values() for size in generation.sizes]
    return closest_match(word, every)
