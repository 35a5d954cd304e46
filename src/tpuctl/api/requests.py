"""The requests of the TPU API as Google's library builds them. Nothing is sent from here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.api.calls import Caller
    from tpuctl.names import NodeName

# googleapiclient makes its classes at run time: a request is `Any`.
Request = Any

# More than any project has in a zone; the service may answer with fewer [API v2, pageSize].
_PAGE_SIZE = 1000


class Requests:
    """Builds requests. Names were checked where they came in (`names`)."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def get_node(self, name: NodeName) -> Request:
        """Build nodes.get."""
        return self._nodes.get(name=str(name))

    def list_nodes(self, project: str, zone: str, token: str | None) -> Request:
        """Build nodes.list; zone `-` means all."""
        return self._nodes.list(**_page(project, zone, token))

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
        return self._nodes.patch(name=str(name), updateMask=",".join(_mask(changes)), body=dict(changes))

    def guest_attributes(self, name: NodeName, worker: int | None) -> Request:
        """Build nodes.getGuestAttributes, of one worker or of all."""
        body = {} if worker is None else {"workerIds": [str(worker)]}
        return self._nodes.getGuestAttributes(name=str(name), body=body)

    def get_operation(self, name: str) -> Request:
        """Build operations.get."""
        return self._operations.get(name=name)

    def get_queued_resource(self, name: str) -> Request:
        """Build queuedResources.get."""
        return self._queued_resources.get(name=name)

    def list_queued_resources(self, project: str, zone: str, token: str | None) -> Request:
        """Build queuedResources.list."""
        return self._queued_resources.list(**_page(project, zone, token))

    def delete_queued_resource(self, name: str, *, force: bool, request_id: str | None) -> Request:
        """Build queuedResources.delete; the same `request_id` makes a repetition harmless."""
        return self._queued_resources.delete(name=name, force=force, requestId=request_id)

    def list_locations(self, project: str, token: str | None) -> Request:
        """Build locations.list."""
        return self._caller.locations().list(name=f"projects/{project}", pageSize=_PAGE_SIZE, pageToken=token)

    def list_accelerator_types(self, project: str, zone: str, token: str | None) -> Request:
        """Build acceleratorTypes.list."""
        return self._caller.locations().acceleratorTypes().list(**_page(project, zone, token))

    def list_runtime_versions(self, project: str, zone: str, token: str | None) -> Request:
        """Build runtimeVersions.list."""
        return self._caller.locations().runtimeVersions().list(**_page(project, zone, token))

    # The library makes a collection anew at each call, which costs 2 ms: as much as all else that is done for a request.
    @cached_property
    def _nodes(self) -> Any:
        return self._caller.locations().nodes()

    @cached_property
    def _operations(self) -> Any:
        return self._caller.locations().operations()

    @cached_property
    def _queued_resources(self) -> Any:
        return self._caller.locations().queuedResources()


def _parent(project: str, zone: str) -> str:
    return f"projects/{project}/locations/{zone}"


def _page(project: str, zone: str, token: str | None) -> dict[str, Any]:
    return {"parent": _parent(project, zone), "pageSize": _PAGE_SIZE, "pageToken": token}


def _mask(changes: Mapping[str, Any]) -> list[str]:
    """Return the paths of a change. Of networkConfig only its fields can be changed [API v2, nodes.patch]."""
    paths: list[str] = []
    for name, value in changes.items():
        nested = name == "networkConfig" and isinstance(value, Mapping)
        paths += [f"{name}.{inner}" for inner in value] if nested else [name]
    return paths
