"""Output of commands that change nodes, in every format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.errors import ExitCode, TpuctlError, worst
from tpuctl.output.nodes import HEADER, rows, to_json
from tpuctl.output.tables import Cell
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.actions.ensure_ready import Outcome
    from tpuctl.cli.app import App
    from tpuctl.model import Node


def show_node(app: App, node: Node) -> None:
    """Show a node that a command changed: name and state, or the whole node as JSON. Update its entries in ssh's config."""
    from tpuctl.cli.ssh_entries import refresh  # noqa: PLC0415  # `list` needs only the renderers

    refresh(app, [node])
    show_states(app, [node])


def show_states(app: App, nodes: Sequence[Node], *, several: bool = False) -> None:
    """Show nodes; as JSON one node is an object, unless the command named `several`."""
    if app.shows_events:
        return
    if app.format in {Format.JSON, Format.YAML}:
        values = [to_json(node, sandbox=app.is_sandbox) for node in nodes]
        app.terminal.data(values[0] if len(values) == 1 and not several else values, app.format)
    elif app.format is Format.NAME:
        app.terminal.names(node.name.node_id for node in nodes)
    elif not app.terminal.is_interactive:
        app.terminal.table((), [(Cell(node.name.node_id), Cell(str(node.state))) for node in nodes])
    else:
        app.terminal.table(HEADER, rows(nodes, app.now()))


def show_endings(app: App, endings: Sequence[Outcome | TpuctlError]) -> int:
    """Show the nodes that reached their goal, then each error. Return the worst exit code.

    Updates the nodes' entries in ssh's config. Raises the error of a single node.
    """
    from tpuctl.cli.ssh_entries import refresh  # noqa: PLC0415  # as above

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
    """Show the names of deleted nodes; on a terminal the progress has shown them already."""
    if app.shows_events:
        return
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data([{"nodeId": node_id, "state": None} for node_id in node_ids], app.format)
    elif app.format is Format.NAME or not app.terminal.is_interactive:
        app.terminal.names(node_ids)
