"""Suggestions for mistyped zones. The table of zones is incomplete: only the API knows whether a zone exists."""

from __future__ import annotations

import difflib
import re

from tpuctl import accelerators

# Names of Google's regions [Compute Engine documentation, regions and zones].
_REGION = re.compile(
    r"(?:africa|asia|australia|europe|me|northamerica|southamerica|us)-(?:central|(?:north|south)?(?:east|west)?)\d+"
)
_NEAR = 0.8  # `us-cental2-b` is, `mars-north1-a` is not


def near_zone(zone: str) -> str | None:
    """Return the zone with TPUs that was probably meant; None if the name is such a zone, or similar to none."""
    table = accelerators.load()
    known = {place for sizes in table.zones.values() for places in sizes.values() for place in places}
    known.add(table.research_zone)
    if zone in known:
        return None
    return next(iter(difflib.get_close_matches(zone, sorted(known), n=1, cutoff=_NEAR)), None)


def may_exist(zone: str) -> bool:
    """Return whether a name has the form of a Google zone: one that is missing in the table may be new."""
    return _REGION.fullmatch(zone.rsplit("-", 1)[0]) is not None
