"""`up`, for the command and for programs: find the nodes, or the zones to try, and bring the nodes up there.

`plan_bring_up` looks nodes up and asks what must be confirmed; it changes nothing. `bring_up` does the work, too.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tpuctl.app.spec_building import note_queued_preemptible
from tpuctl.app.ssh_options import with_reachable_goal
from tpuctl.check.preflight import preflight_check
from tpuctl.cloud.tpu import QueuedListing
from tpuctl.errors import (
    AccessError,
    ConflictError,
    CredentialsError,
    InvalidInputError,
    NotConfirmedError,
    ServiceUnavailableError,
    TpuctlError,
)
from tpuctl.models.events import EventKind
from tpuctl.models.node import NodeState, Tier
from tpuctl.models.spec import GROUP_LABEL
from tpuctl.models.spec_fields import V2
from tpuctl.names import NodeName, NodeReference, group_of_slice, slice_ids
from tpuctl.nodes.actions import bring_up_nodes, check_accelerator_type
from tpuctl.nodes.as_it_was import as_it_was, as_it_was_somewhere, differences_of, made_as, remembered_spec
from tpuctl.nodes.conditions import Repair
from tpuctl.nodes.decide import different_node_error
from tpuctl.nodes.expiry import LimitChange, NodeEnd
from tpuctl.nodes.goal import Goal, NodeLimits
from tpuctl.nodes.idle_limit import IdleChange
from tpuctl.nodes.journal import JournalError
from tpuctl.nodes.lookup import check_may_be_created, locate_for_create, search_requested_name, zone_to_create
from tpuctl.nodes.policies import repair_policy, retry_until_answered, within_deadline
from tpuctl.nodes.race import is_race_alive, remembered_race, run_race
from tpuctl.nodes.race_rules import describe_race
from tpuctl.nodes.repair import DEFECTIVE_HEALTH
from tpuctl.nodes.setup import has_other_setup, script_to_run
from tpuctl.nodes.slices import ExistingSlices, as_slice, bring_up_slices, check_slices, find_slices
from tpuctl.nodes.time_limits import TimeLimit, confirm_limits, note_clock_difference
from tpuctl.nodes.usage import use_in_question
from tpuctl.nodes.zone_choice import (
    ZoneChoice,
    check_zone_options,
    choice_for,
    one_zone,
    order_offers,
    require_type,
    zone_choice,
)
from tpuctl.nodes.zone_search import bring_up_several, bring_up_somewhere, spec_of_attempt, with_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tpuctl.app.app import App
    from tpuctl.check.gate import PreflightCheck
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.conditions import Policy
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.race_rules import Race
    from tpuctl.nodes.zone_order import Offer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """What the nodes of one `up` shall become, and what may be done for that."""

    spec: NodeSpec | None  # None: the nodes exist, or get the spec they had before
    policy: Policy
    preflight: PreflightCheck
    setup: str | None = None  # that the user named
    goal: str | None = None  # None: ssh, where workers can be reached
    tiers: tuple[Tier, ...] = ()
    limit: TimeLimit = field(default_factory=TimeLimit)
    idle: IdleChange = field(default_factory=IdleChange)
    race: bool = False
    slices: int | None = None  # of a group with the name of the node
    wait: bool = True  # until the nodes are usable, not only for the next step
    dry_run: bool = False
    skip_validation: bool = False
    force_lease: bool = False
    yes: bool = False

    @property
    def only_looks(self) -> bool:
        """Whether the run looks once, and sends and writes nothing: `--timeout 0`."""
        return self.policy.timeout == timedelta()

    @property
    def asks(self) -> bool:
        """Whether the run asks before a change: a run that changes nothing does not."""
        return not (self.dry_run or self.only_looks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWork:
    """Work that is planned and not begun."""

    # Each node that is wanted: its name, the node if it exists, and its spec; None to accept the node unchanged.
    located: tuple[tuple[NodeName, Node | None, NodeSpec | None], ...]
    policy: Policy
    # Does the work, and returns the results in the order of the nodes.
    run: Callable[[ActionContext], Sequence[NodeResult | TpuctlError]]
    # Returns what an interruption leaves in the cloud, after the last event.
    in_flight: Callable[[NodeEvent | None], str]
    undo: str  # the command that undoes the work
    note: str = ""  # about the plan
    tasks: tuple[Goal, ...] = ()  # of nodes that are looked up; none in a dry run


def bring_up(
    app: App,
    nodes: Sequence[str],
    request: UpRequest,
    listen: Callable[[], AbstractContextManager[Callable[[NodeEvent], None]]],
) -> Sequence[NodeResult | TpuctlError]:
    """Create, start or repair nodes, and wait until they are usable. Return the results in order.

    `listen` opens a listener of events after the questions of `plan_bring_up`, whose errors are raised.
    """
    return run_planned(app, plan_bring_up(app, nodes, request), request, listen)


def run_planned(
    app: App,
    work: PlannedWork,
    request: UpRequest,
    listen: Callable[[], AbstractContextManager[Callable[[NodeEvent], None]]],
) -> Sequence[NodeResult | TpuctlError]:
    """Do the work that `plan_bring_up` has planned for a request; see `bring_up`."""
    last: list[NodeEvent | None] = [None]
    if request.slices and any(found is None for _, found, _ in work.located):
        app.terminal.note(work.note)
    with listen() as listener:

        def tell(event: NodeEvent) -> None:
            before, last[0] = last[0], event
            try:
                listener(event)
            except BaseException:
                # An action is announced before it is requested.
                last[0] = before if event.kind is EventKind.ACTION else event
                raise

        with app.in_flight(lambda: work.in_flight(last[0]), resume=app.command_line(), undo=work.undo):
            context = app.services.context(tell, preflight=request.preflight)
            if request.only_looks:
                context = replace(context, workers=replace(context.workers, only_looks=True))
            return work.run(context)


def note_changed_setups(app: App, nodes: Sequence[Node]) -> None:
    """Say for which nodes the `setup` of the settings is not the one that they were made with."""
    present = app.settings.text("setup")
    for node in nodes if present else ():
        with suppress(JournalError, ServiceUnavailableError):
            if has_other_setup(app.services.journal.past(node.name), node, present or ""):
                app.terminal.note(
                    f"`setup` changed since `{node.name.node_id}` was made; `tpuctl run {node.name.node_id} --setup` runs it"
                )


def run_setup(
    app: App,
    nodes: Sequence[Node],
    script: str | None,
    listen: Callable[[], AbstractContextManager[Callable[[NodeEvent], None]]],
) -> None:
    """Run a set-up, by default that of the settings, on usable nodes, and record it; not where it ran last.

    Raises `InvalidInputError` without a set-up, and its failure.
    """
    script = script or app.settings.text("setup")
    if not script:
        raise InvalidInputError("no `setup` is set", hint="add `setup: COMMANDS` to tpuctl.yaml, or use `--setup CMD`")
    due: list[str] = []
    for node in nodes:
        if script_to_run(app.services.journal.past(node.name), node, script) is None:
            app.terminal.note(f"the set-up of `{node.name.node_id}` has not changed since it ran")
        else:
            due.append(f"{node.name.zone}/{node.name.node_id}")
    if not due:
        return
    request = UpRequest(
        spec=None,
        policy=repair_policy(app, {"repair": str(Repair.NONE)}),
        preflight=preflight_check(app, {}, only_limits=True),
        setup=script,
    )
    for result in bring_up(app, due, request, listen):
        if isinstance(result, TpuctlError):
            raise result


def plan_bring_up(app: App, nodes: Sequence[str], request: UpRequest) -> PlannedWork:
    """Plan the work that brings nodes up: in their zone, or one node in several zones and tiers.

    Raises `NotConfirmedError` if the user refuses, `ConflictError` for a name that is ambiguous, and `InvalidInputError`.
    """
    choice, spec = zone_choice(app), request.spec
    if request.slices is not None:
        return _plan_slices(app, nodes, request, request.slices, choice)
    if spec is not None and (spec.queue or request.race):
        tiers = [Tier.SPOT if tier is Tier.PREEMPTIBLE else tier for tier in request.tiers]
        request = replace(request, tiers=tuple(dict.fromkeys(tiers)))
    if len(nodes) == 1:
        choice = choice_for(app, nodes[0], choice)
    if choice is None and len(request.tiers) > 1:
        choice = one_zone(app, nodes[0])
    check_zone_options(choice, nodes, tiers=request.tiers, wait=request.wait, race=request.race)
    if choice is not None and len(nodes) > 1:
        return _plan_several(app, nodes, choice, request)
    if len(nodes) > 1:
        return _plan_nodes(app, nodes, request)
    return _plan_one(app, nodes[0], request, choice)


def _plan_one(app: App, node: str, request: UpRequest, choice: ZoneChoice | None) -> PlannedWork:
    """Plan the work on one node: where it is, in a race, or in one of several zones and tiers."""
    race, spec = _remembered_race(app, node, choice, is_race=request.race), request.spec
    if choice is None and race is None:
        return _plan_nodes(app, [node], request)
    found = None if race or request.race or choice is None else find_in_zones(app, node, choice)
    if found is not None:
        app.choose_zone(found.zone)
        if spec is None:
            return _plan_nodes(app, [node], request)
    spec = spec or (race.spec if race else None)
    spec = require_type(spec, choice)
    if found is None and race is None and choice is not None:
        price = request.preflight.settings.hourly_price
        spec = request.limit.applied(as_it_was_somewhere(app, node, choice.zones, spec, price=price), app.now())
    request = replace(request, spec=spec)
    if race is not None and not (request.race and choice):
        return _plan_race(app, race.names, request)
    if choice is None:
        raise AssertionError("without several zones only a race is continued")

    def find_offers(choice: ZoneChoice = choice) -> tuple[Offer, ...]:
        wanted = require_type(request.spec, choice)
        return order_offers(app, request.preflight, choice, wanted, tiers=request.tiers)

    if found is not None:
        return _plan_zones(app, found, find_offers, request, is_begun=True)
    offers = find_offers()
    reference = app.reference(node)
    name = NodeName(reference.project or app.project, offers[0].zone, reference.node_id)
    check_may_be_created(app, name)
    if request.race:
        return _plan_race(app, [replace(name, zone=offer.zone) for offer in offers], request)
    return _plan_zones(app, name, lambda: offers, request)


def _plan_nodes(
    app: App, nodes: Sequence[str], request: UpRequest, find_offers: Callable[[], Sequence[Offer]] | None = None
) -> PlannedWork:
    """Plan the work on nodes whose zones are known. A group moves on to one of the offers if its zone has no capacity."""
    located = tuple(_locate(app, text, request) for text in dict.fromkeys(nodes))
    for name, found, spec in located:
        first = None
        if found is None and request.slices is None:
            first = app.services.journal.past(replace(name, node_id=slice_ids(name.node_id, 1)[0])).former_spec
        if first is not None and first.slices:
            raise ConflictError(
                f"`{name.node_id}` is a group of {first.slices} slices, and no node",
                hint=f"to bring all of them up, run `tpuctl up {name.node_id} --slices {first.slices}`; for a node, choose "
                "another name",
            )
        if spec is not None and spec.queued_slices(name) and found is None and request.slices is None:
            group = spec.request_name(name).node_id
            raise ConflictError(
                f"`{name.node_id}` is requested with the other slices of `{group}`, and does not exist",
                hint=f"`tpuctl up {group} --slices {spec.slices}` brings all of them up",
            )
        # Before any slice is created: none of them would stay.
        is_compared = request.slices and found is not None and not (found.state.is_dead or request.policy.replace)
        if is_compared and (differences := differences_of(app, found, spec)):
            raise different_node_error(name, differences)
    return _plan_located(app, located, request, find_offers)


def _plan_located(
    app: App,
    located: tuple[tuple[NodeName, Node | None, NodeSpec | None], ...],
    request: UpRequest,
    find_offers: Callable[[], Sequence[Offer]] | None = None,
) -> PlannedWork:
    """Plan the work on nodes that have been looked up."""
    if request.limit != TimeLimit():
        note_clock_difference(app)
    request.preflight.siblings = {name: spec for name, found, spec in located if found is None and spec is not None}
    tasks: list[Goal] = []
    if not request.dry_run:
        for name, _, spec in located:
            # Type and capacity of nodes are named also if they do not come up.
            if app.summary and spec:
                app.summary.expect(name, spec.accelerator_type, str(spec.tier or "on-demand"))
        tasks = [_task(app, *entry, request=request) for entry in located]

    def run(context: ActionContext) -> Sequence[NodeResult | TpuctlError]:
        if not request.slices or request.only_looks:
            return bring_up_nodes(context, tasks, wait=request.wait)
        spec = located[0][2]
        if find_offers is None or spec is None:
            return bring_up_slices(context, tasks, wait=request.wait)
        return bring_up_somewhere(
            context, find_offers, tasks, spec, is_begun=True, wait=request.wait, announce=app.choose_zone
        )

    return PlannedWork(
        located=located,
        policy=request.policy,
        tasks=tuple(tasks),
        run=run,
        in_flight=lambda last: _describe_bills([task.name for task in tasks], last),
        undo="tpuctl down " + (_group_words(located[0][0]) if request.slices else _full_words(located)),
        note=_price_note(request, located) if request.slices else "",
    )


def _plan_slices(
    app: App, nodes: Sequence[str], request: UpRequest, count: int, choice: ZoneChoice | None
) -> PlannedWork:
    """Plan the work that brings the slices of a group up: in the zone of those that exist, else in one that is chosen.

    Raises `InvalidInputError`, and `ConflictError` for slices in several zones or in another one than the user named.
    """
    if request.race:
        raise InvalidInputError(
            "cannot combine `--slices` and `--race`", hint="use `--zone any`, which tries the zones in turn"
        )
    reference = app.reference(nodes[0])
    group = reference.node_id
    ids = check_slices(nodes, count, group)
    project = reference.project or app.project
    choice = choice_for(app, nodes[0], choice)
    if choice is None and len(request.tiers) > 1:
        choice = one_zone(app, nodes[0])
    check_zone_options(choice, nodes, tiers=request.tiers, wait=request.wait, race=False)

    found = _find_slices(app, reference, ids, request, choice)
    zone, spec = found.zone, request.spec
    if spec is None and found.nodes:
        spec = app.services.journal.past(found.nodes[0].name).spec_as_it_is(found.nodes[0])
    elif spec is None and zone is None and choice is None:
        zone = reference.zone or app.place.zone or zone_to_create(app, NodeReference(ids[0]), None)
        first = NodeName(project, zone, ids[0])
        spec = remembered_spec(app, first, yes=request.yes or not request.asks)
    spec = as_slice(require_type(spec, choice), group, count)
    if zone is not None:
        node = next(iter(found.nodes), None)
        name = node.name if node else NodeName(project, zone, ids[0])
        spec = spec_of_attempt(
            app.services.client, name, spec, node=node, tiers=request.tiers, made_as=made_as(app, node)
        )
    request = replace(request, spec=spec)
    if choice is None or zone is not None:
        zone = zone or reference.zone or app.place.zone or zone_to_create(app, NodeReference(ids[0]), spec)
        app.choose_zone(zone)
        texts = [str(NodeName(project, zone, node_id)) for node_id in ids]
        if choice is None:
            return _plan_nodes(app, texts, request)
        find_offers = partial(order_offers, app, request.preflight, choice, spec, tiers=request.tiers)
        return _plan_nodes(app, texts, request, find_offers)
    return _plan_slices_somewhere(app, project, ids, choice, request)


def _find_slices(
    app: App, reference: NodeReference, ids: Sequence[str], request: UpRequest, choice: ZoneChoice | None
) -> ExistingSlices:
    """Return what exists of a group, in the named zone or in any; see `find_slices`. Retry while the API does not answer."""
    client, policy, project = app.services.client, request.policy, reference.project or app.project
    named = None if choice else reference.zone or app.place.zone

    def look() -> ExistingSlices:
        try:
            requests = client.list_queued_resources(project)
        except CredentialsError:
            raise
        except AccessError:
            # A user who may see nodes may lack the permission to list queued resources.
            if request.spec is not None and request.spec.is_queued:
                raise
            requests = QueuedListing((), ())
        return find_slices(
            reference.node_id,
            ids,
            client.list_nodes(project),
            requests,
            zones=choice.zones if choice else (named,) if named else (),
            may_replace=policy.replace_request,
        )

    if request.wait and not request.dry_run:
        return retry_until_answered(app, look, timeout=policy.timeout, since=app.silent_since)
    with within_deadline(app, None):
        return look()


def _plan_slices_somewhere(
    app: App, project: str, ids: Sequence[str], choice: ZoneChoice, request: UpRequest
) -> PlannedWork:
    """Plan a new group in the first of these zones and tiers that has capacity for all slices."""
    spec = require_type(request.spec, choice)
    offers = order_offers(app, request.preflight, choice, spec, tiers=request.tiers)
    names = [NodeName(project, offers[0].zone, node_id) for node_id in ids]
    wanted = request.limit.applied(with_tier(spec, offers[0].tier) if request.dry_run else spec, app.now())
    request.preflight.siblings = dict.fromkeys(names, wanted)
    tasks = [] if request.dry_run else [_task(app, name, None, wanted, request=request) for name in names]
    tried = [names]

    def announce(zone: str) -> None:
        tried.append([replace(name, zone=zone) for name in names])
        request.preflight.siblings = dict.fromkeys(tried[-1], wanted)
        app.choose_zone(zone)

    def run(context: ActionContext) -> Sequence[NodeResult | TpuctlError]:
        if request.only_looks:
            return bring_up_nodes(context, tasks)
        return bring_up_somewhere(context, lambda: offers, tasks, wanted, wait=request.wait, announce=announce)

    located = tuple((name, None, wanted) for name in names)
    return PlannedWork(
        located=located,
        policy=request.policy,
        run=run,
        in_flight=lambda last: _describe_bills(tried[-1], last),
        undo=f"tpuctl down -l {GROUP_LABEL}={group_of_slice(ids[0])}",
        note=_price_note(request, located) + (f"; {_order_note(offers)}" if request.dry_run else ""),
    )


def _order_note(offers: Sequence[Offer]) -> str:
    named = ", ".join(map(str, offers[:12])) + (f" and {len(offers) - 12} more" if len(offers) > 12 else "")
    return f"zones in this order: {named}; the plan is for the first"


def _full_words(located: Sequence[tuple[NodeName, Node | None, NodeSpec | None]]) -> str:
    return " ".join(f"{name.zone}/{name.node_id}" for name, _, _ in located)


def _group_words(name: NodeName) -> str:
    return f"-l {GROUP_LABEL}={group_of_slice(name.node_id)} --zone {name.zone}"


def _price_note(request: UpRequest, located: Sequence[tuple[NodeName, Node | None, NodeSpec | None]]) -> str:
    """Return what all slices of a group cost together."""
    name, _, spec = located[0]
    if spec is None:
        return ""
    price = request.preflight.settings.hourly_price(spec.accelerator_type, name.zone, spec.tier)
    return f"{len(located)} slices in {name.zone} together cost {price.times(len(located))}"


def _plan_several(app: App, nodes: Sequence[str], choice: ZoneChoice, request: UpRequest) -> PlannedWork:
    """Plan several nodes, each in its zone, or else in the first of these zones and tiers that has capacity."""
    located: list[tuple[NodeName, Node | None, NodeSpec | None]] = []
    offers: tuple[Offer, ...] = ()
    searched: list[NodeName] = []
    for text in dict.fromkeys(nodes):
        reference = app.reference(text)
        there = None if reference.zone else find_in_zones(app, text, choice)
        if there or reference.zone:
            name, node, spec = _locate(app, str(there or text), request)
            if spec is not None:
                cloud, made = app.services.client, made_as(app, node)
                spec = spec_of_attempt(cloud, name, spec, node=node, tiers=request.tiers, made_as=made)
            located.append((name, node, spec))
            continue
        wanted = require_type(request.spec, choice)
        offers = offers or order_offers(app, request.preflight, choice, wanted, tiers=request.tiers)
        price = request.preflight.settings.hourly_price
        spec = request.limit.applied(as_it_was_somewhere(app, text, choice.zones, wanted, price=price), app.now())
        name = NodeName(reference.project or app.project, offers[0].zone, reference.node_id)
        check_may_be_created(app, name)
        searched.append(name)
        located.append((name, None, with_tier(spec, offers[0].tier)))
    work = _plan_located(app, tuple(located), request)
    if request.only_looks or not searched:
        return work
    named = ", ".join(map(str, offers[:12])) + (f" and {len(offers) - 12} more" if len(offers) > 12 else "")

    def run(context: ActionContext) -> Sequence[NodeResult | TpuctlError]:
        return bring_up_several(context, work.tasks, dict.fromkeys(searched, offers), wait=request.wait)

    return replace(
        work,
        run=run,
        undo="tpuctl down " + " ".join(name.node_id for name, _, _ in located),
        note=f"zones in this order: {named}; the plan is for the first" if request.dry_run else "",
    )


def _plan_zones(
    app: App,
    first: NodeName,
    find_offers: Callable[[], tuple[Offer, ...]],
    request: UpRequest,
    *,
    is_begun: bool = False,
) -> PlannedWork:
    """Plan a node in the first of these zones and tiers that has capacity; `is_begun`: it is there or requested."""
    spec = require_type(request.spec, None)
    node, wanted, began, note = None, spec, app.clock.monotonic(), ""
    if is_begun:
        _, node, located = _locate(app, str(first), request)
        spec = require_type(located, None)
        wanted = spec_of_attempt(
            app.services.client, first, wanted, node=node, tiers=request.tiers, made_as=made_as(app, node)
        )
    task = _task(app, first, node, wanted, request=request)
    task = replace(task, since=began if task.since is None else task.since)
    if request.dry_run and not is_begun:
        offers = find_offers()
        note = _order_note(offers)
        wanted = with_tier(spec, offers[0].tier)
    tried = [first]

    def announce(name: NodeName) -> None:
        tried.append(name)
        app.choose_zone(name.zone)

    def run(context: ActionContext) -> list[NodeResult | TpuctlError]:
        if task.only_looks:
            return bring_up_nodes(context, [replace(task, spec=wanted)])
        return [
            *bring_up_somewhere(
                context,
                find_offers,
                [task],
                spec,
                is_begun=is_begun,
                wait=request.wait,
                announce=lambda zone: announce(replace(first, zone=zone)),
            )
        ]

    return PlannedWork(
        located=((first, node, wanted),),
        policy=task.policy,
        run=run,
        in_flight=lambda last: _describe_bills(tried[-1:], last),
        undo=f"tpuctl down {first.node_id}",
        note=note,
    )


def _plan_race(app: App, names: Sequence[NodeName], request: UpRequest) -> PlannedWork:
    """Plan a request in all zones at once, of which the first that is ACTIVE is kept, and the wait until it is usable."""
    began, spec = app.clock.monotonic(), require_type(request.spec, None)
    if spec.tier is Tier.PREEMPTIBLE:
        note_queued_preemptible(app)
    spec = request.limit.applied(replace(spec, queue=True), app.now())
    _check_setup(app, names[0], request, None, spec)
    if not (request.wait or request.dry_run):
        raise InvalidInputError(
            f"cannot continue the race for `{names[0].node_id}` with `--no-wait`: the run that waits cancels the losers",
            hint=f"leave it out, or cancel the race with `tpuctl down {names[0].node_id}`",
        )

    if request.only_looks:
        raise InvalidInputError(
            f"cannot only look at the race for `{names[0].node_id}` with `--timeout 0`: at its deadline a race is cancelled",
            hint="see its requests with `tpuctl queue list`",
        )

    def run(context: ActionContext) -> list[NodeResult | TpuctlError]:
        winner = run_race(context, names, spec, request.policy, force_lease=request.force_lease, since=began)
        app.choose_zone(winner.zone)
        task = _task(app, winner, None, spec, request=request)
        # The time counts from the requests of all zones.
        limits = replace(task.limits, end=task.limits.end and NodeEnd(spec.expires))
        task = replace(task, since=began, limits=limits)
        return bring_up_nodes(context, [task])

    return PlannedWork(
        located=tuple((name, None, spec) for name in names),
        policy=request.policy,
        run=run,
        in_flight=lambda _: describe_race(names),
        undo=f"tpuctl down {names[0].node_id}",
        note=f"requested in {len(names)} zones at the same time; the first that is ACTIVE is kept",
    )


def _remembered_race(app: App, text: str, choice: ZoneChoice | None, *, is_race: bool) -> Race | None:
    """Return the race for a node that an earlier run has begun and not ended, None if there is none.

    Raises `ConflictError` if it still waits and the user names other zones, unless the user asks for a race in them.
    """
    reference = app.reference(text)
    project = reference.project or app.project
    known = app.services.journal.namesakes(project, reference.node_id)
    race = remembered_race(app.services.journal, known) if known else None
    if race is None:
        return None
    one = reference.zone or (app.zones[0] if len(app.zones) == 1 else None)
    named = (one,) if one else choice.zones if choice else ()
    if is_race or not named or not {*named}.isdisjoint(name.zone for name in race.names):
        return race
    with within_deadline(app, None):
        listing = app.services.client.list_queued_resources(project)
    if not is_race_alive(race, listing, now=app.now()):
        return None
    raise ConflictError(
        f"`{reference.node_id}` is still requested by a race in {', '.join(name.zone for name in race.names)}",
        hint=f"cancel it first with `tpuctl down {reference.node_id}`",
    )


def find_in_zones(app: App, text: str, choice: ZoneChoice) -> NodeName | None:
    """Return the name of a node or of a queued resource that exists in one of the zones: it is adopted, never doubled."""
    with within_deadline(app, None):
        # A mistyped zone has no nodes. Asked for them, it counts as one that does not answer.
        existing = app.services.client.locations(app.project) if choice.zones else ()
        zones = tuple(zone for zone in choice.zones if zone in existing)
        if choice.zones and not zones:
            return None
        return search_requested_name(app.services.client, app.project, app.reference(text), zones)


def _locate(app: App, text: str, request: UpRequest) -> tuple[NodeName, Node | None, NodeSpec | None]:
    """Return the name of a node, the node if it exists, and its spec; None for the spec to accept the node unchanged.

    If the command waits, retry while the API does not answer.
    """
    spec, wait = request.spec, request.wait and not request.dry_run

    def ask(function: Callable[[], T]) -> T:
        if wait:
            return retry_until_answered(app, function, timeout=request.policy.timeout, since=app.silent_since)
        with within_deadline(app, None):
            return function()

    name, found = ask(lambda: locate_for_create(app, text, spec, wait=wait and spec is not None))
    if spec is None and found is not None and found.state is NodeState.DELETING:
        # The node may be gone in the next poll, and its spec with it.
        spec = app.services.journal.past(found.name).spec_as_it_is(found)
    if spec is None and found is None:
        spec = remembered_spec(app, name, yes=request.yes or not request.asks)
        spec = request.limit.applied(replace(spec, setup=request.setup or spec.setup), app.now())
    elif spec is not None:
        if found is not None and spec.version_to_read != V2:
            version = spec.version_to_read
            found = ask(lambda: app.services.client.find_node(name, version=version))
        spec = request.limit.applied(
            as_it_was(app, name, found, spec, price=request.preflight.settings.hourly_price), app.now()
        )
    if found is None and spec is not None and not request.skip_validation:
        wanted = spec
        ask(lambda: check_accelerator_type(app.services.client, name.project, name.zone, wanted))
    return name, found, spec


def _task(app: App, name: NodeName, found: Node | None, spec: NodeSpec | None, *, request: UpRequest) -> Goal:
    """Return the task of one node. Asks before a replacement and before some changes of its limits.

    With a timeout of 0 the run only looks.

    Raises `NotConfirmedError` if the user refuses.
    """
    differences = differences_of(app, found, spec)
    # A node that could not be compared now must not be replaced later: the user has not confirmed that.
    policy = replace(request.policy, replace=request.policy.replace and bool(differences))
    policy = with_reachable_goal(app, policy, name, goal=request.goal, node=found, spec=spec)
    is_alive = found is not None and not (found.state.is_dead or found.state is NodeState.DELETING)
    if not request.only_looks:
        _check_setup(app, name, request, found, spec)
    if found is not None and request.setup and is_alive and not policy.replace:
        script_to_run(app.services.journal.past(name), found, request.setup)
    if policy.replace and request.asks:
        what = "; ".join(map(str, differences))
        in_use = use_in_question(app, [found] if found else [], if_idle=False, yes=request.yes)
        question = f"{in_use}delete `{name.node_id}` and its boot disk, and recreate it ({what})?"
        if not app.terminal.confirm(question, yes=request.yes):
            raise NotConfirmedError
    if found is not None and is_alive and not (request.setup or policy.replace):
        note_changed_setups(app, [found])
    if request.only_looks:
        return Goal(name=name, policy=policy, spec=spec, setup=request.setup, only_looks=True, since=app.silent_since)
    if found is not None and not policy.replace and request.asks:
        policy = replace(policy, ignores_use=policy.ignores_use or _may_repair(app, found, policy))
    limit, owner = request.limit, app.services.owner_label
    change = LimitChange(end=limit.end(app.now()), changes_idle=request.idle.is_named)
    # Of a node that is replaced or recreated no limit is left.
    limited = found if is_alive and not policy.replace and change != LimitChange() else None
    if limited is not None:
        confirm_limits(app, [(limited, change)], yes=request.yes or not request.asks)

    def may_limit(node: Node) -> bool:
        is_confirmed = limited is not None and node.id == limited.id
        return is_confirmed or not replace(change, changes_idle=True).objections(node, owner)

    limits = NodeLimits(
        end=change.end,
        idle=request.idle,
        apply_to=may_limit,
    )
    return Goal(
        name=name,
        policy=policy,
        spec=spec,
        setup=request.setup,
        purpose="up",
        force_lease=request.force_lease,
        limits=limits,
        since=app.silent_since,
    )


_REPAIRS = {
    Repair.REBOOT: "reboot its workers",
    Repair.RESTART: "reboot or restart it",
    Repair.RECREATE: "reboot, restart or recreate it, with a new boot disk",
}


def _may_repair(app: App, node: Node, policy: Policy) -> bool:
    """Ask whether an unhealthy node may be repaired although it may be in use; False without a question.

    Raises `NotConfirmedError` if the user refuses.
    """
    is_defective = node.state is NodeState.READY and node.health in DEFECTIVE_HEALTH
    if not is_defective or policy.ignores_use or policy.repair is Repair.NONE or not app.terminal.may_ask:
        return False
    if app.services.journal.past(node.name).is_left(node, app.now()):
        return False  # it has not been usable yet
    in_use = use_in_question(app, [node], if_idle=False, yes=False) or f"`{node.name.node_id}` may be in use; "
    if not app.terminal.confirm(f"{in_use}it is {node.health}: {_REPAIRS[policy.repair]} if it stays so?", yes=False):
        raise NotConfirmedError("nothing was done")
    return True


def _check_setup(app: App, name: NodeName, request: UpRequest, node: Node | None, spec: NodeSpec | None) -> None:
    """Raise `InvalidInputError` if the set-up of a new node, or one that the user named, could not run.

    A new node would bill, and never be usable.
    """
    if not (request.setup or (node is None and spec and spec.setup)):
        return
    obstacle = app.services.workers.obstacle(node)
    if node is None and spec is not None:
        obstacle = obstacle or app.services.workers.obstacle_of_new(name, spec)
    if obstacle:
        raise InvalidInputError(
            f"the set-up of `{name.node_id}` cannot run: {obstacle}",
            hint="make ssh possible, or leave `--setup` out; `--startup-script FILE` runs without ssh",
        )


def _describe_bills(names: Sequence[NodeName], last: NodeEvent | None) -> str:
    """Return what an interruption leaves in the cloud after the last event, and whether it bills."""
    if len(names) > 1:
        shown = ", ".join(f"`{name.node_id}`" for name in names[:8]) + (" …" if len(names) > 8 else "")
        return f"{shown} bill as soon as they run"
    (name,) = names
    if last is not None and (state := last.data.get("request")) and not last.data.get("state"):
        return (
            f"the queued resource `{name.node_id}` in {name.zone} stays ({state}): it counts against the quota, and its node "
            "bills as soon as it runs"
        )
    if last is None:
        return f"no request was sent: `{name.node_id}` in {name.zone} is as it was"
    if last.data.get("setup"):
        return f"`{name.node_id}` in {name.zone} bills, and its set-up continues on the workers"
    status = f"last status: {last.text.removeprefix('it is ')}"
    is_ready = last.data.get("state") == str(NodeState.READY)
    bills = "bills" if is_ready else "bills as soon as it runs"
    return f"`{name.node_id}` in {name.zone} {bills} ({status})"
