"""A client of the Cloud TPU API v2 that returns tpuctl's models. It is thread-safe.

Every method raises tpuctl's exceptions: `AccessError`, `QuotaError`, `NoCapacityError`, `InvalidRequestError`,
`ConflictError`, `NotFoundError`, `ServiceUnavailableError`; a change also raises `OutcomeUnknownError` if it was sent and
its outcome is unknown. Requests that fail temporarily are retried if that is harmless.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar
from uuid import UUID

from tpuctl.clock import (
    DEADLINE_GRACE,
    SystemClock,
    deadline_has_passed,
    limit_cloud_calls,
)
from tpuctl.cloud.errors import (
    ApiError,
    GarbledAnswerError,
    TransportError,
    operation_error,
    translate,
    translate_errors,
)
from tpuctl.cloud.requests import (
    FEW_RETRIES,
    MOST_SENDS,
    UNEXPECTED,
    ApiClient,
    ApiRequest,
    Failure,
    Listing,
    Read,
    is_uncertain,
)
from tpuctl.decoding import ShapeError, decode, decoder_of, json_field
from tpuctl.durations import format_duration
from tpuctl.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    InvalidRequestError,
    NodeNotFoundError,
    NotFoundError,
    OutcomeUnknownError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.fan_out import fan_out
from tpuctl.models.api_values import ApiObject, ApiText, ApiTime, LastSegment, ResourceName, Segment
from tpuctl.models.node import Node, NodeState, QueuedState
from tpuctl.models.node_changes import NodeChange, differing_fields, is_same, restored_node
from tpuctl.models.operation import Operation
from tpuctl.models.project import Reservation
from tpuctl.models.queued import QueuedResource
from tpuctl.models.spec import REQUEST_LABEL, NodeSpec, QueueWindow
from tpuctl.models.spec_fields import V2
from tpuctl.names import NodeName, last_segment

T = TypeVar("T")

_TYPE_FIELDS = "acceleratorTypes(name,type),nextPageToken,unreachable"
# The id that `explain` gives to the error for missing guest attributes.
_NO_GUEST_ATTRIBUTES = "guest-attributes-missing"
# More than any project has in a zone; the service may answer with fewer [API v2, pageSize].
_PAGE_SIZE = 1000
# The maximum number of sendings of a change that other clients overwrite or refuse.
_CHANGE_ATTEMPTS = 6
# How long a change waits for its operation, unless the user says.
CHANGE_TIMEOUT = timedelta(minutes=5)
_OPERATION_INTERVAL = timedelta(seconds=2)
# Of the list that shows whether a change has overwritten another one.
_OPERATIONS_LIMIT = timedelta(seconds=15)
# A list of each zone needs the zones, which seldom change.
_ZONES_LIFETIME = timedelta(minutes=1)
# The verb of an update in the metadata of its operation [unverified].
_UPDATE = "update"
# The header `date` has whole seconds.
_CLOCK_GRANULARITY = timedelta(seconds=2)
# A request for more nodes than these is looked at with one list.
_MOST_LOOKUPS = 8
# A node may show up in nodes.get some time after its create was accepted [unverified].
_CREATION_CHECKS = 4


@dataclass(frozen=True, slots=True)
class _Entry:
    name: LastSegment = ""


@dataclass(frozen=True, slots=True)
class _Resource:
    name: ResourceName


@dataclass(frozen=True, slots=True)
class _Attribute:
    namespace: ApiText
    key: ApiText
    value: ApiText = ""


@dataclass(frozen=True, slots=True)
class _WorkerAttributes:
    # A worker that published none has no `queryValue` [gcloud 528 crashes on it].
    attributes: tuple[_Attribute, ...] = json_field("queryValue.items", default=())


@dataclass(frozen=True, slots=True)
class _GuestAttributes:
    workers: tuple[_WorkerAttributes, ...] = json_field("guestAttributes", default=())


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


class _AlreadyEndedError(Exception):
    """What would be deleted or stopped is gone, or ends already: it never leaves this module."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.operation = operation


class _ChangedMeanwhileError(Exception):
    """Another client changed what a change that would be sent again was made of: it never leaves this module."""


