"""A node as the API reports it, the states of API resources, and sets of workers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any

from tpuctl.accelerators import AcceleratorType, accelerator_type_from_topology, find_accelerator_type
from tpuctl.decoding import By, decode, json_field, read_fields
from tpuctl.errors import InvalidInputError
from tpuctl.models.api_values import (
    Address,
    ApiCount,
    ApiEnum,
    ApiInteger,
    ApiNumber,
    ApiPairs,
    ApiText,
    ApiTexts,
    ApiTime,
    OptionalText,
    ResourceOfNode,
    ShownTime,
)
from tpuctl.names import NodeName, last_segment

# Labels that tpuctl writes and reads: when the time of a node ends, in seconds since 1970; who created it; that no clean-up may
# delete it.
EXPIRY_LABEL = "tpuctl-expires"
OWNER_LABEL = "tpuctl-owner"
KEEP_LABEL = "tpuctl-keep"
_UNIX_TIME = re.compile(r"[1-9][0-9]{8,10}", re.ASCII)


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


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """One of several networks of a node [API v2, NetworkConfig]."""

    network: ApiText = ""
    subnetwork: ApiText = ""
    enable_external_ips: bool = False
    can_ip_forward: bool = False
    queue_count: ApiInteger | None = None


@dataclass(frozen=True, slots=True)
class NetworkEndpoint:
    """The addresses of one worker. `external` is None for a node without external addresses."""

    internal: Address = json_field("ipAddress", default=None)
    external: Address = json_field("accessConfig.externalIp", default=None)

    @property
    def address(self) -> str | None:
        """The external address, else the internal one."""
        return self.external or self.internal


@dataclass(frozen=True, slots=True)
class DataDisk:
    """A persistent disk to attach. `mode` is READ_WRITE or READ_ONLY."""

    source: ApiText = json_field("sourceDisk")
    mode: ApiText = "READ_WRITE"

    def __str__(self) -> str:
        """Return the disk as options name it."""
        return f"source={self.source},mode={self.mode.lower().replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Symptom:
    """A symptom that the service reports for a worker [API v2, Symptom]."""

    kind: ApiText = json_field("symptomType", default="")
    worker: ApiText = json_field("workerId", default="")
    details: ApiText = ""
    at: ApiTime = json_field("createTime", default=None)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """An announced maintenance [API v2, UpcomingMaintenance]."""

    kind: ApiText = json_field("type", default="UNKNOWN_TYPE")
    status: ApiText = json_field("maintenanceStatus", default="UNKNOWN")
    start: ShownTime = json_field("windowStartTime", default=None)
    end: ShownTime = json_field("windowEndTime", default=None)
    can_reschedule: bool = False  # the user may start it earlier
    latest_start: ShownTime = json_field("latestWindowStartTime", default=None)


def _announced(value: Any) -> Maintenance | None:  # JSON
    maintenance = decode(Maintenance, value)
    return maintenance if value else None


@dataclass(frozen=True, init=False)
class Node:
    """A TPU node, with the fields that tpuctl reads. `raw` is the complete JSON from the API; `id` is unique per creation.

    Fields that a spec has, too, have the same names there. A state or a health that the API omits says nothing about the node.
    """

    def __str__(self) -> str:
        """Return name, state, type and zone in one line."""
        return f"{self.name.node_id} {self.state} {self.type_name} {self.name.zone}"

    def __repr__(self) -> str:
        return f"<Node {self}>"

    name: ResourceOfNode
    raw: Mapping[str, Any] = field(repr=False)
    id: ApiNumber = ""
    state: NodeState = NodeState.STATE_UNSPECIFIED
    health: Health = Health.HEALTH_UNSPECIFIED
    # In the service's words.
    health_description: ApiText = ""
    description: ApiText = ""
    created: ApiTime = json_field("createTime", default=None)
    type_name: ApiText = json_field("acceleratorType", default="")
    generation: ApiText = json_field("acceleratorConfig.type", default="")
    topology: ApiText = json_field("acceleratorConfig.topology", default="")
    # The image on the workers.
    runtime_version: ApiText = ""
    api_version: ApiText = ""
    cidr_block: ApiText = ""
    network: ApiText = json_field("networkConfig.network", default="")
    subnetwork: ApiText = json_field("networkConfig.subnetwork", default="")
    has_external_ips: bool = json_field("networkConfig.enableExternalIps", default=False)
    can_ip_forward: bool = json_field("networkConfig.canIpForward", default=False)
    queue_count: ApiInteger | None = json_field("networkConfig.queueCount", default=None)
    # In place of the one network.
    networks: tuple[NetworkConfig, ...] = json_field("networkConfigs", default=())
    all_endpoints: tuple[NetworkEndpoint, ...] = json_field("networkEndpoints", default=())
    is_spot: bool = json_field("schedulingConfig.spot", default=False)
    is_preemptible: bool = json_field("schedulingConfig.preemptible", default=False)
    is_reserved: bool = json_field("schedulingConfig.reserved", default=False)
    # Only API v2alpha1 has these two.
    provisioning_model: ApiText = json_field("schedulingConfig.provisioningModel", default="")
    reservation: ApiText = json_field("schedulingConfig.reservationName", default="")
    # The account that its workers act as.
    service_account: OptionalText = json_field("serviceAccount.email", default=None)
    scopes: ApiTexts = json_field("serviceAccount.scope", default=())
    shielded_secure_boot: bool | None = json_field("shieldedInstanceConfig.enableSecureBoot", default=None)
    autocheckpoint_enabled: bool | None = None
    boot_disk_size: ApiCount | None = json_field("bootDiskConfig.diskSizeGb", default=None)
    data_disks: tuple[DataDisk, ...] = ()
    labels: ApiPairs = field(default_factory=dict)
    # What the workers see. It may contain secrets: never print it.
    metadata: ApiPairs = field(default_factory=dict, repr=False)
    tags: ApiTexts = ()
    # The full name of the queued resource that owns it.
    queued_resource: OptionalText = None
    is_multislice: bool = json_field("multisliceNode", default=False)  # of a request for several nodes
    # Oldest first, as in the API.
    symptoms: tuple[Symptom, ...] = ()
    upcoming_maintenance: Annotated[Maintenance | None, By(_announced)] = None

    def __init__(self, name: NodeName | None, raw: Mapping[str, Any]) -> None:
        """Read the fields of a Node, its name too if it is None. Raises `ShapeError`."""
        known = {"raw": raw} if name is None else {"raw": raw, "name": name}
        # `labels` and `metadata` have no default that an instance could share.
        self.__dict__.update({"labels": {}, "metadata": {}}, **read_fields(Node, raw, known), **known)

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Node:
        """Parse a Node. Only the name is required. Raises `ShapeError`."""
        return cls(None, data)

    @property
    def accelerator_type(self) -> str:
        """The type name, derived from type and topology if the API omits it. Empty if it is unknown."""
        if self.type_name or not self.generation:
            return self.type_name
        try:
            return accelerator_type_from_topology(self.generation, self.topology).name
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
    def endpoints(self) -> tuple[NetworkEndpoint, ...]:
        """One endpoint for each worker, in order. The API lists none while CREATING."""
        # With several networks, each worker is listed once per network, the primary one first [gcloud 528 source].
        return self.all_endpoints[:: max(1, len(self.networks))]

    @property
    def workers(self) -> int:
        """The number of workers, from the type; from the endpoints if the type is unknown."""
        return self.accelerator.workers if self.accelerator else max(1, len(self.endpoints))

    @property
    def tier(self) -> Tier:
        """The capacity type."""
        if self.is_spot:
            return Tier.SPOT
        if self.is_preemptible:
            return Tier.PREEMPTIBLE
        if self.is_reserved:
            return Tier.RESERVED
        return {"SPOT": Tier.SPOT, "RESERVATION_BOUND": Tier.RESERVED}.get(self.provisioning_model, Tier.ON_DEMAND)

    @property
    def is_preempted(self) -> bool:
        """Return whether the service has preempted it."""
        is_terminated_spot = self.state is NodeState.TERMINATED and not self.tier.can_start_again
        return self.state is NodeState.PREEMPTED or is_terminated_spot

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
