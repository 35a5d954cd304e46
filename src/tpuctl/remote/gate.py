"""Check whether the state of a node allows logins to its workers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import ConflictError
from tpuctl.model import Health, NodeState

if TYPE_CHECKING:
    from tpuctl.model import Node

# For these states gcloud at most warns, and tries [gcloud 528 source, tpu_vm/ssh.py].
_UNCERTAIN = {
    NodeState.REPAIRING: "the service is repairing it",
    NodeState.RESTARTING: "it is restarting",
    NodeState.UNHIDING: "the service is unhiding it",
    NodeState.UNKNOWN: "its repair failed",
    NodeState.STATE_UNSPECIFIED: "the service does not report its state",
}
_REMEDIES = {
    NodeState.CREATING: "`tpuctl wait {name}` waits until it is usable",
    NodeState.STARTING: "`tpuctl wait {name}` waits until it is usable",
    NodeState.REIMAGING: "`tpuctl wait {name}` waits until it is usable",
    NodeState.STOPPED: "`tpuctl up {name}` starts it",
    NodeState.STOPPING: "`tpuctl up {name}` waits until it has stopped, and starts it",
    NodeState.DELETING: "`tpuctl up {name}` waits until it is gone, and recreates it",
    NodeState.PREEMPTED: "the service preempted it, and its boot disk is lost; `tpuctl up {name}` recreates it",
    NodeState.TERMINATED: "the service terminated it, and its boot disk is lost; `tpuctl up {name}` recreates it",
    NodeState.HIDING: "the service is hiding it; see `tpuctl status {name}`",
    NodeState.HIDDEN: "the service has hidden it; see `tpuctl status {name}`",
}
# [API v2, Node.health]
_AILMENTS = {
    Health.TIMEOUT: "it does not respond to the service (health TIMEOUT)",
    Health.UNHEALTHY_TENSORFLOW: "its machine learning software is unhealthy (health UNHEALTHY_TENSORFLOW)",
    Health.UNHEALTHY_MAINTENANCE: "it is under maintenance and may be unavailable until the service has moved it",
}
_OLD = frozenset({"V1", "V1_ALPHA1"})


def check_state(node: Node) -> str | None:
    """Return a warning if ssh may fail, else None.

    Raises `ConflictError` if ssh would only time out: a state without running workers, or a TPU Node of the old
    architecture, whose workers belong to the service [gcloud 528 source].
    """
    name = node.name.node_id
    if str(node.raw.get("apiVersion", "")) in _OLD:
        raise ConflictError(
            f"`{name}` is a TPU Node of API v1, which does not support logins",
            hint="log in to the virtual machine that uses it, or create a node with `tpuctl up`",
        )
    if remedy := _REMEDIES.get(node.state):
        raise ConflictError(f"`{name}` is {node.state}: ssh cannot reach it", hint=remedy.format(name=name))
    if node.state is not NodeState.READY:
        why = _UNCERTAIN.get(node.state, "this version of tpuctl does not know that state")
        return f"`{name}` is {node.state}: {why}, and ssh may fail"
    return f"`{name}` is READY, but {_AILMENTS[node.health]}" if node.health in _AILMENTS else None
