"""Frozen values for the resources of the API, parsed from its JSON. They make no decision and no call."""

from tpuctl.model.node import Endpoint, Maintenance, Node, Symptom
from tpuctl.model.operation import Operation, OperationError
from tpuctl.model.queued import QueuedResource
from tpuctl.model.spec import REMOVAL_LABEL, REQUEST_LABEL, DataDisk, Difference, NodeSpec
from tpuctl.model.states import Health, NodeState, QueuedState, Tier

__all__ = [
    "REMOVAL_LABEL",
    "REQUEST_LABEL",
    "DataDisk",
    "Difference",
    "Endpoint",
    "Health",
    "Maintenance",
    "Node",
    "NodeSpec",
    "NodeState",
    "Operation",
    "OperationError",
    "QueuedResource",
    "QueuedState",
    "Symptom",
    "Tier",
]
