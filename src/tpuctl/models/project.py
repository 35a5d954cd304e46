"""A Google Cloud project, its organization policies, quotas, TPU reservations and IAM policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from tpuctl.decoding import By, decode, decoder_of, json_field
from tpuctl.models.api_values import (
    ApiInteger,
    ApiObject,
    ApiPairs,
    ApiText,
    ApiTexts,
    LastSegment,
    OptionalText,
)
from tpuctl.names import last_segment


@dataclass(frozen=True, slots=True)
class Project:
    """A project: its id, number and state (ACTIVE, DELETE_REQUESTED, …) [API cloudresourcemanager v3].

    `parent` is its folder or organization, `folders/1` or `organizations/2`; empty if it has none [API field text].
    """

    id: ApiText = json_field("projectId")
    number: LastSegment = json_field("name")
    state: ApiText = ""
    parent: ApiText = ""

    @property
    def default_account(self) -> str:
        """The default service account of workers [documentation: the Compute Engine default account]."""
        return f"{self.number}-compute@developer.gserviceaccount.com"


@dataclass(frozen=True, slots=True)
class _PolicyRule:
    enforce: bool = False
    allow_all: bool = False
    deny_all: bool = False
    allowed: ApiTexts = json_field("values.allowedValues", default=())
    denied: ApiTexts = json_field("values.deniedValues", default=())
    condition: ApiObject | None = None


@dataclass(frozen=True, slots=True)
class _Policy:
    constraint: LastSegment = json_field("name")
    rules: tuple[_PolicyRule, ...] = json_field("spec.rules", default=())


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
    def from_json(cls, data: Any) -> OrgPolicy:
        """Parse a Policy as returned by `getEffectivePolicy` [API orgpolicy v2]. Raises `ShapeError`."""
        policy = decode(_Policy, data)
        return cls(
            policy.constraint,
            enforced=any(rule.enforce for rule in policy.rules),
            allows_all=any(rule.allow_all for rule in policy.rules),
            denies_all=any(rule.deny_all for rule in policy.rules),
            allowed=tuple(text for rule in policy.rules for text in rule.allowed),
            denied=tuple(text for rule in policy.rules for text in rule.denied),
            is_conditional=any(rule.condition for rule in policy.rules),
        )


@dataclass(frozen=True, slots=True)
class _QuotaBucket:
    limit: ApiInteger = json_field("effectiveLimit", default=0)
    places: ApiPairs | None = json_field("dimensions", default=None)


@dataclass(frozen=True, slots=True)
class _ConsumerLimit:
    metric: ApiText = ""
    unit: ApiText = ""
    buckets: tuple[_QuotaBucket, ...] = json_field("quotaBuckets", default=())


@dataclass(frozen=True, slots=True)
class _QuotaMetric:
    metric: ApiText = ""
    name: ApiText = json_field("displayName", default="")
    limits: tuple[_ConsumerLimit, ...] = json_field("consumerQuotaLimits", default=())


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
        metric = decode(_QuotaMetric, data)
        return tuple(
            cls(
                limit.metric or metric.metric,
                metric.name,
                limit.unit,
                bucket.limit if bucket.limit >= 0 else None,
                bucket.places or {},
            )
            for limit in metric.limits
            for bucket in limit.buckets
        )


@dataclass(frozen=True, slots=True)
class Reservation:
    """Reserved TPU capacity in a zone [API v2alpha1, the only version that has it]."""

    full_name: ApiText = json_field("name")
    state: ApiText = ""
    # CHIPS or CORES, in which its size and usage are counted.
    capacity_units: ApiText = json_field("standard.capacityUnits", default="")
    resource_type: ApiText = json_field("standard.resourceType", default="")
    size: ApiInteger | None = json_field("standard.size", default=None)
    used: ApiInteger = json_field("standard.usage.total", default=0)

    @property
    def name(self) -> str:
        """Its name within project and zone."""
        return last_segment(self.full_name)

    @property
    def zone(self) -> str:
        """Its zone; empty if the API gives no full name."""
        parts = self.full_name.split("/")
        return parts[3] if len(parts) > 3 else ""


@dataclass(frozen=True, slots=True)
class GrantedPermissions:
    """The answer of `testIamPermissions`: those of the permissions that the caller has."""

    permissions: Annotated[frozenset[str], By(lambda value: frozenset(decoder_of(ApiTexts)(value)))] = frozenset()


@dataclass(frozen=True, slots=True)
class IamBinding:
    """One role and its members. A `condition` is the expression that limits it."""

    role: ApiText
    members: ApiTexts = ()
    condition: OptionalText = json_field("condition.expression", default=None)


@dataclass(frozen=True, slots=True)
class IamPolicy:
    """A policy as returned by `getIamPolicy`; `etag` detects concurrent changes."""

    bindings: tuple[IamBinding, ...] = ()
    etag: ApiText = ""
