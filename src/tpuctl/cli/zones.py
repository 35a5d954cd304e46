"""Which zone was probably meant. Only a hint: the table of zones is not complete, and the service has the last word."""

from __future__ import annotations

import difflib
import re

from tpuctl import accelerators

# What the names of Google's regions are made of [Compute Engine documentation, regions and zones].
_REGION = re.compile(
    r"(?:africa|asia|australia|europe|me|northamerica|southamerica|us)-(?:central|(?:north|south)?(?:east|west)?)\d+"
)
_NEAR = 0.8  # `us-cental2-b` is, `mars-north1-a` is not


def near_zone(zone: str) -> str | None:
    """Return the zone with TPUs that a name was probably meant to be; nothing where it is one, or near to none."""
    table = accelerators.load()
    known = {place for sizes in table.zones.values() for places in sizes.values() for place in places}
    known.add(table.research_zone)
    if zone in known:
        return None
    return next(iter(difflib.get_close_matches(zone, sorted(known), n=1, cutoff=_NEAR)), None)


def may_exist(zone: str) -> bool:
    """Tell whether a zone is called as Google calls them: then one that the table lacks may well be new."""
    return _REGION.fullmatch(zone.rsplit("-", 1)[0]) is not None
