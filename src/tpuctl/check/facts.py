"""What is checked, a node and what it works with, and all facts that the rules read about it.

A fact is `Known`, `Absent` or `Unknown`; one that was not requested is None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

from tpuctl.accelerators import AcceleratorType, find_accelerator_type
from tpuctl.errors import InvalidInputError
from tpuctl.names import BucketPath, NodeName, last_segment, suggest_bucket_url
from tpuctl.prices import Price, hourly_price

if TYPE_CHECKING:
    from tpuctl.models.bucket import AnywhereCache, Bucket, BucketContents, BucketPlacement
    from tpuctl.models.compute_resources import (
        ComputeInstance,
        ComputeNetwork,
        FirewallRule,
        PersistentDisk,
        RegionQuota,
        Subnetwork,
    )
    from tpuctl.models.grants import Grant
    from tpuctl.models.node import Node
    from tpuctl.models.project import IamPolicy, OrgPolicy, Project, QuotaLimit, Reservation
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import NodeSpec

# Tested for the caller if a policy cannot be read.
OBJECT_PERMISSIONS = ("storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list")
TPU_API, COMPUTE_API, STORAGE_API = "tpu.googleapis.com", "compute.googleapis.com", "storage.googleapis.com"
IAP_API = "iap.googleapis.com"
# The error ids of a request without a billing project, and of one for a zone that does not exist or is closed to the project:
# the service does not distinguish the two.
_REQUESTER_PAYS_ERROR = "storage-requester-pays"
_NO_ZONE_ERROR = "iam-location-policy"
EXTERNAL_IPS, OS_LOGIN, SHIELDED_VM = (
    "compute.vmExternalIpAccess",
    "compute.requireOsLogin",
    "compute.requireShieldedVm",
)


@dataclass(frozen=True, slots=True)
class ProjectResources:
    """The nodes and queued resources of all zones, and the zones that did not answer."""

    nodes: tuple[Node, ...] = ()
    requests: tuple[QueuedResource, ...] = ()
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFacts:
    """The facts about one bucket of the node.

    `layout` is requested if the bucket itself cannot be read. `caller` has those of OBJECT_PERMISSIONS that the
    *caller* has; it is requested if `policy` cannot be read. `contents` lists what is below the prefix. `caches` are
    requested if the bucket is not in the TPU's region.
    """

    use: BucketUse
    bucket: Fact[Bucket]
    layout: Fact[BucketPlacement] | None = None
    policy: Fact[IamPolicy] | None = None
    caller: Fact[frozenset[str]] | None = None
    contents: Fact[BucketContents] | None = None
    caches: Fact[tuple[AnywhereCache, ...]] | None = None

    @property
    def is_unpaid(self) -> bool:
        """Return whether the bucket could not be read because it is requester-pays and no project pays."""
        return isinstance(self.bucket, Unknown) and self.bucket.error_id == _REQUESTER_PAYS_ERROR

    @property
    def placement(self) -> BucketPlacement | None:
        """The location of the bucket, from the bucket itself or from its layout."""
        bucket = value_or_none(self.bucket)
        return bucket.placement if bucket else value_or_none(self.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFacts:
    """Everything that was gathered about one node, and when.

    `types` and `versions` are those of the zone. `offers` has the types of every zone; it is requested if the zone
    lacks the type, or if a bucket is elsewhere. `roles` has the permissions of each role that a policy names. A fact
    that no rule needs is not requested: `network`, for example, is None if the node names only the link of a
    subnetwork.
    """

    now: datetime
    wanted: WantedNode
    project: Fact[Project]
    types: Fact[tuple[str, ...]] | None = None
    versions: Fact[tuple[str, ...]] | None = None
    offers: Fact[Mapping[str, tuple[str, ...]]] | None = None
    resources: Fact[ProjectResources] | None = None
    quotas: Fact[tuple[QuotaLimit, ...]] | None = None
    region_quotas: Fact[Mapping[str, RegionQuota]] | None = None
    services: Fact[Mapping[str, bool]] | None = None
    billing: Fact[bool] | None = None
    org_policies: Mapping[str, Fact[OrgPolicy]] = field(default_factory=dict)
    network: Fact[ComputeNetwork] | None = None
    subnetwork: Fact[Subnetwork] | None = None
    firewalls: Fact[tuple[FirewallRule, ...]] | None = None
    machine: Fact[ComputeInstance] | None = None
    disks: Mapping[str, Fact[PersistentDisk]] = field(default_factory=dict)
    reservations: Fact[tuple[Reservation, ...]] | None = None
    project_policy: Fact[IamPolicy] | None = None
    roles: Mapping[str, Fact[frozenset[str]]] = field(default_factory=dict)
    buckets: tuple[BucketFacts, ...] = ()

    @property
    def is_without_zone(self) -> bool:
        """Return whether the project cannot use the zone: the zone does not exist, or the project has no access to it."""
        return isinstance(self.types, Unknown) and self.types.error_id == _NO_ZONE_ERROR

    @property
    def account(self) -> str | None:
        """The account that the workers run as; None if it is the default account and the project number is unknown."""
        project = value_or_none(self.project)
        return self.wanted.spec.service_account or (project.default_account if project else None)


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Known(Generic[T_co]):
    """The API returned a value."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Absent:
    """The API said that the resource does not exist."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The value could not be read.

    `permission` is the missing permission, if that is the cause. `is_passing`: the same request may succeed later, as
    after a timeout or an outage. `error_id` is the id of the error in the message catalogue.
    """

    reason: str
    permission: str | None = None
    is_passing: bool = False
    error_id: str | None = None


