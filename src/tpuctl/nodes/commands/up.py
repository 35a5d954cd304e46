"""`tpuctl up`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace as replace_fields
from typing import TYPE_CHECKING

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, force_lease_option, no_wait_option, nodes_argument, skip_validation_option
from tpuctl.app.route_options import route_options
from tpuctl.app.spec_options import SpecOptions, build_spec, named_setup, spec_options
from tpuctl.check.commands.preflight_options import CheckOptions, check_options
from tpuctl.check.preflight import preflight_check
from tpuctl.errors import ExitCode
from tpuctl.models.events import EventKind, broadcast
from tpuctl.nodes.commands.change_options import change_options
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
from tpuctl.nodes.conditions import ObservedState, Verb
from tpuctl.nodes.policies import idle_change, queue_policy, repair_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpuctl.app.app import App
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.models.events import NodeEvent
    from tpuctl.nodes.bring_up import PlannedWork
    from tpuctl.nodes.commands.change_options import ChangeOptions
    from tpuctl.nodes.plan import PlanStep


@cli_command("up", shows={"zone": "Zone of the node; of several (ZONE,ZONE) or any the first that has capacity."})
@nodes_argument
@spec_options
@queue_options
@grouped_option(
    "--race",
    group=OptionGroup.WHERE,
    is_flag=True,
    help="Request the node in all given zones at once, keep the first, cancel the others.",
)
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
@change_options(
    no_wait_option,
    skip_validation_option,
    force_lease_option,
    asks=grouped_option(
        "--yes",
        "-y",
        group=OptionGroup.SAFETY,
        is_flag=True,
        help="Do not ask for confirmation, and repair nodes even if they may be in use.",
    ),
)
def command(
    app: App,
    *,
    nodes: tuple[str, ...],
    described: SpecOptions,
    queueing: QueueOptions,
    limits: TimeLimitOptions,
    idling: IdleOptions,
    repairs: RepairOptions,
    checks: CheckOptions,
    goal: str | None,
    probe: str | None,
    allow_failed_startup: bool,
    race: bool,
    replace: bool,
    on_recover: str | None,
    options: ChangeOptions,
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
    from tpuctl.nodes.bring_up import UpRequest, bring_up, plan_bring_up  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.commands.results import show_results  # noqa: PLC0415  # as above

    limit = time_limit(app, limits)
    idle = idle_change(app, idling.idle, idling.on_idle)
    preflight = preflight_check(app, checks.given)
    spec = build_spec(app, described, skip_validation=options.skip_validation)
    if spec is not None:
        spec = limit.applied(spec, app.clock.now())
    queued = replace_fields(spec, queue=True) if spec and race else spec
    policy = repair_policy(
        app,
        repairs.as_settings,
        goal=goal,
        probe=probe,
        yes=options.yes,
        refuses_failed_startup=probe is None and not allow_failed_startup,
        replace=replace,
        replace_request=replace,
        **queue_policy(app, queued, timeout=options.timeout, is_awaited=options.wait, **queueing.given),
    )
    hooks = build_hooks(app, {EventKind.RECOVERED: on_recover})
    request = UpRequest(
        spec=spec,
        policy=policy,
        preflight=preflight,
        setup=named_setup(app, described),
        goal=goal,
        tiers=described.tiers,
        limit=limit,
        idle=idle,
        race=race,
        wait=options.wait,
        dry_run=options.dry_run,
        skip_validation=options.skip_validation,
        force_lease=options.force_lease,
        yes=options.yes,
    )
    if options.dry_run:
        _show_next_steps(app, plan_bring_up(app, nodes, request), preflight)
        return ExitCode.OK
    failures: list[object] = []

    @contextmanager
    def listen() -> Iterator[Callable[[NodeEvent], None]]:
        with app.progress(events=options.events) as progress:
            yield broadcast(progress, hooks)
            failures.extend(hooks.wait(progress))

    results = bring_up(app, nodes, request, listen)
    return show_results(app, results) or (ExitCode.FAILURE if failures else ExitCode.OK)


def _show_next_steps(app: App, work: PlannedWork, preflight: PreflightCheck) -> None:
    """Run the checks that come before a creation, and show the next request for each node."""
    from tpuctl.nodes.as_it_was import differences_of, differences_of_request  # noqa: PLC0415  # as above
    from tpuctl.nodes.commands.dry_run import show_plan  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.expiry import end_of_new_node  # noqa: PLC0415  # as above
    from tpuctl.nodes.plan import next_step  # noqa: PLC0415  # as above

    if work.note:
        app.terminal.note(work.note)
    steps: list[PlanStep] = []
    for name, found, spec in work.located:
        differences = differences_of(app, found, spec)
        is_queued = spec is not None and spec.is_queued
        request = None
        if spec is not None and is_queued and found is None:
            request = app.services.client.find_queued_resource(name, version=spec.version_to_read_request)
        seen = ObservedState(
            name=name,
            node=found,
            differences=differences,
            is_queued=is_queued,
            request=request,
            request_differences=differences_of_request(app, name, request, spec),
        )
        expires = end_of_new_node(spec, app.now()) if spec else None
        step = next_step(work.policy, seen, app.now(), spec=spec, expires=expires)
        wanted = spec or (app.services.journal.past(found.name).spec_as_it_is(found) if found else None)
        if wanted and step and step.verb in {Verb.CREATE, Verb.DELETE}:
            with app.progress() as progress:
                preflight.check(name, wanted, replaces=found, tell=progress)
        steps += [step] if step else []
    show_plan(app, steps)
