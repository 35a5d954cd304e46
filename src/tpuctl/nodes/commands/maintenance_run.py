"""The body of `tpuctl maintenance`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import ConflictError, NotConfirmedError, TimedOutError
from tpuctl.models.events import EventKind
from tpuctl.nodes.actuator import require_same
from tpuctl.nodes.commands.results import show_node
from tpuctl.nodes.policies import deadline
from tpuctl.nodes.usage import use_in_question
from tpuctl.output.terminal import View

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta

    from tpuctl.app.app import App
    from tpuctl.models.node import Maintenance, Node
    from tpuctl.output.terminal import Terminal


def run_maintenance(
    app: App, *, node: str, perform: bool, timeout: timedelta | str | None, wait: bool, if_idle: bool, yes: bool
) -> None:
    """Show the maintenance that Google has announced for a node: its window, and whether you may start it earlier."""
    found = app.services.find(node)
    if perform:
        _confirm_perform(app, found, if_idle=if_idle, yes=yes)
        _perform(app, found, timeout=timeout, wait=wait)
    else:
        app.show(_maintenance_view(app, found))


def _maintenance_view(app: App, node: Node) -> View:
    announced = node.upcoming_maintenance

    def show(terminal: Terminal) -> None:
        if announced is None:
            terminal.note(f"no maintenance is announced for `{node.name.node_id}`")
        else:
            terminal.details(_details(node, announced, app.now()))

    place = {"nodeId": node.name.node_id, "zone": node.name.zone, "project": node.name.project}
    return View(value=lambda: {**place, "upcomingMaintenance": node.raw.get("upcomingMaintenance") or None}, text=show)


def _details(node: Node, announced: Maintenance, now: datetime) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and style of each detail."""
    yield "node", f"{node.name.zone}/{node.name.node_id}", "bold"
    yield "status", announced.status, ""
    yield "type", announced.kind, ""
    for label, moment in (
        ("starts", announced.start),
        ("latest start", announced.latest_start),
        ("ends", announced.end),
    ):
        if moment is not None:
            left = moment - now
            words = f"in {format_duration(left)}" if left.total_seconds() > 0 else f"{format_duration(-left)} ago"
            yield label, f"{format_timestamp(moment)} ({words})", ""
    reason = _why_not(node)
    yield "can be started", "yes, by `--perform`" if reason is None else f"no: {reason}", ""


def _confirm_perform(app: App, node: Node, *, if_idle: bool, yes: bool) -> None:
    """Ask whether the maintenance may start. Raises `ConflictError` if the API would refuse it, or the node is in use."""
    full_name = f"{node.name.zone}/{node.name.node_id}"
    if reason := _why_not(node):
        raise ConflictError(reason, hint=f"see `tpuctl maintenance {full_name}`")
    in_use = use_in_question(app, [node], if_idle=if_idle, yes=yes)
    if not app.terminal.confirm(f"{in_use}start the maintenance of `{full_name}` now (programs on it end)?", yes=yes):
        raise NotConfirmedError


def _perform(app: App, node: Node, *, timeout: timedelta | str | None, wait: bool) -> None:
    """Start the announced maintenance, and wait for its end. Raises `ConflictError` if the node was recreated."""
    name = node.name
    full_name = f"{name.zone}/{name.node_id}"

    def late(waited: timedelta) -> TimedOutError:
        return TimedOutError(
            f"the maintenance of `{name.node_id}` has not ended after {format_duration(waited)}",
            hint=f"it continues in the cloud; wait for it with `tpuctl wait {full_name} --for healthy`",
        )

    with (
        app.in_flight(
            f"the maintenance of `{full_name}` may have begun", resume=f"tpuctl wait {full_name} --for healthy"
        ),
        app.progress() as progress,
    ):
        context = app.services.context(progress)
        if (current := app.services.client.find_node(name)) is not None:
            require_same(node, current)
        context.report(EventKind.ACTION, name, "starting its maintenance", verb="maintenance")
        operation = app.services.client.perform_maintenance(node)
        if wait:
            app.services.client.await_operation(operation, timeout=deadline(app, timeout), late=late)
    show_node(app, app.services.client.find_node(name) or node)


def _why_not(node: Node) -> str | None:
    """Return why the maintenance of a node cannot be started by the user, None if it can."""
    announced, name = node.upcoming_maintenance, node.name.node_id
    if announced is None:
        return f"no maintenance is announced for `{name}`"
    if announced.status != "PENDING":
        return f"the maintenance of `{name}` is {announced.status} already"
    if not announced.can_reschedule:
        return f"only Google can start the maintenance of `{name}`"
    return None
