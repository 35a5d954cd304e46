"""The targets of a command: its nodes, their workers, and the connection to each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.app.worker_access import authorize_key
from tpuctl.nodes import key_authorization
from tpuctl.nodes.conditions import check_login_state
from tpuctl.ssh.connection import Target, save_host_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node, WorkerSet


def find_node(app: App, text: str) -> Node:
    """Return the one node of a name; `USER@NODE` also sets the login."""
    return app.services.find(without_login(app, text))


def without_login(app: App, text: str) -> str:
    """Return a name of a node without the login of `USER@NODE`, which is used on the workers from now on."""
    login, _, name = text.rpartition("@")
    if login:
        app.log_in_as(login)
    return name


def find_targets(
    app: App, nodes: Sequence[Node], workers: WorkerSet, *, read_only: bool = False, names_nodes: bool = False
) -> list[Target]:
    """Return a target for each of the workers, in their order, after authorizing our key on each node.

    The labels have the node if there are several, or if `names_nodes`. With `read_only` nothing is changed: no key is made or
    authorized, no host key stored. Raises instead of letting ssh time out: `ConflictError` for a state without ssh, or a worker
    without an address for the chosen route; `InvalidInputError` for a worker that a node does not have.
    """
    chosen = [(node, workers.of(node.name.node_id, node.workers)) for node in nodes]
    for node, _ in chosen:
        if warning := check_login_state(node):
            app.terminal.warn(warning)
    connector = app.services.workers
    # Check all of them first: if one worker cannot be reached, no node is changed.
    for node, numbers in chosen:
        for number in numbers:
            connector.check_route(node, number)
    found = []
    for node, numbers in chosen:
        if not read_only:
            authorize_key(app, node)
        connector.learn_host_keys(node)
        for number in numbers:
            label = str(number) if len(nodes) == 1 and not names_nodes else f"{node.name.node_id}-{number}"
            found.append(Target(node, number, connector.connection(node, number, makes_key=not read_only), label))
    if not read_only:
        save_host_keys([target.connection for target in found])
    return found


def await_key(app: App, found: Sequence[Target]) -> None:
    """Wait for workers on which this command has just authorized our key: they may refuse it for some seconds."""
    fresh = [target for target in found if app.services.workers.was_admitted_now(target.node)]
    if fresh:
        key_authorization.await_key(app.clock, fresh, app.terminal.note)
