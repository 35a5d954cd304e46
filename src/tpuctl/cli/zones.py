"""Which zone was probably meant. Only a hint: the table of zones is not complete, and the service has the last word."""

from __future__ import annotations

from tpuctl import accelerators
from tpuctl.names import nearest, region_of


def near_zone(zone: str) -> str | None:
    """Return the zone with TPUs that a name was probably meant to be; nothing where it is one, or near to none."""
    known = _known()
    return None if zone in known else nearest(zone, sorted(known))


def is_in_known_region(zone: str) -> bool:
    """Tell whether TPUs are offered in the zone's region: then a zone that the table lacks may well be new."""
    return region_of(zone) in map(region_of, _known())


def _known() -> frozenset[str]:
    table = accelerators.load()
    offered = (zone for sizes in table.zones.values() for zones in sizes.values() for zone in zones)
    return frozenset((*offered, table.research_zone))
