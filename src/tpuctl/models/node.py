"""A node as the API reports it, the states of API resources, and sets of workers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from tpuctl.accelerators import AcceleratorType, accelerator_type_from_topology, find_accelerator_type
from tpuctl.durations import parse_timestamp
from tpuctl.errors import InvalidInputError
from tpuctl.names import NodeName, last_segment
from tpuctl.shapes import ADDRESS, COUNT, INTEGER, RESOURCE, TIME, Fields, ListOf, MapOf, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

# Labels that tpuctl writes and reads: when the time of a node ends, in seconds since 1970; who created it; that no clean-up may
# delete it.
EXPIRY_LABEL = "tpuctl-expires"
OWNER_LABEL = "tpuctl-owner"
KEEP_LABEL = "tpuctl-keep"
_UNIX_TIME = re.compile(r"[1-9][0-9]{8,10}", re.ASCII)

_NETWORK = Shape(
    "tpu.v2 NetworkConfig",
    {"network": str, "subnetwork": str, "enableExternalIps": bool, "canIpForward": bool, "queueCount": INTEGER},
)
_ENDPOINT = Shape(
    "tpu.v2 NetworkEndpoint",
    {"ipAddress": ADDRESS, "port": INTEGER, "accessConfig": Shape("tpu.v2 AccessConfig", {"externalIp": ADDRESS})},
)
_FIELDS: Fields = {
    "name": RESOURCE,
    "id": INTEGER,
    "state": str,
    "health": str,
    "healthDescription": str,
    "description": str,
    "createTime": TIME,
    "acceleratorType": str,
    "acceleratorConfig": Shape("tpu.v2 AcceleratorConfig", {"type": str, "topology": str}),
    "runtimeVersion": str,
    "apiVersion": str,
    "cidrBlock": str,
    "networkConfig": _NETWORK,
    "networkConfigs": ListOf(_NETWORK),
    "networkEndpoints": ListOf(_ENDPOINT),
    "schedulingConfig": Shape(
        "tpu.v2alpha1 SchedulingConfig",
        {"preemptible": bool, "reserved": bool, "spot": bool, "provisioningModel": str, "reservationName": str},
    ),
    "serviceAccount": Shape("tpu.v2 ServiceAccount", {"email": str, "scope": ListOf(str)}),
    "shieldedInstanceConfig": Shape("tpu.v2 ShieldedInstanceConfig", {"enableSecureBoot": bool}),
    "bootDiskConfig": Shape("tpu.v2alpha1 BootDiskConfig", {"diskSizeGb": COUNT}),
    "dataDisks": ListOf(Shape("tpu.v2 AttachedDisk", {"sourceDisk": str, "mode": str}, required=("sourceDisk",))),
    "labels": MapOf(str),
    "metadata": MapOf(str),
    "tags": ListOf(str),
    "queuedResource": str,
    "multisliceNode": bool,
    "protectionTier": str,
    "symptoms": ListOf(
        Shape("tpu.v2 Symptom", {"symptomType": str, "workerId": str, "details": str, "createTime": TIME})
    ),
    "upcomingMaintenance": Shape(
        "tpu.v2 UpcomingMaintenance",
        {
            "type": str,
            "maintenanceStatus": str,
            "windowStartTime": str,
            "windowEndTime": str,
            "latestWindowStartTime": str,
            "canReschedule": bool,
        },
    ),
}
NODE = Shape("tpu.v2 Node", _FIELDS, required=("name",))
# In the request of a queued resource, a node has no name yet.
REQUESTED_NODE = Shape("tpu.v2 Node", {**_FIELDS, "name": str})


@dataclass(frozen=True, slots=True)
class NetworkEndpoint:
    """The addresses of one worker. `external` is None for a node without external addresses."""

    internal: str | None
    external: str | None

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> NetworkEndpoint:
        """Parse a NetworkEndpoint."""
        return cls(data.get("ipAddress") or None, (data.get("accessConfig") or {}).get("externalIp") or None)

    @property
    def address(self) -> str | None:
        """The external address, else the internal one."""
        return self.external or self.internal


@dataclass(frozen=True, slots=True)
class Symptom:
    """A symptom that the service reports for a worker [API v2, Symptom]."""

    kind: str
    worker: str
    details: str
    at: datetime | None


@dataclass(frozen=True, slots=True)
class Maintenance:
    """An announced maintenance [API v2, UpcomingMaintenance]."""

    kind: str
    status: str
    start: datetime | None
    end: datetime | None
    can_reschedule: bool  # the user may start it earlier
    latest_start: datetime | None = None


@dataclass(frozen=True)
class Node:
    """A TPU node. `raw` is the complete JSON from the API; `id` is unique per creation."""

    name: NodeName
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Node:
        """Parse a Node. Only the name is required. Raises `ShapeError`."""
        parts = NODE.read(data)["name"].split("/")
        return cls(NodeName(parts[1], parts[3], parts[5]), data)

    @property
    def id(self) -> str:
        """The number of this node, different after each creation."""
        return str(self.raw.get("id") or "")

    @cached_property
    def state(self) -> NodeState:
        """The state; STATE_UNSPECIFIED if the API returns none."""
        return NodeState(self.raw.get("state") or "STATE_UNSPECIFIED")

    @cached_property
    def health(self) -> Health:
        """The health; HEALTH_UNSPECIFIED if the API returns none, which says nothing about the node."""
        return Health(self.raw.get("health") or "HEALTH_UNSPECIFIED")

    @property
    def health_description(self) -> str:
        """The reason for the health, in the service's words."""
        return self.raw.get("healthDescription") or ""

    @property
    def accelerator_type(self) -> str:
        """The type name, derived from type and topology if the API omits it. Empty if it is unknown."""
        config = self.raw.get("acceleratorConfig")
        if self.raw.get("acceleratorType") or not config:
            return self.raw.get("acceleratorType") or ""
        try:
            return accelerator_type_from_topology(config.get("type", ""), config.get("topology", "")).name
        except InvalidInputError:
            return ""

    @cached_property
    def accelerator(self) -> AcceleratorType | None:
        """The parsed type, None if it is not in the table."""
        return find_accelerator_type(self.accelerator_type)

    @property
    def chips(self) -> int | None:
        """The number of chips, None if the type is not in the table."""
        return self.accelerator.chips if self.accelerator else None

    @property
    def runtime_version(self) -> str:
        """The image on the workers."""
        return self.raw.get("runtimeVersion") or ""

    @property
    def created(self) -> datetime | None:
        """The time of its creation."""
        return parse_timestamp(self.raw.get("createTime"))

    @cached_property
    def endpoints(self) -> tuple[NetworkEndpoint, ...]:
        """One endpoint for each worker, in order. The API lists none while CREATING."""
        listed = [NetworkEndpoint.from_api(entry) for entry in self.raw.get("networkEndpoints") or ()]
        # With several networks, each worker is listed once per network, the primary one first [gcloud 528 source].
        return tuple(listed[:: max(1, len(self.raw.get("networkConfigs") or ()))])

    @property
    def workers(self) -> int:
        """The number of workers, from the type; from the endpoints if the type is unknown."""
        return self.accelerator.workers if self.accelerator else max(1, len(self.endpoints))

    @property
    def tier(self) -> Tier:
        """The capacity type."""
        scheduling = self.raw.get("schedulingConfig") or {}
        for tier in (Tier.SPOT, Tier.PREEMPTIBLE, Tier.RESERVED):
            if scheduling.get(tier.value):
                return tier
        match scheduling.get("provisioningModel"):  # API v2alpha1
            case "SPOT":
                return Tier.SPOT
            case "RESERVATION_BOUND":
                return Tier.RESERVED
        return Tier.ON_DEMAND

    @property
    def is_preempted(self) -> bool:
        """Return whether the service has preempted it."""
        is_terminated_spot = self.state is NodeState.TERMINATED and not self.tier.can_start_again
        return self.state is NodeState.PREEMPTED or is_terminated_spot

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels."""
        return self.raw.get("labels") or {}

    @property
    def expires(self) -> datetime | None:
        """The end of its time by its label; None without one, or if the label is not a time."""
        text = self.labels.get(EXPIRY_LABEL, "")
        return datetime.fromtimestamp(int(text), UTC) if _UNIX_TIME.fullmatch(text) else None

    @property
    def has_invalid_expiry(self) -> bool:
        """Return whether its label of the end of its time is not a time: such a node never counts as expired."""
        return EXPIRY_LABEL in self.labels and self.expires is None

    @property
    def owner(self) -> str | None:
        """Who created it with tpuctl, as a label; None if that is unknown."""
        return self.labels.get(OWNER_LABEL) or None

    @property
    def is_kept(self) -> bool:
        """Return whether its label says that no clean-up may delete it."""
        return KEEP_LABEL in self.labels

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata that the workers see. It may contain secrets: never print it."""
        return self.raw.get("metadata") or {}

    @property
    def service_account(self) -> str | None:
        """The account that its workers act as, None if it has none."""
        return (self.raw.get("serviceAccount") or {}).get("email") or None

    @property
    def queued_resource(self) -> str | None:
        """The full name of the queued resource that owns it, None if there is none."""
        return self.raw.get("queuedResource") or None

    @property
    def symptoms(self) -> tuple[Symptom, ...]:
        """The symptoms, in the order of the API: oldest first."""
        entries = self.raw.get("symptoms")
        if not entries:
            return ()
        return tuple(
            Symptom(
                entry.get("symptomType", ""),
                str(entry.get("workerId", "")),
                entry.get("details", ""),
                parse_timestamp(entry.get("createTime")),
            )
            for entry in entries
        )

    @property
    def upcoming_maintenance(self) -> Maintenance | None:
        """The announced maintenance, None if there is none."""
        data = self.raw.get("upcomingMaintenance")
        if not data:
            return None
        return Maintenance(
            data.get("type", "UNKNOWN_TYPE"),
            data.get("maintenanceStatus", "UNKNOWN"),
            parse_timestamp(data.get("windowStartTime")),
            parse_timestamp(data.get("windowEndTime")),
            bool(data.get("canReschedule")),
            parse_timestamp(data.get("latestWindowStartTime")),
        )

    def why_not_stoppable(self) -> str | None:
        """Return why the service refuses to stop it, None if it can be stopped.

        Sources: API field text of nodes.stop (single nodes only); observed: stop of a queued resource's node is refused.
        """
        if self.workers > 1:
            return f"it is a slice of {self.workers} workers, and the service stops single-worker nodes only"
        if self.queued_resource:
            return f"it belongs to the queued resource `{last_segment(self.queued_resource)}`, whose nodes cannot be stopped"
        return None

    def why_not_startable(self) -> str | None:
        """Return why the service refuses to start it after a stop, None if it can be started.

        Source: gcloud help (spot and preemptible nodes cannot be restarted).
        """
        if not self.tier.can_start_again:
            return f"it is a {self.tier} node, and those cannot be started again once stopped"
        return self.why_not_stoppable()

    def why_not_restartable(self) -> str | None:
        """Return why it cannot be stopped and started, None if it can."""
        return self.why_not_stoppable() or self.why_not_startable()


