"""A client of the Cloud TPU API v2 that returns tpuctl's models. It is thread-safe.

Every method raises tpuctl's exceptions: `AccessError`, `QuotaError`, `NoCapacityError`, `InvalidRequestError`,
`ConflictError`, `NotFoundError`, `ServiceUnavailableError`; a change also raises `OutcomeUnknownError` if it was sent and
its outcome is unknown. Requests that fail temporarily are retried if that is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from uuid import UUID

from tpuctl.clock import DEADLINE_GRACE, SystemClock, deadline_has_passed, limit_cloud_calls
from tpuctl.cloud.errors import (
    ApiRefusedError,
    GarbledAnswerError,
    TransportError,
    operation_error,
    translate,
    translate_errors,
)
from tpuctl.cloud.requests import (
    SHORT_PATIENCE,
    UNEXPECTED,
    ApiClient,
    ConfirmedChange,
    Effect,
    PlainRequest,
    RequestPreview,
    ZoneListing,
    all_pages,
    backoff,
    is_uncertain,
    list_everywhere,
    preview_request,
    run_side_by_side,
    send_and_confirm,
    unknown_outcome_error,
)
from tpuctl.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    InvalidRequestError,
    NodeNotFoundError,
    NotFoundError,
    ServiceUnavailableError,
    TpuctlError,
)
from tpuctl.models.node import Node, NodeState, QueuedState
from tpuctl.models.operation import OPERATION, Operation, OperationError
from tpuctl.models.project import Reservation
from tpuctl.models.queued import QueuedResource
from tpuctl.models.spec import REQUEST_LABEL, NodeSpec
from tpuctl.names import NodeName, last_segment
from tpuctl.shapes import RESOURCE, SEGMENT, TIME, ListOf, Page, Shape, ShapeError

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpuctl.cloud.requests import ApiCaller


OfferT = TypeVar("OfferT")
_BuildPageRequest = Callable[[str, str, str | None], "PlainRequest"]

_LOCATION = Shape("tpu.v2 Location", {"name": str, "locationId": SEGMENT})
_LOCATIONS = Page("tpu.v2 ListLocationsResponse", "locations")
_TYPE = Shape("tpu.v2 AcceleratorType", {"name": str, "type": str})
_TYPES = Page("tpu.v2 ListAcceleratorTypesResponse", "acceleratorTypes")
_VERSION = Shape("tpu.v2 RuntimeVersion", {"name": str, "version": str})
_VERSIONS = Page("tpu.v2 ListRuntimeVersionsResponse", "runtimeVersions")


class CatalogueClient(ApiClient):
    """Calls the methods of the TPU API for zones."""

    @cached_property
    def _requests(self) -> TpuRequests:
        return TpuRequests(self._caller, self._url)

    def locations(self, project: str) -> tuple[str, ...]:
        """Return the zones of the API for a project. Raises for an empty list, which cannot be true."""

        def read(data: Mapping[str, Any]) -> str:
            zone = _named(_LOCATION, data, "locationId")
            SEGMENT.check(zone)
            return zone

        with translate_errors():
            listing = all_pages(
                self._caller, lambda token: self._requests.list_locations(project, token), _LOCATIONS, read
            )
            if not listing.items:
                # A caller that lists each zone would report that no nodes exist.
                raise GarbledAnswerError(f"{UNEXPECTED}: {_LOCATIONS.key}: none")
        return listing.items

    def accelerator_types(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the accelerator types that a zone offers to a project."""
        return self._catalogue(self._requests.list_accelerator_types, _TYPES, _type, project, zone)

    def runtime_versions(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the runtime versions that a zone offers to a project."""
        return self._catalogue(
            self._requests.list_runtime_versions,
            _VERSIONS,
            lambda data: _named(_VERSION, data, "version"),
            project,
            zone,
        )

    def offers(self, project: str) -> Mapping[str, tuple[str, ...]]:
        """Return the accelerator types of every zone that answers; the offers of missing zones are unknown.

        Source for the wildcard: unverified; if the service refuses it, each zone is listed.
        """

        def read(data: Mapping[str, Any]) -> tuple[str, str]:
            accelerator_type = _type(data)
            RESOURCE.check(data.get("name"))  # projects/P/locations/ZONE/acceleratorTypes/TYPE
            return str(data["name"]).split("/")[3], accelerator_type

        build = self._requests.list_accelerator_types
        offered: dict[str, list[str]] = {}
        for zone, accelerator_type in self._list(build, _TYPES, read, project, ()).items:
            offered.setdefault(zone, []).append(accelerator_type)
        return {zone: tuple(types) for zone, types in offered.items()}

    def reservations(self, project: str, zone: str) -> tuple[Reservation, ...]:
        """Return the reservations of a zone [API v2alpha1, the only version that has them]."""
        with translate_errors():
            return all_pages(
                self._caller,
                lambda token: self._requests.list_reservations(project, zone, token),
                Page("tpu.v2alpha1 ListReservationsResponse", "reservations"),
                Reservation.from_api,
            ).items

    def _list(
        self,
        build: _BuildPageRequest,
        page: Page,
        read: Callable[[Mapping[str, Any]], OfferT],
        project: str,
        zones: Sequence[str],
    ) -> ZoneListing[OfferT]:
        return list_everywhere(
            self._caller,
            lambda zone: all_pages(self._caller, lambda token: build(project, zone, token), page, read),
            zones=zones,
            locations=lambda: self._caller.zones.get_or_load(project, lambda: self.locations(project)),
        )

    def _catalogue(
        self, build: _BuildPageRequest, page: Page, read: Callable[[Mapping[str, Any]], str], project: str, zone: str
    ) -> tuple[str, ...]:
        with translate_errors():
            return all_pages(self._caller, lambda token: build(project, zone, token), page, read).items


def _type(data: Mapping[str, Any]) -> str:
    return _named(_TYPE, data, "type")


def _named(shape: Shape, data: Mapping[str, Any], field: str) -> str:
    """Return a field, or the last part of the name if the field is missing."""
    found = shape.read(data).get(field) or last_segment(data.get("name") or "")
    if not found:
        raise ShapeError("missing", field)
    return str(found)


T = TypeVar("T")

# The id that `explain` gives to the error for missing guest attributes.
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
        with translate_errors():
            return self._find(name)

    def list_nodes(self, project: str, zones: Sequence[str] = ()) -> NodeListing:
        """Return the nodes of the zones, or of all zones. Raises if no zone answered.

        Source for the wildcard: used with the real service by several programs, and by `gcloud … list --zone=-`.
        """
        listing = self._list(self._requests.list_nodes, _NODES, Node.from_api, project, zones)
        return NodeListing(listing.items, listing.unreachable)

    def create_node(self, name: NodeName, spec: NodeSpec) -> Operation:
        """Create a node, at most once; see `create_once`."""
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
        return preview_request(self._requests.create_node(name, self._creation(spec)[1]))

    def preview_delete(self, name: NodeName) -> RequestPreview:
        """Return the request of `delete_node` without sending it."""
        return preview_request(self._requests.delete_node(name))

    def preview_delete_queued_resource(self, name: str) -> RequestPreview:
        """Return the request of `delete_queued_resource` with `force`, without sending it and without its request id."""
        return preview_request(self._requests.delete_queued_resource(name, force=True, request_id=None))

    def preview_start(self, name: NodeName) -> RequestPreview:
        """Return the request of `start_node` without sending it."""
        return preview_request(self._requests.start_node(name))

    def preview_stop(self, name: NodeName) -> RequestPreview:
        """Return the request of `stop_node` without sending it."""
        return preview_request(self._requests.stop_node(name))

    def preview_update(self, name: NodeName, changes: Mapping[str, Any]) -> RequestPreview:
        """Return the request of `update_node` without sending it."""
        return preview_request(self._requests.patch_node(name, changes))

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
            except ApiRefusedError as error:
                if error.refusal.is_not_found:
                    return Operation(None, done=True)
                raise

        def check() -> Effect:
            try:
                request = self._requests.get_queued_resource(name)
                found = self._caller.attempt(request, _only(name, QueuedResource.from_api))
            except ApiRefusedError as error:
                if error.refusal.is_not_found:
                    return Effect.DONE
                raise
            return Effect.DONE if found.state is QueuedState.DELETING else Effect.NOT_YET

        return send_and_confirm(self._caller, ConfirmedChange("delete", last_segment(name), send, check))

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
        except (ApiRefusedError, TransportError) as failure:
            error = translate(failure)
            is_absent = isinstance(failure, ApiRefusedError) and failure.refusal.is_not_found
            if is_absent or error.error_id == _NO_GUEST_ATTRIBUTES:
                return ()
            raise error from failure

    def _find(self, name: NodeName) -> Node | None:
        """Return a node; None only after a 404 from the API. Raises `TransportError` and `ApiRefusedError`."""
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


# A class that the library creates at run time.
Request = Any

# More than any project has in a zone; the service may answer with fewer [API v2, pageSize].
_NODE_PAGE_SIZE = 1000
# Characters that are not quoted in a name. The project of a domain has a colon.
_PLAIN_METHODS = "/:"


class TpuRequests:
    """Builds requests. The names were validated before (`names`)."""

    def __init__(self, caller: ApiCaller, url: Callable[[str], str]) -> None:
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
        return PlainRequest.of(self._url(f"v2/{quote(name, safe=_PLAIN_METHODS)}"))

    def _page(
        self, parent: str, collection: str, token: str | None, *, version: str = "v2", fields: str | None = None
    ) -> PlainRequest:
        url = self._url(f"{version}/{quote(parent, safe=_PLAIN_METHODS)}/{collection}")
        return PlainRequest.of(url, query={"pageSize": _NODE_PAGE_SIZE, "pageToken": token, "fields": fields})

    # The library creates a collection at each call. That takes 2 ms, as much as the rest of a request.
    @cached_property
    def _nodes(self) -> Any:
        return self._caller.locations().nodes()


def _parent(project: str, zone: str) -> str:
    return f"projects/{project}/locations/{zone}"


_METADATA_ATTEMPTS = 6


class NodeChanges:
    """Sends changes of nodes. `find` reads a node, and returns None only after a 404 from the API."""

    def __init__(self, caller: ApiCaller, requests: TpuRequests, find: Callable[[NodeName], Node | None]) -> None:
        self._caller = caller
        self._requests = requests
        self._find = find

    def delete(self, name: NodeName, *, expected_id: str | None = None) -> Operation:
        """Delete a node; succeeds if it is gone. The request is not repeated for a node with another id."""
        gone = Operation(None, done=True)

        def send() -> Operation:
            try:
                return self._caller.attempt(self._requests.delete_node(name), Operation.from_api, is_safe=False)
            except ApiRefusedError as error:
                if error.refusal.is_not_found:
                    return gone
                raise

        def check() -> Effect:
            node = self._find(name)
            if node is None or node.state is NodeState.DELETING:
                return Effect.DONE
            # Another id: the node is gone, and another client has already created one of the same name.
            return Effect.NOT_YET if expected_id in {None, node.id} else Effect.DONE

        return send_and_confirm(self._caller, ConfirmedChange("delete", name.node_id, send, check))

    def start(self, name: NodeName) -> Operation:
        """Start a stopped node."""
        done = {NodeState.STARTING, NodeState.READY}
        return self._switch("start", name, self._requests.start_node, done)

    def stop(self, name: NodeName) -> Operation:
        """Stop a node, keeping its disk."""
        done = {NodeState.STOPPING, NodeState.STOPPED}
        return self._switch("stop", name, self._requests.stop_node, done)

    def update(self, name: NodeName, changes: Mapping[str, Any]) -> Operation:
        """Set fields of a node."""

        def send() -> Operation:
            with node_of(name):
                request = self._requests.patch_node(name, changes)
                return self._caller.attempt(request, Operation.from_api, is_safe=False)

        def check() -> Effect:
            return Effect.DONE if _has_values(self._existing(name).raw, changes) else Effect.NOT_YET

        with node_of(name):
            return send_and_confirm(self._caller, ConfirmedChange("update", name.node_id, send, check))

    def change_metadata(self, name: NodeName, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Operation:
        """Replace the metadata by the result of `change`. Retried if another client changed the node meanwhile."""
        attempt = 1
        while True:
            before = self._existing(name).metadata
            after = dict(change(before))
            if after == before:
                return Operation(None, done=True)
            try:
                return self.update(name, {"metadata": after})
            # The service answers simultaneous changes with 409 [gcloud 528 source: tpu_vm/ssh.py].
            except ConflictError:
                if attempt == _METADATA_ATTEMPTS:
                    raise
            self._caller.clock.sleep(backoff(self._caller.policy, attempt, self._caller.random))
            attempt += 1

    def _switch(self, verb: str, name: NodeName, build: Callable[[NodeName], Any], done: set[NodeState]) -> Operation:
        def send() -> Operation:
            with node_of(name):
                return self._caller.attempt(build(name), Operation.from_api, is_safe=False)

        def check() -> Effect:
            return Effect.DONE if self._existing(name).state in done else Effect.NOT_YET

        return send_and_confirm(self._caller, ConfirmedChange(verb, name.node_id, send, check))

    def _existing(self, name: NodeName) -> Node:
        node = self._find(name)
        if node is None:
            raise NodeNotFoundError(name.node_id, name.zone)
        return node


@contextmanager
def node_of(name: NodeName) -> Iterator[None]:
    """Raise `NodeNotFoundError` if the API says that the node is absent."""
    try:
        yield
    except ApiRefusedError as error:
        if error.refusal.is_not_found:
            raise NodeNotFoundError(name.node_id, name.zone) from translate(error)
        raise


def _has_values(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether the fields have the wanted values. Only networkConfig is compared key by key; empty equals absent."""
    for key, value in wanted.items():
        current = found.get(key)
        if key == "networkConfig" and isinstance(value, Mapping):
            if not _has_values(current or {}, value):
                return False
        elif current != value and (current or value):
            return False
    return True


# A node may show up in nodes.get some time after its create was accepted [unverified].
_CREATION_CHECKS = 4


def create_once(
    caller: ApiCaller, name: NodeName, label: str, *, send: Callable[[], Operation], find: Callable[[], Node | None]
) -> Operation:
    """Return the operation that creates the node; `Operation.unnamed()` if its answer was lost and the node is ours.

    After a lost answer or a 5xx the node is fetched. Only if it stays absent is the request sent a second and last
    time. The time limit of one call covers everything. Raises `AlreadyExistsError`, `OutcomeUnknownError`, or the
    service's refusal.
    """
    with limit_cloud_calls(SystemClock(), caller.policy.deadline, grace=DEADLINE_GRACE):
        failure: TransportError | ApiRefusedError
        try:
            return send()
        except (TransportError, ApiRefusedError) as error:
            if not is_uncertain(error):
                raise _creation_refused_error(name, error) from error
            failure = error
        if node := _find_created(caller, name, find, failure, attempts=_CREATION_CHECKS):
            return _is_ours(name, node, label)
        if deadline_has_passed():
            raise unknown_outcome_error("create", name.node_id, failure) from failure
        try:
            return send()
        except (TransportError, ApiRefusedError) as error:
            attempts = _CREATION_CHECKS if is_uncertain(error) else 1
            if node := _find_created(caller, name, find, error, attempts=attempts):
                return _is_ours(name, node, label)
            # The name is taken. Only the first sending can have taken it, so the node will become visible.
            is_taken = isinstance(error, ApiRefusedError) and error.refusal.code == 409
            if is_uncertain(error) or is_taken:
                raise unknown_outcome_error("create", name.node_id, error) from error
            raise _creation_refused_error(name, error) from error


def _find_created(
    caller: ApiCaller, name: NodeName, find: Callable[[], Node | None], failure: Exception, *, attempts: int
) -> Node | None:
    for attempt in range(1, attempts + 1):
        try:
            node = find()
        except (TransportError, ApiRefusedError, TpuctlError) as error:
            raise unknown_outcome_error("create", name.node_id, failure) from error
        if node is not None:
            return node
        if attempt < attempts:
            caller.clock.sleep(
                caller.policy.first * 2 ** (attempt - 1) + backoff(caller.policy, attempt, caller.random)
            )
    return None


def _is_ours(name: NodeName, node: Node, label: str) -> Operation:
    if node.labels.get(REQUEST_LABEL) == label:
        return Operation.unnamed()
    raise _name_taken_error(name)


def _creation_refused_error(name: NodeName, failure: TransportError | ApiRefusedError) -> TpuctlError:
    error = translate(failure)
    is_conflict = isinstance(failure, ApiRefusedError) and failure.refusal.code == 409
    return _name_taken_error(name) if is_conflict and not isinstance(error, AlreadyExistsError) else error


def _name_taken_error(name: NodeName) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"`{name.node_id}` already exists in {name.zone}", hint=f"see `tpuctl status {name.node_id}`"
    )


