"""What the checks ask of a cloud, as protocols; `api/` provides them.

Every method raises a `TpuctlError` where it gets no answer: `NotFoundError` only where the API itself says that there is no
such thing, `AccessError` where it is not allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tpuctl.actions.cloud import NodeListing, QueuedListing
    from tpuctl.model.bucket import AnywhereCache, Bucket, Contents, Placement
    from tpuctl.model.iam import IamPolicy
    from tpuctl.model.machine import Disk, Machine
    from tpuctl.model.network import FirewallRule, Network, RegionQuota, Subnetwork
    from tpuctl.model.project import OrgPolicy, Project, QuotaLimit, Reservation


class TpuSource(Protocol):
    """The Cloud TPU API."""

    def list_nodes(self, project: str, zones: Sequence[str] = ()) -> NodeListing:
        """Return the nodes of all zones."""

    def list_queued_resources(self, project: str, zones: Sequence[str] = ()) -> QueuedListing:
        """Return the queued resources of all zones."""

    def accelerator_types(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the accelerator types that a zone offers."""

    def runtime_versions(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the runtime versions that a zone offers."""

    def offers(self, project: str) -> Mapping[str, tuple[str, ...]]:
        """Return the accelerator types of every zone that answers."""

    def reservations(self, project: str, zone: str) -> tuple[Reservation, ...]:
        """Return the reservations of a zone."""


class BucketSource(Protocol):
    """Cloud Storage; `user_project` pays where the requester does."""

    def bucket(self, name: str, *, user_project: str | None = None) -> Bucket:
        """Return a bucket's metadata; needs storage.buckets.get."""

    def layout(self, name: str, *, user_project: str | None = None) -> Placement:
        """Return where a bucket is; needs storage.objects.list only."""

    def policy(self, name: str, *, user_project: str | None = None) -> IamPolicy:
        """Return who may do what, conditions included; needs storage.buckets.getIamPolicy."""

    def test_permissions(
        self, name: str, permissions: Collection[str], *, user_project: str | None = None
    ) -> frozenset[str]:
        """Return those of some permissions that the caller has; needs none."""

    def contents(self, name: str, prefix: str, *, user_project: str | None = None) -> Contents:
        """Return what one page of a listing shows; needs storage.objects.list."""

    def caches(self, name: str, *, user_project: str | None = None) -> tuple[AnywhereCache, ...]:
        """Return the Anywhere Caches; needs storage.anywhereCaches.list."""

    def grant(self, name: str, role: str, member: str, *, user_project: str | None = None) -> None:
        """Add one member to one role, keeping all else, whoever else changes the policy meanwhile."""


class ComputeSource(Protocol):
    """Compute Engine."""

    def network(self, project: str, name: str) -> Network:
        """Return a network; needs compute.networks.get."""

    def subnetwork(self, project: str, region: str, name: str) -> Subnetwork:
        """Return a subnetwork; needs compute.subnetworks.get."""

    def firewalls(self, project: str) -> tuple[FirewallRule, ...]:
        """Return all firewall rules; needs compute.firewalls.list."""

    def region_quotas(self, project: str, region: str) -> Mapping[str, RegionQuota]:
        """Return the quotas of a region by metric; needs compute.regions.get."""

    def find_machine(self, project: str, name: str, *, zone: str | None = None) -> Machine:
        """Return the virtual machine of that name, whatever its zone where none is named; needs compute.instances.list.

        Raises `ConflictError` where several zones have one.
        """

    def disk(self, project: str, zone: str, name: str) -> Disk:
        """Return a disk; needs compute.disks.get."""

    def open_firewall(
        self, project: str, network: str, name: str, source_ranges: Sequence[str], ports: Sequence[str]
    ) -> None:
        """Make an ingress rule that allows tcp ports. Raises `AlreadyExistsError` where the name is taken."""


class ProjectSource(Protocol):
    """Resource Manager, Service Usage, Cloud Billing, Organization Policy and IAM, as far as they speak of a project."""

    def project(self, project: str) -> Project:
        """Return a project; needs resourcemanager.projects.get."""

    def policy(self, project: str) -> IamPolicy:
        """Return who may do what in it; needs resourcemanager.projects.getIamPolicy."""

    def test_permissions(self, project: str, permissions: Collection[str]) -> frozenset[str]:
        """Return those of some permissions that the caller has; needs none."""

    def services(self, project: str, names: Collection[str]) -> Mapping[str, bool]:
        """Return which of some services are enabled; needs serviceusage.services.get."""

    def enable(self, project: str, service: str) -> None:
        """Enable a service; returns once that has ended."""

    def quotas(self, project: str, service: str) -> tuple[QuotaLimit, ...]:
        """Return a service's limits; needs serviceusage.quotas.get."""

    def billing(self, project: str) -> bool:
        """Tell whether the project is billed; needs resourcemanager.projects.get."""

    def org_policy(self, project: str, constraint: str) -> OrgPolicy:
        """Return what a constraint comes to; needs orgpolicy.policy.get."""

    def role(self, name: str) -> frozenset[str]:
        """Return the permissions of a role, predefined (`roles/…`) or custom (`projects/P/roles/…`); needs iam.roles.get."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that is asked."""

    tpu: TpuSource
    buckets: BucketSource
    compute: ComputeSource
    projects: ProjectSource
