"""`tpuctl queue`: list, show, await, cancel and retry queued resources."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import (
    DurationType,
    LazyGroup,
    TableOptions,
    cli_command,
    events_option,
    force_lease_option,
    no_wait_option,
    takes_options,
    timeout_option,
)
from tpuctl.app.value_completion import complete_columns, complete_node
from tpuctl.check.commands.preflight_options import CheckOptions, check_options
from tpuctl.check.preflight import preflight_check
from tpuctl.names import natural_key
from tpuctl.nodes.commands.change_options import change_options
from tpuctl.nodes.request_steps import RequestGoal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.nodes.commands.change_options import ChangeOptions
    from tpuctl.output.column_widths import Column
    from tpuctl.output.terminal import Terminal

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
    from tpuctl.nodes.lookup import IncompleteListError, list_requests  # noqa: PLC0415  # as above
    from tpuctl.nodes.rendering import dead_request_line, unreachable_row  # noqa: PLC0415  # as above
    from tpuctl.output.terminal import View  # noqa: PLC0415  # as above

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


@cli_command("status", is_short=True)
@_name_argument
def queue_status(app: App, *, name: str) -> None:
    """Show all details of a queued resource: its state, limits, nodes, and why it FAILED.

    \b
    Examples:
      tpuctl queue status trainer
      tpuctl queue status us-central1-a/trainer -o yaml
    """
    from tpuctl.nodes.commands.request_views import (  # noqa: PLC0415  # not needed by --help and completion
        find_named_request,
        nodes_of_request,
        request_view,
    )

    reference = app.reference(name, allow_queued=True)
    request = find_named_request(app, reference)
    app.show(request_view(app, request, nodes_of_request(app, request, reference), reference.project or app.project))


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

    Same as `tpuctl wait NAME --for active`. A request that FAILED ends the wait with the exit code of its error: 6 no capacity,
    7 quota, 5 not in time. One that was suspended ends it with 8.

    \b
    Examples:
      tpuctl queue wait trainer --timeout 6h
      tpuctl queue wait trainer --for gone
    """
    from tpuctl.nodes.commands.request_views import await_named_request  # noqa: PLC0415  # not needed by --help

    await_named_request(app, name, RequestGoal(goal), timeout=timeout, events=events)


@cli_command("cancel")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_node)
@change_options(
    grouped_option(
        "--all-nodes",
        group=OptionGroup.SAFETY,
        is_flag=True,
        help="Cancel a queued resource with all its nodes, if it has several.",
    ),
    no_wait_option,
)
def queue_cancel(app: App, *, names: tuple[str, ...], options: ChangeOptions) -> int:
    """Delete queued resources and wait until they are gone, so that nothing waits and the quota is free.

    Asks before it deletes one whose node exists, as `tpuctl down NODE` does. One that is SUSPENDING is deleted after that.

    \b
    Examples:
      tpuctl queue cancel trainer
      tpuctl queue cancel sweep --all-nodes --yes
    """
    from tpuctl.nodes.commands.deletions import cancel_requests  # noqa: PLC0415  # not needed by --help
    from tpuctl.nodes.commands.selection_options import parse_names  # noqa: PLC0415  # as above
    from tpuctl.nodes.selection import Selection  # noqa: PLC0415  # as above

    return cancel_requests(app, Selection(names=parse_names(app, names)), options)


@cli_command("retry")
@_name_argument
@grouped_option(
    "--queue-for",
    group=OptionGroup.PURCHASE,
    type=DurationType(),
    metavar="TIME",
    help="Time that the new queued resource waits for capacity, at least 1m. [default: --timeout]",
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
) -> int:
    """Request the node of a queued resource again, and wait until it is usable.

    Same as `tpuctl up NODE` with the spec of the journal, else of the queued resource: deletes one that FAILED, or that the
    service SUSPENDED, and waits for one that still waits.

    \b
    Examples:
      tpuctl queue retry trainer
      tpuctl queue retry trainer --queue-for 12h
    """
    from tpuctl.nodes.bring_up import UpRequest, bring_up  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.commands.request_views import find_named_request  # noqa: PLC0415  # as above
    from tpuctl.nodes.commands.results import show_results  # noqa: PLC0415  # as above
    from tpuctl.nodes.policies import queue_policy, repair_policy, within_deadline  # noqa: PLC0415  # as above

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
