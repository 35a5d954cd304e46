"""Compute Engine resources that TPU nodes need: instances, disks, networks, firewall rules, quotas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.names import short
from tpuctl.shapes import ListOf, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

_ACCOUNT = Shape("compute.v1 ServiceAccount", {"email": str, "scopes": ListOf(str)})
MACHINE = Shape(
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
class Machine:
    """A virtual machine. Without a service account it has no scopes."""

    name: str
    zone: str
    status: str
    account: str | None
    scopes: tuple[str, ...]

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Machine:
        """Parse an Instance; the zone without its path. Raises `ShapeError`."""
        MACHINE.check(data)
        account = next(iter(data.get("serviceAccounts") or ()), dict[str, Any]())
        return cls(
            str(data["name"]),
            short(str(data.get("zone") or "")),
            str(data.get("status") or ""),
            account.get("email") or None,
            tuple(map(str, account.get("scopes") or ())),
        )


@dataclass(frozen=True, slots=True)
class Disk:
    """A persistent disk. `users` are the names of its instances; `kind` is its type, like `pd-balanced`."""

    name: str
    zone: str
    kind: str
    status: str
    users: tuple[str, ...]

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Disk:
        """Parse a Disk; zone, type and users without their paths. Raises `ShapeError`."""
        DISK.check(data)
        return cls(
            str(data["name"]),
            short(str(data.get("zone") or "")),
            short(str(data.get("type") or "")),
            str(data.get("status") or ""),
            tuple(short(str(user)) for user in data.get("users") or ()),
        )
