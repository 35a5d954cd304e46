"""`tpuctl queue`: list, show, await, cancel and retry queued resources."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import (
    DurationType,
    LazyGroup,
    TableOptions,
    cli_command,
    dry_run_option,
    events_option,
    force_lease_option,
    no_wait_option,
    takes_options,
    timeout_option,
    yes_option,
)
from tpuctl.app.value_completion import complete_columns, complete_node
from tpuctl.check.commands.preflight_options import CheckOptions, check_options
from tpuctl.check.preflight import preflight_check
from tpuctl.durations import format_duration
from tpuctl.errors import ExitCode, InvalidInputError, NotConfirmedError, TpuctlError, worst_exit_code
from tpuctl.names import natural_key
from tpuctl.nodes.queueing import UNATTENDED_WAIT
from tpuctl.nodes.request_steps import RequestGoal, why_not_retried

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeReference
    from tpuctl.nodes.resource_group import ResourceGroup
    from tpuctl.output.column_widths import Column
    from tpuctl.output.terminal import Terminal, View

_QUEUE_HELP = """Show, await, cancel and retry queued resources: requests for nodes that wait for capacity.

`tpuctl up NODE --queue` makes one. A queued resource counts against the quota until it is deleted, also if it FAILED.
NAME is the id of a queued resource or of one of its nodes, ZONE/NAME, or a full resource name.
"""
_QUEUE_COMMANDS = {
    "list": ("tpuctl.nodes.commands.queue:queue_list", "List queued resources in all zones."),
    "status": ("tpuctl.nodes.commands.queue:queue_status", "Show all details of a queued resource and its nodes."),
    "wait": ("tpuctl.nodes.commands.queue:queue_wait", "Wait until a queued resource is ACTIVE or gone."),
    "cancel": ("tpuctl.nodes.commands.queue:queue_cancel", "Delete queued resources and wait until they are gone."),
    "retry": ("tpuctl.nodes.commands.queue:queue_retry", "Request the node of a FAILED queued resource again."),
}

queue_group = LazyGroup(
    _QUEUE_COMMANDS,
    name="queue",
    help=_QUEUE_HELP,
    no_args_is_help=True,
    aliases={"ls": "list", "describe": "status", "rm": "cancel"},
    elsewhere={"delete": "cancel", "down": "cancel", "show": "status", "create": "retry"},
)
_name_argument = click.argument("name", metavar="NAME", shell_complete=complete_node)


def _columns() -> Sequence[Column]:
    from tpuctl.nodes.queue_rendering import QUEUE_COLUMNS  # noqa: PLC0415  # only for completion

    return QUEUE_COLUMNS


@cli_command(
    "list", is_short=True, shows={"zone": "Zone to list, or several as ZONE,ZONE. [default: all]", "output": None}
)
@takes_options(TableOptions, "table", shell_complete=complete_columns(_columns))
def queue_list(app: App, *, table: TableOptions) -> None:
    """List the queued resources in all zones of the project. The exit code is 1 if a zone did not answer.

    IN STATE counts from the time at which tpuctl first saw the state, or with ≤ from the creation: the API has no other time.

    \b
    Examples:
      tpuctl queue list
      tpuctl queue list --zone us-central1-a,us-east5-b
      tpuctl queue list -o json | jq -r '.[] | select(.state.state == "FAILED") | .queuedResourceId'
    """
    from tpuctl.nodes import queue_rendering  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.locate import IncompleteListError, list_requests  # noqa: PLC0415  # as above
    from tpuctl.nodes.rendering import dead_request_line, unreachable_row  # noqa: PLC0415  # as above
    from tpuctl.output.terminal import View  # noqa: PLC0415  # as above

    layout = table.layout(app, queue_rendering.QUEUE_COLUMNS)
    listing = list_requests(app.client, app.project, app.zones)
    requests = sorted(
        listing.queued_resources, key=lambda request: (request.zone, natural_key(request.queued_resource_id))
    )
    begins = {request.name: queue_rendering.state_begin(app.journal, request, app.project) for request in requests}

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


@cli_command("status", is_short=True)
@_name_argument
def queue_status(app: App, *, name: str) -> None:
    """Show all details of a queued resource: its state, limits, nodes, and why it FAILED.

    \b
    Examples:
      tpuctl queue status trainer
      tpuctl queue status us-central1-a/trainer -o yaml
    """
    reference = app.reference(name, allow_queued=True)
    request = _find(app, reference)
    app.show(request_view(app, request, _existing_nodes(app, request, reference), reference.project or app.project))


def request_view(app: App, request: QueuedResource, nodes: Mapping[str, Node] | None, project: str) -> View:
    """Return the view of one queued resource. `nodes` are its nodes that exist, by their ids; None if they are unknown."""
    from tpuctl.nodes import queue_rendering  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.output.terminal import View  # noqa: PLC0415  # as above

    begin = queue_rendering.state_begin(app.journal, request, project)
    error = queue_rendering.request_error(app.client, request)

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


@cli_command("wait")
@_name_argument
@grouped_option(
    "--for",
    "goal",
    group=OptionGroup.READINESS,
    type=click.Choice([str(goal) for goal in RequestGoal]),
    default=str(RequestGoal.ACTIVE),
    show_default=True,
    help="Condition to wait for.",
)
@timeout_option
@events_option
def queue_wait(app: App, *, name: str, goal: str, timeout: timedelta | str | None, events: str | None) -> None:
    """Wait until a queued resource is ACTIVE, so that its nodes exist, or until it is gone. Changes nothing.

    A request that FAILED ends the wait with the exit code of its error: 6 no capacity, 7 quota, 5 not in time. One that was
    suspended ends it with 8.

    \b
    Examples:
      tpuctl queue wait trainer --timeout 6h
      tpuctl queue wait trainer --for gone
    """
    from tpuctl.nodes.locate import find_request, request_not_found_error  # noqa: PLC0415  # as above
    from tpuctl.nodes.policies import deadline, retry_until_answered  # noqa: PLC0415  # as above
    from tpuctl.nodes.rendering import deleted_view  # noqa: PLC0415  # as above
    from tpuctl.nodes.request_actions import await_request  # noqa: PLC0415  # as above

    limit, reference, wanted = deadline(app, timeout), app.reference(name, allow_queued=True), RequestGoal(goal)
    request = retry_until_answered(app, lambda: find_request(app.client, app.place, reference), timeout=limit)
    if request is None:
        if wanted is RequestGoal.GONE:
            app.show(deleted_view([reference.node_id]))
            return
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
        found = await_request(app.context(progress), request.node_name(project), request, wanted, timeout=limit)
    app.show(short_request_view(app, found, project) if found else deleted_view([request.queued_resource_id]))


@cli_command("cancel")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_node)
@grouped_option(
    "--all-nodes",
    group=OptionGroup.SAFETY,
    is_flag=True,
    help="Cancel a queued resource with all its nodes, if it has several.",
)
@timeout_option
@no_wait_option
@events_option
@dry_run_option
@yes_option
def queue_cancel(
    app: App,
    *,
    names: tuple[str, ...],
    all_nodes: bool,
    timeout: timedelta | str | None,
    no_wait: bool,
    events: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Delete queued resources and wait until they are gone, so that nothing waits and the quota is free.

    Asks before it deletes one whose node exists, as `tpuctl down NODE` does. One that is SUSPENDING is deleted after that.

    \b
    Examples:
      tpuctl queue cancel trainer
      tpuctl queue cancel sweep --all-nodes --yes
    """
    from tpuctl.nodes.commands.dry_run import show_plan  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.commands.state_changes import plan_deletion  # noqa: PLC0415  # as above
    from tpuctl.nodes.group_lookup import check_whole_request  # noqa: PLC0415  # as above
    from tpuctl.nodes.policies import deadline, within_deadline  # noqa: PLC0415  # as above
    from tpuctl.nodes.rendering import deleted_view  # noqa: PLC0415  # as above
    from tpuctl.nodes.resource_group import distinct_groups  # noqa: PLC0415  # as above
    from tpuctl.nodes.tear_down import tear_down  # noqa: PLC0415  # as above

    limit = deadline(app, timeout)
    with within_deadline(app, None if no_wait else limit):
        targets = distinct_groups([_cancelled_group(app, name) for name in names])
    for target in targets:
        check_whole_request(target, all_nodes=all_nodes)
    if dry_run:
        show_plan(app, tuple(step for target in targets for step in plan_deletion(target)), spec=None)
        return ExitCode.OK
    _confirm_nodes(app, targets, yes=yes)
    shown = " ".join(f"{target.name.zone}/{target.asked}" for target in targets)
    with (
        app.in_flight(f"a deletion of `{shown}` that was sent continues", resume=f"tpuctl queue cancel {shown}"),
        app.progress(events=events) as progress,
    ):
        outcomes = tear_down(app.context(progress), targets, by="queue cancel", timeout=limit, wait=not no_wait)
    errors = [outcome for outcome in outcomes if isinstance(outcome, TpuctlError)]
    if len(errors) == 1 and len(targets) == 1:
        raise errors[0]
    gone = [
        target.asked for target, outcome in zip(targets, outcomes, strict=True) if not isinstance(outcome, TpuctlError)
    ]
    app.show(deleted_view(gone))
    for error in errors:
        app.show_error(error)
    return worst_exit_code(error.exit_code for error in errors) if errors else ExitCode.OK


