"""`tpuctl watch` of nodes: its options, and what it does. `workers` adds the supervision of a job, and registers it."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import events_option, force_lease_option
from tpuctl.app.route_options import route_options
from tpuctl.app.signals import TerminatedError
from tpuctl.app.spec_options import SpecOptions, build_spec, named_setup, spec_options
from tpuctl.check.preflight import preflight_check
from tpuctl.durations import format_duration
from tpuctl.errors import ExitCode, InvalidInputError, TpuctlError, worst_exit_code
from tpuctl.models.events import EventKind, broadcast
from tpuctl.nodes.commands.idle_options import IdleOptions, idle_options
from tpuctl.nodes.commands.policy_options import (
    RepairOptions,
    build_hooks,
    hook_options,
    level_option,
    probe_option,
    repair_options,
)
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.commands.time_options import MomentType
from tpuctl.nodes.policies import idle_change, repair_policy, retry_until_answered
from tpuctl.nodes.queueing import UNATTENDED_WAIT
from tpuctl.nodes.time_limits import next_moment
from tpuctl.nodes.zone_choice import order_offers, zone_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.nodes.goal import Goal
    from tpuctl.nodes.hooks import Hooks
    from tpuctl.nodes.idle_limit import IdleLimit
    from tpuctl.nodes.reconciler import NodeReconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """The options of `watch` besides those of the spec and of repair."""

    goal: str | None
    probe: str | None
    until: timedelta | time | datetime | None
    recreate_deleted: bool
    on_preempt: str | None
    on_recover: str | None
    on_maintenance: str | None
    on_give_up: str | None
    force_lease: bool
    events: str | None
    yes: bool


@selection_options(without=("types", "states", "older_than"))
@spec_options
@level_option
@probe_option
@grouped_option(
    "--until",
    group=OptionGroup.LIFETIME,
    type=MomentType(),
    metavar="TIME",
    help="Time at which the watch ends: 8h from now, 18:30, or a time in RFC 3339. [default: never]",
)
@repair_options
@idle_options
@grouped_option(
    "--recreate-deleted", group=OptionGroup.REPAIR, is_flag=True, help="Recreate a node that another client deleted."
)
@hook_options()
@route_options
@force_lease_option
@events_option
@grouped_option(
    "--yes",
    "-y",
    group=OptionGroup.SAFETY,
    is_flag=True,
    help="Also repair nodes that may be in use, and apply --idle to nodes of other owners.",
)
def watch(
    app: App,
    *,
    selection: GivenSelection,
    described: SpecOptions,
    repairs: RepairOptions,
    idling: IdleOptions,
    **given: Any,  # those of WatchOptions
) -> int:
    """Keep nodes usable; the help of the command is where its options are completed (`workers/commands/watch.py`)."""
    from tpuctl.nodes.controller import watch_nodes  # noqa: PLC0415  # as above
    from tpuctl.nodes.goal import Goal, NodeLimits  # noqa: PLC0415  # as above
    from tpuctl.nodes.idle_limit import IdleChange  # noqa: PLC0415  # as above
    from tpuctl.nodes.lookup import WaitTarget, locate_for_watch, select_nodes  # noqa: PLC0415  # not needed by --help
    from tpuctl.nodes.tear_down import end_node  # noqa: PLC0415  # as above

    options, limit = WatchOptions(**given), idle_change(app, idling.idle, idling.on_idle).limit
    spec, setup = build_spec(app, described), named_setup(app, described)
    policy = repair_policy(
        app,
        repairs.as_settings,
        goal=options.goal,
        probe=options.probe,
        yes=options.yes,
        watches=True,
        retries_without_capacity=True,
        recreate_deleted=options.recreate_deleted,
        timeout=None,
        queue_for=UNATTENDED_WAIT,
    )
    commands = {
        EventKind.PREEMPTED: options.on_preempt,
        EventKind.RECOVERED: options.on_recover,
        EventKind.MAINTENANCE: options.on_maintenance,
        EventKind.GAVE_UP: options.on_give_up,
    }
    hooks = build_hooks(app, commands)
    chosen = selection.parse(app)

    def find_targets() -> Sequence[WaitTarget]:
        if chosen.is_by_name:
            return [locate_for_watch(app, name.text) for name in chosen.names]
        return [WaitTarget(node.name) for node in select_nodes(app, chosen).complete()]

    if zone_choice(app) is not None:
        app.choose_zone(None)
    targets = retry_until_answered(app, find_targets, timeout=None)
    names = [target.name for target in targets]
    owner = app.services.owner_label
    limits = NodeLimits(idle=IdleChange(limit), apply_to=lambda node: options.yes or node.owner == owner)
    goals = [
        Goal(
            name=target.name,
            policy=policy,
            spec=spec,
            setup=setup,
            purpose="watch",
            is_queued=target.is_queued,
            force_lease=options.force_lease,
            limits=limits,
        )
        for target in targets
    ]

    listed = " ".join(f"{name.zone}/{name.node_id}" for name in names)
    try:
        with (
            app.progress(events=options.events, lasting=True) as progress,
            app.in_flight(f"{listed} is not watched now{_guard_words(names, limit)}", resume=app.command_line()),
        ):
            if spec is None:
                _require_lasting_journal(app)
            preflight = preflight_check(app, {}, only_limits=True)
            context = app.services.context(broadcast(progress, hooks), preflight=preflight)

            def each_round() -> None:
                for failure in hooks.poll():
                    progress(failure)
                app.services.journal.flush(only_due=True)

            with _finishing_hooks(app, hooks, progress):
                end = _duration(app, options.until)
                errors = watch_nodes(
                    context,
                    goals,
                    until=end,
                    each_round=each_round,
                    move=_mover(app, context),
                    end_node=lambda name, node, end: end_node(context, name, node, end, limit, by="watch"),
                )
                if len(errors) == len(goals):
                    # No node is left to watch. A container ends with this process, so its hooks must finish first.
                    hooks.wait(progress)
    except TerminatedError:
        # This is how a service is stopped: not a failure, even if the note cannot be written.
        with suppress(OSError):
            app.terminal.note("terminated: the watch has ended, the nodes keep running")
        return ExitCode.OK
    return worst_exit_code(error.exit_code for error in errors) if errors else ExitCode.OK


def watch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `watch`."""
    options = function.__dict__.setdefault("__click_params__", [])
    options.extend(watch.__dict__["__click_params__"])
    return function


