"""Show what `up`, `wait` and the changes of nodes have reached."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.app.ssh_options import refresh_ssh_entries
from tpuctl.errors import ExitCode, TpuctlError, worst_exit_code
from tpuctl.nodes.costs import CostFacts, node_costs
from tpuctl.nodes.lookup import queued_resources_or_none
from tpuctl.nodes.queue_rendering import waiting_json, waiting_row
from tpuctl.nodes.rendering import NODE_COLUMNS, node_labels, node_rows, nodes_view
from tpuctl.output.tables import choose_columns
from tpuctl.output.terminal import Cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.output.terminal import Terminal, View


def show_node(app: App, node: Node) -> None:
    """Show a node that a command changed, and update its entries in ssh's config."""
    refresh_ssh_entries(app, [node])
    app.show(nodes_view(app, [node], is_list=False))


def summarize_nodes(app: App, nodes: Sequence[Node]) -> None:
    """Add the nodes, with what they cost, to the summary of a step of GitHub Actions, if this is one."""
    if app.summary is None:
        return
    requests = (
        queued_resources_or_none(app.services.client, app.project, ())
        if any(node.queued_resource for node in nodes)
        else ()
    )
    for cost in node_costs(nodes, CostFacts(app.now(), requests, app.settings.grants())):
        node, note = cost.node, f" ({cost.note})" if cost.note else ""
        app.summary.describe(node.name, node.accelerator_type, str(cost.tier), f"{cost.per_hour}{note}")


def show_results(app: App, results: Sequence[NodeResult | TpuctlError]) -> int:
    """Show the nodes that reached their goal, and the requests that wait, then each error. Return the worst exit code.

    Updates the nodes' entries in ssh's config. Raises the error of a single node.
    """
    errors = [result for result in results if isinstance(result, TpuctlError)]
    if errors and len(results) == 1:
        raise errors[0]
    found = [result for result in results if not isinstance(result, TpuctlError)]
    nodes = [result.node for result in found if result.node]
    requests = [result.request for result in found if result.request and not result.node]
    refresh_ssh_entries(app, nodes)
    summarize_nodes(app, nodes)
    if nodes or requests or not errors:
        startups = {
            result.node.name: result.failed_scripts
            for result in found
            if result.node and result.failed_scripts is not None
        }
        view = nodes_view(app, nodes, is_list=len(results) > 1, failed_scripts=startups)
        app.show(_with_requests(app, view, nodes, requests) if requests else view)
    for error in errors:
        app.show_error(error)
    return worst_exit_code(error.exit_code for error in errors) if errors else ExitCode.OK


def _with_requests(app: App, view: View, nodes: Sequence[Node], requests: Sequence[QueuedResource]) -> View:
    """Return the view of nodes with the queued resources that wait for others, each as `list` shows it."""
    now = app.now()

    def show(terminal: Terminal) -> None:
        if terminal.is_interactive or terminal.is_tsv:
            layout = choose_columns(NODE_COLUMNS, None, sort=None, is_wide=False)
            rows = [*node_rows(nodes, now, is_wide=False), *(waiting_row(request, now) for request in requests)]
            layout.write(terminal, rows)
        else:
            rows = [(Cell(node.name.node_id), Cell(str(node.state))) for node in nodes]
            terminal.rows([*rows, *((Cell(request.node_ids[0]), Cell(str(request.state))) for request in requests)])

    def value() -> Any:  # JSON
        waiting = [waiting_json(request, app.project, now) for request in requests]
        if not nodes:
            return waiting if len(waiting) > 1 else waiting[0]
        before = view.value()
        return [*(before if isinstance(before, list) else [before]), *waiting]

    return replace(
        view,
        value=value,
        names=lambda: [*node_labels(nodes), *(f"{request.zone}/{request.node_ids[0]}" for request in requests)],
        text=show,
    )
