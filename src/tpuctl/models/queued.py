"""A queued resource: a request for nodes that waits for capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from tpuctl.decoding import By, json_field, read_fields
from tpuctl.models.api_values import (
    ApiDuration,
    ApiObject,
    ApiText,
    ApiTime,
    NodeId,
    ResourceName,
    api_integer,
)
from tpuctl.models.node import Node, QueuedState, Tier
from tpuctl.models.operation import OptionalError
from tpuctl.models.spec import REQUEST_LABEL, NodeSpec
from tpuctl.names import NodeName, last_segment

# No zone has capacity for more nodes, and each of their names is listed.
MAX_QUEUED_NODES = 10_000
_Count = Annotated[int, By(api_integer(f"a number of nodes, at most {MAX_QUEUED_NODES}", 0, MAX_QUEUED_NODES))]


def _requested(value: Any) -> Node:  # JSON
    # It has no name yet.
    return Node(NodeName("", "", ""), value)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Several nodes of one kind [API v2, MultisliceParams; API v2alpha1, MultiNodeParams]."""

    count: _Count = json_field("nodeCount", default=0)
    prefix: NodeId = json_field("nodeIdPrefix", default="")


@dataclass(frozen=True, slots=True)
class RequestedNodes:
    """One node, or several of one kind [API v2, NodeSpec]."""

    node_id: NodeId = ""
    node: Annotated[Node, By(_requested)] = field(default_factory=lambda: _requested({}))
    slices: NodeGroup | None = json_field("multisliceParams", default=None)
    nodes: NodeGroup | None = json_field("multiNodeParams", default=None)

    def ids(self, queued_resource_id: str) -> list[str]:
        """Return the ids of the nodes."""
        if group := self.slices or self.nodes:
            return [f"{group.prefix or queued_resource_id}-{index}" for index in range(group.count)]
        return [self.node_id or queued_resource_id]


