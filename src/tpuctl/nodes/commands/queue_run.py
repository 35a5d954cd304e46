"""The bodies of `tpuctl queue list` and `status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.app.options import TableOptions
from tpuctl.names import natural_key
from tpuctl.nodes import queue_rendering
from tpuctl.nodes.commands.request_views import find_named_request, nodes_of_request, request_view
from tpuctl.nodes.lookup import IncompleteListError, list_requests
from tpuctl.nodes.rendering import dead_request_line, unreachable_row
from tpuctl.output.terminal import View

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.output.terminal import Terminal


def run_queue_list(app: App, *, table: TableOptions) -> None:
    """List the queued resources in all zones of the project."""
    layout = table.layout(app, queue_rendering.QUEUE_COLUMNS)
    listing = list_requests(app.services.client, app.project, app.zones)
    requests = sorted(
        listing.queued_resources, key=lambda request: (request.zone, natural_key(request.queued_resource_id))
    )
    begins = {
        request.name: queue_rendering.state_begin(app.services.journal, request, app.project) for request in requests
    }

    rows = queue_rendering.request_rows(requests, begins, now := app.now())
    requests, rows = layout.sort(requests, rows)

    def show(terminal: Terminal) -> None:
        missing = [unreachable_row(layout.columns, zone) for zone in listing.unreachable]
        shown = [*rows, *missing] if terminal.is_interactive else rows
        if shown or not terminal.is_interactive:
            layout.write(terminal, shown)
            terminal.summary(queue_rendering.request_totals(requests))
        else:
            terminal.note(f"no queued resources in {', '.join(app.zones) or 'any zone'} of project {app.project}")
        if terminal.is_interactive and (line := dead_request_line(requests)):
            terminal.note(line)

    app.show(
        View(
            value=lambda: [
                queue_rendering.request_json(request, begins[request.name], app.project, now) for request in requests
            ],
            names=lambda: [request.short_name for request in requests],
            text=show,
        )
    )
    if listing.unreachable:
        raise IncompleteListError(listing.unreachable)


def run_queue_status(app: App, *, name: str) -> None:
    """Show all details of a queued resource: its state, limits, nodes, and why it FAILED."""
    reference = app.reference(name, allow_queued=True)
    request = find_named_request(app, reference)
    app.show(request_view(app, request, nodes_of_request(app, request, reference), reference.project or app.project))
