"""Compute Engine resources that TPU nodes need, with the fields that tpuctl reads: VMs, disks, networks, firewall, quotas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.names import last_segment
from tpuctl.shapes import INTEGER, NUMBER, ListOf, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

_ACCOUNT = Shape("compute.v1 ServiceAccount", {"email": str, "scopes": ListOf(str)})
INSTANCE = Shape(
    "compute.v1 Instance",
    {"name": str, "zone": str, "status": str, "serviceAccounts": ListOf(_ACCOUNT)},
    required=("name",),
)
DISK = Shape(
    "compute.v1 Disk",
    {"name": str, "zone": str, "type": str, "status": str, "users": ListOf(str)},
    required=("name",),
)


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A virtual machine. Without a service account it has no scopes."""

    name: str
    zone: str
    status: str
    account: str | None
    scopes: tuple[str, ...]

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> ComputeInstance:
        """Parse an Instance; the zone without its path. Raises `ShapeError`."""
        INSTANCE.check(data)
        account = next(iter(data.get("serviceAccounts", ())), dict[str, Any]())
        return cls(
            data["name"],
            last_segment(data.get("zone", "")),
            data.get("status", ""),
            account.get("email") or None,
            tuple(account.get("scopes", ())),
        )


@dataclass(frozen=True, slots=True)
class PersistentDisk:
    """A persistent disk. `users` are the names of its instances; `kind` is its type, like `pd-balanced`."""

    name: str
    zone: str
    kind: str
    status: str
    users: tuple[str, ...]

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> PersistentDisk:
        """Parse a Disk; zone, type and users without their paths. Raises `ShapeError`."""
        DISK.check(data)
        return cls(
            data["name"],
            last_segment(data.get("zone", "")),
            last_segment(data.get("type", "")),
            data.get("status", ""),
            tuple(map(last_segment, data.get("users", ()))),
        )


NETWORK = Shape(
    "compute.v1 Network",
    {"name": str, "selfLink": str, "autoCreateSubnetworks": bool, "IPv4Range": str},
    required=("name",),
)
SUBNETWORK = Shape(
    "compute.v1 Subnetwork",
    {"name": str, "region": str, "network": str, "privateIpGoogleAccess": bool, "ipCidrRange": str},
    required=("name",),
)
_PROTOCOL = Shape("", {"IPProtocol": str, "ports": ListOf(str)}, required=("IPProtocol",))
FIREWALL = Shape(
    "compute.v1 Firewall",
    {
        "name": str,
        "network": str,
        "direction": str,
        "disabled": bool,
        "priority": INTEGER,
        "sourceRanges": ListOf(str),
        "sourceTags": ListOf(str),
        "sourceServiceAccounts": ListOf(str),
        "targetTags": ListOf(str),
        "targetServiceAccounts": ListOf(str),
        "allowed": ListOf(_PROTOCOL),
        "denied": ListOf(_PROTOCOL),
    },
    required=("name",),
)
REGION_QUOTA = Shape("compute.v1 Quota", {"metric": str, "limit": NUMBER, "usage": NUMBER}, required=("metric",))


@dataclass(frozen=True, slots=True)
class ComputeNetwork:
    """A network. One in auto mode has a subnetwork of its name in every region."""

    name: str
    link: str
    is_auto: bool
    is_legacy: bool

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> ComputeNetwork:
        """Parse a Network; one with its own address range is a legacy network, without subnetworks. Raises `ShapeError`."""
        NETWORK.check(data)
        is_legacy = bool(data.get("IPv4Range"))
        return cls(data["name"], data.get("selfLink", ""), data.get("autoCreateSubnetworks", False), is_legacy)


@dataclass(frozen=True, slots=True)
class Subnetwork:
    """A subnetwork of one region."""

    name: str
    region: str
    network: str
    private_google_access: bool
    ip_range: str | None = None

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Subnetwork:
        """Parse a Subnetwork; region and network without their paths. Raises `ShapeError`."""
        SUBNETWORK.check(data)
        return cls(
            data["name"],
            last_segment(data.get("region", "")),
            last_segment(data.get("network", "")),
            data.get("privateIpGoogleAccess", False),
            data.get("ipCidrRange"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallRule:
    """A firewall rule. `protocols` are those that it allows, or denies if `denies`: protocol → ports, empty for all ports."""

    name: str
    network: str
    is_ingress: bool
    is_disabled: bool
    denies: bool
    priority: int
    source_ranges: tuple[str, ...]
    source_tags: tuple[str, ...]
    source_accounts: tuple[str, ...]
    target_tags: tuple[str, ...]
    target_accounts: tuple[str, ...]
    protocols: Mapping[str, tuple[str, ...]]

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> FirewallRule:
        """Parse a Firewall; the network without its path. Raises `ShapeError`."""
        FIREWALL.check(data)
        protocols: dict[str, tuple[str, ...]] = {}
        for part in data.get("denied") or data.get("allowed", ()):
            # A protocol may occur several times; an entry without ports means all ports [API field text].
            name, ports = part["IPProtocol"].lower(), tuple(part.get("ports", ()))
            earlier = protocols.get(name)
            protocols[name] = (*(earlier or ()), *ports) if ports and earlier != () else ()
        return cls(
            name=data["name"],
            network=last_segment(data.get("network", "")),
            is_ingress=data.get("direction", "INGRESS") == "INGRESS",
            is_disabled=data.get("disabled", False),
            denies=bool(data.get("denied")),
            priority=int(data.get("priority", 1000)),
            source_ranges=tuple(data.get("sourceRanges", ())),
            source_tags=tuple(data.get("sourceTags", ())),
            source_accounts=tuple(data.get("sourceServiceAccounts", ())),
            target_tags=tuple(data.get("targetTags", ())),
            target_accounts=tuple(data.get("targetServiceAccounts", ())),
            protocols=protocols,
        )


@dataclass(frozen=True, slots=True)
class RegionQuota:
    """A quota of Compute Engine in one region, such as IN_USE_ADDRESSES."""

    metric: str
    limit: float
    usage: float

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> RegionQuota:
        """Parse a Quota. Raises `ShapeError`."""
        REGION_QUOTA.check(data)
        return cls(data["metric"], float(data.get("limit") or 0), float(data.get("usage") or 0))