@dataclass(frozen=True, init=False)
class QueuedResource:
    """A queued resource, with the fields that tpuctl reads. `raw` is the complete JSON from the API.

    Only API v2alpha1 has `best_effort`, `provisioning_model` and `run_time`.
    """

    name: ResourceName
    raw: Mapping[str, Any] = field(repr=False)
    # With the name it identifies the request.
    created: ApiTime = json_field("createTime", default=None)
    state: QueuedState = json_field("state.state", default=QueuedState.STATE_UNSPECIFIED)
    # The initiator of its state: USER or SERVICE.
    initiator: ApiText = json_field("state.stateInitiator", default="")
    # Why it FAILED, None if the service does not say.
    error: OptionalError = json_field("state.failedData.error", default=None)
    node_specs: tuple[RequestedNodes, ...] = json_field("tpu.nodeSpec", default=())
    is_guaranteed: bool = json_field("guaranteed.reserved", default=False)
    spot: ApiObject | None = None
    best_effort: ApiObject | None = None
    provisioning_model: ApiText = ""
    reservation_name: ApiText = ""
    # How long its nodes run; None if they have no end.
    run_time: ApiDuration | None = json_field("runDuration.maxRunDuration", default=None)
    until_duration: ApiDuration | None = json_field("queueingPolicy.validUntilDuration", default=None)
    until_time: ApiTime = json_field("queueingPolicy.validUntilTime", default=None)
    after_duration: ApiDuration | None = json_field("queueingPolicy.validAfterDuration", default=None)
    after_time: ApiTime = json_field("queueingPolicy.validAfterTime", default=None)
    interval_start: ApiTime = json_field("queueingPolicy.validInterval.startTime", default=None)
    interval_end: ApiTime = json_field("queueingPolicy.validInterval.endTime", default=None)

    def __init__(self, name: str | None, raw: Mapping[str, Any]) -> None:
        """Read the fields of a QueuedResource, its name too if it is None. Raises `ShapeError`."""
        known = {"raw": raw} if name is None else {"raw": raw, "name": name}
        self.__dict__.update(read_fields(QueuedResource, raw, known), **known)

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> QueuedResource:
        """Parse a QueuedResource. Raises `ShapeError`."""
        return cls(None, data)

    @property
    def queued_resource_id(self) -> str:
        """Its id within project and zone."""
        return last_segment(self.name)

    @property
    def short_name(self) -> str:
        """Its zone and id, as commands accept them."""
        return f"{self.zone}/{self.queued_resource_id}"

    def node_name(self, project: str) -> NodeName:
        """Return the full name of its first node."""
        return NodeName(project, self.zone, next(iter(self.node_ids), self.queued_resource_id))

    @property
    def zone(self) -> str:
        """Its zone."""
        return self.name.split("/")[3]

    @property
    def valid_until(self) -> datetime | None:
        """The time after which the service fails the request instead of creating nodes; None if it has no end."""
        return self.until_time or self.interval_end or self._later(self.until_duration)

    @property
    def valid_after(self) -> datetime | None:
        """The time before which the service creates no nodes; None for at once."""
        return self.after_time or self.interval_start or self._later(self.after_duration)

    def _later(self, duration: timedelta | None) -> datetime | None:
        try:
            return None if self.created is None or duration is None else self.created + duration
        except OverflowError:
            return None  # beyond the end of the calendar

    @property
    def tier(self) -> Tier:
        """The capacity type. API v2 shows best-effort and flex-start requests as on-demand."""
        model = self.provisioning_model
        if self.best_effort is not None:
            return Tier.BEST_EFFORT
        if model == "FLEX_START":
            return Tier.FLEX_START
        if self.spot is not None or model == "SPOT":
            return Tier.SPOT
        is_reserved = self.reservation_name or self.is_guaranteed or model == "RESERVATION_BOUND"
        return Tier.RESERVED if is_reserved else Tier.ON_DEMAND

    @property
    def reservation(self) -> str | None:
        """The reservation that it names."""
        # `-` is any reservation of the project.
        return None if last_segment(self.reservation_name) in {"", "-"} else self.reservation_name

    def requested_node(self, project: str) -> Node:
        """Return its first node as requested, with the tier of the request, as if it existed."""
        return self.requested_nodes(project)[0]

    def requested_nodes(self, project: str) -> tuple[Node, ...]:
        """Return the first node of each of its specs, at least one, as `requested_node` does."""
        shown: dict[str, Any] = {}
        if self.tier in {Tier.SPOT, Tier.RESERVED}:
            named = {"reservationName": self.reservation} if self.reservation else {}
            shown = {"schedulingConfig": {str(self.tier): True, **named}}
        nodes = []
        for spec in self._specs:
            node_id = next(iter(spec.ids(self.queued_resource_id)), self.queued_resource_id)
            nodes.append(Node(NodeName(project, self.zone, node_id), {**spec.node.raw, **shown}))
        return tuple(nodes)

    def all_requested_nodes(self, project: str) -> tuple[Node, ...]:
        """Return every node as requested, as `requested_node` does."""
        return tuple(
            Node(NodeName(project, self.zone, node_id), first.raw)
            for spec, first in zip(self._specs, self.requested_nodes(project), strict=True)
            for node_id in spec.ids(self.queued_resource_id)
        )

    @property
    def _specs(self) -> tuple[RequestedNodes, ...]:
        return self.node_specs or (RequestedNodes(),)

    @property
    def accelerator_type(self) -> str:
        """The accelerator type of its first node; empty if it is unknown."""
        return self.requested_node("").accelerator_type

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of its first node."""
        return self.requested_node("").labels

    @property
    def is_from_tpuctl(self) -> bool:
        """Return whether tpuctl made it: it has the id of its node, and that node the label of a create request."""
        return self.node_ids == (self.queued_resource_id,) and REQUEST_LABEL in self.labels

    @property
    def chips(self) -> int | None:
        """The chips of all its nodes, None if the accelerator type is unknown."""
        accelerator = self.requested_node("").accelerator
        return accelerator.chips * len(self.node_ids) if accelerator else None

    @property
    def api_version(self) -> str:
        """The version of the API that shows all its fields: v2, else v2alpha1."""
        return "v2alpha1" if {"bestEffort", "provisioningModel", "runDuration"} & {*self.raw} else "v2"

    def spec(self, project: str) -> NodeSpec:
        """Return the spec that requests its first node again."""
        node = self.requested_node(project)
        has_limit = node.expires and self.created and node.expires > self.created
        return replace(
            NodeSpec.from_node(node),
            ttl=node.expires - self.created if node.expires and self.created and has_limit else None,
            queue=True,
            tier=self.tier,
            reservation=self.reservation,
            is_calendar=self.provisioning_model == "RESERVATION_BOUND",
            run_for=self.run_time,
        )

    @property
    def was_suspended_by_service(self) -> bool:
        """Return whether the service has suspended it, which is a preemption of its nodes."""
        return self.state in {QueuedState.SUSPENDING, QueuedState.SUSPENDED} and self.initiator == "SERVICE"

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The ids of the requested nodes, whether they exist or not."""
        return tuple(node_id for spec in self.node_specs for node_id in spec.ids(self.queued_resource_id))

    @property
    def own_names(self) -> tuple[str, ...]:
        """The names of it as a whole: its own id, and the prefixes of the ids of its nodes."""
        groups = [spec.slices or spec.nodes for spec in self.node_specs]
        prefixes = [group.prefix for group in groups if group and group.prefix]
        return tuple(dict.fromkeys((self.queued_resource_id, *prefixes)))

    def full_names(self, project: str) -> tuple[NodeName, ...]:
        """Return the full names of its nodes, whether they exist or not."""
        return tuple(NodeName(project, self.zone, node_id) for node_id in self.node_ids)

    def is_named(self, text: str) -> bool:
        """Return whether a text names it: its own id, or the prefix of the ids of its nodes."""
        return text in self.own_names

    def owns(self, node_id: str) -> bool:
        """Return whether it owns, or will own, the node with this id."""
        return node_id in self.node_ids
