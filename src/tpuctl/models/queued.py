"""A queued resource: a request for nodes that waits for capacity."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.durations import parse_timestamp
from tpuctl.models.node import REQUESTED_NODE, Node, QueuedState, Tier
from tpuctl.models.operation import STATUS, OperationError
from tpuctl.models.spec import REQUEST_LABEL, NodeSpec
from tpuctl.names import NodeName, last_segment
from tpuctl.shapes import COUNT, DURATION, NODE_ID, RESOURCE, TIME, ListOf, Scalar, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

# No zone has capacity for more nodes, and each of their names is listed.
MAX_QUEUED_NODES = 10_000
_NODES = Scalar(
    f"a number of nodes, at most {MAX_QUEUED_NODES}",
    lambda value: COUNT.accepts(value) and int(value) <= MAX_QUEUED_NODES,
    "integer",
)
_NODE_SPEC = Shape(
    "tpu.v2 NodeSpec",
    {
        "nodeId": NODE_ID,
        "node": REQUESTED_NODE,
        "multisliceParams": Shape("tpu.v2 MultisliceParams", {"nodeCount": _NODES, "nodeIdPrefix": NODE_ID}),
        "multiNodeParams": Shape("tpu.v2alpha1 MultiNodeParams", {"nodeCount": _NODES, "nodeIdPrefix": NODE_ID}),
    },
)
_STATE = Shape(
    "tpu.v2 QueuedResourceState",
    {"state": str, "stateInitiator": str, "failedData": Shape("tpu.v2 FailedData", {"error": STATUS})},
)
_POLICY = Shape(
    "tpu.v2 QueueingPolicy",
    {
        "validUntilDuration": DURATION,
        "validUntilTime": TIME,
        "validAfterDuration": DURATION,
        "validAfterTime": TIME,
        "validInterval": Shape("tpu.v2 Interval", {"startTime": TIME, "endTime": TIME}),
    },
)
# API v2alpha1 alone has `bestEffort`, `provisioningModel` and `runDuration`.
QUEUED_RESOURCE = Shape(
    "tpu.v2 QueuedResource",
    {
        "name": RESOURCE,
        "createTime": TIME,
        "state": _STATE,
        "tpu": Shape("tpu.v2 Tpu", {"nodeSpec": ListOf(_NODE_SPEC)}),
        "guaranteed": Shape("tpu.v2alpha1 Guaranteed", {"reserved": bool}),
        "spot": Shape("tpu.v2 Spot", {}),
        "bestEffort": Shape("tpu.v2alpha1 BestEffort", {}),
        "provisioningModel": str,
        "reservationName": str,
        "queueingPolicy": _POLICY,
        "runDuration": Shape("tpu.v2alpha1 RunDuration", {"maxRunDuration": DURATION, "terminationTime": TIME}),
    },
    required=("name",),
)


@dataclass(frozen=True)
class QueuedResource:
    """A queued resource. `raw` is the complete JSON from the API."""

    name: str
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> QueuedResource:
        """Parse a QueuedResource. Raises `ShapeError`."""
        return cls(QUEUED_RESOURCE.read(data)["name"], data)

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
    def state(self) -> QueuedState:
        """Its state."""
        return QueuedState((self.raw.get("state") or {}).get("state") or "STATE_UNSPECIFIED")

    @property
    def created(self) -> datetime | None:
        """The time of its creation. With the name it identifies the request."""
        return parse_timestamp(self.raw.get("createTime"))

    @property
    def valid_until(self) -> datetime | None:
        """The time after which the service fails the request instead of creating nodes; None if it has no end."""
        return self._limit("Until", "endTime")

    @property
    def valid_after(self) -> datetime | None:
        """The time before which the service creates no nodes; None for at once."""
        return self._limit("After", "startTime")

    def _limit(self, word: str, end_of_interval: str) -> datetime | None:
        policy = self.raw.get("queueingPolicy") or {}
        stamp = policy.get(f"valid{word}Time") or (policy.get("validInterval") or {}).get(end_of_interval)
        duration = policy.get(f"valid{word}Duration")
        if stamp or not duration or self.created is None:
            return parse_timestamp(stamp)
        try:
            return self.created + timedelta(seconds=float(str(duration).rstrip("s")))
        except OverflowError:
            return None  # beyond the end of the calendar

    @property
    def tier(self) -> Tier:
        """The capacity type. API v2 shows best-effort and flex-start requests as on-demand."""
        raw, model = self.raw, self.raw.get("provisioningModel")
        if "bestEffort" in raw:
            return Tier.BEST_EFFORT
        if model == "FLEX_START":
            return Tier.FLEX_START
        if "spot" in raw or model == "SPOT":
            return Tier.SPOT
        is_reserved = raw.get("reservationName") or (raw.get("guaranteed") or {}).get("reserved")
        return Tier.RESERVED if is_reserved or model == "RESERVATION_BOUND" else Tier.ON_DEMAND

    @property
    def error(self) -> OperationError | None:
        """Why it FAILED, None if the service does not say."""
        status = ((self.raw.get("state") or {}).get("failedData") or {}).get("error")
        return OperationError.from_api(status) if status else None

    def requested_node(self, project: str) -> Node:
        """Return its first node as requested, with the tier of the request, as if it existed."""
        return self.requested_nodes(project)[0]

    def requested_nodes(self, project: str) -> tuple[Node, ...]:
        """Return the first node of each of its specs, at least one, as `requested_node` does."""
        specs: list[Mapping[str, Any]] = (self.raw.get("tpu") or {}).get("nodeSpec") or [{}]
        shown = {str(self.tier): True} if self.tier in {Tier.SPOT, Tier.RESERVED} else {}
        reservation = str(self.raw.get("reservationName") or "")
        # `-` is any reservation of the project.
        named = {} if last_segment(reservation) in {"", "-"} else {"reservationName": reservation}
        scheduling = {"schedulingConfig": {**shown, **named}} if shown else {}
        found = []
        for spec in specs:
            node_id = next(iter(self._ids_of(spec)), self.queued_resource_id)
            found.append(Node(NodeName(project, self.zone, node_id), {**(spec.get("node") or {}), **scheduling}))
        return tuple(found)

    def all_requested_nodes(self, project: str) -> tuple[Node, ...]:
        """Return every node as requested, as `requested_node` does."""
        specs: list[Mapping[str, Any]] = (self.raw.get("tpu") or {}).get("nodeSpec") or [{}]
        return tuple(
            Node(NodeName(project, self.zone, node_id), first.raw)
            for spec, first in zip(specs, self.requested_nodes(project), strict=True)
            for node_id in self._ids_of(spec)
        )

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

    @property
    def run_time(self) -> timedelta | None:
        """How long its nodes run; None if they have no end."""
        limit = (self.raw.get("runDuration") or {}).get("maxRunDuration")
        return timedelta(seconds=float(str(limit).rstrip("s"))) if limit else None

    def spec(self, project: str) -> NodeSpec:
        """Return the spec that requests its first node again."""
        reservation = str(self.raw.get("reservationName") or "")
        node = self.requested_node(project)
        has_limit = node.expires and self.created and node.expires > self.created
        return replace(
            NodeSpec.from_node(node),
            ttl=node.expires - self.created if node.expires and self.created and has_limit else None,
            queue=True,
            tier=self.tier,
            # `-` is any reservation of the project.
            reservation=None if last_segment(reservation) in {"", "-"} else reservation,
            is_calendar=self.raw.get("provisioningModel") == "RESERVATION_BOUND",
            run_for=self.run_time,
        )

    @property
    def initiator(self) -> str:
        """The initiator of its state: USER or SERVICE."""
        return (self.raw.get("state") or {}).get("stateInitiator") or ""

    @property
    def was_suspended_by_service(self) -> bool:
        """Return whether the service has suspended it, which is a preemption of its nodes."""
        return self.state in {QueuedState.SUSPENDING, QueuedState.SUSPENDED} and self.initiator == "SERVICE"

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The ids of the requested nodes, whether they exist or not."""
        specs = (self.raw.get("tpu") or {}).get("nodeSpec") or ()
        return tuple(node_id for spec in specs for node_id in self._ids_of(spec))

    def _ids_of(self, spec: Mapping[str, Any]) -> list[str]:
        several = spec.get("multisliceParams") or spec.get("multiNodeParams")
        if several:
            prefix = several.get("nodeIdPrefix") or self.queued_resource_id
            return [f"{prefix}-{index}" for index in range(int(several.get("nodeCount", 0)))]
        return [spec.get("nodeId") or self.queued_resource_id]

    @property
    def own_names(self) -> tuple[str, ...]:
        """The names of it as a whole: its own id, and the prefixes of the ids of its nodes."""
        specs = (self.raw.get("tpu") or {}).get("nodeSpec") or ()
        several = [spec.get("multisliceParams") or spec.get("multiNodeParams") or {} for spec in specs]
        prefixes = [params["nodeIdPrefix"] for params in several if params.get("nodeIdPrefix")]
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
