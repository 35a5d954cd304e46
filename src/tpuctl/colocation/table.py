"""The locations of Cloud Storage and the list prices between them, from package data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decimal import Decimal

# Two areas in the order of the table, and the lowest and highest price seen between them.
Pair = tuple[str, str]
Span = tuple["Decimal", "Decimal"]


@dataclass(frozen=True, slots=True)
class Area:
    """A continent of the price list, and the prefixes of its region names."""

    title: str
    prefixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MultiRegion:
    """A multi-region: prefixes of its region names, and the regions that are excluded."""

    area: str
    prefixes: tuple[str, ...]
    excluded: tuple[str, ...]

    def spans(self, region: str) -> bool:
        """Return whether its data may be in a region."""
        return region.partition("-")[0] in self.prefixes and region not in self.excluded


@dataclass(frozen=True, slots=True)
class StorageClass:
    """The retrieval price in dollars per GiB, and the minimum number of days billed per object [price list]."""

    retrieval: Decimal
    days: int


@dataclass(frozen=True, slots=True)
class Locations:
    """The whole table. `prices_seen` is the month of the prices, such as `2026-06`.

    `dearer` has the regions that some sources put in a dearer group than their area, with the highest price found.
    """

    areas: dict[str, Area]
    dual_regions: dict[str, tuple[str, ...]]
    multi_regions: dict[str, MultiRegion]
    prices_seen: str
    prices: dict[Pair, Span]
    dearer: dict[str, Decimal]
    classes: dict[str, StorageClass]

    def pair(self, area: str, other: str) -> Pair:
        """Return two areas in the order of the table."""
        order = list(self.areas)
        return (area, other) if order.index(area) <= order.index(other) else (other, area)


@cache
def load() -> Locations:
    """Return the table; the file is read once."""
    from decimal import Decimal  # noqa: PLC0415  # only to read the table
    from importlib import resources  # noqa: PLC0415  # only to read the table

    import yaml  # noqa: PLC0415  # 12 ms, and most commands never look at a bucket

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = resources.files("tpuctl.data").joinpath("locations.yaml").read_text("utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=loader)  # noqa: S506  # the C version of the safe loader
    return Locations(
        areas={name: Area(entry["title"], tuple(entry["prefixes"])) for name, entry in data["areas"].items()},
        dual_regions={name: tuple(regions) for name, regions in data["dual_regions"].items()},
        multi_regions={
            name: MultiRegion(entry["area"], tuple(entry["prefixes"]), tuple(entry.get("excluded", ())))
            for name, entry in data["multi_regions"].items()
        },
        prices_seen=str(data["prices_seen"]),
        prices={
            tuple(name.split("-", 1)): (Decimal(seen[0]), Decimal(seen[-1])) for name, seen in data["prices"].items()
        },
        dearer={region: Decimal(highest) for region, highest in data["dearer"].items()},
        classes={
            name: StorageClass(Decimal(entry["retrieval"]), entry["days"]) for name, entry in data["classes"].items()
        },
    )