# A zone may have thousands. Only the newest are needed, but the order of the list is not documented.
_MOST_OPERATION_PAGES = 20
_OPERATION_PAGE_SIZE = 500
_OPERATIONS = Page("tpu.v2 ListOperationsResponse", "operations")
_METADATA = Shape(
    "tpu.v2 OperationMetadata",
    {"createTime": TIME, "endTime": TIME, "target": str, "verb": str, "statusDetail": str, "cancelRequested": bool},
)
_OPERATION = Shape("tpu.v2 Operation", {**OPERATION.fields, "metadata": _METADATA}, required=("name",))


class OperationsClient(CatalogueClient):
    """Lists operations of the TPU API, with few retries."""

    patience = SHORT_PATIENCE

    def operations(
        self, project: str, zone: str, targets: Collection[str], *, limit: int
    ) -> tuple[dict[str, Any], ...]:
        """Return the newest operations on some resources, by their full names, as the API's own JSON, the newest first.

        Raises tpuctl's exceptions. The list is filtered here: the language of the API's filter is unverified.
        """
        found: list[dict[str, Any]] = []
        token: str | None = None

        def read(data: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
            _OPERATIONS.check(data)
            items = _OPERATIONS.items(data, lambda item: dict(_OPERATION.read(item)))
            return items, data.get("nextPageToken") or None

        for _ in range(_MOST_OPERATION_PAGES):
            url = self._url(f"v2/projects/{project}/locations/{zone}/operations")
            request = PlainRequest.of(url, query={"pageSize": _OPERATION_PAGE_SIZE, "pageToken": token})
            with translate_errors():
                page, token = self._caller.attempt(request, read)
            found += [one for one in page if (one.get("metadata") or {}).get("target") in targets]
            if token is None:
                break
        found.sort(key=lambda one: str((one.get("metadata") or {}).get("createTime") or ""), reverse=True)
        return tuple(found[:limit])


@dataclass(frozen=True, slots=True)
class ZoneOffers:
    """The offers of each zone, and the zones that did not answer."""

    by_zone: Mapping[str, tuple[str, ...]]
    unreachable: tuple[str, ...]


def fetch_offers(
    ask: Callable[[str, str], tuple[str, ...]],
    locations: Callable[[str], tuple[str, ...]],
    project: str,
    zones: Sequence[str] = (),
) -> ZoneOffers:
    """Return the offers of the named zones, or of all zones. A zone that is closed to the project is left out."""
    asked = list(zones) or sorted(locations(project))
    found = {}

    def fetch(zone: str) -> tuple[str, ...] | None:
        """Return the offers of one zone, empty if it is closed to the project, None if it did not answer."""
        try:
            return ask(project, zone)
        except ServiceUnavailableError:
            return None
        except (AccessError, NotFoundError, InvalidRequestError):
            if zones:
                raise
            return ()

    for zone, answer in run_side_by_side(fetch, asked).items():
        if isinstance(answer, BaseException):
            raise answer
        found[zone] = answer
    return ZoneOffers(
        {zone: names for zone, names in found.items() if names},
        tuple(zone for zone, names in found.items() if names is None),
    )
