"""The workers that a command is about: which nodes, which of their workers, and the way to each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.cli.admission import let_in
from tpuctl.cli.selection import select
from tpuctl.remote.gate import check_state
from tpuctl.remote.known_hosts import remember_host_keys
from tpuctl.remote.member import Member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.cli.app import App
    from tpuctl.model import Node
    from tpuctl.model.worker_set import WorkerSet


def find_nodes(app: App, nodes: Sequence[str], labels: Sequence[str] = ()) -> list[Node]:
    """Return the nodes that are named (`USER@NODE` too: the login counts for all), or that have these labels."""
    names = []
    for text in nodes:
        login, _, name = text.rpartition("@")
        if login:
            app.log_in_as(login)
        names.append(name)
    chosen = select(app, names, all_nodes=None, labels=labels)
    if chosen is None:
        return [app.find(name) for name in dict.fromkeys(names)]
    return [app.find(f"{name.zone}/{name.node_id}") for name in chosen]


def members(app: App, nodes: Sequence[Node], workers: WorkerSet, *, only_looks: bool = False) -> list[Member]:
    """Return the way to each worker that is meant, in their order, once each node has let us in.

    With `only_looks` nothing is changed: no key is made or put anywhere, no host key written down. Raises what is wrong with a
    node instead of letting ssh time out: `ConflictError` for a state without ssh or a worker without an address for the way
    that was chosen, `InvalidInputError` for a worker that a node does not have.
    """
    meant = [(node, workers.of(node.name.node_id, node.workers)) for node in nodes]
    for node, _ in meant:
        if warning := check_state(node):
            app.terminal.warn(warning)
    ways = app.workers
    # All of them first: where one worker cannot be reached, no node is changed.
    for node, numbers in meant:
        for number in numbers:
            ways.check_way(node, number)
    found = []
    for node, numbers in meant:
        if not only_looks:
            let_in(app, node)
        ways.learn_host_keys(node)
        for number in numbers:
            label = str(number) if len(nodes) == 1 else f"{node.name.node_id}-{number}"
            found.append(Member(node, number, ways.connection(node, number, makes_key=not only_looks), label))
    if not only_looks:
        remember_host_keys([member.way for member in found])
    return found


def await_key(app: App, found: Sequence[Member]) -> None:
    """Wait for workers that were told of our key by this very run: they may refuse it for some seconds yet."""
    fresh = [member for member in found if app.workers.was_admitted_now(member.node)]
    if fresh:
        from tpuctl.actions.key_arrival import await_key  # noqa: PLC0415  # most nodes know the key from the start

        await_key(app.clock, fresh, app.terminal.note)