class TpuClient(ApiClient):
    """Calls the TPU API."""

    def __init__(self, *given: Any, **options: Any) -> None:  # those of `ApiClient`
        super().__init__(*given, **options)
        # By project, with the monotonic time when they were read.
        self._zones_lock = threading.Lock()
        self._zones: dict[str, tuple[timedelta, tuple[str, ...]]] = {}

    def locations(self, project: str) -> tuple[str, ...]:
        """Return the zones of the API for a project. Raises for an empty list, which cannot be true."""

        def read(data: Mapping[str, Any]) -> str:
            return decoder_of(Segment)(_named(data, "locationId"))

        with translate_errors():
            method = "tpu.v2 projects.locations.list"
            zones = self._pages(method, "locations", read, name=f"projects/{project}", pageSize=_PAGE_SIZE).items
            if not zones:
                # A caller that lists each zone would report that no nodes exist.
                raise GarbledAnswerError(f"{UNEXPECTED}: locations: none")
        return zones

    def accelerator_types(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the accelerator types that a zone offers to a project."""
        with translate_errors():
            return self._zone_pages("acceleratorTypes", _type, project, zone, fields=_TYPE_FIELDS).items

    def runtime_versions(self, project: str, zone: str) -> tuple[str, ...]:
        """Return the runtime versions that a zone offers to a project."""
        with translate_errors():
            return self._zone_pages("runtimeVersions", lambda data: _named(data, "version"), project, zone).items

    def offers(self, project: str) -> Mapping[str, tuple[str, ...]]:
        """Return the accelerator types of every zone that answers; the offers of missing zones are unknown.

        Source for the wildcard: unverified; if the service refuses it, each zone is listed.
        """

        def read(data: Mapping[str, Any]) -> tuple[str, str]:
            # projects/P/locations/ZONE/acceleratorTypes/TYPE
            return decode(_Resource, data).name.split("/")[3], _type(data)

        offered: dict[str, list[str]] = {}
        for zone, accelerator_type in self._list("acceleratorTypes", read, project, (), fields=_TYPE_FIELDS).items:
            offered.setdefault(zone, []).append(accelerator_type)
        return {zone: tuple(types) for zone, types in offered.items()}

    def reservations(self, project: str, zone: str) -> tuple[Reservation, ...]:
        """Return the reservations of a zone [API v2alpha1, the only version that has them]."""
        with translate_errors():
            return self._zone_pages("reservations", decoder_of(Reservation), project, zone, version="v2alpha1").items

    def list_nodes(self, project: str, zones: Sequence[str] = (), *, version: str = V2) -> NodeListing:
        """Return the nodes of the zones, or of all zones, as a version of the API shows them. Raises if no zone answered.

        As v2 shows them if the project may not use the other version.
        Source for the wildcard: used with the real service by several programs, and by `gcloud … list --zone=-`.
        """
        listing = self._as_shown(
            version, lambda version: self._list("nodes", Node.from_api, project, zones, version=version)
        )
        return NodeListing(listing.items, listing.unreachable)

    def list_queued_resources(self, project: str, zones: Sequence[str] = (), *, version: str = "v2") -> QueuedListing:
        """Return the queued resources of the zones, or of all zones. v2alpha1 also shows best-effort and flex-start.

        As v2 shows them if the project may not use the other version.
        Source for the wildcard: unverified; if the service refuses it, each zone is listed.
        """
        listing = self._as_shown(
            version,
            lambda version: self._list("queuedResources", QueuedResource.from_api, project, zones, version=version),
        )
        return QueuedListing(listing.items, listing.unreachable)

    def get_node(self, name: NodeName) -> Node:
        """Return a node, or raise `NodeNotFoundError`."""
        node = self.find_node(name)
        if node is None:
            raise NodeNotFoundError(name.node_id, name.zone)
        return node

    def find_node(self, name: NodeName, *, version: str = V2) -> Node | None:
        """Return a node; None only after a 404 from the API v2, never after another failure.

        As `version` shows it, or as v2 does if the project may not use that.
        """

        def find(version: str) -> Node | None:
            with translate_errors():
                return self._find(name, version=version)

        return self._as_shown(version, find)

    def find_nodes(self, names: Sequence[NodeName]) -> tuple[Node, ...]:
        """Return those of the nodes of one zone that exist, as `find_node`; many with one list."""
        with translate_errors():
            return self._nodes_named(names)

    @staticmethod
    def _as_shown(version: str, ask: Callable[[str], T]) -> T:
        """Return the answer of a version of the API; that of v2 if the other version has none, or refuses."""
        if version != V2:
            with suppress(InvalidRequestError, NotFoundError, AccessError):
                answer = ask(version)
                if answer is not None:
                    return answer
        return ask(V2)

    def get_operation(self, name: str) -> Operation:
        """Return an operation by its full name."""
        _check(name, "operations")
        return self._call(self._request("operations.get", name=name), _only(name, Operation.from_api))

    operation_error = staticmethod(operation_error)

    def get_queued_resource(self, name: str, *, version: str = "v2") -> QueuedResource:
        """Return a queued resource by its full name, or raise `NotFoundError`. `version` is that of the API."""
        _check(name, "queuedResources")
        fetch = self._request("queuedResources.get", version=version, name=name)
        return self._call(fetch, _only(name, QueuedResource.from_api))

    def find_queued_resource(self, name: NodeName, *, version: str = V2) -> QueuedResource | None:
        """Return the queued resource that has the id of this node; None only after a 404 from the API v2.

        As `version` shows it, or as v2 does if the project may not use that.
        """

        def find(version: str) -> QueuedResource | None:
            with translate_errors():
                return self._find_queued(queued_resource_name(name), version=version)

        return self._as_shown(version, find)

    def guest_attributes(
        self, name: NodeName, worker: int | None = None, *, path: str = ""
    ) -> tuple[Mapping[str, str], ...]:
        """Return the guest attributes of one worker, or of all in their order, as `namespace/key` → value.

        `path` limits them: `NAMESPACE/` or `NAMESPACE/KEY`.
        Empty if no worker published any, or the node is absent: the service answers `{}`, 404 or 400 then.
        """

        def read(data: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
            return tuple(
                {f"{entry.namespace}/{entry.key}": entry.value for entry in worker.attributes}
                for worker in decode(_GuestAttributes, data).workers
            )

        body: dict[str, Any] = {} if worker is None else {"workerIds": [str(worker)]}
        body |= {"queryPath": path} if path else {}
        try:
            return self._attempt(self._request("nodes.getGuestAttributes", name=name, body=body), read)
        except (ApiError, TransportError) as failure:
            error = translate(failure)
            if _is_not_found(failure) or error.error_id == _NO_GUEST_ATTRIBUTES:
                return ()
            raise error from failure

    def create_node(self, name: NodeName, spec: NodeSpec) -> Operation:
        """Create a node, at most once. Return `Operation.unnamed()` if the answer was lost and the node is ours.

        After a lost answer or a 5xx the node is fetched. Only if it stays absent is the request sent a second and last
        time. After ALREADY_EXISTS it is fetched too: this very request, sent twice on its way, may have taken the name. The
        time limit of one call covers everything. Raises `AlreadyExistsError`, `OutcomeUnknownError`, or the service's
        refusal.
        """
        label = self._uuid().hex
        request = self._creation(name, spec, label)
        with limit_cloud_calls(SystemClock(), self._policy.deadline, grace=DEADLINE_GRACE):
            for is_last in (False, True):
                try:
                    return self._attempt(request, Operation.from_api, is_safe=False)
                except (TransportError, ApiError) as error:
                    failure = error
                # ABORTED is also a 409: another change was faster, and it says nothing about the name [google.rpc.Code].
                is_unsure = is_uncertain(failure) or _is_aborted(failure)
                is_taken = isinstance(failure, ApiError) and failure.response.code == 409 and not is_unsure
                if is_unsure or is_taken or is_last:
                    node = self._find_created(name, failure, attempts=_CREATION_CHECKS if is_unsure else 1)
                    if node and node.labels.get(REQUEST_LABEL) == label:
                        return Operation.unnamed()
                    if node:
                        raise _name_taken_error(name)
                    # If the name is taken now, then by the first sending, so the node will become visible.
                    if is_last and _is_aborted(failure):
                        raise translate(failure) from failure
                    if (is_last or deadline_has_passed()) and (is_unsure or is_taken):
                        raise _unknown_outcome_error("create", name.node_id, failure) from failure
                if not is_unsure:
                    refusal = translate(failure)
                    if is_taken and not isinstance(refusal, AlreadyExistsError):
                        refusal = _name_taken_error(name)
                    raise refusal from failure
        raise AssertionError("the second sending ends")

    def create_queued_resource(self, name: NodeName, spec: NodeSpec, window: QueueWindow) -> Operation:
        """Request a node through the queue, at most once, or all slices of its group. The queued resource has their name.

        Return `Operation.unnamed()` if the answer was lost, or was ALREADY_EXISTS, and the request is ours. Raises
        `AlreadyExistsError`, `OutcomeUnknownError`, or the service's refusal.
        """
        # One id for all sendings: the service carries out a repeated request once [API field text of requestId].
        label, request_id = self._uuid().hex, str(self._uuid())
        request = self._queued_creation(name, spec, window, label=label, request_id=request_id)
        full_name = queued_resource_name(spec.request_name(name))

        def is_requested() -> bool:
            queued = self._find_queued(full_name)
            return queued is not None and queued.requested_node(name.project).labels.get(REQUEST_LABEL) == label

        def send() -> Operation:
            return self._attempt(request, Operation.from_api, is_safe=False)

        return self._change("create", name.node_id, send, is_requested)

    def delete_node(self, name: NodeName, still_meant: Callable[[Node], None]) -> Operation:
        """Delete a node if it is `still_meant`; see `_end`. If it is gone, the returned operation is done."""
        return self._end(
            "delete",
            name.node_id,
            self._request("nodes.delete", name=name),
            find=lambda: self._find(name),
            identity=lambda node: node.id,
            is_ending=lambda node: node.state is NodeState.DELETING,
            still_meant=still_meant,
        )

    def delete_queued_resource(
        self, name: str, still_meant: Callable[[QueuedResource, tuple[Node, ...]], None], *, force: bool
    ) -> Operation:
        """Delete a queued resource if it, with the nodes of its names, is `still_meant`; see `_end`.

        `force` deletes its nodes first. Without it the service accepts the deletion only in ACCEPTED, FAILED or SUSPENDED, or
        without nodes [API field text]. If it is gone, the operation is done.
        """
        _check(name, "queuedResources")
        # One id for all retries: the service carries out a repeated request once [API field text of requestId].
        request = self._request("queuedResources.delete", name=name, force=force, requestId=str(self._uuid()))

        def find() -> tuple[QueuedResource, tuple[Node, ...]] | None:
            queued = self._find_queued(name)
            if queued is None:
                return None
            is_ending = queued.state is QueuedState.DELETING
            return queued, () if is_ending else self._nodes_named(queued.full_names(name.split("/")[1]))

        return self._end(
            "delete",
            last_segment(name),
            request,
            find=find,
            identity=lambda read: read[0].created,
            is_ending=lambda read: read[0].state is QueuedState.DELETING,
            still_meant=lambda read: still_meant(*read),
        )

    def start_node(self, name: NodeName) -> Operation:
        """Start a stopped node."""
        done = {NodeState.STARTING, NodeState.READY}
        return self._change_node(
            "start", self._request("nodes.start", name=name, body={}), name, lambda node: node.state in done
        )

    def stop_node(self, name: NodeName, still_meant: Callable[[Node], None]) -> Operation:
        """Stop a node if it is `still_meant`, keeping its disk; see `_end`. Raises `NodeNotFoundError`."""

        def find() -> Node:
            node = self._find(name)
            if node is None:
                raise NodeNotFoundError(name.node_id, name.zone)
            return node

        return self._end(
            "stop",
            name.node_id,
            self._request("nodes.stop", name=name, body={}),
            find=find,
            identity=lambda node: node.id,
            is_ending=lambda node: node.state in {NodeState.STOPPING, NodeState.STOPPED},
            still_meant=still_meant,
        )

    def change_node(
        self,
        name: NodeName,
        change: NodeChange,
        *,
        expected_id: str | None = None,
        timeout: timedelta | None = CHANGE_TIMEOUT,
    ) -> Node:
        """Change fields of a node, and return the node as it was read after the change. The only way to send a PATCH.

        The API replaces maps and lists as a whole and has no etag. So `change` gets the node as it is right before the
        request, and again as it is after the operation: what another client's older write removed is sent again. What our
        write removed is restored from the service's list of operations, which has the node as each update left it.

        Raises `ConflictError` if the node that has the name has another id than `expected_id`, or if other clients change
        it all the time; `TimedOutError` if the operation has not ended after `timeout`; what `change` raises, once the
        writes of other clients are restored.
        """
        node = self._find_expected(name, expected_id)
        fields = dict(change(node))
        refused: TpuctlError | None = None
        failure: TransportError | ApiError | None = None
        # What our last write that took effect has overwritten, until it is written again.
        restore: Callable[[Node], Node] | None = None
        for attempt in range(1, _CHANGE_ATTEMPTS + 1):
            if not fields:
                break
            read_at = self.server_time
            operation, failure = self._send_update(node, fields, expected_id)
            self.await_operation(operation, timeout=timeout, late=partial(_late_update_error, name))
            overwritten = self._overwritten(node, fields, operation, read_at)
            if failure is not None or attempt > 1:
                # Before the node is read, so that the next request follows at once.
                self._clock.sleep(self._back_off(attempt))
            try:
                now = self._find_expected(name, expected_id)
            except ServiceUnavailableError as error:
                raise _unknown_outcome_error("update", name.node_id, failure or error) from error
            if overwritten is not None:
                restore = partial(restored_node, read=node, sent=fields, overwritten=overwritten)
            elif operation.name is not None:
                restore = None
            wanted = now if restore is None else restore(now)
            restored = {field: wanted.raw.get(field) for field in fields}
            try:
                changed = {} if refused else dict(change(wanted))
            except TpuctlError as error:
                refused, changed = error, {}
            node, fields = now, differing_fields(now, restored | changed)
            if failure is not None and is_uncertain(failure) and (attempt == MOST_SENDS or deadline_has_passed()):
                break
        if refused is not None:
            raise refused
        if not fields:
            return node
        if failure is None:
            raise _contended_error(name, fields)
        if isinstance(failure, TransportError):
            raise _unknown_outcome_error("update", name.node_id, failure) from failure
        raise translate(failure) from failure

    def await_operation(
        self, operation: Operation, *, timeout: timedelta | None, late: Callable[[timedelta], TimedOutError]
    ) -> None:
        """Wait until an operation has ended. Raises its error, and after the timeout the error `late` for the time waited.

        While the API does not answer, the operation counts as running.
        """
        clock = self._clock
        started = clock.monotonic()
        while operation.name is not None and not operation.done:
            waited = clock.monotonic() - started
            if timeout is not None and waited >= timeout:
                raise late(waited)
            clock.sleep(_OPERATION_INTERVAL)
            left = None if timeout is None else timeout - waited
            with suppress(ServiceUnavailableError, QuotaError), limit_cloud_calls(clock, left, grace=DEADLINE_GRACE):
                try:
                    operation = self.get_operation(operation.name)
                except NotFoundError:
                    # The service forgets operations after a while: this one has ended.
                    return
        if operation.error is not None:
            raise self.operation_error(operation.error)

    def _find_expected(self, name: NodeName, expected_id: str | None) -> Node:
        node = self.get_node(name)
        if expected_id not in {None, node.id}:
            raise ConflictError(f"`{name.node_id}` changed meanwhile: another client recreated the node")
        return node

    def _send_update(
        self, node: Node, fields: Mapping[str, Any], expected_id: str | None
    ) -> tuple[Operation, TransportError | ApiError | None]:
        """Send fields that were made of this state of the node. Return the operation, and why it may not exist.

        Nothing is sent again once another client has changed these fields. Raises the refusal of the service.
        """
        sendings = itertools.count()

        def check() -> None:
            # The caller has read the node right before the first sending.
            if next(sendings) and not is_same(node, self._find_expected(node.name, expected_id), fields):
                raise _ChangedMeanwhileError

        request = self._update(node.name, fields)
        try:
            return self._attempt(request, Operation.from_api, is_safe=False, before_sending=check), None
        except _ChangedMeanwhileError:
            return Operation.unnamed(), None
        except (TransportError, ApiError) as error:
            if _is_not_found(error):
                raise NodeNotFoundError(node.name.node_id, node.name.zone) from translate(error)
            # The service answers simultaneous changes with 409 [gcloud 528 source: tpu_vm/ssh.py].
            if is_uncertain(error) or (isinstance(error, ApiError) and error.response.code == 409):
                return Operation.unnamed(), error
            raise translate(error) from error

    def _overwritten(
        self, read: Node, sent: Mapping[str, Any], operation: Operation, read_at: datetime | None
    ) -> Node | None:
        """Return the node as the last update of another client left it after we had read it and before our update.

        None if no client did that, or if that is unknown: the account may not list operations, or the answer was lost.
        """
        name = read.name
        if operation.name is None:
            return None  # the answer was lost
        try:
            with limit_cloud_calls(SystemClock(), _OPERATIONS_LIMIT):
                listed = list_operations(self, name.project, name.zone, {str(name), str(read.raw.get("name"))})
        except TpuctlError:
            return None
        # The newest last. `response` is the node after the update [documentation of Operation.response].
        updates = sorted(
            (
                (update.ended, update)
                for update in listed
                if update.verb == _UPDATE and update.response is not None and update.ended is not None
            ),
            key=itemgetter(0),
        )
        ours = next((ended for ended, update in updates if update.name == operation.name), None)
        if ours is None:
            return None
        for ended, update in reversed(updates):
            is_late = read_at is not None and ended < read_at - _CLOCK_GRANULARITY
            if update.name == operation.name or ended > ours or is_late:
                continue
            try:
                left = _only(str(name), Node.from_api)(update.response or {})
            except ShapeError:
                return None
            return None if left.id != read.id or is_same(left, read, sent) else left
        return None

    def perform_maintenance(self, node: Node) -> Operation:
        """Start the announced maintenance of a node now, through its queued resource if it has one [API v2alpha1 only]."""
        if node.queued_resource:
            method, name = "queuedResources.performMaintenanceQueuedResource", node.queued_resource
            body: dict[str, Any] = {"nodeNames": [node.name.node_id]}
        else:
            method, name, body = "nodes.performMaintenance", str(node.name), {}
        request = self._request(method, version="v2alpha1", name=name, body=body)

        def has_begun(now: Node) -> bool:
            announced = now.upcoming_maintenance
            return announced is None or announced.status != "PENDING"

        return self._change_node("maintenance request", request, node.name, has_begun)

    def preview(
        self,
        verb: str,
        name: NodeName,
        *,
        spec: NodeSpec | None = None,
        window: QueueWindow | None = None,
        changes: Mapping[str, Any],
        queued_resource: str | None = None,
        force: bool = True,
    ) -> ApiRequest | None:
        """Return the request of a change without sending it, None for a verb that needs none.

        That of a creation has a new label; requests for queued resources have no request id.
        """
        match verb:
            case "create" if spec and window:
                label = self._uuid().hex
                return self._queued_creation(name, spec, window, label=label, request_id=None)
            case "create" if spec:
                return self._creation(name, spec, self._uuid().hex)
            case "delete" if queued_resource:
                return self._request("queuedResources.delete", name=queued_resource, force=force)
            case "delete":
                return self._request("nodes.delete", name=name)
            case "start" | "stop":
                return self._request(f"nodes.{verb}", name=name, body={})
            case "update":
                return self._update(name, changes)
            case _:
                return None

    def _update(self, name: NodeName, changes: Mapping[str, Any]) -> ApiRequest:
        """Return the request that writes these fields.

        The mask names each changed field in camelCase, as Google's own Python library does.
        """
        paths: list[str] = []
        for field, value in changes.items():
            # Only the fields of networkConfig can be changed [API v2, nodes.patch].
            is_nested = field == "networkConfig" and isinstance(value, Mapping)
            paths += [f"{field}.{inner}" for inner in value] if is_nested else [field]
        return self._request("nodes.patch", name=name, updateMask=",".join(paths), body=dict(changes))

    def _request(self, method: str, *, version: str = "v2", **parameters: Any) -> ApiRequest:
        return self._build(f"tpu.{version} projects.locations.{method}", **parameters)

    def _creation(self, name: NodeName, spec: NodeSpec, label: str) -> ApiRequest:
        body = spec.to_api(name)
        body["labels"] = {**(body.get("labels") or {}), REQUEST_LABEL: label}
        parent = f"projects/{name.project}/locations/{name.zone}"
        return self._request("nodes.create", version=spec.api_version, parent=parent, nodeId=name.node_id, body=body)

    def _queued_creation(
        self, name: NodeName, spec: NodeSpec, window: QueueWindow, *, label: str, request_id: str | None
    ) -> ApiRequest:
        body = spec.to_queued_api(name, window)
        node = body["tpu"]["nodeSpec"][0]["node"]
        node["labels"] = {**(node.get("labels") or {}), REQUEST_LABEL: label}
        return self._request(
            "queuedResources.create",
            version=spec.api_version,
            parent=f"projects/{name.project}/locations/{name.zone}",
            queuedResourceId=spec.request_name(name).node_id,
            requestId=request_id,
            body=body,
        )

    def _find(self, name: NodeName, *, version: str = V2) -> Node | None:
        return self._lookup("nodes", str(name), Node.from_api, version)

    def _find_queued(self, name: str, *, version: str = V2) -> QueuedResource | None:
        return self._lookup("queuedResources", name, QueuedResource.from_api, version)

    def _lookup(self, collection: str, name: str, read: Read[T], version: str) -> T | None:
        """Return a resource; None only after a 404 from the API. Raises `TransportError` and `ApiError`."""
        try:
            return self._attempt(self._request(f"{collection}.get", version=version, name=name), _only(name, read))
        except ApiError as error:
            if _is_not_found(error):
                return None
            raise

    def _find_created(self, name: NodeName, failure: Exception, *, attempts: int) -> Node | None:
        for attempt in range(1, attempts + 1):
            try:
                node = self._find(name)
            except (TransportError, ApiError, TpuctlError) as error:
                raise _unknown_outcome_error("create", name.node_id, failure) from error
            if node is not None or attempt == attempts:
                return node
            self._clock.sleep(self._policy.first * 2 ** (attempt - 1) + self._back_off(attempt))
        return None

    def _nodes_named(self, names: Sequence[NodeName]) -> tuple[Node, ...]:
        """Return those of the nodes that exist. Raises `TransportError`, `ApiError` and `TpuctlError`."""
        if len(names) <= _MOST_LOOKUPS:
            return tuple(node for node in map(self._find, names) if node is not None)
        zone = names[0].zone
        listing = self._zone_pages("nodes", Node.from_api, names[0].project, zone)
        if listing.unreachable:
            raise ServiceUnavailableError(f"the nodes of {zone} cannot be read now", hint="try again in a few minutes")
        return tuple(node for node in listing.items if node.name in names)

    def _end(
        self,
        verb: str,
        what: str,
        request: ApiRequest,
        *,
        find: Callable[[], T | None],
        identity: Callable[[T], object],
        is_ending: Callable[[T], bool],
        still_meant: Callable[[T], None],
    ) -> Operation:
        """Delete or stop something that is still meant: every deletion and every stop is sent here.

        Right before each sending, `find` reads it and `still_meant` judges what was read, and raises if it must stay; nothing
        comes between this look and the request. So the caller writes journal and lease before. A request that was refused for
        now, or whose answer was lost, is not repeated on another resource that has the name since.
        """
        seen: list[object] = []
        # An earlier request had no answer, or one that does not say whether it was carried out. One that is repeated within
        # an attempt was refused.
        may_be_done = False

        def is_over(resource: T | None) -> bool:
            return resource is None or is_ending(resource) or (bool(seen) and identity(resource) != seen[0])

        def look() -> None:
            with translate_errors():
                resource = find()
            if resource is None or is_over(resource):
                raise _AlreadyEndedError(
                    Operation(None, done=resource is None and not may_be_done, was_sent=may_be_done)
                )
            still_meant(resource)
            seen.append(identity(resource))

        def send() -> Operation:
            nonlocal may_be_done
            try:
                return self._attempt(request, Operation.from_api, is_safe=False, before_sending=look)
            except _AlreadyEndedError as ended:
                return ended.operation
            except (TransportError, ApiError) as error:
                # `find` raises where an absent resource is an error.
                if isinstance(error, ApiError) and _is_not_found(error) and find() is None:
                    return Operation(None, done=True)
                may_be_done = True
                raise

        return self._change(verb, what, send, lambda: is_over(find()))

    def _change_node(
        self, verb: str, request: ApiRequest, name: NodeName, is_done: Callable[[Node], bool]
    ) -> Operation:
        def send() -> Operation:
            try:
                return self._attempt(request, Operation.from_api, is_safe=False)
            except ApiError as error:
                if _is_not_found(error):
                    raise NodeNotFoundError(name.node_id, name.zone) from translate(error)
                raise

        return self._change(verb, name.node_id, send, lambda: is_done(self.get_node(name)))

    def _change(self, verb: str, name: str, send: Callable[[], Operation], is_done: Callable[[], bool]) -> Operation:
        """Send a change that may be sent twice without harm. `verb` and `name` are for messages.

        Return its operation; `Operation.unnamed()` if it took effect (`is_done`) but its answer was lost. Raises the
        refusal of the service, or `OutcomeUnknownError` if it is unknown whether the change was carried out.
        """

        def may_be_done(failure: Failure) -> bool:
            # The first request may have been sent twice on its way.
            is_taken = isinstance(failure, ApiError) and failure.response.status == "ALREADY_EXISTS"
            return is_uncertain(failure) or is_taken

        with translate_errors():
            return self._send_and_confirm(
                send,
                lambda: Operation.unnamed() if is_done() else None,
                partial(_unknown_outcome_error, verb, name),
                may_be_done=may_be_done,
                # What the service answered counts once the effect was looked for.
                stays_unknown=lambda failure: isinstance(failure, TransportError),
            )

    def _uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)

    def _zone_pages(
        self, collection: str, read: Read[T], project: str, zone: str, *, version: str = "v2", **fields: Any
    ) -> Listing[T]:
        """Return a collection of a zone; `-` means all zones. Raises `TransportError` and `ApiError`."""
        method = f"tpu.{version} projects.locations.{collection}.list"
        parent = f"projects/{project}/locations/{zone}"
        return self._pages(method, collection, read, parent=parent, pageSize=_PAGE_SIZE, **fields)

    def _list(self, collection: str, read: Read[T], project: str, zones: Sequence[str], **fields: str) -> Listing[T]:
        """Return a collection of the zones, or of all zones if none are named.

        One call with `-` lists all zones. If the service refuses `-`, each zone is listed, unless the refusal is about
        the project or the caller.
        """

        def one_zone(zone: str) -> Listing[T]:
            return self._zone_pages(collection, read, project, zone, **fields)

        if zones:
            return self._list_each(one_zone, zones, are_named=True)
        try:
            return one_zone("-")
        except TransportError as failure:
            raise translate(failure) from failure
        except ApiError as failure:
            error = translate(failure)
            if failure.response.code not in _NO_WILDCARD or error.error_id in _SAME_EVERYWHERE:
                raise error from failure
        return self._list_each(one_zone, self._recent_zones(project))

    def _recent_zones(self, project: str) -> tuple[str, ...]:
        # Threads that list at the same time wait for the one that reads.
        with self._zones_lock:
            now = self._clock.monotonic()
            read_at, zones = self._zones.get(project, (None, ()))
            if read_at is None or now - read_at >= _ZONES_LIFETIME:
                zones = self.locations(project)
                self._zones[project] = now, zones
            return zones

    def _list_each(
        self, one_zone: Callable[[str], Listing[T]], zones: Sequence[str], *, are_named: bool = False
    ) -> Listing[T]:
        """List zones in parallel, within the time limit of one call. Return the items in the order of the zones.

        A zone that is closed to the project is left out, unless the user named it (`are_named`): then it is unreachable,
        like a zone that fails. If no zone answers, the first failure is raised.
        """

        def ask(zone: str) -> Listing[T] | _ZoneFailure:
            try:
                return one_zone(zone)
            except (TransportError, ApiError, TpuctlError) as failure:
                return failure

        listed: list[Listing[T]] = []
        missing: dict[str, _ZoneFailure] = {}
        closed: list[_ZoneFailure] = []
        asked = list(dict.fromkeys(zones))
        with limit_cloud_calls(SystemClock(), self._policy.deadline):
            outcomes = fan_out(ask, asked, limit=_LIST_THREADS)
        for outcome in outcomes:
            zone, answer = outcome.item, outcome.get()
            if isinstance(answer, Listing):
                listed.append(answer)
            elif not are_named and _is_closed(answer):
                closed.append(answer)
            else:
                missing[zone] = answer
        if not listed and (failures := [*missing.values(), *closed]):
            first = failures[0]
            raise (first if isinstance(first, TpuctlError) else translate(first)) from first
        unreachable = [zone for listing in listed for zone in listing.unreachable]
        return Listing(
            tuple(item for listing in listed for item in listing.items), tuple(dict.fromkeys([*unreachable, *missing]))
        )


def queued_resource_name(name: NodeName) -> str:
    """Return the full name of the queued resource that tpuctl requests a node with: it has the node's id."""
    return f"projects/{name.project}/locations/{name.zone}/queuedResources/{name.node_id}"


_LIST_THREADS = 8
# Answers of a service that does not accept `-` as a zone. Each zone is listed then.
_NO_WILDCARD = frozenset({400, 403, 404, 501})
# The ids that `explain` gives to refusals of the project or the caller: each zone would answer the same.
_SAME_EVERYWHERE = frozenset(
    {
        *(
            "api-disabled",
            "auth-insufficient-scopes",
            "auth-no-quota-project",
            "billing-disabled",
            "billing-free-trial",
        ),
        *("iam-impersonation", "iam-permission-denied", "iam-project-not-found", "project-suspended"),
    }
)
# The reason for a zone that is closed to the project [observed: Google's own zone listings in `gcloud compute tpus`].
_NOT_OFFERED = "LOCATION_POLICY_VIOLATED"

_ZoneFailure = TransportError | ApiError | TpuctlError


def _is_closed(failure: _ZoneFailure) -> bool:
    """Return whether a zone is closed to the project."""
    if not isinstance(failure, ApiError):
        return False
    return _is_not_found(failure) or (failure.response.code == 403 and failure.response.reason == _NOT_OFFERED)


def _is_not_found(failure: Exception) -> bool:
    return isinstance(failure, ApiError) and failure.response.is_not_found


def _is_aborted(failure: Exception) -> bool:
    return isinstance(failure, ApiError) and failure.response.status == "ABORTED"


def _type(data: Mapping[str, Any]) -> str:
    return _named(data, "type")


def _named(data: Mapping[str, Any], key: str) -> str:
    """Return the text under a key, or the last part of the name if it is missing. Raises `ShapeError`."""
    name = decoder_of(ApiText)(data.get(key, "")) or decode(_Entry, data).name
    if not name:
        raise ShapeError(f"`{key}` is missing")
    return name


def _only(name: str, read: Callable[[Mapping[str, Any]], T]) -> Callable[[Mapping[str, Any]], T]:
    """Return a reader that accepts only the resource of this name.

    Projects are not compared: a project has an id and a number, and the service may use either.
    """

    def checked(data: Mapping[str, Any]) -> T:
        resource = read(data)
        if str(data["name"]).split("/")[2:] != name.split("/")[2:]:
            raise ShapeError("a resource that was not requested", "name")
        return resource

    return checked


def _check(name: str, collection: str) -> None:
    if not re.fullmatch(rf"projects/[^/]+/locations/[^/]+/{collection}/[^/]+", name):
        raise InvalidInputError(f"`{name}` is not the full name of one of {collection}")


def _name_taken_error(name: NodeName) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"`{name.node_id}` already exists in {name.zone}", hint=f"see `tpuctl status {name.node_id}`"
    )


