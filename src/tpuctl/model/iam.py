"""IAM policies of projects and buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.shapes import ListOf, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

_BINDING = Shape(
    "cloudresourcemanager.v3 Binding",
    {"role": str, "members": ListOf(str), "condition": Shape("cloudresourcemanager.v3 Expr", {"expression": str})},
    required=("role",),
)
POLICY = Shape("cloudresourcemanager.v3 Policy", {"bindings": ListOf(_BINDING), "etag": str})
PERMISSIONS = Shape("cloudresourcemanager.v3 TestIamPermissionsResponse", {"permissions": ListOf(str)})


@dataclass(frozen=True, slots=True)
class Binding:
    """One role and its members. A `condition` is the expression that limits it."""

    role: str
    members: tuple[str, ...]
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class IamPolicy:
    """A policy as returned by `getIamPolicy`; `etag` detects concurrent changes."""

    bindings: tuple[Binding, ...]
    etag: str = ""

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> IamPolicy:
        """Parse a Policy. Raises `ShapeError`."""
        POLICY.check(data)
        bindings = [
            Binding(
                str(entry["role"]),
                tuple(map(str, entry.get("members") or ())),
                str((entry.get("condition") or {}).get("expression") or "") or None,
            )
            for entry in data.get("bindings") or ()
        ]
        return cls(tuple(bindings), str(data.get("etag") or ""))
