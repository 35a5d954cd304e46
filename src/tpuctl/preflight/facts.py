"""All facts that the rules read, as they were gathered. A fact that was not requested is None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpuctl.preflight.fact import Fact, Unknown, known

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from tpuctl.model import Node, QueuedResource
    from tpuctl.model.bucket import AnywhereCache, Bucket, Contents, Placement
    from tpuctl.model.iam import IamPolicy
    from tpuctl.model.machine import Disk, Machine
    from tpuctl.model.network import FirewallRule, Network, RegionQuota, Subnetwork
    from tpuctl.model.project import OrgPolicy, Project, QuotaLimit, Reservation
    from tpuctl.preflight.wanted import BucketUse, Wanted

# Tested for the caller if a policy cannot be read.
OBJECT_PERMISSIONS = (
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.get",
    "storage.objects.list",
)
TPU, COMPUTE, STORAGE = "tpu.googleapis.com", "compute.googleapis.com", "storage.googleapis.com"
IAP = "iap.googleapis.com"
# The error ids of a request without a billing project, and of one for a zone that does not exist or is closed to the project:
# the service does not distinguish the two.
_REQUESTER_PAYS = "storage-requester-pays"
_NO_ZONE = "iam-location-policy"
EXTERNAL_IPS, OS_LOGIN, SHIELDED_VM = (
    "compute.vmExternalIpAccess",
    "compute.requireOsLogin",
    "compute.requireShieldedVm",
)


@dataclass(frozen=True, slots=True)
class Held:
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
    layout: Fact[Placement] | None = None
    policy: Fact[IamPolicy] | None = None
    caller: Fact[frozenset[str]] | None = None
    contents: Fact[Contents] | None = None
    caches: Fact[tuple[AnywhereCache, ...]] | None = None

    @property
    def is_unpaid(self) -> bool:
        """Return whether the bucket could not be read because it is requester-pays and no project pays."""
        return isinstance(self.bucket, Unknown) and self.bucket.error_id == _REQUESTER_PAYS

    @property
    def placement(self) -> Placement | None:
        """The location of the bucket, from the bucket itself or from its layout."""
        bucket = known(self.bucket)
        return bucket.placement if bucket else known(self.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was gathered about one node, and when.

    `types` and `versions` are those of the zone. `offers` has the types of every zone; it is requested if the zone
    lacks the type, or if a bucket is elsewhere. `roles` has the permissions of each role that a policy names. A fact
    that no rule needs is not requested: `network`, for example, is None if the node names only the link of a
    subnetwork.
    """

    now: datetime
    wanted: Wanted
    project: Fact[Project]
    types: Fact[tuple[str, ...]] | None = None
    versions: Fact[tuple[str, ...]] | None = None
    offers: Fact[Mapping[str, tuple[str, ...]]] | None = None
    held: Fact[Held] | None = None
    quotas: Fact[tuple[QuotaLimit, ...]] | None = None
    region_quotas: Fact[Mapping[str, RegionQuota]] | None = None
    services: Fact[Mapping[str, bool]] | None = None
    billing: Fact[bool] | None = None
    org_policies: Mapping[str, Fact[OrgPolicy]] = field(default_factory=dict)
    network: Fact[Network] | None = None
    subnetwork: Fact[Subnetwork] | None = None
    firewalls: Fact[tuple[FirewallRule, ...]] | None = None
    machine: Fact[Machine] | None = None
    disks: Mapping[str, Fact[Disk]] = field(default_factory=dict)
    reservations: Fact[tuple[Reservation, ...]] | None = None
    project_policy: Fact[IamPolicy] | None = None
    roles: Mapping[str, Fact[frozenset[str]]] = field(default_factory=dict)
    buckets: tuple[BucketFacts, ...] = ()

    @property
    def is_without_zone(self) -> bool:
        """Return whether the project cannot use the zone: the zone does not exist, or the project has no access to it."""
        return isinstance(self.types, Unknown) and self.types.error_id == _NO_ZONE

    @property
    def account(self) -> str | None:
        """The account that the workers run as; None if it is the default account and the project number is unknown."""
        project = known(self.project)
        return self.wanted.spec.service_account or (project.default_account if project else None)