def _contended_error(name: NodeName, fields: Collection[str]) -> ConflictError:
    return ConflictError(
        f"other clients change `{name.node_id}` at the same time: not changed as wanted: {', '.join(sorted(fields))}",
        hint=f"check it with `tpuctl status {name.zone}/{name.node_id}`, then run the command again",
    )


def _late_update_error(name: NodeName, waited: timedelta) -> TimedOutError:
    return TimedOutError(
        f"the update of `{name.node_id}` has not finished after {format_duration(waited)}",
        hint=f"it continues in the cloud; check it with `tpuctl status {name.zone}/{name.node_id}`",
    )


def _unknown_outcome_error(verb: str, name: str, failure: Exception) -> OutcomeUnknownError:
    """Return the error of a change whose outcome is unknown."""
    return OutcomeUnknownError(
        f"the {verb} of `{name}` was sent, but its outcome is unknown: {failure}",
        hint=f"check with `tpuctl status {name}` before you try again",
    )


_OPERATION_PAGE_SIZE = 500


@dataclass(frozen=True, slots=True)
class ListedOperation:
    """An operation in the list of a zone. `raw` is its complete JSON."""

    raw: Mapping[str, Any]
    name: ApiText
    target: ApiText = json_field("metadata.target", default="")
    verb: ApiText = json_field("metadata.verb", default="")
    created: ApiTime = json_field("metadata.createTime", default=None)
    ended: ApiTime = json_field("metadata.endTime", default=None)
    response: ApiObject | None = None

    @classmethod
    def from_json(cls, data: Any) -> ListedOperation:
        """Parse an Operation. Raises `ShapeError`."""
        return decode(cls, data, raw=data)


