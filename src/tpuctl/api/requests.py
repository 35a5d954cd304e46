"""Build the requests of the TPU API: reads as plain URLs, changes with Google's library. Nothing is sent from here.

Commands that only read never load the library, which takes 90 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpuctl.api.calls import PlainRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.api.calls import Caller
    from tpuctl.names import NodeName

# A class that the library creates at run time.
Request = Any

# More than any project has in a zone; the service may answer with fewer [API v2, pageSize].
_PAGE_SIZE = 1000
# Characters that are not quoted in a name. The project of a domain has a colon.
_PLAIN = "/:"


class Requests:
    """Builds requests. The names were validated before (`names`)."""

    def __init__(self, caller: Caller, url: Callable[[str], str]) -> None:
        """`url` returns the URL of a path."""
        self._caller = caller
        self._url = url

    def get_node(self, name: NodeName) -> PlainRequest:
        """Build nodes.get."""
        return self._read(str(name))

    def list_nodes(self, project: str, zone: str, token: str | None) -> PlainRequest:
        """Build nodes.list; zone `-` means all."""
        return self._page(_parent(project, zone), "nodes", token)

    def create_node(self, name: NodeName, body: Mapping[str, Any]) -> Request:
        """Build nodes.create."""
        return self._nodes.create(parent=_parent(name.project, name.zone), nodeId=name.node_id, body=dict(body))

    def delete_node(self, name: NodeName) -> Request:
        """Build nodes.delete."""
        return self._nodes.delete(name=str(name))

    def start_node(self, name: NodeName) -> Request:
        """Build nodes.start."""
        return self._nodes.start(name=str(name), body={})

    def stop_node(self, name: NodeName) -> Request:
        """Build nodes.stop."""
        return self._nodes.stop(name=str(name), body={})

    def patch_node(self, name: NodeName, changes: Mapping[str, Any]) -> Request:
        """Build nodes.patch; the mask names each changed field in camelCase, as Google's own Python library does."""
        paths: list[str] = []
        for field, value in changes.items():
            # Only the fields of networkConfig can be changed [API v2, nodes.patch].
            is_nested = field == "networkConfig" and isinstance(value, Mapping)
            paths += [f"{field}.{inner}" for inner in value] if is_nested else [field]
        return self._nodes.patch(name=str(name), updateMask=",".join(paths), body=dict(changes))

    def guest_attributes(self, name: NodeName, worker: int | None) -> Request:
        """Build nodes.getGuestAttributes, of one worker or of all."""
        body = {} if worker is None else {"workerIds": [str(worker)]}
        return self._nodes.getGuestAttributes(name=str(name), body=body)

    def get_operation(self, name: str) -> PlainRequest:
        """Build operations.get."""
        return self._read(name)

    def get_queued_resource(self, name: str) -> PlainRequest:
        """Build queuedResources.get."""
        return self._read(name)

    def list_queued_resources(self, project: str, zone: str, token: str | None) -> PlainRequest:
        """Build queuedResources.list."""
        return self._page(_parent(project, zone), "queuedResources", token)

    def delete_queued_resource(self, name: str, *, force: bool, request_id: str | None) -> Request:
        """Build queuedResources.delete; the same `request_id` makes a retry harmless."""
        return self._caller.locations().queuedResources().delete(name=name, force=force, requestId=request_id)

    def list_locations(self, project: str, token: str | None) -> PlainRequest:
        """Build locations.list."""
        return self._page(f"projects/{project}", "locations", token)

    def list_accelerator_types(self, project: str, zone: str, token: str | None) -> PlainRequest:
        """Build acceleratorTypes.list with names only; zone `-` means all."""
        fields = "acceleratorTypes(name,type),nextPageToken,unreachable"
        return self._page(_parent(project, zone), "acceleratorTypes", token, fields=fields)

    def list_runtime_versions(self, project: str, zone: str, token: str | None) -> PlainRequest:
        """Build runtimeVersions.list."""
        return self._page(_parent(project, zone), "runtimeVersions", token)

    def list_reservations(self, project: str, zone: str, token: str | None) -> PlainRequest:
        """Build reservations.list, which API v2 lacks."""
        return self._page(_parent(project, zone), "reservations", token, version="v2alpha1")

    def _read(self, name: str) -> PlainRequest:
        return PlainRequest.of(self._url(f"v2/{quote(name, safe=_PLAIN)}"))

    def _page(
        self, parent: str, collection: str, token: str | None, *, version: str = "v2", fields: str | None = None
    ) -> PlainRequest:
        url = self._url(f"{version}/{quote(parent, safe=_PLAIN)}/{collection}")
        return PlainRequest.of(url, query={"pageSize": _PAGE_SIZE, "pageToken": token, "fields": fields})

    # The library creates a collection at each call. That takes 2 ms, as much as the rest of a request.
    @cached_property
    def _nodes(self) -> Any:
        return self._caller.locations().nodes()


def _parent(project: str, zone: str) -> str:
    return f"projects/{project}/locations/{zone}"