def _cancelled_group(app: App, text: str) -> ResourceGroup:
    """Return the queued resource of a name with those of its nodes that exist."""
    from tpuctl.nodes.group_lookup import request_group  # noqa: PLC0415  # not needed by --help

    reference = app.reference(text, allow_queued=True)
    request = _find(app, reference)
    nodes = _existing_nodes(app, request, reference)
    found: ResourceGroup = request_group(request, tuple(nodes.values()), reference, reference.project or app.project)
    return found


def _confirm_nodes(app: App, targets: Sequence[ResourceGroup], *, yes: bool) -> None:
    """Ask whether requests whose nodes exist may be deleted. Raises `NotConfirmedError` if the user refuses."""
    from tpuctl.nodes.busy_nodes import use_in_question  # noqa: PLC0415  # not needed by --help

    running = [target for target in targets if target.nodes]
    if not running:
        return
    what = ", ".join(
        f"the queued resource `{target.request.queued_resource_id}` ({target.request.state}) with its node "
        f"`{target.name.node_id}` ({target.nodes[0].state})"
        for target in running
        if target.request
    )
    nodes = [node for target in running for node in target.nodes]
    in_use = use_in_question(app, nodes, if_idle=False, yes=yes)
    if not app.terminal.confirm(f"{in_use}delete {what} and all data on it?", yes=yes):
        raise NotConfirmedError("nothing was done")


