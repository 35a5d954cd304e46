"""`tpuctl up`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

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
from tpuctl.app.ssh_options import with_reachable_goal
from tpuctl.check.commands.preflight_options import CheckOptions, check_options
from tpuctl.check.preflight import preflight_check
from tpuctl.errors import ConflictError, ExitCode, InvalidInputError, NotConfirmedError
from tpuctl.models.events import EventKind, broadcast
from tpuctl.models.node import NodeState
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.commands.idle_options import IdleOptions, idle_options
from tpuctl.nodes.commands.policy_options import (
    RepairOptions,
    build_hooks,
    hook_options,
    level_option,
    probe_option,
    repair_options,
)
from tpuctl.nodes.commands.queue_options import QueueOptions, queue_options
from tpuctl.nodes.commands.time_options import TimeLimitOptions, time_limit, time_limit_options
from tpuctl.nodes.commands.zone_options import ZoneOptions, zone_options
from tpuctl.nodes.conditions import ObservedState, Verb
from tpuctl.nodes.expiry import LimitChange
from tpuctl.nodes.policies import idle_limit, queue_policy, repair_policy, retry_until_answered, within_deadline
from tpuctl.nodes.time_limits import TimeLimit, confirm_limits, note_clock_difference
from tpuctl.nodes.zone_choice import (
    ZoneChoice,
    check_zone_options,
    choice_for,
    one_zone,
    order_offers,
    require_type,
    zone_choice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.errors import TpuctlError
    from tpuctl.models.node import Node, Tier
    from tpuctl.nodes.conditions import Policy
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.hooks import Hooks
    from tpuctl.nodes.idleness import IdleLimit
    from tpuctl.nodes.racing import Race
    from tpuctl.nodes.tracker import ReconcileRequest
    from tpuctl.nodes.zone_order import Offer
    from tpuctl.output.progress import Progress

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options of `up` besides those of the spec, of repair and of the checks."""

    goal: str | None
    probe: str | None
    replace: bool
    on_recover: str | None
    timeout: timedelta | str | None
    no_wait: bool
    skip_validation: bool
    force_lease: bool
    events: str | None
    dry_run: bool
    yes: bool
    limit: TimeLimit
    idle: IdleLimit | None
    removes_idle: bool
    # Whether the idle limit is that of an option, not that of the setting.
    names_idle: bool


@cli_command("up", shows={"zone": "Zone of the node; of several (ZONE,ZONE) or any the first that has capacity."})
@nodes_argument
@spec_options
@queue_options
@zone_options
@time_limit_options
@idle_options
@level_option
@probe_option
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
    **given: Any,  # those of UpOptions
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
    from tpuctl.nodes.actions import bring_up_nodes  # noqa: PLC0415  # not needed by --help and completion

    limit = time_limit(app, limits)
    options = UpOptions(
        **given,
        limit=limit,
        idle=idle_limit(app, idling.idle, idling.on_idle),
        removes_idle=idling.is_unlimited,
        names_idle=idling.idle is not None,
    )
    preflight = preflight_check(app, checks.given)
    spec = build_spec(app, described, skip_validation=options.skip_validation)
    if spec is not None:
        spec = limit.applied(spec, app.clock.now())
    policy = repair_policy(
        app,
        repairs.as_settings,
        goal=options.goal,
        probe=options.probe,
        yes=options.yes,
        replace=options.replace,
        replace_request=options.replace,
        **queue_policy(app, spec, timeout=options.timeout, is_awaited=not options.no_wait, **queueing.given),
    )
    hooks = build_hooks(app, {EventKind.RECOVERED: options.on_recover})
    choice = zone_choice(app)
    if len(nodes) == 1:
        choice = choice_for(app, nodes[0], choice)
    if choice is None and len(described.tiers) > 1:
        choice = one_zone(app, nodes[0])
    check_zone_options(
        choice, nodes, tiers=described.tiers, no_wait=options.no_wait, zone_order=zoning.zone_order, race=zoning.race
    )
    race = None if len(nodes) > 1 else _remembered_race(app, nodes[0], choice, is_race=zoning.race)
    if choice is not None or race is not None:
        found = None if race or zoning.race or choice is None else _find_in_zones(app, nodes[0], choice)
        if found is not None:
            app.choose_zone(found.zone)
        if found is None or spec is not None:
            spec = spec or (race.spec if race else None)
            wanted = require_type(spec, choice)
            search = _ZoneSearch(wanted, described.tiers, policy, options, preflight, hooks)
            if race is not None and not (zoning.race and choice):
                return _up_by_race(app, race.names, search)
            if choice is None:
                raise AssertionError("without several zones only a race is continued")

            def find_offers(choice: ZoneChoice = choice) -> tuple[Offer, ...]:
                return order_offers(app, preflight, choice, wanted, tiers=described.tiers, zone_order=zoning.zone_order)

            if found is not None:
                return _up_in_zones(app, found, find_offers, search, is_begun=True)
            offers = find_offers()
            reference = app.reference(nodes[0])
            name = NodeName(reference.project or app.project, offers[0].zone, reference.node_id)
            if zoning.race:
                return _up_by_race(app, [dataclasses.replace(name, zone=offer.zone) for offer in offers], search)
            return _up_in_zones(app, name, lambda: offers, search)
    located = [_locate(app, text, spec, options, timeout=policy.timeout) for text in dict.fromkeys(nodes)]
    if options.limit != TimeLimit():
        note_clock_difference(app)
    preflight.siblings = {name: spec for name, found, spec in located if found is None and spec is not None}
    if options.dry_run:
        _show_plans(app, located, policy, preflight)
        return 0
    _summarize_specs(app, located)
    tasks = [_task(app, *entry, policy=policy, options=options) for entry in located]
    undo = "tpuctl down " + " ".join(f"{task.name.zone}/{task.name.node_id}" for task in tasks)
    with (
        app.progress(events=options.events) as progress,
        app.in_flight(lambda: _billing(tasks, progress), resume=app.command_line(), undo=undo),
    ):
        outcomes = bring_up_nodes(
            app.context(broadcast(progress, hooks), preflight=preflight), tasks, once=options.no_wait
        )
    return _finish(app, outcomes, hooks)


