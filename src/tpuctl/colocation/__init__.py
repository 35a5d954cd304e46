"""Where a bucket is in relation to a TPU, and what that costs.

`table` holds the facts (package data `locations.yaml`), `places` tells how near a bucket is and where one would be near,
`prices` what reading it costs. Pure: nothing is asked, nothing is created.
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
