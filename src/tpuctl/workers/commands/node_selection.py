"""The nodes of a command that works on workers: those of its names, patterns and conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError
from tpuctl.nodes.commands.selection_options import parse_labelled
from tpuctl.nodes.conditions import check_login_state
from tpuctl.nodes.lookup import select_nodes
from tpuctl.workers.targets import without_login

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.nodes.commands.selection_options import GivenSelection


def find_nodes(app: App, nodes: Sequence[str], labels: Sequence[str] = ()) -> list[Node]:
    """Return the nodes with these names or globs, and with these labels; `USER@NODE` sets the login on all nodes.

    Raises `NotFoundError` if none matches, and `ServiceUnavailableError` if a zone did not answer for a glob or a label.
    """
    selection = parse_labelled(app, [without_login(app, text) for text in nodes], labels)
    return list(select_nodes(app, selection).complete())


def find_selected_nodes(app: App, given: GivenSelection) -> tuple[list[Node], list[TpuctlError]]:
    """Return the nodes of a selection whose workers can be reached, and why those of the others cannot.

    Raises the error of a node if all nodes are named: then the command works on all of them or on none.
    """
    given = replace(given, names=tuple(without_login(app, text) for text in given.names))
    selection = given.parse(app)
    nodes = select_nodes(app, selection).complete()
    if selection.is_by_name:
        return list(nodes), []
    reachable: list[Node] = []
    errors: list[TpuctlError] = []
    for node in nodes:
        try:
            check_login_state(node)
            for number in range(node.workers):
                app.services.workers.check_route(node, number)
            reachable.append(node)
        except TpuctlError as error:
            error.node = node.name.node_id
            errors.append(error)
    if not reachable and len(errors) == 1:
        raise errors[0]
    return reachable, errors
