"""The queries about one node. A repeated call returns the earlier query: none is sent twice."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.errors import InvalidInputError
from tpuctl.preflight.facts import COMPUTE, IAP, STORAGE, TPU
from tpuctl.preflight.interface import Interface

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.actions.checking.asking import Asking, Question
    from tpuctl.actions.checking.sources import Sources, TpuSource
    from tpuctl.actions.cloud import NodeListing, QueuedListing
    from tpuctl.model.iam import IamPolicy
    from tpuctl.model.machine import Disk, Machine
    from tpuctl.model.network import FirewallRule, Network, RegionQuota, Subnetwork
    from tpuctl.model.project import OrgPolicy, Project, QuotaLimit, Reservation
    from tpuctl.preflight.wanted import Wanted

_SERVICES = (TPU, COMPUTE, STORAGE, IAP)
_LINK = re.compile(
    r"(?:.*?projects/(?P<project>[^/]+)/)?(?:zones/(?P<zone>[^/]+)/|regions/[^/]+/)?"
    r"(?:(?:disks|instances)/)?(?P<name>[^/]+)"
)


class _Link(NamedTuple):
    """A disk or a machine by name, path or link; a part that is not named is None."""

    project: str | None
    zone: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> _Link:
        found = _LINK.fullmatch(text)
        if found is None:
            raise InvalidInputError(f"`{text}` is not a resource name", hint="use its name, or `projects/P/…/NAME`")
        return cls(found["project"], found["zone"], found["name"])


def nodes_of(project: str, source: TpuSource, asking: Asking) -> Question[NodeListing]:
    """Query the nodes of all zones of a project."""
    return asking.ask(("nodes", project), lambda: source.list_nodes(project), permission="tpu.nodes.list")


class Questions:
    """The queries about one node. No method waits for an answer."""

    def __init__(self, sources: Sources, asking: Asking, wanted: Wanted) -> None:
        self._tpu, self._compute, self._projects = sources.tpu, sources.compute, sources.projects
        self._asking, self._ask = asking, asking.ask
        self._wanted, self._project = wanted, wanted.project

    def project(self) -> Question[Project]:
        """Query the project and its number."""
        return self._ask(
            ("project", self._project),
            lambda: self._projects.project(self._project),
            permission="resourcemanager.projects.get",
        )

    def services(self) -> Question[Mapping[str, bool]]:
        """Query which APIs are enabled."""
        return self._ask(
            ("services", self._project),
            lambda: self._projects.services(self._project, _SERVICES),
            permission="serviceusage.services.get",
        )

    def policy(self) -> Question[IamPolicy]:
        """Query the IAM policy of the project."""
        return self._ask(
            ("policy", self._project),
            lambda: self._projects.policy(self._project),
            permission="resourcemanager.projects.getIamPolicy",
        )

    def role(self, name: str) -> Question[frozenset[str]]:
        """Query the permissions of a role."""
        return self._ask(("role", name), lambda: self._projects.role(name), permission="iam.roles.get")

    def types(self) -> Question[tuple[str, ...]]:
        """Query the accelerator types of the zone."""
        zone = self._wanted.zone
        return self._ask(
            ("types", self._project, zone),
            lambda: self._tpu.accelerator_types(self._project, zone),
            permission="tpu.acceleratortypes.list",
        )

    def offers(self) -> Question[Mapping[str, tuple[str, ...]]]:
        """Query the accelerator types of every zone."""
        return self._ask(
            ("offers", self._project), lambda: self._tpu.offers(self._project), permission="tpu.acceleratortypes.list"
        )

    def versions(self) -> Question[tuple[str, ...]]:
        """Query the runtime versions of the zone."""
        zone = self._wanted.zone
        return self._ask(
            ("versions", self._project, zone),
            lambda: self._tpu.runtime_versions(self._project, zone),
            permission="tpu.runtimeversions.list",
        )

    def nodes(self) -> Question[NodeListing]:
        """Query the nodes of all zones."""
        return nodes_of(self._project, self._tpu, self._asking)

    def requests(self) -> Question[QueuedListing]:
        """Query the queued resources of all zones."""
        return self._ask(
            ("requests", self._project),
            lambda: self._tpu.list_queued_resources(self._project),
            permission="tpu.nodes.list",
        )

    def reservations(self) -> Question[tuple[Reservation, ...]]:
        """Query the reservations of the zone."""
        zone = self._wanted.zone
        return self._ask(
            ("reservations", self._project, zone),
            lambda: self._tpu.reservations(self._project, zone),
            permission="tpu.nodes.list",
        )

    def quotas(self) -> Question[tuple[QuotaLimit, ...]]:
        """Query the quota limits of the Cloud TPU API."""
        return self._ask(
            ("quotas", self._project),
            lambda: self._projects.quotas(self._project, TPU),
            permission="serviceusage.quotas.get",
        )

    def region_quotas(self) -> Question[Mapping[str, RegionQuota]]:
        """Query the Compute Engine quotas of the region."""
        region = self._wanted.region
        return self._ask(
            ("region", self._project, region),
            lambda: self._compute.region_quotas(self._project, region),
            permission="compute.regions.get",
        )

    def billing(self) -> Question[bool]:
        """Query whether the project is billed."""
        return self._ask(
            ("billing", self._project),
            lambda: self._projects.billing(self._project),
            permission="resourcemanager.projects.get",
        )

    def org_policy(self, constraint: str) -> Question[OrgPolicy]:
        """Query the effective policy of an organisation constraint."""
        return self._ask(
            ("constraint", self._project, constraint),
            lambda: self._projects.org_policy(self._project, constraint),
            permission="orgpolicy.policy.get",
        )

    def network(self) -> Question[Network]:
        """Query the node's network, which may belong to another project."""
        interface = Interface.of(self._wanted)
        return self._ask(
            ("network", interface.project, interface.network),
            lambda: self._compute.network(interface.project, interface.network),
            permission="compute.networks.get",
        )

    def subnetwork(self) -> Question[Subnetwork]:
        """Query the node's subnetwork; if none is named, the one that a network in auto mode has in the region."""
        interface = Interface.of(self._wanted)
        project, region = interface.project, interface.region or self._wanted.region
        name = interface.subnetwork or interface.network
        return self._ask(
            ("subnetwork", project, region, name),
            lambda: self._compute.subnetwork(project, region, name),
            permission="compute.subnetworks.get",
        )

    def firewalls(self) -> Question[tuple[FirewallRule, ...]]:
        """Query the firewall rules of the project that owns the network."""
        project = Interface.of(self._wanted).project
        return self._ask(
            ("firewalls", project), lambda: self._compute.firewalls(project), permission="compute.firewalls.list"
        )

    def machine(self, name: str) -> Question[Machine]:
        """Query the virtual machine beside the node, in all zones unless one is named."""
        machine = _Link.parse(name)
        project = machine.project or self._project
        return self._ask(
            ("machine", project, machine.zone, machine.name),
            lambda: self._compute.find_machine(project, machine.name, zone=machine.zone),
            permission="compute.instances.list",
        )

    def disk(self, source: str) -> Question[Disk]:
        """Query a data disk of the node."""
        disk = _Link.parse(source)
        project, zone = disk.project or self._project, disk.zone or self._wanted.zone
        return self._ask(
            ("disk", project, zone, disk.name),
            lambda: self._compute.disk(project, zone, disk.name),
            permission="compute.disks.get",
        )