@cli_command("retry")
@_name_argument
@grouped_option(
    "--queue-for",
    group=OptionGroup.PURCHASE,
    type=DurationType(),
    metavar="TIME",
    help="Time that the new queued resource waits for capacity, at least 1m. [default: as before, else 24h]",
)
@check_options
@timeout_option
@force_lease_option
@events_option
def queue_retry(
    app: App,
    *,
    name: str,
    queue_for: timedelta | str | None,
    checks: CheckOptions,
    timeout: timedelta | str | None,
    force_lease: bool,
    events: str | None,
) -> None:
    """Delete a queued resource that FAILED, or that the service SUSPENDED, and request its node again with the same names.

    Takes the spec from the journal, else from the queued resource. Waits until the new request is accepted.

    \b
    Examples:
      tpuctl queue retry trainer
      tpuctl queue retry trainer --queue-for 12h
    """
    from tpuctl.models.spec import QueueWindow  # noqa: PLC0415  # as above
    from tpuctl.nodes.expiry import end_of_new_node  # noqa: PLC0415  # as above
    from tpuctl.nodes.policies import deadline, within_deadline  # noqa: PLC0415  # as above
    from tpuctl.nodes.request_actions import retry_request  # noqa: PLC0415  # as above

    limit, reference = deadline(app, timeout), app.reference(name, allow_queued=True)
    if isinstance(queue_for, timedelta) and queue_for < timedelta(minutes=1):
        raise InvalidInputError("`--queue-for` is at least 1m", hint="write it like `--queue-for 6h`")
    preflight = preflight_check(app, checks.given)
    with within_deadline(app, limit):
        request = _find(app, reference)
        existing = _existing_nodes(app, request, reference)
    refusal = why_not_retried(request, existing)
    if refusal is not None:
        raise refusal
    project = reference.project or app.project
    node_name = request.node_name(project)
    remembered = app.journal.last_spec(node_name) if request.is_from_tpuctl else None
    spec = remembered.spec if remembered and remembered.spec.is_queued else request.spec(project)
    valid_for = _valid_for(request, queue_for)
    window = QueueWindow(now=app.now(), valid_until=valid_for).ended_by(end_of_new_node(spec, app.now()))
    limit_text = "without a limit" if window.valid_until is None else f"for {format_duration(window.valid_until)}"
    with (
        app.progress(events=events) as progress,
        app.in_flight(
            f"the queued resource {request.short_name} was deleted or requested again: it counts against the quota",
            resume=app.command_line(),
            undo=f"tpuctl queue cancel {request.short_name}",
        ),
    ):
        context = app.context(progress, preflight=preflight)
        found = retry_request(
            context, node_name, request, spec, valid_for=valid_for, timeout=limit, force_lease=force_lease
        )
    app.terminal.note(f"it waits for capacity {limit_text}: `tpuctl queue wait {request.short_name}`")
    app.show(short_request_view(app, found, project))


