"""A queued resource: a request for nodes that waits for capacity."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpuctl.models.node import REQUESTED_NODE, QueuedState
from tpuctl.models.operation import STATUS
from tpuctl.names import last_segment
from tpuctl.shapes import COUNT, NODE_ID, RESOURCE, TIME, ListOf, Scalar, Shape

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
QUEUED_RESOURCE = Shape(
    "tpu.v2 QueuedResource",
    {
        "name": RESOURCE,
        "createTime": TIME,
        "state": _STATE,
        "tpu": Shape("tpu.v2 Tpu", {"nodeSpec": ListOf(_NODE_SPEC)}),
        "guaranteed": Shape("tpu.v2alpha1 Guaranteed", {"reserved": bool}),
        "spot": Shape("tpu.v2 Spot", {}),
        "reservationName": str,
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
    def zone(self) -> str:
        """Its zone."""
        return self.name.split("/")[3]

    @property
    def state(self) -> QueuedState:
        """Its state."""
        return QueuedState((self.raw.get("state") or {}).get("state") or "STATE_UNSPECIFIED")

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
        found: list[str] = []
        for spec in (self.raw.get("tpu") or {}).get("nodeSpec") or ():
            several = spec.get("multisliceParams") or spec.get("multiNodeParams")
            if several:
                prefix = several.get("nodeIdPrefix") or self.queued_resource_id
                found += [f"{prefix}-{index}" for index in range(int(several.get("nodeCount", 0)))]
            else:
                found.append(spec.get("nodeId") or self.queued_resource_id)
        return tuple(found)

    def is_named(self, text: str) -> bool:
        """Return whether a text names it: its own id, or the prefix of the ids of its nodes."""
        specs = (self.raw.get("tpu") or {}).get("nodeSpec") or ()
        several = [spec.get("multisliceParams") or spec.get("multiNodeParams") or {} for spec in specs]
        return text == self.queued_resource_id or text in {params.get("nodeIdPrefix") for params in several}

    def owns(self, node_id: str) -> bool:
        """Return whether it owns, or will own, the node with this id."""
        return node_id in self.node_ids
