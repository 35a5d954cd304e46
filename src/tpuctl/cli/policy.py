"""How flags and settings become the policy of a wait, and the flags themselves."""

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

# Settings of the same names; the first are numbers, the others durations.
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
    """Return the option of a setting, which has its help and its default."""
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
    return click.option("--for", "goal", type=levels, help="What usable means. [default: ssh]")(function)


def probe_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--probe CMD`."""
    text = "What must succeed on every worker, in place of counting its chips; means --for devices."
    return click.option("--probe", metavar="CMD", help=text)(function)


def repair_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say when and how far to repair; each is a setting too."""
    for option in reversed(_REPAIR_OPTIONS):
        function = option(function)
    return function


def repair_policy(app: App, options: dict[str, Any], **further: Any) -> Policy:  # click's options; fields of Policy
    """Take the options that say when and how far to repair out of a command's options, and return the policy they make.

    The goal is that of `--for` and `--probe`; `--yes` lets it touch what may be in use.
    """
    given = {key: options.pop(key, None) for key in ("repair", *_BUDGETS, *_THRESHOLDS)}
    flags = {key: _as_text(value) for key, value in given.items() if value is not None}
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
    """Return the goal; without one, ssh where it can be used from here, else healthy, and say so. A probe asks for devices.

    Raises `InvalidInputError` for a probe that would never run.
    """
    if probe is not None and not probe.strip():
        raise InvalidInputError("`--probe` is empty", hint="name what must succeed on every worker, or leave it out")
    if probe is not None and goal not in {None, str(Goal.DEVICES)}:
        raise InvalidInputError(
            "`--probe` decides about devices", hint="use it with `--for devices`, or without `--for`"
        )
    if probe is not None:
        return Goal.DEVICES
    if goal is not None:
        return Goal(goal)
    obstacle = app.workers.obstacle()
    if obstacle is None:
        return Goal.SSH
    app.terminal.note(f"waiting until it is healthy, not until ssh answers: {obstacle}")
    return Goal.HEALTHY


def deadline(app: App, timeout: timedelta | str | None) -> timedelta | None:
    """Return the deadline that a flag or a setting gives; nothing for `forever`."""
    if timeout == "forever":
        return None
    if timeout is None:
        return app.settings.duration("timeout")
    if isinstance(timeout, str):
        raise TypeError(timeout)
    return timeout


@contextmanager
def in_time(app: App, timeout: timedelta | None) -> Iterator[None]:
    """Let the calls of a block end with the command's deadline; without one (None) within a minute.

    Raises `TimedOutError` where the deadline has passed without an answer.
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
    """Return what `ask` returns, asked again while the API does not answer, until the command's deadline (None: for ever).

    Where nothing listens, or the API itself says that some zones do not answer, that is raised at once: it may last, and
    naming another endpoint or a zone helps. Raises `TimedOutError` at the deadline.
    """
    began = app.clock.monotonic() if since is None else since
    pause, longest = timedelta(seconds=2), timedelta(seconds=15)
    told: timedelta | None = None
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
            if told is None or now - told >= timedelta(minutes=1):
                app.terminal.note(f"API not answering, asking again: {error.message}")
                told = now
        app.clock.sleep(pause if left is None else min(pause, left))
        pause = min(pause * 1.5, longest)


def unanswered(app: App, error: TpuctlError) -> TimedOutError:
    """Return the error of a deadline that passed before the API had said where a node is."""
    return TimedOutError(
        f"the API has not answered in time: {error.message}",
        hint=f"nothing was changed; run it again: `{app.command_line()}`",
    )


def _as_text(value: Any) -> str:  # click's: a number, a duration, a word
    return f"{value.total_seconds()}s" if hasattr(value, "total_seconds") else str(value)
