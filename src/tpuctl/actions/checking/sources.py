"""The API calls that the checks need, as protocols.

Every method raises a `TpuctlError` without an answer: `NotFoundError` only if the API says that the resource does not exist,
`AccessError` if access is denied.
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
    """Cloud Storage; `user_project` pays for requester-pays buckets."""

    def bucket(self, name: str, *, user_project: str | None = None) -> Bucket:
        """Return a bucket's metadata; needs storage.buckets.get."""

    def layout(self, name: str, *, user_project: str | None = None) -> Placement:
        """Return the location of a bucket; needs only storage.objects.list."""

    def policy(self, name: str, *, user_project: str | None = None) -> IamPolicy:
        """Return the IAM policy with its conditions; needs storage.buckets.getIamPolicy."""

    def test_permissions(
        self, name: str, permissions: Collection[str], *, user_project: str | None = None
    ) -> frozenset[str]:
        """Return those of the permissions that the caller has; needs none."""

    def contents(self, name: str, prefix: str, *, user_project: str | None = None) -> Contents:
        """Return a summary of the first page of objects; needs storage.objects.list."""

    def caches(self, name: str, *, user_project: str | None = None) -> tuple[AnywhereCache, ...]:
        """Return the Anywhere Caches; needs storage.anywhereCaches.list."""

    def grant(self, name: str, role: str, member: str, *, user_project: str | None = None) -> None:
        """Add a member to a role and keep everything else, even if the policy is changed concurrently."""


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
        """Return the virtual machine of that name, in any zone if none is named; needs compute.instances.list.

        Raises `ConflictError` if several zones have one.
        """

    def disk(self, project: str, zone: str, name: str) -> Disk:
        """Return a disk; needs compute.disks.get."""

    def open_firewall(
        self, project: str, network: str, name: str, source_ranges: Sequence[str], ports: Sequence[str]
    ) -> None:
        """Create an ingress rule that allows TCP ports. Raises `AlreadyExistsError` if the name is taken."""


class ProjectSource(Protocol):
    """The parts of Resource Manager, Service Usage, Cloud Billing, Organization Policy and IAM that concern a project."""

    def project(self, project: str) -> Project:
        """Return a project; needs resourcemanager.projects.get."""

    def policy(self, project: str) -> IamPolicy:
        """Return its IAM policy; needs resourcemanager.projects.getIamPolicy."""

    def test_permissions(self, project: str, permissions: Collection[str]) -> frozenset[str]:
        """Return those of the permissions that the caller has; needs none."""

    def services(self, project: str, names: Collection[str]) -> Mapping[str, bool]:
        """Return which of the services are enabled; needs serviceusage.services.get."""

    def enable(self, project: str, service: str) -> None:
        """Enable a service and wait until it is enabled."""

    def quotas(self, project: str, service: str) -> tuple[QuotaLimit, ...]:
        """Return the quota limits of a service; needs serviceusage.quotas.get."""

    def billing(self, project: str) -> bool:
        """Return whether the project is billed; needs resourcemanager.projects.get."""

    def org_policy(self, project: str, constraint: str) -> OrgPolicy:
        """Return the effective policy of a constraint; needs orgpolicy.policy.get."""

    def role(self, name: str) -> frozenset[str]:
        """Return the permissions of a role, predefined (`roles/…`) or custom (`projects/P/roles/…`); needs iam.roles.get."""


@dataclass(frozen=True, slots=True)
class Sources:
    """All APIs that the checks call."""

    tpu: TpuSource
    buckets: BucketSource
    compute: ComputeSource
    projects: ProjectSource
