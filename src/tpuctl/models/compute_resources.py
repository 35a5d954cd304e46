"""Compute Engine resources that TPU nodes need, with the fields that tpuctl reads: VMs, disks, networks, firewall, quotas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from tpuctl.decoding import By, decode, decoder_of, json_field, read_fields
from tpuctl.models.api_values import (
    ApiFloat,
    ApiInteger,
    ApiText,
    ApiTexts,
    LastSegment,
    LastSegments,
    OptionalText,
)


@dataclass(frozen=True, slots=True)
class _ServiceAccount:
    email: OptionalText = None
    scopes: ApiTexts = ()


@dataclass(frozen=True, slots=True)
class _Instance:
    name: ApiText
    zone: LastSegment = ""
    status: ApiText = ""
    accounts: tuple[_ServiceAccount, ...] = json_field("serviceAccounts", default=())


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A virtual machine. Without a service account it has no scopes."""

    name: str
    zone: str
    status: str
    account: str | None
    scopes: tuple[str, ...]

    @classmethod
    def from_json(cls, data: Any) -> ComputeInstance:
        """Parse an Instance; the zone without its path. Raises `ShapeError`."""
        instance = decode(_Instance, data)
        account = next(iter(instance.accounts), _ServiceAccount())
        return cls(instance.name, instance.zone, instance.status, account.email, account.scopes)


@dataclass(frozen=True, slots=True)
class PersistentDisk:
    """A persistent disk. `users` are the names of its instances; `kind` is its type, like `pd-balanced`."""

    name: ApiText
    zone: LastSegment = ""
    kind: LastSegment = json_field("type", default="")
    status: ApiText = ""
    users: LastSegments = ()


@dataclass(frozen=True, slots=True)
class ComputeNetwork:
    """A network. One in auto mode has a subnetwork of its name in every region.

    A legacy network has an address range of its own, and no subnetworks.
    """

    name: ApiText
    link: ApiText = json_field("selfLink", default="")
    is_auto: bool = json_field("autoCreateSubnetworks", default=False)
    is_legacy: Annotated[bool, By(lambda value: bool(decoder_of(ApiText)(value)))] = json_field(
        "IPv4Range", default=False
    )


@dataclass(frozen=True, slots=True)
class Subnetwork:
    """A subnetwork of one region."""

    name: ApiText
    region: LastSegment = ""
    network: LastSegment = ""
    private_google_access: bool = json_field("privateIpGoogleAccess", default=False)
    ip_range: ApiText | None = json_field("ipCidrRange", default=None)


@dataclass(frozen=True, slots=True)
class _Ports:
    protocol: ApiText = json_field("IPProtocol")
    ports: ApiTexts = ()


Protocols = Mapping[str, tuple[str, ...]]


def _protocols(parts: Any) -> Protocols:  # JSON
    protocols: dict[str, tuple[str, ...]] = {}
    for part in decoder_of(tuple[_Ports, ...])(parts):
        # A protocol may occur several times; an entry without ports means all ports [API field text].
        name = part.protocol.lower()
        earlier = protocols.get(name)
        protocols[name] = (*(earlier or ()), *part.ports) if part.ports and earlier != () else ()
    return protocols


@dataclass(frozen=True, slots=True)
class _Traffic:
    allowed: Annotated[Protocols, By(_protocols)] = field(default_factory=dict)
    denied: Annotated[Protocols, By(_protocols)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallRule:
    """A firewall rule. `protocols` are those that it allows, or denies if `denies`: protocol → ports, empty for all ports."""

    name: ApiText
    network: LastSegment = ""
    is_ingress: Annotated[bool, By(lambda value: decoder_of(ApiText)(value) == "INGRESS")] = json_field(
        "direction", default=True
    )
    is_disabled: bool = json_field("disabled", default=False)
    priority: ApiInteger = 1000
    source_ranges: ApiTexts = ()
    source_tags: ApiTexts = ()
    source_accounts: ApiTexts = json_field("sourceServiceAccounts", default=())
    target_tags: ApiTexts = ()
    target_accounts: ApiTexts = json_field("targetServiceAccounts", default=())
    denies: bool
    protocols: Protocols

    @classmethod
    def from_json(cls, data: Any) -> FirewallRule:
        """Parse a Firewall. Raises `ShapeError`."""
        fields = read_fields(cls, data, ("denies", "protocols"))
        traffic = decode(_Traffic, data)
        return cls(**fields, denies=bool(traffic.denied), protocols=traffic.denied or traffic.allowed)


@dataclass(frozen=True, slots=True)
class RegionQuota:
    """A quota of Compute Engine in one region, such as IN_USE_ADDRESSES."""

    metric: ApiText
    limit: ApiFloat = 0.0
    usage: ApiFloat = 0.0
