"""How commands show nodes, in every format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.cli.ssh_entries import refresh
from tpuctl.errors import ExitCode, TpuctlError, worst
from tpuctl.output import nodes as shown
from tpuctl.output.tables import Cell
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.actions.ensure_ready import Outcome
    from tpuctl.cli.app import App
    from tpuctl.model import Node


def show_node(app: App, node: Node) -> None:
    """Show a node that a command changed: name and state, or the whole node as JSON."""
    refresh(app, [node])
    show_states(app, [node])


def show_states(app: App, nodes: Sequence[Node], *, several: bool = False) -> None:
    """Show the nodes that a command changed; one node as an object, an array where it was asked for several."""
    if app.shows_events:
        return
    if app.format in {Format.JSON, Format.YAML}:
        values = [shown.to_json(node, sandbox=app.is_sandbox) for node in nodes]
        app.terminal.data(values[0] if len(values) == 1 and not several else values, app.format)
    elif app.format is Format.NAME:
        app.terminal.names(node.name.node_id for node in nodes)
    elif not app.terminal.is_interactive:
        app.terminal.table((), [(Cell(node.name.node_id), Cell(str(node.state))) for node in nodes])
    else:
        app.terminal.table(shown.HEADER, shown.rows(nodes, app.now()))


def show_endings(app: App, endings: Sequence[Outcome | TpuctlError]) -> int:
    """Show how several nodes ended: those that got there, then each error. Returns the worst exit code.

    Raises the error of a single node.
    """
    errors = [ending for ending in endings if isinstance(ending, TpuctlError)]
    if errors and len(endings) == 1:
        raise errors[0]
    nodes = [ending.node for ending in endings if not isinstance(ending, TpuctlError) and ending.node]
    refresh(app, nodes)
    if nodes or not errors:
        show_states(app, nodes, several=len(endings) > 1)
    for error in errors:
        app.show_error(error)
    return worst(error.exit_code for error in errors) if errors else ExitCode.OK


def show_ended(app: App, node_ids: Sequence[str]) -> None:
    """Show which names now stand for nothing. A person has been told by the progress already."""
    if app.shows_events:
        return
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data([{"nodeId": node_id, "state": None} for node_id in node_ids], app.format)
    elif app.format is Format.NAME or not app.terminal.is_interactive:
        app.terminal.names(node_ids)
