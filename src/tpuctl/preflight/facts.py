"""Everything that the rules look at, as it was gathered. What nobody had to ask for is nothing (`None`)."""

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

# Tested for the caller where a policy cannot be read.
OBJECT_PERMISSIONS = (
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.get",
    "storage.objects.list",
)
TPU, COMPUTE, STORAGE = "tpu.googleapis.com", "compute.googleapis.com", "storage.googleapis.com"
IAP = "iap.googleapis.com"
# What `diagnosis` calls the refusal of a request that names nobody who pays, and of one that names a zone that is not there
# or not for the project, which the service does not tell apart.
_REQUESTER_PAYS = "storage-requester-pays"
_NO_ZONE = "iam-location-policy"
EXTERNAL_IPS, OS_LOGIN, SHIELDED_VM = (
    "compute.vmExternalIpAccess",
    "compute.requireOsLogin",
    "compute.requireShieldedVm",
)


@dataclass(frozen=True, slots=True)
class Held:
    """The nodes and queued resources of all zones, and the zones of which nothing is known."""

    nodes: tuple[Node, ...] = ()
    requests: tuple[QueuedResource, ...] = ()
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFacts:
    """One bucket that the node will use.

    `layout` is asked for where the bucket itself may not be read. `caller` are those of OBJECT_PERMISSIONS that the
    *caller* has, asked for where `policy` cannot be read. `contents` is what is below the prefix; `caches` are asked for
    where the bucket is not in the TPU's region.
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
        """Tell whether it could not be read since the requester pays, and nobody does."""
        return isinstance(self.bucket, Unknown) and self.bucket.error_id == _REQUESTER_PAYS

    @property
    def placement(self) -> Placement | None:
        """Where it is, from whichever answer says so."""
        bucket = known(self.bucket)
        return bucket.placement if bucket else known(self.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was gathered about one wanted node, at a time.

    `types` and `versions` are those of the zone; `offers` those of every zone, asked for where the type is not in the
    zone, or a bucket is elsewhere. `roles` are the permissions of each role that a policy names. `network` is nothing
    where the node names only a subnetwork by link, and so on: what no rule needs is not asked for.
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
        """Tell whether the project has no such zone: there is none of that name, or the project is not admitted to it."""
        return isinstance(self.types, Unknown) and self.types.error_id == _NO_ZONE

    @property
    def account(self) -> str | None:
        """The account that the workers run as; nothing where it is the default one of a project whose number is not known."""
        project = known(self.project)
        return self.wanted.spec.service_account or (project.default_account if project else None)