def _valid_for(request: QueuedResource, given: timedelta | str | None) -> timedelta | None:
    """Return how long the new request waits: as given, else as long as the old one, else 24 hours; None for ever."""
    if given is not None:
        return given if isinstance(given, timedelta) else None
    if request.valid_until is None or request.created is None or request.valid_until <= request.created:
        return UNATTENDED_WAIT
    return request.valid_until - request.created


def _find(app: App, reference: NodeReference) -> QueuedResource:
    from tpuctl.nodes.locate import find_request, request_not_found_error  # noqa: PLC0415  # not needed by --help

    found = find_request(app.client, app.place, reference)
    if found is None:
        raise request_not_found_error(app.place, reference)
    return found


def _existing_nodes(app: App, request: QueuedResource, reference: NodeReference) -> dict[str, Node]:
    """Return the nodes of a queued resource that exist, by their ids, in its order."""
    listing = app.client.list_nodes(reference.project or app.project, (request.zone,))
    there = {node.name.node_id: node for node in listing.nodes}
    return {node_id: there[node_id] for node_id in request.node_ids if node_id in there}


def short_request_view(app: App, request: QueuedResource, project: str) -> View:
    """Return the view of a queued resource that a command made or awaited: name and state, or its JSON."""
    from dataclasses import replace  # noqa: PLC0415  # not needed by --help and completion

    from tpuctl.output.terminal import Cell  # noqa: PLC0415  # as above

    cells = (Cell(request.queued_resource_id), Cell(str(request.state)))

    def show(terminal: Terminal) -> None:
        terminal.table(("NAME", "STATE"), [cells])

    return replace(request_view(app, request, None, project), text=show)