def _summarize_specs(app: App, located: Sequence[tuple[NodeName, Node | None, NodeSpec | None]]) -> None:
    """Let the summary of a step of GitHub Actions name type and capacity of nodes also if they do not come up."""
    for name, _, spec in located:
        if app.summary and spec:
            app.summary.expect(name, spec.accelerator_type, str(spec.tier or "on-demand"))


def _finish(app: App, results: Sequence[NodeResult | TpuctlError], hooks: Hooks) -> int:
    """Wait for the hooks, show the nodes and return the exit code."""
    from tpuctl.nodes.rendering import show_results  # noqa: PLC0415  # not needed by --help and completion

    failures = hooks.wait(lambda failure: app.terminal.warn(str(failure)))
    has_failed = any(failure.is_final for failure in failures)
    return show_results(app, results) or (ExitCode.FAILURE if has_failed else ExitCode.OK)


@dataclasses.dataclass(frozen=True, slots=True)
class _ZoneSearch:
    """What is tried in several zones."""

    spec: NodeSpec
    tiers: tuple[Tier, ...]
    policy: Policy
    options: UpOptions
    preflight: PreflightCheck
    hooks: Hooks


def _up_in_zones(
    app: App,
    first: NodeName,
    find_offers: Callable[[], tuple[Offer, ...]],
    search: _ZoneSearch,
    *,
    is_begun: bool = False,
) -> int:
    """Bring a node up in the first of these zones and tiers that has capacity; `is_begun`: it is there or requested."""
    from tpuctl.nodes.zone_search import (  # noqa: PLC0415  # not needed by --help and completion
        bring_up_somewhere,
        spec_of_attempt,
        with_tier,
    )

    node, wanted, began = None, search.spec, app.clock.monotonic()
    if is_begun:
        _, node, _ = _locate(app, str(first), wanted, search.options, timeout=search.policy.timeout)
        wanted = spec_of_attempt(app.client, first, wanted, node=node, tiers=search.tiers)
    task = _task(app, first, node, wanted, policy=search.policy, options=search.options)
    task = dataclasses.replace(task, since=began if task.since is None else task.since)
    if search.options.dry_run:
        if not is_begun:
            offers = find_offers()
            named = ", ".join(map(str, offers[:12])) + (f" and {len(offers) - 12} more" if len(offers) > 12 else "")
            app.terminal.note(f"zones in this order: {named}; the plan is for the first")
            wanted = with_tier(search.spec, offers[0].tier)
        _show_plans(app, [(first, node, wanted)], task.policy, search.preflight)
        return 0
    tried = [first]

    def announce(name: NodeName) -> None:
        tried.append(name)
        app.choose_zone(name.zone)

    with (
        app.progress(events=search.options.events) as progress,
        app.in_flight(
            lambda: _billing([dataclasses.replace(task, name=tried[-1])], progress),
            resume=app.command_line(),
            undo=f"tpuctl down {first.node_id}",
        ),
    ):
        context = app.context(broadcast(progress, search.hooks), preflight=search.preflight)
        once = search.options.no_wait
        result = bring_up_somewhere(
            context, find_offers, task, search.spec, is_begun=is_begun, once=once, announce=announce
        )
    return _finish(app, [result], search.hooks)


