"""A Google Cloud project, its organization policies, quotas, TPU reservations and IAM policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpuctl.shapes import ANY, INTEGER, ListOf, MapOf, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

PROJECT = Shape(
    "cloudresourcemanager.v3 Project",
    {"name": str, "projectId": str, "state": str, "parent": str},
    required=("name", "projectId"),
)
_VALUES = Shape(
    "orgpolicy.v2 GoogleCloudOrgpolicyV2PolicySpecPolicyRuleStringValues",
    {"allowedValues": ListOf(str), "deniedValues": ListOf(str)},
)
_RULE = Shape(
    "orgpolicy.v2 GoogleCloudOrgpolicyV2PolicySpecPolicyRule",
    {"values": _VALUES, "enforce": bool, "allowAll": bool, "denyAll": bool, "condition": MapOf(ANY)},
)
ORG_POLICY = Shape(
    "orgpolicy.v2 GoogleCloudOrgpolicyV2Policy",
    {"name": str, "spec": Shape("orgpolicy.v2 GoogleCloudOrgpolicyV2PolicySpec", {"rules": ListOf(_RULE)})},
    required=("name",),
)
_QUOTA_BUCKET = Shape("serviceusage.v1beta1 QuotaBucket", {"effectiveLimit": INTEGER, "dimensions": MapOf(str)})
_LIMIT = Shape(
    "serviceusage.v1beta1 ConsumerQuotaLimit", {"metric": str, "unit": str, "quotaBuckets": ListOf(_QUOTA_BUCKET)}
)
QUOTA_METRIC = Shape(
    "serviceusage.v1beta1 ConsumerQuotaMetric",
    {"metric": str, "displayName": str, "consumerQuotaLimits": ListOf(_LIMIT)},
)
RESERVATION = Shape(
    "tpu.v2alpha1 Reservation",
    {
        "name": str,
        "state": str,
        "standard": Shape(
            "tpu.v2alpha1 Standard",
            {
                "capacityUnits": str,
                "resourceType": str,
                "size": INTEGER,
                "usage": Shape("tpu.v2alpha1 Usage", {"total": INTEGER}),
            },
        ),
    },
    required=("name",),
)


@dataclass(frozen=True, slots=True)
class Project:
    """A project: its id, number and state (ACTIVE, DELETE_REQUESTED, …).

    `parent` is its folder or organization, `folders/1` or `organizations/2`; empty if it has none [API field text].
    """

    id: str
    number: str
    state: str
    parent: str = ""

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Project:
        """Parse a Project [API cloudresourcemanager v3]. Raises `ShapeError`."""
        PROJECT.check(data)
        number = data["name"].rpartition("/")[2]
        return cls(data["projectId"], number, data.get("state", ""), data.get("parent", ""))

    @property
    def default_account(self) -> str:
        """The default service account of workers [documentation: the Compute Engine default account]."""
        return f"{self.number}-compute@developer.gserviceaccount.com"


@dataclass(frozen=True, slots=True)
class OrgPolicy:
    """The effective organization policy of a project, with inherited rules.

    A boolean constraint has `enforced`. A list constraint has `allows_all` or `denies_all`, else single `allowed` or `denied`
    values. `is_conditional`: some rule applies only to tagged resources.
    """

    constraint: str
    enforced: bool = False
    allows_all: bool = False
    denies_all: bool = False
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    is_conditional: bool = False

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> OrgPolicy:
        """Parse a Policy as returned by `getEffectivePolicy` [API orgpolicy v2]. Raises `ShapeError`."""
        ORG_POLICY.check(data)
        rules = data.get("spec", {}).get("rules", ())
        values = [rule.get("values", {}) for rule in rules]
        return cls(
            data["name"].rpartition("/")[2],
            enforced=any(rule.get("enforce") for rule in rules),
            allows_all=any(rule.get("allowAll") for rule in rules),
            denies_all=any(rule.get("denyAll") for rule in rules),
            allowed=tuple(text for value in values for text in value.get("allowedValues", ())),
            denied=tuple(text for value in values for text in value.get("deniedValues", ())),
            is_conditional=any(rule.get("condition") for rule in rules),
        )


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """One limit of a service for one location; `places` is empty for the default of all other locations.

    `value` is None if there is no limit; `unit` is like `1/{project}/{region}`; `name` is the name in the console.
    """

    metric: str
    name: str
    unit: str
    value: int | None
    places: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def all_from_api(cls, data: Mapping[str, Any]) -> tuple[QuotaLimit, ...]:
        """Parse a ConsumerQuotaMetric [API serviceusage v1beta1; an effective limit of -1 means none]. Raises `ShapeError`."""
        QUOTA_METRIC.check(data)
        return tuple(
            cls(
                limit.get("metric") or data.get("metric", ""),
                data.get("displayName", ""),
                limit.get("unit", ""),
                value if (value := int(bucket.get("effectiveLimit", 0))) >= 0 else None,
                bucket.get("dimensions", {}),
            )
            for limit in data.get("consumerQuotaLimits", ())
            for bucket in limit.get("quotaBuckets", ())
        )


@dataclass(frozen=True, slots=True)
class Reservation:
    """Reserved TPU capacity in a zone."""

    name: str
    zone: str
    raw: Mapping[str, Any]

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Reservation:
        """Parse a Reservation [API tpu v2alpha1]. Raises `ShapeError`."""
        RESERVATION.check(data)
        parts = data["name"].split("/")
        return cls(parts[-1], parts[3] if len(parts) > 3 else "", data)


_BINDING = Shape(
    "cloudresourcemanager.v3 Binding",
    {"role": str, "members": ListOf(str), "condition": Shape("cloudresourcemanager.v3 Expr", {"expression": str})},
    required=("role",),
)
IAM_POLICY = Shape("cloudresourcemanager.v3 Policy", {"bindings": ListOf(_BINDING), "etag": str})
TESTED_PERMISSIONS = Shape("cloudresourcemanager.v3 TestIamPermissionsResponse", {"permissions": ListOf(str)})


def read_permissions(data: Mapping[str, Any]) -> frozenset[str]:
    """Return the permissions in the answer of `testIamPermissions`. Raises `ShapeError`."""
    return frozenset(TESTED_PERMISSIONS.read(data).get("permissions") or ())


@dataclass(frozen=True, slots=True)
class IamBinding:
    """One role and its members. A `condition` is the expression that limits it."""

    role: str
    members: tuple[str, ...]
    condition: str | None = None


@dataclass(frozen=True, slots=True)
class IamPolicy:
    """A policy as returned by `getIamPolicy`; `etag` detects concurrent changes."""

    bindings: tuple[IamBinding, ...]
    etag: str = ""

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> IamPolicy:
        """Parse a Policy. Raises `ShapeError`."""
        IAM_POLICY.check(data)
        bindings = [
            IamBinding(
                entry["role"],
                tuple(entry.get("members", ())),
                entry.get("condition", {}).get("expression") or None,
            )
            for entry in data.get("bindings", ())
        ]
        return cls(tuple(bindings), data.get("etag", ""))
