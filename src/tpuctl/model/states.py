"""States of API resources. A value unknown to this version is kept unchanged."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class ApiEnum(StrEnum):
    """An enum of the API. `NodeState("NEW_STATE")` is a separate value, equal to its text, and not `is_known`."""

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

    @property
    def can_start_again(self) -> bool:
        """Return whether a stopped node of this tier can be started [gcloud help: spot and preemptible cannot]."""
        return self not in {Tier.SPOT, Tier.PREEMPTIBLE}