def _up_by_race(app: App, names: Sequence[NodeName], search: _ZoneSearch) -> int:
    """Request a node in all zones at once, keep the first that is ACTIVE, and wait until it is usable."""
    from tpuctl.nodes.actions import bring_up_nodes  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.racing import describe_race, run_race  # noqa: PLC0415  # as above

    options, began = search.options, app.clock.monotonic()
    spec = options.limit.applied(dataclasses.replace(search.spec, queue=True), app.now())
    if options.dry_run:
        app.terminal.note(f"requested in {len(names)} zones at the same time; the first that is ACTIVE is kept")
        _show_plans(app, [(name, None, spec) for name in names], search.policy, search.preflight)
        return 0
    if options.no_wait:
        raise InvalidInputError(
            f"cannot continue the race for `{names[0].node_id}` with `--no-wait`: the run that waits cancels the losers",
            hint=f"leave it out, or cancel the race with `tpuctl down {names[0].node_id}`",
        )
    with (
        app.progress(events=options.events) as progress,
        app.in_flight(lambda: describe_race(names), resume=app.command_line(), undo=f"tpuctl down {names[0].node_id}"),
    ):
        context = app.context(broadcast(progress, search.hooks), preflight=search.preflight)
        winner = run_race(context, names, spec, search.policy, force_lease=options.force_lease, since=began)
        app.choose_zone(winner.zone)
        task = _task(app, winner, None, spec, policy=search.policy, options=options)
        # The time counts from the requests of all zones.
        task = dataclasses.replace(task, since=began, ends=task.ends and spec.expires)
        results = bring_up_nodes(context, [task])
    return _finish(app, results, search.hooks)


def _remembered_race(app: App, text: str, choice: ZoneChoice | None, *, is_race: bool) -> Race | None:
    """Return the race for a node that an earlier run has begun and not ended, None if there is none.

    Raises `ConflictError` if it still waits and the user names other zones, unless the user asks for a race in them.
    """
    from tpuctl.nodes.racing import is_race_alive, remembered_race  # noqa: PLC0415  # not needed by --help and completion

    reference = app.reference(text)
    project = reference.project or app.project
    known = [name for name in app.journal.names() if (name.project, name.node_id) == (project, reference.node_id)]
    race = remembered_race(app.journal, known) if known else None
    if race is None:
        return None
    one = reference.zone or (app.zones[0] if len(app.zones) == 1 else None)
    named = (one,) if one else choice.zones if choice else ()
    if is_race or not named or not {*named}.isdisjoint(name.zone for name in race.names):
        return race
    with within_deadline(app, None):
        listing = app.client.list_queued_resources(project)
    if not is_race_alive(race, listing, now=app.now()):
        return None
    raise ConflictError(
        f"`{reference.node_id}` is still requested by a race in {', '.join(name.zone for name in race.names)}",
        hint=f"cancel it first with `tpuctl down {reference.node_id}`",
    )


def _find_in_zones(app: App, text: str, choice: ZoneChoice) -> NodeName | None:
    """Return the name of a node or of a queued resource that exists in one of the zones: it is adopted, never doubled."""
    from tpuctl.nodes.locate import search_requested_name  # noqa: PLC0415  # not needed by --help and completion

    with within_deadline(app, None):
        # A mistyped zone has no nodes. Asked for them, it counts as one that does not answer.
        existing = app.client.locations(app.project) if choice.zones else ()
        zones = tuple(zone for zone in choice.zones if zone in existing)
        if choice.zones and not zones:
            return None
        return search_requested_name(app.client, app.project, app.reference(text), zones)


def _locate(
    app: App,
    text: str,
    spec: NodeSpec | None,
    options: UpOptions,
    *,
    timeout: timedelta | None,
) -> tuple[NodeName, Node | None, NodeSpec | None]:
    """Return the name of a node, the node if it exists, and its spec; None for the spec to accept the node unchanged.

    If the command waits, retry while the API does not answer.
    """
    from tpuctl.nodes.actions import check_accelerator_type  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.journal import current_spec  # noqa: PLC0415  # as above
    from tpuctl.nodes.node_lookup import locate_for_create, remembered_spec  # noqa: PLC0415  # as above

    waits = not (options.dry_run or options.no_wait)

    def ask(function: Callable[[], T]) -> T:
        if waits:
            return retry_until_answered(app, function, timeout=timeout, since=app.silent_since)
        with within_deadline(app, None):
            return function()

    name, found = ask(lambda: locate_for_create(app, text, spec, is_patient=waits and spec is not None))
    if spec is None and found is not None and found.state is NodeState.DELETING:
        # The node may be gone in the next poll, and its spec with it.
        spec = current_spec(app.journal, found, app.clock)
    if spec is None and found is None:
        spec = remembered_spec(app, name, yes=options.yes or options.dry_run)
        spec = options.limit.applied(spec, app.now())
    if found is None and spec is not None and not options.skip_validation:
        wanted = spec
        ask(lambda: check_accelerator_type(app.client, name.project, name.zone, wanted))
    return name, found, spec


