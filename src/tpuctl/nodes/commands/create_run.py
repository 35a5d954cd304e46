"""The body of `tpuctl create`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.app.spec_options import SpecOptions, build_spec
from tpuctl.check.commands.preflight_options import CheckOptions
from tpuctl.check.preflight import preflight_check
from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.cloud.tpu import queued_resource_name
from tpuctl.durations import format_duration
from tpuctl.errors import AlreadyExistsError, InvalidInputError
from tpuctl.names import NodeName
from tpuctl.nodes.actions import check_accelerator_type, create_node
from tpuctl.nodes.actuator import RequestedChange
from tpuctl.nodes.commands.dry_run import show_plan
from tpuctl.nodes.commands.queue_options import QueueOptions
from tpuctl.nodes.commands.request_views import short_request_view
from tpuctl.nodes.commands.results import show_node
from tpuctl.nodes.commands.time_options import TimeLimitOptions, time_limit
from tpuctl.nodes.conditions import Condition, Policy, Verb
from tpuctl.nodes.controller import reconcile_node
from tpuctl.nodes.expiry import end_of_new_node
from tpuctl.nodes.lookup import check_may_be_created, zone_to_create
from tpuctl.nodes.plan import PlanStep
from tpuctl.nodes.policies import deadline, queue_policy, within_deadline
from tpuctl.nodes.queueing import UNATTENDED_WAIT, queue_window
from tpuctl.nodes.request_actions import accepted_request
from tpuctl.nodes.time_limits import TimeLimit, note_clock_difference

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.models.spec import NodeSpec
    from tpuctl.nodes.commands.change_options import ChangeOptions


def run_create(
    app: App,
    *,
    node: str,
    described: SpecOptions,
    queueing: QueueOptions,
    limits: TimeLimitOptions,
    checks: CheckOptions,
    options: ChangeOptions,
) -> None:
    """Create a node and wait until it is READY."""
    limit = time_limit(app, limits)
    preflight = preflight_check(app, checks.given)
    spec = build_spec(app, described, skip_validation=options.skip_validation)
    if spec is None:
        raise InvalidInputError("no accelerator type given", hint="name one: `--type v4-8`; see `tpuctl types`")
    if len(described.tiers) > 1:
        raise InvalidInputError("`create` takes one tier", hint="`tpuctl up` tries several in their order")
    has_default_wait = spec.is_queued and queueing.queue_for is None
    limits_of_request = queue_policy(app, spec, timeout=options.timeout, is_awaited=False, **queueing.given)
    policy = Policy(goal=Condition.READY, **{**limits_of_request, "timeout": deadline(app, options.timeout)})
    name = _free_name(app, node, spec)
    if limit != TimeLimit():
        note_clock_difference(app)
        spec = limit.applied(spec, app.now())
    if not options.skip_validation:
        check_accelerator_type(app.services.client, name.project, name.zone, spec)
    if options.dry_run:
        window = (
            queue_window(policy, None, app.now()).ended_by(end_of_new_node(spec, app.now())) if spec.is_queued else None
        )
        show_plan(app, (PlanStep(Verb.CREATE, name, "requested", window=window, spec=spec),))
        with app.progress() as progress:
            preflight.check(name, spec, replaces=None, tell=progress)
        return
    full_name = f"{name.zone}/{name.node_id}"
    if spec.is_queued:
        _enqueue(app, name, spec, policy, options, preflight=preflight)
        if spec.ttl is not None:
            app.terminal.note("its time limit counts from this request, not from the creation of the node")
            app.terminal.note(_no_guard(node))
        if has_default_wait and (spec.ttl is None or spec.ttl > UNATTENDED_WAIT):
            app.terminal.note(
                f"it waits for capacity for {format_duration(UNATTENDED_WAIT)}; `--queue-for TIME` sets another limit"
            )
        if spec.setup:
            app.terminal.note(f"the setup commands run with `tpuctl up {node}`, once the node is usable")
        return
    with (
        app.progress(events=options.events) as progress,
        app.in_flight(
            f"`{name.node_id}` in {name.zone} is being created, and bills as soon as it runs",
            resume=f"tpuctl wait {full_name} --for ready",
            undo=f"tpuctl down {full_name}",
        ),
    ):
        context = app.services.context(progress, preflight=preflight)
        with limit_cloud_calls(app.clock, policy.timeout if options.wait else None, grace=DEADLINE_GRACE):
            pending = RequestedChange(Verb.CREATE, create_node(context, name, spec, force_lease=options.force_lease))
        outcome = reconcile_node(context, name, policy, pending=pending, wait=options.wait)
    if spec.ttl is not None:
        app.terminal.note(_no_guard(node))
    if spec.setup:
        app.terminal.note(f"the setup commands have not run: `tpuctl up {node}` runs them once the node is usable")
    if outcome.node is not None:
        show_node(app, outcome.node)


def _no_guard(node: str) -> str:
    ends = f"only `tpuctl gc --expired` and `tpuctl watch {node}` end it"
    return f"no guard watches its time limit: `tpuctl up {node}` starts one once the node is usable; until then {ends}"


def _enqueue(
    app: App,
    name: NodeName,
    spec: NodeSpec,
    policy: Policy,
    options: ChangeOptions,
    *,
    preflight: PreflightCheck,
) -> None:
    """Request the node through the queue, wait until the service has accepted the request, and show it."""
    full_name = f"{name.zone}/{name.node_id}"
    request_name = queued_resource_name(name)
    waits = f"the queued resource {full_name} counts against the quota, and its node bills as soon as it runs"
    with (
        app.progress(events=options.events) as progress,
        app.in_flight(
            lambda: waits if progress.last else "no request was sent yet",
            resume=f"tpuctl queue wait {full_name}",
            undo=f"tpuctl queue cancel {full_name}",
        ),
    ):
        context = app.services.context(progress, preflight=preflight)
        with limit_cloud_calls(app.clock, policy.timeout if options.wait else None, grace=DEADLINE_GRACE):
            window = queue_window(policy, None, context.server_now())
            try:
                operation = create_node(context, name, spec, window, force_lease=options.force_lease)
            except AlreadyExistsError as error:
                error.hint = f"`tpuctl queue status {full_name}` shows it"
                raise
            if options.wait:
                found = accepted_request(
                    context, request_name, operation, version=spec.api_version, timeout=policy.timeout
                )
            else:
                found = app.services.client.get_queued_resource(request_name, version=spec.api_version)
    app.terminal.note(
        f"to wait for it: `tpuctl queue wait {full_name}`; to cancel it: `tpuctl queue cancel {full_name}`"
    )
    app.show(short_request_view(app, found, name.project))


def _free_name(app: App, text: str, spec: NodeSpec) -> NodeName:
    """Return the full name of the new node. Raises `SettingError` without a zone, `AlreadyExistsError` if the name is taken."""
    reference, place = app.reference(text), app.place
    zone = reference.zone or place.zone or zone_to_create(app, reference, spec)
    name = NodeName(reference.project or place.project, zone, reference.node_id)
    with within_deadline(app, None):
        found = app.services.client.find_node(name)
    if found is not None:
        hint = f"`tpuctl up {text}` continues with it; `tpuctl delete {text}` deletes it"
        raise AlreadyExistsError(
            f"node `{name.node_id}` already exists in {zone}; its state is {found.state}", hint=hint
        )
    check_may_be_created(app, name)
    return name
