"""Zones and regions, and the quotas of a region."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog
from tpuctl.sandbox.compute.documents import BASE, invalid_value, listed, not_found, number

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

QUOTA = "compute.quota"
# Invented: high enough not to matter unless a seed sets them.
_LIMITS = {
    "CPUS": 2400.0,
    "DISKS_TOTAL_GB": 102400.0,
    "INSTANCES": 6000.0,
    "IN_USE_ADDRESSES": 575.0,
    "PREEMPTIBLE_CPUS": 0.0,
    "SSD_TOTAL_GB": 40960.0,
    "STATIC_ADDRESSES": 8.0,
}
_WITHOUT_ADDRESS = frozenset({"STOPPED", "PREEMPTED", "TERMINATED"})  # unverified


def regions() -> tuple[str, ...]:
    """Return the regions of all zones."""
    return tuple(sorted({region_of(zone) for zone in catalog.places()}))


def region_of(zone: str) -> str:
    """Return the region of a zone."""
    return zone.rpartition("-")[0]


def check_zone(zone: str) -> None:
    """Raise `ApiError` 400 for a zone that does not exist (words unverified)."""
    if zone not in catalog.places():
        raise invalid_value("zone", zone, "Unknown zone.")


def check_region(region: str) -> None:
    """Raise `ApiError` 400 for a region that does not exist (words unverified)."""
    if region not in regions():
        raise invalid_value("region", region, "Unknown region.")


def set_quota(session: Session, project: str, region: str, *, metric: str, limit: float, usage: float | None) -> None:
    """Store a quota of a region; without a usage it is counted where the sandbox can, else 0."""
    session.resources.put(QUOTA, project, f"{region}/{metric}", {"limit": limit, "usage": usage})


def get_zone(session: Session, call: Call) -> Json:
    """Answer zones.get."""
    del session
    project, zone = str(call.params["project"]), str(call.params["zone"])
    if zone not in catalog.places():
        raise not_found(f"projects/{project}/zones/{zone}")
    return _zone(project, zone)


def list_zones(session: Session, call: Call) -> Json:
    """Answer zones.list: zones with TPUs and some without."""
    del session
    project = str(call.params["project"])
    zones = [_zone(project, zone) for zone in catalog.places()]
    return listed(call, "zoneList", f"projects/{project}/zones", zones)


def get_region(session: Session, call: Call) -> Json:
    """Answer regions.get, with quotas."""
    project, region = str(call.params["project"]), str(call.params["region"])
    if region not in regions():
        raise not_found(f"projects/{project}/regions/{region}")
    return _region(session, project, region)


def list_regions(session: Session, call: Call) -> Json:
    """Answer regions.list, with quotas."""
    project = str(call.params["project"])
    found = [_region(session, project, region) for region in regions()]
    return listed(call, "regionList", f"projects/{project}/regions", found)


def _zone(project: str, zone: str) -> Json:
    path = f"projects/{project}/zones/{zone}"
    return {
        "kind": "compute#zone",
        "id": number(f"zones/{zone}"),
        "name": zone,
        "description": zone,
        "status": "UP",
        "region": f"{BASE}projects/{project}/regions/{region_of(zone)}",
        "selfLink": BASE + path,
    }


def _region(session: Session, project: str, region: str) -> Json:
    path = f"projects/{project}/regions/{region}"
    zones = [zone for zone in catalog.places() if region_of(zone) == region]
    stored = {
        found.name.partition("/")[2]: found.document
        for found in session.resources.list_records(QUOTA, project, prefix=f"{region}/")
    }
    quotas = []
    for metric in sorted({*_LIMITS, *stored}):
        quota = stored.get(metric, {})
        usage = quota.get("usage")
        if usage is None:
            usage = _addresses(session, project, region) if metric == "IN_USE_ADDRESSES" else 0
        limit = float(quota.get("limit", _LIMITS.get(metric, 0)))
        quotas.append({"metric": metric, "limit": limit, "usage": float(usage)})
    return {
        "kind": "compute#region",
        "id": number(f"regions/{region}"),
        "name": region,
        "description": region,
        "status": "UP",
        "zones": [f"{BASE}projects/{project}/zones/{zone}" for zone in zones],
        "quotas": quotas,
        "selfLink": BASE + path,
    }


def _addresses(session: Session, project: str, region: str) -> int:
    """Count the external addresses of TPU workers in a region (that they count is unverified)."""
    count = 0
    for node in session.nodes(project):
        phase = node.phase(session.now)
        network = node.document.get("networkConfig") or {}
        has_address = network.get("enableExternalIps") and phase and phase.state not in _WITHOUT_ADDRESS
        count += node.workers if has_address and region_of(node.zone) == region else 0
    return count