def _guard_words(names: Sequence[NodeName], limit: IdleLimit | None) -> str:
    """Return what outlives the watch; empty without an idle limit."""
    if limit is None:
        return ""
    node = f"{names[0].zone}/{names[0].node_id}" if len(names) == 1 else "NODE"
    return (
        f"; a guard on worker 0 may still stop or delete it after {format_duration(limit.after)} without use: "
        f"`tpuctl up {node} --for ssh --idle forever` removes it"
    )


def _mover(app: App, context: ActionContext) -> Callable[[NodeReconciler], tuple[Goal, timedelta] | None]:
    """Return what moves a node without capacity to another zone of `--zone a,b` or `any`; with one zone it stays."""
    from tpuctl.nodes.zone_search import ZoneRing  # noqa: PLC0415  # not needed by --help and completion

    choice = zone_choice(app)
    if choice is None:
        return lambda _: None
    preflight = preflight_check(app, {})

    def zones(spec: NodeSpec) -> list[str]:
        return [offer.zone for offer in order_offers(app, preflight, choice, spec, tiers=())]

    return ZoneRing(context, zones).successor


def _require_lasting_journal(app: App) -> None:
    """Raise `InvalidInputError` if the journal may be lost with this machine: a recreation reads the node's spec from it.

    The sandbox is stored beside its journal: neither outlives the other.
    """
    if not app.is_sandbox and not app.services.journal.is_lasting(app.invocation.environ):
        raise InvalidInputError(
            "the journal does not outlive this machine: the spec of a node could be lost during a recreation",
            hint="store it in a bucket (`TPUCTL_JOURNAL=gs://BUCKET/PREFIX`), or give the spec of the nodes: "
            "`--type TYPE`, or a `tpuctl.yaml` in the working directory",
        )


def _duration(app: App, until: timedelta | time | datetime | None) -> timedelta | None:
    """Return how long to watch, None for ever. Raises `InvalidInputError` for a time in the past."""
    if until is None or isinstance(until, timedelta):
        return until
    now = app.clock.now()
    left = next_moment(until, now) - now
    if left <= timedelta():
        raise InvalidInputError(
            f"`--until {until.isoformat()}` is in the past", hint="name a time in the future, or a duration"
        )
    return left


@contextmanager
def _finishing_hooks(app: App, hooks: Hooks, report: Callable[[NodeEvent], None]) -> Iterator[None]:
    """Start waiting hooks at the end, also if an error ends the watch, and report those that got no time.

    Not after a signal: its sender does not wait. Hooks that outlive the watch are named in any case.
    """
    from tpuctl.nodes.hooks import HOOK_PATIENCE  # noqa: PLC0415  # not needed by --help and completion

    failure: TpuctlError | None = None
    try:
        try:
            yield
        except TpuctlError as error:
            failure = error
        if hooks.are_waiting:
            app.terminal.note(f"the watch ends; waiting hooks have up to {format_duration(HOOK_PATIENCE)} to start")
        for event in hooks.finish():
            report(event)
        if failure:
            raise failure
    finally:
        for running in hooks.running:
            with suppress(OSError):
                app.terminal.note(f"{running} continues, and its further output is lost")
