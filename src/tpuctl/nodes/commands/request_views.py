"""Queued resources of commands: one is looked up by its name, awaited and shown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpuctl.nodes import queue_rendering
from tpuctl.nodes.lookup import find_request, request_not_found_error
from tpuctl.nodes.policies import deadline, retry_until_answered
from tpuctl.nodes.rendering import deleted_view
from tpuctl.nodes.request_actions import await_request
from tpuctl.nodes.request_steps import RequestGoal
from tpuctl.output.terminal import Cell, View

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeReference
    from tpuctl.output.terminal import Terminal


def find_named_request(app: App, reference: NodeReference) -> QueuedResource:
    """Return the queued resource of a name. Raises `NotFoundError` if every zone answered that there is none."""
    found = find_request(app.services.client, app.place, reference)
    if found is None:
        raise request_not_found_error(app.place, reference)
    return found


def nodes_of_request(app: App, request: QueuedResource, reference: NodeReference) -> dict[str, Node]:
    """Return the nodes of a queued resource that exist, by their ids, in its order."""
    listing = app.services.client.list_nodes(reference.project or app.project, (request.zone,))
    there = {node.name.node_id: node for node in listing.nodes}
    return {node_id: there[node_id] for node_id in request.node_ids if node_id in there}


def await_named_request(
    app: App, name: str, goal: RequestGoal, *, timeout: timedelta | str | None, events: str | None
) -> None:
    """Wait until the queued resource of a name, or of a node, is ACTIVE or gone, and show it."""
    limit, reference = deadline(app, timeout), app.reference(name, allow_queued=True)
    request = retry_until_answered(app, lambda: find_request(app.services.client, app.place, reference), timeout=limit)
    if request is None and goal is RequestGoal.GONE:
        app.show(deleted_view([reference.node_id]))
        return
    if request is None:
        raise request_not_found_error(app.place, reference)
    project = reference.project or app.project
    with (
        app.progress(events=events) as progress,
        app.in_flight(
            f"the queued resource {request.short_name} still waits: it counts against the quota",
            resume=app.command_line(),
            undo=f"tpuctl queue cancel {request.short_name}",
        ),
    ):
        found = await_request(app.services.context(progress), request.node_name(project), request, goal, timeout=limit)
    app.show(short_request_view(app, found, project) if found else deleted_view([request.queued_resource_id]))


def request_view(app: App, request: QueuedResource, nodes: Mapping[str, Node] | None, project: str) -> View:
    """Return the view of one queued resource. `nodes` are its nodes that exist, by their ids; None if they are unknown."""
    begin = queue_rendering.state_begin(app.services.journal, request, project)
    error = queue_rendering.request_error(app.services.client, request)

    def show(terminal: Terminal) -> None:
        rows = [*queue_rendering.request_details(request, begin, app.now(), nodes=nodes or {}, project=project)]
        terminal.details([*rows, *(queue_rendering.error_details(error) if error else ())])

    def value() -> dict[str, Any]:
        found = queue_rendering.request_json(request, begin, project, app.now())
        if nodes is not None:
            found["nodes"] = [
                {"nodeId": node_id, "state": str(nodes[node_id].state) if node_id in nodes else None}
                for node_id in request.node_ids
            ]
        if error is not None:
            found["failure"] = {
                "kind": error.kind,
                "message": error.message,
                "hint": error.hint,
                "exit_code": int(error.exit_code),
                "id": error.id,
            }
        return found

    return View(value=value, names=lambda: [request.queued_resource_id], text=show)


def short_request_view(app: App, request: QueuedResource, project: str) -> View:
    """Return the view of a queued resource that a command made or awaited: name and state, or its JSON."""
    cells = (Cell(request.queued_resource_id), Cell(str(request.state)))

    def show(terminal: Terminal) -> None:
        terminal.table(("NAME", "STATE"), [cells])

    return replace(request_view(app, request, None, project), text=show)