class ApiEnum(StrEnum):
    """An enum of the API.

    A value unknown to this version is kept: `NodeState("NEW_STATE")` is equal to its text, and not `is_known`.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self:
        text = str(value)
        member = str.__new__(cls, text)
        member._name_ = text
        member._value_ = text
        return member

    @property
    def is_known(self) -> bool:
        """Return whether this version of tpuctl knows the value."""
        return self.value in type(self)._value2member_map_


class NodeState(ApiEnum):
    """The state of a node [API v2, Node.state]."""

    STATE_UNSPECIFIED = "STATE_UNSPECIFIED"
    CREATING = "CREATING"
    READY = "READY"
    RESTARTING = "RESTARTING"
    REIMAGING = "REIMAGING"
    DELETING = "DELETING"
    REPAIRING = "REPAIRING"
    STOPPED = "STOPPED"
    STOPPING = "STOPPING"
    STARTING = "STARTING"
    PREEMPTED = "PREEMPTED"
    TERMINATED = "TERMINATED"
    HIDING = "HIDING"
    HIDDEN = "HIDDEN"
    UNHIDING = "UNHIDING"
    UNKNOWN = "UNKNOWN"

    @property
    def is_dead(self) -> bool:
        """Return whether only the record is left, which keeps its name and its quota until it is deleted."""
        return self in {NodeState.PREEMPTED, NodeState.TERMINATED}


class Health(ApiEnum):
    """The health that the service reports for a READY node [API v2, Node.health]."""

    HEALTH_UNSPECIFIED = "HEALTH_UNSPECIFIED"
    HEALTHY = "HEALTHY"
    TIMEOUT = "TIMEOUT"
    UNHEALTHY_TENSORFLOW = "UNHEALTHY_TENSORFLOW"
    UNHEALTHY_MAINTENANCE = "UNHEALTHY_MAINTENANCE"


class QueuedState(ApiEnum):
    """The state of a queued resource [API v2, QueuedResourceState.state]."""

    STATE_UNSPECIFIED = "STATE_UNSPECIFIED"
    CREATING = "CREATING"
    ACCEPTED = "ACCEPTED"
    PROVISIONING = "PROVISIONING"
    FAILED = "FAILED"
    DELETING = "DELETING"
    ACTIVE = "ACTIVE"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    WAITING_FOR_RESOURCES = "WAITING_FOR_RESOURCES"

    @property
    def is_dead(self) -> bool:
        """Return whether the request never runs again, and uses quota until it is deleted [docs: queued resources]."""
        return self in {QueuedState.FAILED, QueuedState.SUSPENDED}


class Tier(StrEnum):
    """The capacity type of a node: its price, and whether the service may take it back."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    PREEMPTIBLE = "preemptible"
    RESERVED = "reserved"
    # These two exist only as queued resources [API v2alpha1: bestEffort, provisioningModel FLEX_START].
    BEST_EFFORT = "best-effort"
    FLEX_START = "flex-start"

    @property
    def can_start_again(self) -> bool:
        """Return whether a stopped node of this tier can be started [gcloud help: spot and preemptible cannot]."""
        return self in {Tier.ON_DEMAND, Tier.RESERVED}

    @property
    def needs_queue(self) -> bool:
        """Return whether only a queued resource can ask for it."""
        return self in {Tier.BEST_EFFORT, Tier.FLEX_START}


