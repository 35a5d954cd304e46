"""The workers that a command is about: which nodes, which of their workers, and the way to each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.cli.admission import let_in
from tpuctl.cli.target import select
from tpuctl.errors import ConflictError
from tpuctl.model import NodeState
from tpuctl.remote.known_hosts import remember_host_keys
from tpuctl.remote.member import Member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.model.worker_set import WorkerSet

# The other states in which ssh may well work, and is worth the try [gcloud 528, tpu_vm/ssh.py].
_WORTH_A_TRY = frozenset({NodeState.READY, NodeState.REPAIRING, NodeState.RESTARTING, NodeState.UNHIDING})


def find_nodes(app: App, nodes: Sequence[str], labels: Sequence[str] = ()) -> list[Node]:
    """Return the nodes that are named (`USER@NODE` too: the login counts for all), or that have these labels."""
    names = []
    for text in nodes:
        login, _, name = text.rpartition("@")
        if login:
            app.log_in_as(login)
        names.append(name)
    chosen = select(app, names, all_nodes=False, labels=labels)
    if chosen is None:
        return [app.find(name) for name in dict.fromkeys(names)]
    return [app.find(f"{name.zone}/{name.node_id}") for name in chosen]


def members(app: App, nodes: Sequence[Node], workers: WorkerSet) -> list[Member]:
    """Return the way to each worker that is meant, in their order, once each node has let us in.

    Raises what is wrong with a node instead of letting ssh time out: `ConflictError` for a state without ssh or a worker
    without an address, `InvalidInputError` for a worker that a node does not have.
    """
    meant = [(node, workers.of(node.name.node_id, node.workers)) for node in nodes]
    for node, _ in meant:
        check_state(node)
    found = []
    for node, numbers in meant:
        let_in(app, node)
        app.workers.learn_host_keys(node)
        for number in numbers:
            label = str(number) if len(nodes) == 1 else f"{node.name.node_id}-{number}"
            found.append(Member(node, number, app.workers.connection(node, number), label))
    remember_host_keys([member.way for member in found])
    return found


def check_state(node: Node) -> None:
    """Say what is wrong with the node instead of letting ssh time out. Raises `ConflictError`."""
    name = node.name.node_id
    if node.state not in _WORTH_A_TRY and node.state.is_known:
        remedy = f"`tpuctl up {name}` brings it up" if node.state is not NodeState.CREATING else f"`tpuctl wait {name}`"
        raise ConflictError(f"`{name}` is {node.state}: ssh cannot reach it", hint=remedy)