def _task(
    app: App, name: NodeName, found: Node | None, spec: NodeSpec | None, *, policy: Policy, options: UpOptions
) -> ReconcileRequest:
    """Return the task of one node. Asks before a replacement and before some changes of its limits.

    Raises `NotConfirmedError` if the user refuses.
    """
    from tpuctl.nodes.node_lookup import user_label  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.tracker import ReconcileRequest  # noqa: PLC0415  # not needed by --help and completion

    differences = spec.differences(found) if spec and found else ()
    # A node that could not be compared now must not be replaced later: the user has not confirmed that.
    policy = dataclasses.replace(policy, replace=policy.replace and bool(differences))
    policy = with_reachable_goal(app, policy, name, goal=options.goal, node=found, spec=spec)
    if policy.replace:
        from tpuctl.nodes.busy_nodes import use_in_question  # noqa: PLC0415  # as above

        what = "; ".join(map(str, differences))
        in_use = use_in_question(app, [found] if found else [], if_idle=False, yes=options.yes)
        question = f"{in_use}delete `{name.node_id}` and its boot disk, and recreate it ({what})?"
        if not app.terminal.confirm(question, yes=options.yes):
            raise NotConfirmedError("nothing was done")
    limit, owner = options.limit, user_label(app)
    change = LimitChange(end=limit.end(app.now()), removes_end=limit.is_unlimited, changes_idle=options.names_idle)
    is_alive = found is not None and not (found.state.is_dead or found.state is NodeState.DELETING)
    # Of a node that is replaced or recreated no limit is left.
    limited = found if is_alive and not policy.replace and change != LimitChange() else None
    if limited is not None:
        confirm_limits(app, [(limited, change)], yes=options.yes or options.dry_run)

    def may_limit(node: Node) -> bool:
        is_confirmed = limited is not None and node.id == limited.id
        return is_confirmed or not dataclasses.replace(change, changes_idle=True).objections(node, owner)

    return ReconcileRequest(
        name=name,
        policy=policy,
        spec=spec,
        probe=options.probe,
        purpose="up",
        force_lease=options.force_lease,
        accepts_healthy=options.goal is None,
        since=app.silent_since,
        ends=change.end,
        removes_end=change.removes_end,
        idle=options.idle,
        removes_idle=options.removes_idle,
        may_limit=may_limit,
    )


def _show_plans(
    app: App,
    located: Sequence[tuple[NodeName, Node | None, NodeSpec | None]],
    policy: Policy,
    preflight: PreflightCheck,
) -> None:
    """Run the checks that come before a creation, and show the plan for each node."""
    from tpuctl.nodes.commands.dry_run import show_plan  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.expiry import end_of_new_node  # noqa: PLC0415  # as above
    from tpuctl.nodes.plan import plan_steps  # noqa: PLC0415  # as above

    for name, found, spec in located:
        differences = spec.differences(found) if spec and found else ()
        is_queued = spec is not None and spec.is_queued
        request = app.client.find_queued_resource(name) if spec is not None and is_queued and found is None else None
        seen = ObservedState(
            name=name,
            node=found,
            differences=differences,
            is_queued=is_queued,
            request=request,
            request_differences=spec.differences(request.requested_node(name.project)) if spec and request else (),
            server_now=app.now(),
        )
        planned = plan_steps(policy, seen, app.now(), expires=end_of_new_node(spec, app.now()) if spec else None)
        wanted = spec or (NodeSpec.from_node(found) if found else None)
        if wanted and planned and planned[0].verb in {Verb.CREATE, Verb.DELETE}:
            with app.progress() as progress:
                preflight.check(name, wanted, replaces=found, tell=progress)
        show_plan(app, planned, spec=spec, nodes=(found,) if found else ())


def _billing(tasks: Sequence[ReconcileRequest], progress: Progress) -> str:
    """Return what an interruption leaves in the cloud, and whether it bills."""
    if len(tasks) > 1:
        names = ", ".join(f"`{task.name.node_id}`" for task in tasks[:8]) + (" …" if len(tasks) > 8 else "")
        return f"{names} bill as soon as they run"
    name, last = tasks[0].name, progress.last
    if last is not None and (state := last.data.get("request")) and not last.data.get("state"):
        return (
            f"the queued resource `{name.node_id}` in {name.zone} stays ({state}): it counts against the quota, and its node "
            "bills as soon as it runs"
        )
    status = f"last status: {last.text.removeprefix('it is ')}" if last else "no request was sent yet"
    is_ready = last is not None and last.data.get("state") == str(NodeState.READY)
    bills = "bills" if is_ready else "bills as soon as it runs"
    return f"`{name.node_id}` in {name.zone} {bills} ({status})"
