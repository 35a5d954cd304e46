"""The body of `tpuctl up`."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace as replace_fields
from typing import TYPE_CHECKING

from tpuctl.app.spec_options import SpecOptions, build_spec, named_setup
from tpuctl.check.commands.preflight_options import CheckOptions
from tpuctl.check.preflight import preflight_check
from tpuctl.errors import ExitCode
from tpuctl.models.events import EventKind, broadcast
from tpuctl.nodes.as_it_was import differences_of, differences_of_request
from tpuctl.nodes.bring_up import UpRequest, bring_up, plan_bring_up
from tpuctl.nodes.commands.dry_run import show_plan
from tpuctl.nodes.commands.idle_options import IdleOptions
from tpuctl.nodes.commands.policy_options import RepairOptions, build_hooks
from tpuctl.nodes.commands.queue_options import QueueOptions
from tpuctl.nodes.commands.results import show_results
from tpuctl.nodes.commands.time_options import TimeLimitOptions, time_limit
from tpuctl.nodes.conditions import ObservedState, Verb
from tpuctl.nodes.expiry import end_of_new_node
from tpuctl.nodes.plan import next_step
from tpuctl.nodes.policies import idle_change, queue_policy, repair_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpuctl.app.app import App
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.models.events import NodeEvent
    from tpuctl.nodes.bring_up import PlannedWork
    from tpuctl.nodes.commands.change_options import ChangeOptions
    from tpuctl.nodes.plan import PlanStep


def run_up(
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
    slices: int | None,
    replace: bool,
    on_usable: str | None,
    on_recover: str | None,
    options: ChangeOptions,
) -> int:
    """Create, start or repair nodes, and wait until they are usable."""
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
    hooks = build_hooks(app, {EventKind.REACHED: on_usable, EventKind.RECOVERED: on_recover})
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
        slices=slices,
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
    kinds: set[EventKind] = set()

    @contextmanager
    def listen() -> Iterator[Callable[[NodeEvent], None]]:
        with app.progress(events=options.events) as progress:
            yield broadcast(progress, hooks, lambda event: kinds.add(event.kind))
            failures.extend(hooks.wait(progress))

    results = bring_up(app, nodes, request, listen)
    if on_recover and EventKind.REACHED in kinds and EventKind.RECOVERED not in kinds:
        app.terminal.note("`--on-recover` did not run: nothing had to recover; `--on-usable` runs the first time too")
    return show_results(app, results) or (ExitCode.FAILURE if failures else ExitCode.OK)


def _show_next_steps(app: App, work: PlannedWork, preflight: PreflightCheck) -> None:
    """Run the checks that come before a creation, and show the next request for each node."""
    if work.note:
        app.terminal.note(work.note)
    steps: list[PlanStep] = []
    for name, found, spec in work.located:
        differences = differences_of(app, found, spec)
        is_queued = spec is not None and spec.is_queued
        request = None
        if spec is not None and is_queued and found is None:
            version = spec.version_to_read_request
            request = app.services.client.find_queued_resource(spec.request_name(name), version=version)
        seen = ObservedState(
            name=name,
            node=found,
            differences=differences,
            is_queued=is_queued,
            slices=spec.queued_slices(name) if spec else (),
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