class OperationsClient(ApiClient):
    """Lists operations of the TPU API, with few retries."""

    retry_policy = FEW_RETRIES

    def operations(
        self, project: str, zone: str, targets: Collection[str], *, limit: int
    ) -> tuple[dict[str, Any], ...]:
        """Return the newest operations on some resources, by their full names, as the API's own JSON, the newest first.

        Raises tpuctl's exceptions.
        """
        operations = list_operations(self, project, zone, targets)
        oldest = datetime.min.replace(tzinfo=UTC)
        operations.sort(key=lambda operation: operation.created or oldest, reverse=True)
        return tuple(dict(operation.raw) for operation in operations[:limit])


def list_operations(client: ApiClient, project: str, zone: str, targets: Collection[str]) -> list[ListedOperation]:
    """Return the operations on some resources, by their full names. Raises tpuctl's exceptions.

    The list is read to its end, because its order is not documented, and filtered here: the language of the API's filter is
    unverified.
    """
    with translate_errors():
        listing = client._pages(  # noqa: SLF001  # of this module's own kind
            "tpu.v2 projects.locations.operations.list",
            "operations",
            ListedOperation.from_json,
            name=f"projects/{project}/locations/{zone}",
            pageSize=_OPERATION_PAGE_SIZE,
        )
    return [operation for operation in listing.items if operation.target in targets]


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

    outcomes = fan_out(fetch, list(zones) or sorted(locations(project)), limit=_LIST_THREADS)
    offers = {outcome.item: outcome.get() for outcome in outcomes}
    return ZoneOffers(
        {zone: names for zone, names in offers.items() if names},
        tuple(zone for zone, names in offers.items() if names is None),
    )
