"""Persistent disks and virtual machines. Seeds add them: the API does not create them here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog
from tpuctl.sandbox.compute import places
from tpuctl.sandbox.compute.documents import BASE, aggregated, identity, link, listed, not_found

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

DISK, INSTANCE = "compute.disk", "compute.instance"
# Documentation: the default scopes of a machine.
_SCOPES = [
    f"https://www.googleapis.com/auth/{scope}"
    for scope in (
        *("devstorage.read_only", "logging.write", "monitoring.write", "service.management.readonly"),
        *("servicecontrol", "trace.append"),
    )
]


def add_disk(session: Session, project: str, zone: str, name: str, *, fields: Json) -> Json:
    """Store a disk and return it."""
    zone = zone.rpartition("/")[2]
    document = {
        **identity(session, "disk", f"projects/{project}/zones/{zone}/disks/{name}"),
        "zone": f"{BASE}projects/{project}/zones/{zone}",
        "status": "READY",
        "sizeGb": "100",
        "physicalBlockSizeBytes": "4096",
        "labelFingerprint": "42WmSpB8rSM=",
        **fields,
        "type": link(project, f"zones/{zone}/diskTypes", str(fields.get("type", "pd-balanced"))),
    }
    if "users" in fields:
        document["users"] = [link(project, f"zones/{zone}/instances", user) for user in fields["users"]]
    session.resources.put(DISK, project, f"{zone}/{name}", document)
    return document


def add_instance(session: Session, project: str, zone: str, name: str, *, fields: Json) -> Json:
    """Store a virtual machine and return it."""
    zone = zone.rpartition("/")[2]
    region = places.region_of(zone)
    network = {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "network": f"{BASE}projects/{project}/global/networks/default",
        "subnetwork": f"{BASE}projects/{project}/regions/{region}/subnetworks/default",
        "networkIP": "10.128.15.2",
        "stackType": "IPV4_ONLY",
    }
    email = f"{catalog.project_number(project)}-compute@developer.gserviceaccount.com"
    document = {
        **identity(session, "instance", f"projects/{project}/zones/{zone}/instances/{name}"),
        "zone": f"{BASE}projects/{project}/zones/{zone}",
        "status": "RUNNING",
        "networkInterfaces": [network],
        "serviceAccounts": [{"email": email, "scopes": _SCOPES}],
        "scheduling": {"onHostMaintenance": "MIGRATE", "automaticRestart": True, "preemptible": False},
        "metadata": {"kind": "compute#metadata", "fingerprint": "AAAAAAAAAAA="},
        "tags": {"fingerprint": "42WmSpB8rSM="},
        "labelFingerprint": "42WmSpB8rSM=",
        **fields,
        "machineType": link(project, f"zones/{zone}/machineTypes", str(fields.get("machineType", "n1-standard-2"))),
    }
    session.resources.put(INSTANCE, project, f"{zone}/{name}", document)
    return document


def get_disk(session: Session, call: Call) -> Json:
    """Answer disks.get."""
    return _get(session, call, DISK, "disk")


def list_disks(session: Session, call: Call) -> Json:
    """Answer disks.list."""
    return _list(session, call, DISK, "disk")


def get_instance(session: Session, call: Call) -> Json:
    """Answer instances.get."""
    return _get(session, call, INSTANCE, "instance")


def list_instances(session: Session, call: Call) -> Json:
    """Answer instances.list."""
    return _list(session, call, INSTANCE, "instance")


def aggregate_disks(session: Session, call: Call) -> Json:
    """Answer disks.aggregatedList."""
    return _aggregate(session, call, DISK, "disk")


def aggregate_instances(session: Session, call: Call) -> Json:
    """Answer instances.aggregatedList."""
    return _aggregate(session, call, INSTANCE, "instance")


def _aggregate(session: Session, call: Call, kind: str, word: str) -> Json:
    kept = session.resources.list_records(kind, str(call.params["project"]))
    found = [(f"zones/{entry.name.partition('/')[0]}", entry.document) for entry in kept]
    scopes = [f"zones/{zone}" for zone in catalog.places()]
    return aggregated(call, f"{word}AggregatedList", f"{word}s", entries=found, scopes=scopes)


def _get(session: Session, call: Call, kind: str, word: str) -> Json:
    project, zone, name = str(call.params["project"]), str(call.params["zone"]), str(call.params[word])
    places.check_zone(zone)
    found = session.resources.get(kind, project, f"{zone}/{name}")
    if found is None:
        raise not_found(f"projects/{project}/zones/{zone}/{word}s/{name}")
    return found


def _list(session: Session, call: Call, kind: str, word: str) -> Json:
    project, zone = str(call.params["project"]), str(call.params["zone"])
    places.check_zone(zone)
    found = [entry.document for entry in session.resources.list_records(kind, project, prefix=f"{zone}/")]
    return listed(call, f"{word}List", f"projects/{project}/zones/{zone}/{word}s", found)
