"""Whether a node's workers can be logged in to at all, and what is wrong with it where they cannot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import ConflictError
from tpuctl.model import Health, NodeState

if TYPE_CHECKING:
    from tpuctl.model import Node

# Of these gcloud only warns, or says nothing, and tries [gcloud 528 source, tpu_vm/ssh.py].
_UNCERTAIN = {
    NodeState.REPAIRING: "the service repairs it",
    NodeState.RESTARTING: "it restarts",
    NodeState.UNHIDING: "it is being shown again",
    NodeState.UNKNOWN: "a repair of it failed",
    NodeState.STATE_UNSPECIFIED: "the service does not tell its state",
}
_REMEDIES = {
    NodeState.CREATING: "`tpuctl wait {name}` waits until it is usable",
    NodeState.STARTING: "`tpuctl wait {name}` waits until it is usable",
    NodeState.REIMAGING: "`tpuctl wait {name}` waits until it is usable",
    NodeState.STOPPED: "`tpuctl up {name}` brings it up",
    NodeState.STOPPING: "`tpuctl up {name}` waits until it has stopped, and brings it up",
    NodeState.DELETING: "`tpuctl up {name}` waits until it is gone, and makes it anew",
    NodeState.PREEMPTED: "the service took it back, with its boot disk; `tpuctl up {name}` makes it anew",
    NodeState.TERMINATED: "its life has ended, and its boot disk's; `tpuctl up {name}` makes it anew",
    NodeState.HIDING: "the service hides it; see `tpuctl status {name}`",
    NodeState.HIDDEN: "the service has hidden it; see `tpuctl status {name}`",
}
# [API v2, Node.health]
_AILMENTS = {
    Health.TIMEOUT: "it does not respond to the service (health TIMEOUT)",
    Health.UNHEALTHY_TENSORFLOW: "its software for machine learning is unhealthy (health UNHEALTHY_TENSORFLOW)",
    Health.UNHEALTHY_MAINTENANCE: "it is under maintenance and may be away until the service has moved it",
}
_OLD = frozenset({"V1", "V1_ALPHA1"})


def check_state(node: Node) -> str | None:
    """Return a warning where ssh is worth the try but may fail, and nothing where all is well.

    Raises `ConflictError` if ssh would only time out: a state without running workers, or a TPU Node of the old
    architecture, whose workers belong to the service [gcloud 528 source].
    """
    name = node.name.node_id
    if str(node.raw.get("apiVersion", "")) in _OLD:
        raise ConflictError(
            f"`{name}` is a TPU Node of API v1: nobody can log in to it",
            hint="ssh to the virtual machine that uses it; nodes that `tpuctl up` makes can be logged in to",
        )
    if remedy := _REMEDIES.get(node.state):
        raise ConflictError(f"`{name}` is {node.state}: ssh cannot reach it", hint=remedy.format(name=name))
    if node.state is not NodeState.READY:
        why = _UNCERTAIN.get(node.state, "this version of tpuctl does not know that state")
        return f"`{name}` is {node.state}: {why}, and ssh may fail"
    return f"`{name}` is READY, but {_AILMENTS[node.health]}" if node.health in _AILMENTS else None