# Code that takes a fact must handle all three cases.
Fact = Known[T_co] | Absent | Unknown


def value_or_none(fact: Fact[T_co] | None) -> T_co | None:
    """Return the value; None if it is absent or unknown. Use it only if the difference does not matter."""
    return fact.value if isinstance(fact, Known) else None


class Purpose(StrEnum):
    """What the node is for. Serving reads; training also writes checkpoints."""

    TRAIN = "train"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class BucketUse:
    """A bucket that the node uses, below an optional prefix."""

    bucket: str
    prefix: str = ""
    reads: bool = True
    writes: bool = True

    @property
    def url(self) -> str:
        """`gs://bucket/prefix`."""
        return f"gs://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """What the user says about every node of a command: what it works with, and what may be billed.

    `dataset_size` is in bytes. `billing_project` pays for requests to requester-pays buckets. `iap`: ssh goes through
    Identity-Aware Proxy; `internal_ip`: ssh comes from within the network. `egress_prices` are the user's own, in
    dollars per GiB by pair of areas. `max_price` is the most that a node may cost, `budget` the most that all nodes of the
    project may cost together, in dollars per hour; None is no limit.
    """

    purpose: Purpose = Purpose.TRAIN
    buckets: tuple[BucketUse, ...] = ()
    machine: str | None = None
    dataset_size: int | None = None
    billing_project: str | None = None
    iap: bool = False
    internal_ip: bool = False
    grants: tuple[Grant, ...] = ()
    no_billing_outside_grants: bool = False
    max_price: Decimal | None = None
    budget: Decimal | None = None
    allow_unknown_price: bool = False
    egress_prices: Mapping[str, str] = field(default_factory=dict)

    def hourly_price(self, accelerator_type: str, zone: str, tier: str | None) -> Price:
        """Return the price of a node for an hour."""
        return hourly_price(accelerator_type, zone, tier)

    def wanted(
        self,
        project: str,
        zone: str,
        spec: NodeSpec,
        *,
        name: NodeName | None = None,
        node: Node | None = None,
        replaces: Node | None = None,
        creates: bool = True,
        siblings: tuple[NodeSpec, ...] = (),
    ) -> WantedNode:
        """Return the check target for one node."""
        return WantedNode(
            project=project,
            zone=zone,
            spec=spec,
            name=name,
            node=node,
            replaces=replaces,
            creates=creates,
            siblings=siblings,
            **{entry.name: getattr(self, entry.name) for entry in fields(CheckSettings)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedNode(CheckSettings):
    """One node to check, and what it works with.

    `creates`: the node does not exist yet, so that quota, offers and the like matter. `replaces` is the node that will
    be deleted first and frees its quota. `siblings` are the other nodes that the same command creates.
    """

    project: str
    zone: str
    spec: NodeSpec
    name: NodeName | None = None
    node: Node | None = None
    replaces: Node | None = None
    creates: bool = True
    siblings: tuple[NodeSpec, ...] = ()

    @property
    def region(self) -> str:
        """The region of the zone."""
        return self.zone.rpartition("-")[0]

    @property
    def accelerator(self) -> AcceleratorType | None:
        """The accelerator type; None if the table lacks it."""
        return find_accelerator_type(self.spec.accelerator_type)

    @property
    def what(self) -> str:
        """The node as text: its name, else its type."""
        return f"`{self.name.node_id}`" if self.name else f"a {self.spec.accelerator_type}"


def parse_bucket_use(text: str, *, reads: bool = True, writes: bool = True) -> BucketUse:
    """Return the bucket and prefix that `gs://BUCKET/PREFIX` names, without a trailing slash.

    Raises `InvalidInputError` with the value; for a local path with the reason why it cannot be used.
    """
    scheme, separator, _ = text.partition("://")
    if separator and scheme != "gs" and not suggest_bucket_url(text):
        hint = "copy it first: `gcloud storage cp -r` reads `s3://` too" if scheme in {"s3", "s3a"} else _GS_HINT
        raise InvalidInputError(f"`{text}` is not in Cloud Storage; a TPU reads `gs://` buckets", hint=hint)
    if not separator and not suggest_bucket_url(text):
        if "/" in text or text.startswith((".", "~")):
            raise InvalidInputError(
                f"`{text}` is a path on this machine; the workers of a TPU cannot read it",
                hint="copy them to a bucket (`gcloud storage cp -r`) or to the workers (`tpuctl scp`, `tpuctl sync`)",
            )
        raise InvalidInputError(
            f"`{text}` is not a bucket", hint=_GS_HINT if text in {"", "gs:"} else f"did you mean `gs://{text}`?"
        )
    if text.endswith("//") and text != "gs://":
        raise InvalidInputError(f"`{text}` is not a valid location: it ends with several slashes", hint=_GS_HINT)
    path = BucketPath.parse(text)
    return BucketUse(path.bucket, path.prefix, reads=reads, writes=writes)


_GS_HINT = "write it like `gs://BUCKET` or `gs://BUCKET/PREFIX`"


_PROJECT_IN_LINK = re.compile(r"(?:.*/)?projects/([^/]+)/.*")
_REGION_IN_LINK = re.compile(r"(?:.*/)?regions/([^/]+)/.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInterface:
    """The first network interface of the workers.

    `project` owns the network; with a Shared VPC it is not the node's project. `network` is `default` if none is named
    [API field text]; `is_named` says whether one is named. `subnetwork` is None if none is named. `region` is the
    region in the subnetwork's link; None if the subnetwork is named without a link.
    """

    project: str
    network: str
    is_named: bool
    subnetwork: str | None
    region: str | None
    has_external_addresses: bool

    @classmethod
    def of(cls, wanted: WantedNode) -> NetworkInterface:
        """Return the interface that the spec requests; the first one if an earlier node had several."""
        return cls.of_spec(wanted.spec, wanted.project)

    @classmethod
    def of_spec(cls, spec: NodeSpec, own_project: str) -> NetworkInterface:
        """Return the interface of a spec in a project."""
        network, subnetwork, external = spec.network or "", spec.subnetwork or "", not spec.internal_ips
        if several := spec.kept.get("networkConfigs"):
            first = several[0]
            network, subnetwork = first.get("network") or "", first.get("subnetwork") or ""
            external = bool(first.get("enableExternalIps"))
        owner = _PROJECT_IN_LINK.fullmatch(network) or _PROJECT_IN_LINK.fullmatch(subnetwork)
        region = _REGION_IN_LINK.fullmatch(subnetwork)
        return cls(
            project=owner[1] if owner else own_project,
            network=last_segment(network or "default"),
            is_named=bool(network),
            subnetwork=last_segment(subnetwork) if subnetwork else None,
            region=region[1] if region else None,
            has_external_addresses=external,
        )
