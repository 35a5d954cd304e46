"""`tpuctl watch`."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.hook_options import hook_options, take_hooks
from tpuctl.cli.options import cli_command, events_option, selecting_options, steal_option
from tpuctl.cli.policy import level_option, probe_option, repair_options, until_answered
from tpuctl.cli.reach_options import reach_options
from tpuctl.cli.spec import build_spec, spec_options, take_spec
from tpuctl.clock import SystemClock, format_duration, parse_duration, parse_timestamp
from tpuctl.errors import ExitCode, InvalidInputError, TpuctlError, worst
from tpuctl.events import to_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpuctl.actions.observation import Task
    from tpuctl.cli.app import App
    from tpuctl.hooks import HookFailure, Hooks
    from tpuctl.model import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.readiness import Policy


class Moment(click.ParamType["timedelta | datetime"]):
    """A duration from now, or a time: `8h`, `18:30` (this machine's), `2026-01-31T18:30:00Z`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | datetime:
        """Return how long, or when."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]  # converted before
        try:
            return parse_duration(value)
        except ValueError:
            pass
        if "T" in value and (moment := parse_timestamp(value)):
            return moment
        try:
            clock = datetime.strptime(value, "%H:%M")  # noqa: DTZ007  # a time of day has no zone
        except ValueError:
            self.fail(f"`{value}` is no time; write 8h, 18:30 or 2026-01-31T18:30:00Z", param, ctx)
        today = datetime.now().astimezone()  # what the user's clock shows
        moment = today.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
        return moment if moment > today else moment + timedelta(days=1)


@cli_command("watch")
@selecting_options
@spec_options
@level_option
@probe_option
@click.option("--until", type=Moment(), metavar="TIME", help="Stop then: 8h, 18:30, or a time in RFC 3339.")
@repair_options
@click.option("--recreate-deleted", is_flag=True, help="Make a node anew that somebody deleted.")
@hook_options()
@reach_options
@steal_option
@events_option
@click.option("--yes", "-y", is_flag=True, help="Repair nodes that may be in use, too.")
def command(
    app: App, *, nodes: tuple[str, ...], until: timedelta | datetime | None, events: str | None, **options: Any
) -> int:  # click's options
    """Keep nodes usable until stopped: make preempted ones anew, repair broken ones, tell of maintenance.

    Prints a line for each change. Asks again and again where there is no capacity. What it may not or cannot do it says, and
    goes on with the other nodes. It keeps nothing but the journal: stopped and started again anywhere, it goes on.

    \b
    Examples:
      tpuctl watch trainer
      tpuctl watch trainer-0 trainer-1 --repair recreate --until 18:30
      tpuctl watch trainer --on-recover 'tpuctl run "$TPUCTL_NODE" --detach -- ./train.sh --resume'
    """
    from tpuctl.actions.watch import watch  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.main import TerminatedError  # noqa: PLC0415  # it imports this tree

    spec = build_spec(app, take_spec(options))
    policy = _policy(app, options)
    hooks = take_hooks(app, options)
    names = until_answered(app, lambda: _names(app, nodes, options), timeout=None)
    tasks = [_task(name, spec, policy, options) for name in names]
    named = " ".join(f"{name.zone}/{name.node_id}" for name in names)
    try:
        with (
            app.progress(events=events, endings=True) as progress,
            app.going_on(f"nobody keeps {named} usable now", resume=app.command_line()),
        ):
            _check_journal(app, tasks)
            context = app.context(to_all(progress, hooks))
            with _hooks_finished(app, hooks):
                errors = watch(context, tasks, until=_left(app, until), each_round=_each_round(app, hooks))
                if len(errors) == len(tasks):
                    # Nothing is left to watch. A container ends with this process, so what hooks do about it comes first.
                    hooks.wait(lambda failure: app.terminal.warn(str(failure)))
    except TerminatedError:
        return _terminated(app)
    return worst(error.exit_code for error in errors) if errors else ExitCode.OK


def _terminated(app: App) -> ExitCode:
    """Return that nothing went wrong: so a service is stopped."""
    with suppress(OSError):  # a log that cannot be written makes it no failure either
        app.terminal.note("terminated: the watch ends, the nodes go on")
    return ExitCode.OK


def _policy(app: App, options: dict[str, Any]) -> Policy:
    from tpuctl.cli.policy import repair_policy  # noqa: PLC0415  # as above

    return repair_policy(
        app,
        options,
        is_keeper=True,
        is_patient=True,
        recreate_deleted=options["recreate_deleted"],
        timeout=None,
    )


def _names(app: App, nodes: tuple[str, ...], options: dict[str, Any]) -> Sequence[NodeName]:
    from tpuctl.cli.selection import select  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.target import where_to_watch  # noqa: PLC0415  # as above

    chosen = select(app, nodes, all_nodes=options["all_nodes"], labels=options["selector"])
    return chosen if chosen is not None else [where_to_watch(app, text) for text in dict.fromkeys(nodes)]


def _task(name: NodeName, spec: NodeSpec | None, policy: Policy, options: dict[str, Any]) -> Task:
    from tpuctl.actions.observation import Task  # noqa: PLC0415  # completion and --help need not wait for it

    return Task(
        name=name,
        policy=policy,
        spec=spec,
        probe=options["probe"],
        purpose="watch",
        steal=options["steal"],
        takes_less=options["goal"] is None,
    )


def _check_journal(app: App, tasks: Sequence[Task]) -> None:
    """Raise `InvalidInputError` where a node would be deleted to be made anew, and its spec might be lost in between.

    The embedded sandbox lies beside its journal: neither outlasts the other.
    """
    if app.is_sandbox:
        return
    if any(task.spec is None for task in tasks) and not app.journal.is_lasting(app.invocation.environ):
        raise InvalidInputError(
            "the journal does not outlast this machine, so that the spec of a node could be lost while it is made anew",
            hint="keep it in a bucket (`TPUCTL_JOURNAL=gs://BUCKET/PREFIX`), or say what the nodes are to be: "
            "`--type TYPE`, or a `tpuctl.yaml` in the working directory",
        )


def _left(app: App, until: timedelta | datetime | None) -> timedelta | None:
    if not isinstance(until, datetime):
        return until
    left = until.astimezone(UTC) - app.clock.now()
    if left <= timedelta():
        raise InvalidInputError(f"`--until {until.isoformat()}` has passed", hint="name a time to come, or a duration")
    return left


def _each_round(app: App, hooks: Hooks) -> Callable[[], None]:
    def each_round() -> None:
        _warn(app, hooks.poll())
        app.journal.flush(only_due=True)

    return each_round


@contextmanager
def _hooks_finished(app: App, hooks: Hooks) -> Iterator[None]:
    """Start the hooks that wait, also where an error ends the watch, and tell of those for which there is no time.

    Not after a signal: whoever sent it does not wait.
    """
    failure: TpuctlError | None = None
    try:
        yield
    except TpuctlError as error:
        failure = error
    from tpuctl.hooks import PATIENCE  # noqa: PLC0415  # completion and --help need not wait for it

    if hooks.are_waiting:
        app.terminal.note(f"the watch ends; hooks that wait for others have up to {format_duration(PATIENCE)} to begin")
    _warn(app, hooks.finish(SystemClock()))  # hooks run in real time, whatever time it is in the sandbox
    if failure:
        raise failure


def _warn(app: App, failures: Sequence[HookFailure]) -> None:
    for failure in failures:
        app.terminal.warn(str(failure))
