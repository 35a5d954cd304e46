"""What stands beside TPU nodes in Compute Engine: networks, machines, disks, quotas. Raises tpuctl's exceptions.

Google's library is left out: for one URL it would read the 3 MB that describe all of Compute Engine, which takes 40 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from uuid import UUID

from tpuctl.api.calls import Api, PlainRequest
from tpuctl.api.client import Client
from tpuctl.api.failures import Refusal, RefusedError
from tpuctl.api.listing import all_pages
from tpuctl.api.pending import until_done
from tpuctl.api.refusals import about
from tpuctl.api.retry import SHORT_PATIENCE
from tpuctl.errors import AlreadyExistsError, ConflictError, NotFoundError, ServiceUnavailableError
from tpuctl.model.machine import MACHINE, Disk, Machine
from tpuctl.model.network import QUOTA, FirewallRule, Network, RegionQuota, Subnetwork
from tpuctl.shapes import INTEGER, ListOf, MapOf, Page, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")

_PAGE_SIZE = 500  # the most there is [API compute v1, maxResults]
_FIREWALL_FIELDS = (
    "items(name,network,direction,disabled,priority,sourceRanges,sourceTags,sourceServiceAccounts,targetTags,"
    "targetServiceAccounts,allowed,denied),nextPageToken"
)
_ITEM = Shape("", {"key": str, "value": str}, required=("key",))
_PROJECT = Shape(
    "compute.v1 Project", {"commonInstanceMetadata": Shape("compute.v1 Metadata", {"items": ListOf(_ITEM)})}
)
_FIREWALLS = Page("compute.v1 FirewallList", "items")
_REGION = Shape(
    "compute.v1 Region",
    {"quotas": ListOf(QUOTA), "quotaStatusWarning": Shape("", {"code": str, "message": str})},
)
_ERRORS = Shape("", {"errors": ListOf(Shape("", {"code": str, "message": str}))})
_OPERATION = Shape(
    "compute.v1 Operation",
    {"name": str, "status": str, "error": _ERRORS, "httpErrorStatusCode": INTEGER},
    required=("name", "status"),
)
_SCOPE = Shape("compute.v1 InstancesScopedList", {"instances": ListOf(MACHINE)})


class _ScopedPage(Page):
    """A page of machines by zone; a zone without any has a warning in their place [API compute v1]."""

    @property
    def shape(self) -> Shape:
        """Return the shape of the page."""
        return Shape(self.schema, {**super().shape.fields, self.key: MapOf(_SCOPE)})

    def items(self, data: Mapping[str, Any], read: Callable[[Any], T]) -> list[T]:
        """Return what `read` makes of the machines of all zones."""
        return [read(one) for scope in (data.get(self.key) or {}).values() for one in scope.get("instances") or ()]


_MACHINES = _ScopedPage("compute.v1 InstanceAggregatedList", "items")


class ComputeClient(Client):
    """Calls Compute Engine."""

    api = Api("compute", "v1", "compute/v1/")
    patience = SHORT_PATIENCE

    def project_metadata(self, project: str) -> Mapping[str, str]:
        """Return the project's commonInstanceMetadata. Raises `AccessError` without `compute.projects.get`."""
        request = self._get(project, query={"fields": "commonInstanceMetadata/items"})

        def read(data: Mapping[str, Any]) -> dict[str, str]:
            items = (_PROJECT.read(data).get("commonInstanceMetadata") or {}).get("items") or ()
            return {str(item["key"]): str(item.get("value", "")) for item in items}

        return self._caller.call(request, read)

    def network(self, project: str, name: str) -> Network:
        """Return a network; needs compute.networks.get."""
        request = self._get(project, "global/networks", name)
        with about(f"the network `{name}` in {_words(project)}", "compute.networks.get"):
            return self._caller.attempt(request, Network.from_api)

    def subnetwork(self, project: str, region: str, name: str) -> Subnetwork:
        """Return a subnetwork; needs compute.subnetworks.get."""
        request = self._get(project, f"regions/{_part(region)}/subnetworks", name)
        with about(f"the subnetwork `{name}` of {region} in {_words(project)}", "compute.subnetworks.get"):
            return self._caller.attempt(request, Subnetwork.from_api)

    def firewalls(self, project: str) -> tuple[FirewallRule, ...]:
        """Return all firewall rules, without those of hierarchical policies; needs compute.firewalls.list."""

        def page(token: str | None) -> PlainRequest:
            query = {"maxResults": _PAGE_SIZE, "pageToken": token, "fields": _FIREWALL_FIELDS}
            return self._get(project, "global/firewalls", query=query)

        with about(_words(project), "compute.firewalls.list"):
            return all_pages(self._caller, page, _FIREWALLS, FirewallRule.from_api).items

    def region_quotas(self, project: str, region: str) -> Mapping[str, RegionQuota]:
        """Return the quotas of a region by metric; needs compute.regions.get.

        Raises `ServiceUnavailableError` if the API left them out because it could not read them.
        """
        request = self._get(project, "regions", region, query={"fields": "quotas,quotaStatusWarning"})
        with about(f"the region `{region}` in {_words(project)}", "compute.regions.get"):
            data = self._caller.attempt(request, _REGION.read)
        if not data.get("quotas") and (warning := data.get("quotaStatusWarning")):
            message = f"cannot fetch the quotas of {region}: {warning.get('message') or warning.get('code')}"
            raise ServiceUnavailableError(message, hint="try again in a few minutes")
        quotas = [RegionQuota.from_api(entry) for entry in data.get("quotas") or ()]
        return {quota.metric: quota for quota in quotas}

    def find_machine(self, project: str, name: str, *, zone: str | None = None) -> Machine:
        """Return the virtual machine of a name, in one zone or in any; needs compute.instances.list.

        Raises `ConflictError` if several zones have one, `NotFoundError` only if every relevant zone has answered.
        """

        def page(token: str | None) -> PlainRequest:
            # Without partial success, the failure of one zone would hide all others.
            query = {"filter": f"name={name}", "returnPartialSuccess": "true", "maxResults": _PAGE_SIZE}
            fields = "items,nextPageToken,unreachables"
            return self._get(project, "aggregated/instances", query={**query, "pageToken": token, "fields": fields})

        with about(_words(project), "compute.instances.list"):
            listing = all_pages(self._caller, page, _MACHINES, Machine.from_api)
        found = [machine for machine in listing.items if machine.name == name and zone in {None, machine.zone}]
        if len(found) == 1:
            return found[0]
        what = f"virtual machine `{name}` in {f'{zone} of ' if zone else ''}{_words(project)}"
        if found:
            zones = ", ".join(sorted(machine.zone for machine in found))
            hint = f"use the full name, such as `projects/{project}/zones/{found[0].zone}/instances/{name}`"
            raise ConflictError(f"there is more than one {what}: in {zones}", hint=hint)
        if missing := [place for place in listing.unreachable if zone in {None, place}]:
            raise ServiceUnavailableError(f"{what} not found, but {', '.join(missing)} did not answer")
        raise NotFoundError(f"there is no {what}", hint="list them with `gcloud compute instances list`")

    def disk(self, project: str, zone: str, name: str) -> Disk:
        """Return a disk; needs compute.disks.get."""
        request = self._get(project, f"zones/{_part(zone)}/disks", name)
        with about(f"the disk `{name}` of {zone} in {_words(project)}", "compute.disks.get"):
            return self._caller.attempt(request, Disk.from_api)

    def open_firewall(
        self, project: str, network: str, name: str, source_ranges: Sequence[str], ports: Sequence[str]
    ) -> None:
        """Create an ingress rule that allows tcp ports, and wait until it is active; needs compute.firewalls.create.

        It also needs compute.networks.updatePolicy on the network [documentation of Compute Engine's methods].

        Raises `AlreadyExistsError` if the name is taken, `TimedOutError` after three minutes.
        """
        # One id for all retries: the service carries out a repeated request once [API field text of requestId].
        query = {"requestId": str(UUID(int=self._caller.random.getrandbits(128), version=4))}
        body = {
            "name": name,
            "network": network if "/" in network else f"projects/{project}/global/networks/{network}",
            "direction": "INGRESS",
            "sourceRanges": list(source_ranges),
            "allowed": [{"IPProtocol": "tcp", "ports": list(ports)}],
        }
        request = PlainRequest.of(self._address(project, "global/firewalls"), method="POST", query=query, body=body)
        what = f"the firewall rule `{name}` in {_words(project)}"
        with about(what, "compute.firewalls.create"):
            try:
                begun = self._caller.attempt(request, _OPERATION.read)
            except RefusedError as error:
                if error.refusal.code != 409:
                    raise
                hint = f"see `gcloud compute firewall-rules describe {name} --project={project}`"
                raise AlreadyExistsError(f"{what} already exists", hint=hint) from error
            fetch = self._get(project, "global/operations", str(begun.get("name")))
            ended = until_done(
                self._caller, begun, lambda: self._caller.attempt(fetch, _OPERATION.read), what=f"creating {what}"
            )
            errors = (ended.get("error") or {}).get("errors") or ()
            if errors:
                code = int(ended.get("httpErrorStatusCode") or 500)
                status, message = str(errors[0].get("code") or "UNKNOWN"), str(errors[0].get("message") or "")
                raise RefusedError(Refusal(code=code, message=message, status=status))

    def _get(
        self, project: str, collection: str = "", name: str = "", *, query: Mapping[str, Any] | None = None
    ) -> PlainRequest:
        return PlainRequest.of(self._address(project, collection, name), query=query)

    def _address(self, project: str, collection: str = "", name: str = "") -> str:
        parts = [f"{self.api.path}projects", _part(project), collection, _part(name)]
        return self._url("/".join(part for part in parts if part))


def _part(text: str) -> str:
    return quote(text, safe=":")


def _words(project: str) -> str:
    return f"the project `{project}`"
