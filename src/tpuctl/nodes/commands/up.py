"""`tpuctl up`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import (
    cli_command,
    dry_run_option,
    events_option,
    force_lease_option,
    no_wait_option,
    nodes_argument,
    skip_validation_option,
    timeout_option,
)
from tpuctl.app.route_options import route_options
from tpuctl.app.spec_options import SpecOptions, build_spec, spec_options
from tpuctl.check.commands.preflight_options import CheckOptions, check_options
from tpuctl.check.preflight import preflight_check
from tpuctl.errors import ExitCode
from tpuctl.models.events import EventKind, broadcast
from tpuctl.names import NodeName
from tpuctl.nodes.commands.idle_options import IdleOptions, idle_options
from tpuctl.nodes.commands.policy_options import (
    RepairOptions,
    build_hooks,
    failed_startup_option,
    hook_options,
    level_option,
    probe_option,
    repair_options,
)
from tpuctl.nodes.commands.queue_options import QueueOptions, queue_options
from tpuctl.nodes.commands.time_options import TimeLimitOptions, time_limit, time_limit_options
from tpuctl.nodes.commands.zone_options import ZoneOptions, zone_options
from tpuctl.nodes.conditions import ObservedState, Verb
from tpuctl.nodes.policies import idle_limit, queue_policy, repair_policy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.nodes.conditions import Policy


@cli_command("up", shows={"zone": "Zone of the node; of several (ZONE,ZONE) or any the first that has capacity."})
@nodes_argument
@spec_options
@queue_options
@zone_options
@time_limit_options
@idle_options
@level_option
@probe_option
@failed_startup_option
@grouped_option(
    "--replace",
    group=OptionGroup.REPAIR,
    is_flag=True,
    help="Delete and recreate a node that differs from the given options.",
)
@repair_options
@hook_options(EventKind.RECOVERED)
@check_options
@route_options
@timeout_option
@no_wait_option
@skip_validation_option
@force_lease_option
@events_option
@dry_run_option
@grouped_option(
    "--yes",
    "-y",
    group=OptionGroup.SAFETY,
    is_flag=True,
    help="Do not ask for confirmation, and repair nodes even if they may be in use.",
)
def command(
    app: App,
    *,
    nodes: tuple[str, ...],
    described: SpecOptions,
    queueing: QueueOptions,
    zoning: ZoneOptions,
    limits: TimeLimitOptions,
    idling: IdleOptions,
    repairs: RepairOptions,
    checks: CheckOptions,
    goal: str | None,
    probe: str | None,
    allow_failed_startup: bool,
    replace: bool,
    on_recover: str | None,
    timeout: timedelta | str | None,
    no_wait: bool,
    skip_validation: bool,
    force_lease: bool,
    events: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Create, start or repair nodes, and wait until they are usable.

    Creates missing nodes, starts stopped ones, recreates preempted ones, and repairs those that come up broken. Run it again
    at any time: it continues from the present state.

    \b
    Examples:
      tpuctl up trainer --type v4-8 --zone us-central2-b
      tpuctl up trainer --type v5litepod-16 --spot --timeout 2h
      tpuctl up worker-0 worker-1 worker-2 --type v4-8 --for devices --ttl 8h
      tpuctl up trainer          (with the spec it had before)
    """
    from tpuctl.nodes.bring_up import UpRequest, plan_bring_up  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.rendering import show_results  # noqa: PLC0415  # as above

    limit = time_limit(app, limits)
    idle = idle_limit(app, idling.idle, idling.on_idle)
    preflight = preflight_check(app, checks.given)
    spec = build_spec(app, described, skip_validation=skip_validation)
    if spec is not None:
        spec = limit.applied(spec, app.clock.now())
    policy = repair_policy(
        app,
        repairs.as_settings,
        goal=goal,
        probe=probe,
        yes=yes,
        refuses_failed_startup=probe is None and not allow_failed_startup,
        replace=replace,
        replace_request=replace,
        **queue_policy(app, spec, timeout=timeout, is_awaited=not no_wait, **queueing.given),
    )
    hooks = build_hooks(app, {EventKind.RECOVERED: on_recover})
    request = UpRequest(
        spec=spec,
        policy=policy,
        preflight=preflight,
        goal=goal,
        tiers=described.tiers,
        limit=limit,
        idle=idle,
        removes_idle=idling.is_unlimited,
        names_idle=idling.idle is not None,
        zone_order=zoning.zone_order,
        race=zoning.race,
        once=no_wait,
        dry_run=dry_run,
        skip_validation=skip_validation,
        force_lease=force_lease,
        yes=yes,
    )
    work = plan_bring_up(app, nodes, request)
    if dry_run:
        if work.note:
            app.terminal.note(work.note)
        _show_plans(app, work.located, work.policy, preflight)
        return 0
    with app.progress(events=events) as progress:
        with app.in_flight(lambda: work.in_flight(progress.last), resume=app.command_line(), undo=work.undo):
            results = work.run(app.context(broadcast(progress, hooks), preflight=preflight))
        failures = hooks.wait(progress)
    return show_results(app, results) or (ExitCode.FAILURE if failures else ExitCode.OK)


def _show_plans(
    app: App,
    located: Sequence[tuple[NodeName, Node | None, NodeSpec | None]],
    policy: Policy,
    preflight: PreflightCheck,
) -> None:
    """Run the checks that come before a creation, and show the plan for each node."""
    from tpuctl.nodes.commands.dry_run import show_plan  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.expiry import end_of_new_node  # noqa: PLC0415  # as above
    from tpuctl.nodes.journal import current_spec  # noqa: PLC0415  # as above
    from tpuctl.nodes.node_lookup import differences_of, differences_of_request  # noqa: PLC0415  # as above
    from tpuctl.nodes.plan import plan_steps  # noqa: PLC0415  # as above

    for name, found, spec in located:
        differences = differences_of(app, found, spec)
        is_queued = spec is not None and spec.is_queued
        request = None
        if spec is not None and is_queued and found is None:
            request = app.client.find_queued_resource(name, version=spec.version_to_read_request)
        seen = ObservedState(
            name=name,
            node=found,
            differences=differences,
            is_queued=is_queued,
            request=request,
            request_differences=differences_of_request(app, name, request, spec),
        )
        planned = plan_steps(policy, seen, app.now(), expires=end_of_new_node(spec, app.now()) if spec else None)
        wanted = spec or (current_spec(app.journal, found, app.clock) if found else None)
        if wanted and planned and planned[0].verb in {Verb.CREATE, Verb.DELETE}:
            with app.progress() as progress:
                preflight.check(name, wanted, replaces=found, tell=progress)
        show_plan(app, planned, spec=spec, nodes=(found,) if found else ())
