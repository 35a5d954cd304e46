"""Where a bucket is in relation to a TPU, and what reading it costs. Pure.

`table` holds the facts (`data/locations.yaml`), `places` the distance between bucket and TPU, `prices` the cost of
reading.
"""

from __future__ import annotations

from tpuctl.colocation.places import Relation, area_of, best_locations, is_colocated, regions_within, relation, spans
from tpuctl.colocation.prices import Price, own_prices, price, retrieval

__all__ = [
    "Price",
    "Relation",
    "area_of",
    "best_locations",
    "is_colocated",
    "own_prices",
    "price",
    "regions_within",
    "relation",
    "retrieval",
    "spans",
]
