"""The options of waiting and repair, the `Policy` made of them, and calls that retry until a deadline."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tpuctl.cli.options import Duration
from tpuctl.cli.remedies import nothing_listens
from tpuctl.clock import GRACE, PATIENCE, SystemClock, is_late, limit_calls
from tpuctl.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.readiness import LEVELS, Goal, Policy, Repair, Thresholds
from tpuctl.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpuctl.cli.app import App

T = TypeVar("T")

# Settings with the same names: numbers, then durations with the field of `Thresholds`.
_BUDGETS = ("max_reboots", "max_restarts", "max_recreates")
_THRESHOLDS = {
    "unhealthy_after": "unhealthy",
    "unanswered_after": "unanswered",
    "devices_after": "devices",
    "starting_after": "starting",
    "restarting_after": "restarting",
    "repairing_after": "repairing",
    "recheck_after": "recheck",
    "per_worker": "per_worker",
}


def _option(key: str, kind: click.ParamType[Any] | None, metavar: str | None = None) -> Callable[..., Any]:
    """Return the option of a setting, with the help text and default of the setting."""
    spec = SETTINGS[key]
    text = f"{spec.description[:1].upper()}{spec.description[1:]}. [default: {spec.default}]"
    return click.option(f"--{key.replace('_', '-')}", key, type=kind, metavar=metavar, help=text)


_REPAIR_OPTIONS = (
    _option("repair", click.Choice([str(step) for step in Repair])),
    *(_option(key, click.IntRange(min=0)) for key in _BUDGETS),
    *(_option(key, Duration(), "TIME") for key in _THRESHOLDS),
)


def level_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--for LEVEL`."""
    levels = click.Choice([str(level) for level in LEVELS])
    return click.option("--for", "goal", type=levels, help="Condition for a usable node. [default: ssh]")(function)


def probe_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--probe CMD`."""
    text = "Shell command that must succeed on every worker, instead of a count of its chips; implies --for devices."
    return click.option("--probe", metavar="CMD", help=text)(function)


def repair_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of repair; each is a setting too."""
    for option in reversed(_REPAIR_OPTIONS):
        function = option(function)
    return function


def repair_policy(app: App, options: dict[str, Any], **further: Any) -> Policy:  # click's options; fields of Policy
    """Remove the repair options from a command's options, and return their policy.

    The goal is that of `--for` and `--probe`; with `--yes` repair may interrupt workers in use.
    """
    given = {key: options.pop(key, None) for key in ("repair", *_BUDGETS, *_THRESHOLDS)}
    flags = {
        key: f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value)
        for key, value in given.items()
        if value is not None
    }
    settings = app.settings_with(flags)
    thresholds = Thresholds(**{name: settings.duration(key) for key, name in _THRESHOLDS.items()})
    return Policy(
        repair=Repair(settings.text("repair") or Repair.RESTART),
        max_reboots=settings.number("max_reboots"),
        max_restarts=settings.number("max_restarts"),
        max_recreates=settings.number("max_recreates"),
        thresholds=thresholds,
        goal=reachable_goal(app, options["goal"], probe=options["probe"]),
        has_probe=options["probe"] is not None,
        may_create=True,
        may_start=True,
        forced=options["yes"],
        **further,
    )


def reachable_goal(app: App, goal: str | None, *, probe: str | None = None) -> Goal:
    """Return the goal: devices for a probe, else the given one, else ssh, or healthy with a note if ssh is not usable here.

    Raises `InvalidInputError` for a probe that would never run.
    """
    if probe is not None and not probe.strip():
        raise InvalidInputError("`--probe` is empty", hint="name a shell command, or remove `--probe`")
    if probe is not None and goal not in {None, str(Goal.DEVICES)}:
        raise InvalidInputError(
            f"cannot use `--probe` with `--for {goal}`", hint="use it with `--for devices`, or without `--for`"
        )
    if probe is not None:
        return Goal.DEVICES
    if goal is not None:
        return Goal(goal)
    obstacle = app.workers.obstacle()
    if obstacle is None:
        return Goal.SSH
    app.terminal.note(f"waiting until nodes are healthy, not until ssh answers: {obstacle}")
    return Goal.HEALTHY


def deadline(app: App, timeout: timedelta | str | None) -> timedelta | None:
    """Return the time limit of a flag, else of the setting; None for `forever`."""
    if timeout == "forever":
        return None
    if timeout is None:
        return app.settings.duration("timeout")
    if isinstance(timeout, str):
        raise TypeError(timeout)
    return timeout


@contextmanager
def in_time(app: App, timeout: timedelta | None) -> Iterator[None]:
    """Limit the API calls of a block to the command's time limit, or to a minute for None.

    Raises `TimedOutError` if the limit passes without an answer.
    """
    with limit_calls(*((SystemClock(), PATIENCE) if timeout is None else (app.clock, timeout)), grace=GRACE):
        try:
            yield
        except OutcomeUnknownError:
            raise
        except (ServiceUnavailableError, QuotaError) as error:
            if timeout is None or not is_late():
                raise
            raise unanswered(app, error) from error


def until_answered(app: App, ask: Callable[[], T], *, timeout: timedelta | None, since: timedelta | None = None) -> T:
    """Return the result of `ask`; retry while the API does not answer, until the time limit (None: for ever).

    A refused connection, and an answer of the API that some zones do not answer, are raised at once: they may last, and
    another endpoint or a zone helps. Raises `TimedOutError` at the time limit.
    """
    began = app.clock.monotonic() if since is None else since
    pause, longest = timedelta(seconds=2), timedelta(seconds=15)
    noted: timedelta | None = None
    while True:
        left = None if timeout is None else max(began + timeout - app.clock.monotonic(), timedelta())
        try:
            with limit_calls(app.clock, left, grace=GRACE):
                return ask()
        except (ServiceUnavailableError, QuotaError) as error:
            if nothing_listens(error) or error.__cause__ is None:
                raise
            now = app.clock.monotonic()
            left = None if timeout is None else began + timeout - now
            if left is not None and left <= timedelta():
                raise unanswered(app, error) from error
            app.silent_since = began if app.silent_since is None else app.silent_since
            if noted is None or now - noted >= timedelta(minutes=1):
                app.terminal.note(f"API not answering, retrying: {error.message}")
                noted = now
        app.clock.sleep(pause if left is None else min(pause, left))
        pause = min(pause * 1.5, longest)


def unanswered(app: App, error: TpuctlError) -> TimedOutError:
    """Return the error for a time limit that passed before the API answered where a node is."""
    return TimedOutError(
        f"the API has not answered in time: {error.message}",
        hint=f"nothing was changed; retry: `{app.command_line()}`",
    )
