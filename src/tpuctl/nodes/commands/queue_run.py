"""The bodies of `tpuctl queue`: list, status, wait, retry and cancel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.app.options import (
    TableOptions,
)
from tpuctl.check.commands.preflight_options import CheckOptions
from tpuctl.check.preflight import preflight_check
from tpuctl.names import natural_key
from tpuctl.nodes import queue_rendering
from tpuctl.nodes.bring_up import UpRequest, bring_up
from tpuctl.nodes.commands.deletions import cancel_requests
from tpuctl.nodes.commands.request_views import await_named_request, find_named_request, nodes_of_request, request_view
from tpuctl.nodes.commands.results import show_results
from tpuctl.nodes.commands.selection_options import parse_names
from tpuctl.nodes.lookup import IncompleteListError, list_requests
from tpuctl.nodes.policies import queue_policy, repair_policy, within_deadline
from tpuctl.nodes.rendering import dead_request_line, unreachable_row
from tpuctl.nodes.request_steps import RequestGoal
from tpuctl.nodes.selection import Selection
from tpuctl.output.terminal import View

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.nodes.commands.change_options import ChangeOptions
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


def run_queue_wait(app: App, *, name: str, goal: str, timeout: timedelta | str | None, events: str | None) -> None:
    """Wait until a queued resource is ACTIVE, so that its nodes exist, or until it is gone."""
    await_named_request(app, name, RequestGoal(goal), timeout=timeout, events=events)


def run_queue_cancel(app: App, *, names: tuple[str, ...], options: ChangeOptions) -> int:
    """Delete queued resources and wait until they are gone, so that nothing waits and the quota is free."""
    return cancel_requests(app, Selection(names=parse_names(app, names)), options)


def run_queue_retry(
    app: App,
    *,
    name: str,
    queue_for: timedelta | str | None,
    checks: CheckOptions,
    timeout: timedelta | str | None,
    force_lease: bool,
    events: str | None,
) -> int:
    """Request the node of a queued resource again, and wait until it is usable."""
    reference = app.reference(name, allow_queued=True)
    preflight = preflight_check(app, checks.given)
    with within_deadline(app, None):
        request = find_named_request(app, reference)
    project = reference.project or app.project
    node = request.node_name(project)
    remembered = app.services.journal.past(node).spec if request.is_from_tpuctl else None
    spec = remembered if remembered and remembered.is_queued else replace(request.spec(project), queue=True)
    policy = repair_policy(app, {}, **queue_policy(app, spec, timeout=timeout, is_awaited=True, queue_for=queue_for))
    work = UpRequest(spec=spec, policy=policy, preflight=preflight, force_lease=force_lease)
    return show_results(app, bring_up(app, [str(node)], work, lambda: app.progress(events=events)))
