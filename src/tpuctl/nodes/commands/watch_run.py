"""The body of `tpuctl watch` for nodes."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.app.signals import TerminatedError
from tpuctl.app.spec_options import SpecOptions, build_spec, named_setup
from tpuctl.check.preflight import preflight_check
from tpuctl.durations import format_duration
from tpuctl.errors import ExitCode, InvalidInputError, TpuctlError, worst_exit_code
from tpuctl.models.events import EventKind, broadcast
from tpuctl.models.spec import GROUP_LABEL
from tpuctl.nodes.commands.idle_options import IdleOptions
from tpuctl.nodes.commands.policy_options import RepairOptions, build_hooks
from tpuctl.nodes.controller import watch_nodes
from tpuctl.nodes.goal import Goal, NodeLimits
from tpuctl.nodes.hooks import HOOK_PATIENCE, GroupHooks
from tpuctl.nodes.idle_limit import IdleChange
from tpuctl.nodes.lookup import WaitTarget, locate_for_watch, select_nodes
from tpuctl.nodes.policies import idle_change, repair_policy, retry_until_answered
from tpuctl.nodes.queueing import UNATTENDED_WAIT
from tpuctl.nodes.rendering import count_words
from tpuctl.nodes.tear_down import end_node
from tpuctl.nodes.time_limits import next_moment
from tpuctl.nodes.zone_choice import order_offers, zone_choice
from tpuctl.nodes.zone_search import ZoneRing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.commands.selection_options import GivenSelection
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
    on_usable: str | None
    on_recover: str | None
    on_maintenance: str | None
    on_give_up: str | None
    force_lease: bool
    events: str | None
    yes: bool


def run_watch(
    app: App,
    *,
    selection: GivenSelection,
    described: SpecOptions,
    repairs: RepairOptions,
    idling: IdleOptions,
    **given: Any,  # those of WatchOptions
) -> int:
    """Keep nodes usable; the help of the command is where its options are completed (`workers/commands/watch.py`)."""
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
        EventKind.REACHED: options.on_usable,
        EventKind.RECOVERED: options.on_recover,
        EventKind.MAINTENANCE: options.on_maintenance,
        EventKind.GAVE_UP: options.on_give_up,
    }
    hooks = build_hooks(app, commands)
    chosen = selection.parse(app)

    labels: dict[NodeName, object] = {}  # zone and group of each selected slice

    def find_targets() -> Sequence[WaitTarget]:
        if chosen.is_by_name:
            return [locate_for_watch(app, name.text) for name in chosen.names]
        nodes = select_nodes(app, chosen).complete()
        labels.update(
            (node.name, (node.name.zone, node.labels[GROUP_LABEL])) for node in nodes if GROUP_LABEL in node.labels
        )
        return _with_missing_slices(app, [node.name for node in nodes])

    if zone_choice(app) is not None:
        app.choose_zone(None)
    targets = retry_until_answered(app, find_targets, timeout=None)
    names = [target.name for target in targets]
    group_hooks = GroupHooks(hooks, _groups(app, names, labels))
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
            left: set[NodeName] = set()

            def count_left(event: NodeEvent) -> None:
                if event.kind in {EventKind.GAVE_UP, EventKind.EXPIRED}:
                    left.add(event.node)
                elif event.kind in {EventKind.REACHED, EventKind.RECOVERED}:
                    left.discard(event.node)

            context = app.services.context(broadcast(progress, group_hooks, count_left), preflight=preflight)

            def each_round(usable: frozenset[NodeName]) -> None:
                group_hooks.release(usable)
                for failure in hooks.poll():
                    progress(failure)
                app.services.journal.flush(only_due=True)
                count = len(goals) - len(left)
                progress.rest(f"watching {count_words(count, 'node')}, {'usable' if count == 1 else 'all usable'}")

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


def _slices_of(app: App, name: NodeName) -> tuple[NodeName, ...]:
    """Return the slices of the group of a node, by the journal; none for a node of no group."""
    spec = app.services.journal.past(name).spec
    return spec.slice_names(name) if spec else ()


def _with_missing_slices(app: App, names: Sequence[NodeName]) -> list[WaitTarget]:
    """Return the selected nodes, and the slices of their groups that are missing and that tpuctl has not deleted for good."""
    slices = dict.fromkeys(one for name in names for one in _slices_of(app, name))
    missing = [name for name in slices if name not in names and app.services.journal.past(name).former_spec]
    return [WaitTarget(name) for name in (*names, *missing)]


def _groups(
    app: App, names: Sequence[NodeName], labels: Mapping[NodeName, object]
) -> dict[NodeName, tuple[NodeName, ...]]:
    """Return the watched slices of the group of each node: by the journal, or by the labels if another machine made it."""
    found = {}
    for name in names:
        slices = _slices_of(app, name) or tuple(
            one for one in names if name in labels and labels.get(one) == labels[name]
        )
        found[name] = tuple(one for one in slices if one in names)
    return found


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
