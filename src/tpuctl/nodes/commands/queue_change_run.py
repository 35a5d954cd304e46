"""The bodies of `tpuctl queue wait`, `cancel` and `retry`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.check.commands.preflight_options import CheckOptions
from tpuctl.check.preflight import preflight_check
from tpuctl.nodes.bring_up import UpRequest, bring_up
from tpuctl.nodes.commands.deletions import cancel_requests
from tpuctl.nodes.commands.request_views import await_named_request, find_named_request
from tpuctl.nodes.commands.results import show_results
from tpuctl.nodes.commands.selection_options import parse_names
from tpuctl.nodes.policies import queue_policy, repair_policy, within_deadline
from tpuctl.nodes.request_steps import RequestGoal
from tpuctl.nodes.selection import Selection

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.nodes.commands.change_options import ChangeOptions


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