_WORKER_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """A set of workers as the user wrote it: `all`, `0`, `1,3-5`.

    `ranges` has the first and last worker of each part; None means all workers.
    """

    text: str
    ranges: tuple[tuple[int, int], ...] | None

    @classmethod
    def parse(cls, text: str) -> WorkerSet:
        """Parse a set of workers. Raises `InvalidInputError` for an invalid or empty one."""
        if text.strip() == "all":
            return cls("all", None)
        parts = [part.strip() for part in text.split(",")]
        matches = [_WORKER_RANGE.fullmatch(part) for part in parts]
        ranges = [(int(match[1]), int(match[2] or match[1])) for match in matches if match]
        if len(ranges) < len(parts) or any(first > last for first, last in ranges):
            raise InvalidInputError(
                f"`{text}` is not a set of workers", hint="use worker numbers like `0` or `1,3-5`, or `all`"
            )
        return cls(text, tuple(ranges))

    def of(self, node_id: str, workers: int) -> tuple[int, ...]:
        """Return the numbers of the workers of a node with `workers` workers, ascending, each once.

        Raises `InvalidInputError`, with the existing numbers, for a worker that the node does not have.
        """
        if self.ranges is None:
            return tuple(range(workers))
        last = workers - 1
        highest = max(end for _, end in self.ranges)
        if highest > last:
            has = f"has workers 0 to {last}" if last else "has one worker, number 0"
            raise InvalidInputError(f"`{node_id}` has no worker {highest}", hint=f"it {has}")
        return tuple(sorted({number for first, end in self.ranges for number in range(first, end + 1)}))


ALL_WORKERS = WorkerSet("all", None)
