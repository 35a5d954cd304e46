"""How each fact about a wanted node is asked for. Called again, a method returns the same question: none is put twice."""

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
    """A disk or a machine, named by its name, its path or its link; a part that was not named is nothing."""

    project: str | None
    zone: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> _Link:
        found = _LINK.fullmatch(text)
        if found is None:
            raise InvalidInputError(f"`{text}` names no resource", hint="use its name, or `projects/P/…/NAME`")
        return cls(found["project"], found["zone"], found["name"])


def nodes_of(project: str, source: TpuSource, asking: Asking) -> Question[NodeListing]:
    """Ask for the nodes of all zones of a project."""
    return asking.ask(("nodes", project), lambda: source.list_nodes(project), permission="tpu.nodes.list")


class Questions:
    """The questions about one wanted node. Nothing waits here."""

    def __init__(self, sources: Sources, asking: Asking, wanted: Wanted) -> None:
        self._tpu, self._compute, self._projects = sources.tpu, sources.compute, sources.projects
        self._asking, self._ask = asking, asking.ask
        self._wanted, self._project = wanted, wanted.project

    def project(self) -> Question[Project]:
        """Ask for the project itself, and its number."""
        return self._ask(
            ("project", self._project),
            lambda: self._projects.project(self._project),
            permission="resourcemanager.projects.get",
        )

    def services(self) -> Question[Mapping[str, bool]]:
        """Ask which APIs are enabled."""
        return self._ask(
            ("services", self._project),
            lambda: self._projects.services(self._project, _SERVICES),
            permission="serviceusage.services.get",
        )

    def policy(self) -> Question[IamPolicy]:
        """Who may do what in the project."""
        return self._ask(
            ("policy", self._project),
            lambda: self._projects.policy(self._project),
            permission="resourcemanager.projects.getIamPolicy",
        )

    def role(self, name: str) -> Question[frozenset[str]]:
        """Ask for the permissions of a role."""
        return self._ask(("role", name), lambda: self._projects.role(name), permission="iam.roles.get")

    def types(self) -> Question[tuple[str, ...]]:
        """Ask for the accelerator types of the zone."""
        zone = self._wanted.zone
        return self._ask(
            ("types", self._project, zone),
            lambda: self._tpu.accelerator_types(self._project, zone),
            permission="tpu.acceleratortypes.list",
        )

    def offers(self) -> Question[Mapping[str, tuple[str, ...]]]:
        """Ask for the accelerator types of every zone."""
        return self._ask(
            ("offers", self._project), lambda: self._tpu.offers(self._project), permission="tpu.acceleratortypes.list"
        )

    def versions(self) -> Question[tuple[str, ...]]:
        """Ask for the runtime versions of the zone."""
        zone = self._wanted.zone
        return self._ask(
            ("versions", self._project, zone),
            lambda: self._tpu.runtime_versions(self._project, zone),
            permission="tpu.runtimeversions.list",
        )

    def nodes(self) -> Question[NodeListing]:
        """Ask for the nodes of all zones."""
        return nodes_of(self._project, self._tpu, self._asking)

    def requests(self) -> Question[QueuedListing]:
        """Ask for the queued resources of all zones."""
        return self._ask(
            ("requests", self._project),
            lambda: self._tpu.list_queued_resources(self._project),
            permission="tpu.nodes.list",
        )

    def reservations(self) -> Question[tuple[Reservation, ...]]:
        """Ask for the reservations of the zone."""
        zone = self._wanted.zone
        return self._ask(
            ("reservations", self._project, zone),
            lambda: self._tpu.reservations(self._project, zone),
            permission="tpu.nodes.list",
        )

    def quotas(self) -> Question[tuple[QuotaLimit, ...]]:
        """Ask for the limits of the Cloud TPU API."""
        return self._ask(
            ("quotas", self._project),
            lambda: self._projects.quotas(self._project, TPU),
            permission="serviceusage.quotas.get",
        )

    def region_quotas(self) -> Question[Mapping[str, RegionQuota]]:
        """Ask for the limits of Compute Engine in the region."""
        region = self._wanted.region
        return self._ask(
            ("region", self._project, region),
            lambda: self._compute.region_quotas(self._project, region),
            permission="compute.regions.get",
        )

    def billing(self) -> Question[bool]:
        """Ask whether the project is billed."""
        return self._ask(
            ("billing", self._project),
            lambda: self._projects.billing(self._project),
            permission="resourcemanager.projects.get",
        )

    def org_policy(self, constraint: str) -> Question[OrgPolicy]:
        """Ask what a constraint comes to."""
        return self._ask(
            ("constraint", self._project, constraint),
            lambda: self._projects.org_policy(self._project, constraint),
            permission="orgpolicy.policy.get",
        )

    def network(self) -> Question[Network]:
        """Ask for the node's network, which may be another project's."""
        interface = Interface.of(self._wanted)
        return self._ask(
            ("network", interface.project, interface.network),
            lambda: self._compute.network(interface.project, interface.network),
            permission="compute.networks.get",
        )

    def subnetwork(self) -> Question[Subnetwork]:
        """Ask for the node's subnetwork; where none is named the one that a network in auto mode has in the region."""
        interface = Interface.of(self._wanted)
        project, region = interface.project, interface.region or self._wanted.region
        name = interface.subnetwork or interface.network
        return self._ask(
            ("subnetwork", project, region, name),
            lambda: self._compute.subnetwork(project, region, name),
            permission="compute.subnetworks.get",
        )

    def firewalls(self) -> Question[tuple[FirewallRule, ...]]:
        """Ask for the firewall rules of the project that has the network."""
        project = Interface.of(self._wanted).project
        return self._ask(
            ("firewalls", project), lambda: self._compute.firewalls(project), permission="compute.firewalls.list"
        )

    def machine(self, name: str) -> Question[Machine]:
        """Ask for the virtual machine beside the node, in whatever zone unless one is named."""
        machine = _Link.parse(name)
        project = machine.project or self._project
        return self._ask(
            ("machine", project, machine.zone, machine.name),
            lambda: self._compute.find_machine(project, machine.name, zone=machine.zone),
            permission="compute.instances.list",
        )

    def disk(self, source: str) -> Question[Disk]:
        """Ask for a disk that the node is to have."""
        disk = _Link.parse(source)
        project, zone = disk.project or self._project, disk.zone or self._wanted.zone
        return self._ask(
            ("disk", project, zone, disk.name),
            lambda: self._compute.disk(project, zone, disk.name),
            permission="compute.disks.get",
        )
