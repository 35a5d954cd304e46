"""A client of the Cloud TPU API v2 that returns tpuctl's models. It is thread-safe.

Every method raises tpuctl's exceptions: `AccessError`, `QuotaError`, `NoCapacityError`, `InvalidRequestError`,
`ConflictError`, `NotFoundError`, `ServiceUnavailableError`; a change also raises `OutcomeUnknownError` if it was sent and
its outcome is unknown. Requests that fail temporarily are retried if that is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID

from tpuctl.api.calls import RequestPreview, preview
from tpuctl.api.catalogue import CatalogueClient
from tpuctl.api.creation import create_once
from tpuctl.api.errors import operation_error, translate, translated
from tpuctl.api.failures import RefusedError, TransportError
from tpuctl.api.node_changes import NodeChanges, node_of
from tpuctl.api.outcome import Change, Effect, carry_out
from tpuctl.errors import InvalidInputError, NodeNotFoundError, TpuctlError
from tpuctl.model import REQUEST_LABEL, Node, NodeSpec, Operation, OperationError, QueuedResource, QueuedState
from tpuctl.names import NodeName, short
from tpuctl.shapes import ListOf, Page, Shape, ShapeError

__all__ = ["NodeListing", "QueuedListing", "RequestPreview", "TpuClient"]

T = TypeVar("T")

# The id that `diagnosis` gives to the error for missing guest attributes.
_NO_GUEST_ATTRIBUTES = "guest-attributes-missing"
_NODES = Page("tpu.v2 ListNodesResponse", "nodes")
_REQUESTS = Page("tpu.v2 ListQueuedResourcesResponse", "queuedResources")
_ATTRIBUTE = Shape(
    "tpu.v2 GuestAttributesEntry", {"namespace": str, "key": str, "value": str}, required=("namespace", "key")
)
_WORKER = Shape(
    "tpu.v2 GuestAttributes", {"queryValue": Shape("tpu.v2 GuestAttributesValue", {"items": ListOf(_ATTRIBUTE)})}
)
_ATTRIBUTES = Shape("tpu.v2 GetGuestAttributesResponse", {"guestAttributes": ListOf(_WORKER)})


@dataclass(frozen=True, slots=True)
class NodeListing:
    """Nodes, and the ids of zones that did not answer, whose nodes are unknown."""

    nodes: tuple[Node, ...]
    unreachable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueuedListing:
    """Queued resources, and the ids of zones that did not answer."""

    queued_resources: tuple[QueuedResource, ...]
    unreachable: tuple[str, ...] = ()


class TpuClient(CatalogueClient):
    """Calls the TPU API."""

    @cached_property
    def _changes(self) -> NodeChanges:
        return NodeChanges(self._caller, self._requests, self._find)

    @property
    def server_time(self) -> datetime | None:
        """The service's time, from the `Date` header of its last answer; None before the first answer."""
        return self._caller.server_time

    def get_node(self, name: NodeName) -> Node:
        """Return a node, or raise `NodeNotFoundError`."""
        node = self.find_node(name)
        if node is None:
            raise NodeNotFoundError(name.node_id, name.zone)
        return node

    def find_node(self, name: NodeName) -> Node | None:
        """Return a node; None only after a 404 from the API, never after another failure."""
        with translated():
            return self._find(name)

    def list_nodes(self, project: str, zones: Sequence[str] = ()) -> NodeListing:
        """Return the nodes of the zones, or of all zones. Raises if no zone answered.

        Source for the wildcard: used with the real service by several programs, and by `gcloud … list --zone=-`.
        """
        listing = self._list(self._requests.list_nodes, _NODES, Node.from_api, project, zones)
        return NodeListing(listing.items, listing.unreachable)

    def create_node(self, name: NodeName, spec: NodeSpec) -> Operation:
        """Create a node, at most once; see `creation.create_once`."""
        label, body = self._creation(spec)
        request = self._requests.create_node(name, body)
        return create_once(
            self._caller,
            name,
            label,
            send=lambda: self._caller.attempt(request, Operation.from_api, is_safe=False),
            find=lambda: self._find(name),
        )

    def delete_node(self, name: NodeName, *, expected_id: str | None = None) -> Operation:
        """Delete a node. If it is gone, the returned operation is done.

        With `expected_id`, a delete whose answer was lost is not repeated on a newer node of the same name.
        """
        return self._changes.delete(name, expected_id=expected_id)

    def start_node(self, name: NodeName) -> Operation:
        """Start a stopped node."""
        return self._changes.start(name)

    def stop_node(self, name: NodeName) -> Operation:
        """Stop a node, keeping its disk."""
        return self._changes.stop(name)

    def update_node(self, name: NodeName, changes: Mapping[str, Any]) -> Operation:
        """Set fields of a node, by the API's names: `{"labels": {…}}`. Maps are replaced as a whole."""
        return self._changes.update(name, changes)

    def change_metadata(self, name: NodeName, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Operation:
        """Replace the metadata by the result of `change`, which is called again if another client changed it meanwhile."""
        return self._changes.change_metadata(name, change)

    def preview_create(self, name: NodeName, spec: NodeSpec) -> RequestPreview:
        """Return the request of `create_node` without sending it; each has a new request label."""
        return preview(self._requests.create_node(name, self._creation(spec)[1]))

    def preview_delete(self, name: NodeName) -> RequestPreview:
        """Return the request of `delete_node` without sending it."""
        return preview(self._requests.delete_node(name))

    def preview_delete_queued_resource(self, name: str) -> RequestPreview:
        """Return the request of `delete_queued_resource` with `force`, without sending it and without its request id."""
        return preview(self._requests.delete_queued_resource(name, force=True, request_id=None))

    def preview_start(self, name: NodeName) -> RequestPreview:
        """Return the request of `start_node` without sending it."""
        return preview(self._requests.start_node(name))

    def preview_stop(self, name: NodeName) -> RequestPreview:
        """Return the request of `stop_node` without sending it."""
        return preview(self._requests.stop_node(name))

    def preview_update(self, name: NodeName, changes: Mapping[str, Any]) -> RequestPreview:
        """Return the request of `update_node` without sending it."""
        return preview(self._requests.patch_node(name, changes))

    def get_operation(self, name: str) -> Operation:
        """Return an operation by its full name."""
        _check(name, "operations")
        return self._caller.call(self._requests.get_operation(name), _only(name, Operation.from_api))

    def operation_error(self, error: OperationError) -> TpuctlError:
        """Return the exception for a failed operation."""
        return operation_error(error)

    def list_queued_resources(self, project: str, zones: Sequence[str] = ()) -> QueuedListing:
        """Return the queued resources of the zones, or of all zones.

        Source for the wildcard: unverified; if the service refuses it, each zone is listed.
        """
        build = self._requests.list_queued_resources
        listing = self._list(build, _REQUESTS, QueuedResource.from_api, project, zones)
        return QueuedListing(listing.items, listing.unreachable)

    def get_queued_resource(self, name: str) -> QueuedResource:
        """Return a queued resource by its full name, or raise `NotFoundError`."""
        _check(name, "queuedResources")
        return self._caller.call(self._requests.get_queued_resource(name), _only(name, QueuedResource.from_api))

    def delete_queued_resource(self, name: str, *, force: bool) -> Operation:
        """Delete a queued resource; `force` deletes its nodes first. If it is gone, the operation is done.

        Without `force` the service accepts it only in ACCEPTED, FAILED or SUSPENDED, or without nodes [API field text].
        """
        _check(name, "queuedResources")
        # One id for all retries: the service carries out a repeated request once [API field text of requestId].
        request_id = str(UUID(int=self._caller.random.getrandbits(128), version=4))
        request = self._requests.delete_queued_resource(name, force=force, request_id=request_id)

        def send() -> Operation:
            try:
                return self._caller.attempt(request, Operation.from_api, is_safe=False)
            except RefusedError as error:
                if error.refusal.is_not_found:
                    return Operation(None, done=True)
                raise

        def check() -> Effect:
            try:
                request = self._requests.get_queued_resource(name)
                found = self._caller.attempt(request, _only(name, QueuedResource.from_api))
            except RefusedError as error:
                if error.refusal.is_not_found:
                    return Effect.DONE
                raise
            return Effect.DONE if found.state is QueuedState.DELETING else Effect.NOT_YET

        return carry_out(self._caller, Change("delete", short(name), send, check))

    def guest_attributes(self, name: NodeName, worker: int | None = None) -> tuple[Mapping[str, str], ...]:
        """Return the guest attributes of one worker, or of all in their order, as `namespace/key` → value.

        Empty if no worker published any, or the node is absent: the service answers `{}`, 404 or 400 then.
        """

        def read(data: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
            # An entry without queryValue is a worker that published none [gcloud 528 crashes on it].
            entries = _ATTRIBUTES.read(data).get("guestAttributes") or ()
            workers = [(entry.get("queryValue") or {}).get("items") or () for entry in entries]
            return tuple(
                {f"{item['namespace']}/{item['key']}": str(item.get("value", "")) for item in items}
                for items in workers
            )

        try:
            return self._caller.attempt(self._requests.guest_attributes(name, worker), read)
        except (RefusedError, TransportError) as failure:
            error = translate(failure)
            is_absent = isinstance(failure, RefusedError) and failure.refusal.is_not_found
            if is_absent or error.error_id == _NO_GUEST_ATTRIBUTES:
                return ()
            raise error from failure

    def _find(self, name: NodeName) -> Node | None:
        """Return a node; None only after a 404 from the API. Raises `TransportError` and `RefusedError`."""
        try:
            with node_of(name):
                return self._caller.attempt(self._requests.get_node(name), _only(str(name), Node.from_api))
        except NodeNotFoundError:
            return None

    def _creation(self, spec: NodeSpec) -> tuple[str, dict[str, Any]]:
        label = UUID(int=self._caller.random.getrandbits(128), version=4).hex
        body = spec.to_api()
        body["labels"] = {**(body.get("labels") or {}), REQUEST_LABEL: label}
        return label, body


def _only(name: str, read: Callable[[Mapping[str, Any]], T]) -> Callable[[Mapping[str, Any]], T]:
    """Return a reader that accepts only the resource of this name.

    Projects are not compared: a project has an id and a number, and the service may use either.
    """

    def checked(data: Mapping[str, Any]) -> T:
        found = read(data)
        if str(data["name"]).split("/")[2:] != name.split("/")[2:]:
            raise ShapeError("a resource that was not requested", "name")
        return found

    return checked


def _check(name: str, collection: str) -> None:
    if not re.fullmatch(rf"projects/[^/]+/locations/[^/]+/{collection}/[^/]+", name):
        raise InvalidInputError(f"`{name}` is not the full name of one of {collection}")
