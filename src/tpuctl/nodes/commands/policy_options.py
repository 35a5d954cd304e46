"""The options of waiting, repair and hooks, the `Policy` and `Hooks` made of them, and calls that retry until a deadline."""

# ruff: noqa: RUF009  # a call that declares an option returns a field

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tpuctl.app.hints import is_connection_refused
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import DurationType, option, takes_options
from tpuctl.app.spec_options import GivenOptions
from tpuctl.clock import CLOUD_CALL_TIMEOUT, DEADLINE_GRACE, SystemClock, deadline_has_passed, limit_cloud_calls
from tpuctl.config.settings import SETTINGS, SourceKind
from tpuctl.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.models.events import EventKind
from tpuctl.nodes.conditions import USABLE_CONDITIONS, Condition, Policy, Repair, Thresholds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tpuctl.app.app import App
    from tpuctl.nodes.hooks import Hooks

T = TypeVar("T")

_THRESHOLDS = tuple(each.name for each in fields(Thresholds))


def _setting(key: str, kind: click.ParamType[Any] | None = None) -> Any:  # a field, see `option`
    """Declare the option of a setting with the help text and default of the setting.

    Without a kind it is the duration of a threshold, which help hides: `tpuctl help repair` explains them.
    """
    spec = SETTINGS[key]
    text = f"{spec.description[:1].upper()}{spec.description[1:]}. [default: {spec.default}]"
    metavar = "N" if isinstance(kind, click.IntRange) else None if kind else "TIME"
    return option(
        f"--{key.replace('_', '-')}", type=kind or DurationType(), metavar=metavar, help=text, hidden=kind is None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions(GivenOptions):
    """The options of repair. Each is a setting of the same name."""

    repair: str | None = _setting("repair", click.Choice([str(step) for step in Repair]))
    max_reboots: int | None = _setting("max_reboots", click.IntRange(min=0))
    max_restarts: int | None = _setting("max_restarts", click.IntRange(min=0))
    max_recreates: int | None = _setting("max_recreates", click.IntRange(min=0))
    unhealthy_after: timedelta | str | None = _setting("unhealthy_after")
    unanswered_after: timedelta | str | None = _setting("unanswered_after")
    devices_after: timedelta | str | None = _setting("devices_after")
    starting_after: timedelta | str | None = _setting("starting_after")
    restarting_after: timedelta | str | None = _setting("restarting_after")
    repairing_after: timedelta | str | None = _setting("repairing_after")
    provisioning_after: timedelta | str | None = _setting("provisioning_after")
    recheck_after: timedelta | str | None = _setting("recheck_after")
    per_worker: timedelta | str | None = _setting("per_worker")


repair_options = takes_options(RepairOptions, "repairs", group=OptionGroup.REPAIR)


def level_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--for LEVEL`."""
    levels = click.Choice([str(level) for level in USABLE_CONDITIONS])
    text = "Condition for a usable node, see `tpuctl help levels`. [default: ssh]"
    return grouped_option("--for", "goal", group=OptionGroup.READINESS, type=levels, help=text)(function)


def probe_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--probe CMD`."""
    text = "Shell command that must succeed on every worker, instead of a count of its chips; implies --for devices."
    return grouped_option("--probe", group=OptionGroup.READINESS, metavar="CMD", help=text)(function)


def repair_policy(
    app: App,
    repairs: RepairOptions,
    *,
    goal: str | None = None,
    probe: str | None = None,
    yes: bool = False,
    **further: Any,  # fields of Policy
) -> Policy:
    """Return the policy of `up`, `watch` and `run --up`. With `yes` repair may interrupt workers in use."""
    flags = {
        key: f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value)
        for key, value in repairs.given.items()
    }
    settings = app.settings_with(flags)
    thresholds = {name: settings.duration(name if name == "per_worker" else f"{name}_after") for name in _THRESHOLDS}
    return Policy(
        repair=Repair(settings.text("repair") or Repair.RESTART),
        max_reboots=settings.number("max_reboots"),
        max_restarts=settings.number("max_restarts"),
        max_recreates=settings.number("max_recreates"),
        thresholds=Thresholds(**thresholds),
        goal=choose_goal(app, goal, probe=probe),
        has_probe=probe is not None,
        may_create=True,
        may_start=True,
        forced=yes,
        **further,
    )


def choose_goal(app: App, goal: str | None, *, probe: str | None = None) -> Condition:
    """Return the goal: devices for a probe, else the given one, else ssh, or healthy with a note if ssh is not usable here.

    Raises `InvalidInputError` for a probe that would never run.
    """
    if probe is not None and not probe.strip():
        raise InvalidInputError("`--probe` is empty", hint="name a shell command, or remove `--probe`")
    if probe is not None and goal not in {None, str(Condition.DEVICES)}:
        raise InvalidInputError(
            f"cannot use `--probe` with `--for {goal}`", hint="use it with `--for devices`, or without `--for`"
        )
    if probe is not None:
        return Condition.DEVICES
    if goal is not None:
        return Condition(goal)
    obstacle = app.workers.obstacle()
    if obstacle is None:
        return Condition.SSH
    app.terminal.note(f"waiting until nodes are healthy, not until ssh answers: {obstacle}")
    return Condition.HEALTHY


def deadline(app: App, timeout: timedelta | str | None) -> timedelta | None:
    """Return the time limit of a flag, else of the setting; None for `forever`."""
    if timeout is None:
        return app.settings.duration("timeout")
    return timeout if isinstance(timeout, timedelta) else None


@contextmanager
def within_deadline(app: App, timeout: timedelta | None) -> Iterator[None]:
    """Limit the API calls of a block to the command's time limit, or to a minute for None.

    Raises `TimedOutError` if the limit passes without an answer.
    """
    with limit_cloud_calls(
        *((SystemClock(), CLOUD_CALL_TIMEOUT) if timeout is None else (app.clock, timeout)), grace=DEADLINE_GRACE
    ):
        try:
            yield
        except OutcomeUnknownError:
            raise
        except (ServiceUnavailableError, QuotaError) as error:
            if timeout is None or not deadline_has_passed():
                raise
            raise unanswered_error(app, error) from error


def retry_until_answered(
    app: App, ask: Callable[[], T], *, timeout: timedelta | None, since: timedelta | None = None
) -> T:
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
            with limit_cloud_calls(app.clock, left, grace=DEADLINE_GRACE):
                return ask()
        except (ServiceUnavailableError, QuotaError) as error:
            if is_connection_refused(error) or error.__cause__ is None:
                raise
            now = app.clock.monotonic()
            left = None if timeout is None else began + timeout - now
            if left is not None and left <= timedelta():
                raise unanswered_error(app, error) from error
            app.silent_since = began if app.silent_since is None else app.silent_since
            if noted is None or now - noted >= timedelta(minutes=1):
                app.terminal.note(f"API not answering, retrying: {error.message}")
                noted = now
        app.clock.sleep(pause if left is None else min(pause, left))
        pause = min(pause * 1.5, longest)


def unanswered_error(app: App, error: TpuctlError) -> TimedOutError:
    """Return the error for a time limit that passed before the API answered where a node is."""
    return TimedOutError(
        f"the API has not answered in time: {error.message}",
        hint=f"nothing was changed; retry: `{app.command_line()}`",
    )


_HOOKS = {
    "on_preempt": (EventKind.PREEMPTED, "the service preempted a node"),
    "on_recover": (EventKind.RECOVERED, "a node is usable again"),
    "on_maintenance": (EventKind.MAINTENANCE, "maintenance of a node is announced or begins"),
    "on_give_up": (EventKind.GAVE_UP, "a node is given up"),
}
# Settings that choose cloud, identity, journal and leases: given as flags, they apply inside hooks too.
_INHERITED_SETTINGS = (
    "endpoint", "impersonate_service_account", "quota_project", "user", "ssh_key", "ssh_key_expire_after", "journal", "lease",
)  # fmt: skip


def hook_options(*kinds: EventKind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add an option for a hook of each kind of event, for all kinds if none is named."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, (kind, when) in reversed(_HOOKS.items()):
            if kind in kinds or not kinds:
                flag = "--" + name.replace("_", "-")
                text = f"Local command to run when {when}; gets the event as JSON on stdin."
                function = grouped_option(flag, name, group=OptionGroup.HOOKS, metavar="CMD", help=text)(function)
        return function

    return decorate


def build_hooks(app: App, commands: Mapping[EventKind, str | None]) -> Hooks:
    """Return the hooks of these events. An empty command is no hook."""
    from tpuctl.nodes.hooks import RETRY_PAUSES, Hooks  # noqa: PLC0415  # not needed by --help and completion

    terminal, given = app.terminal, {kind: text for kind, text in commands.items() if text}
    # The live display would overwrite the output of a hook.
    print_lines = terminal.note if terminal.is_redrawn and not terminal.quiet else None
    # With these variables `tpuctl` in a hook uses the same cloud as this run. `0` is set too: a project file in the hook's
    # working directory may choose the sandbox.
    variables = {"TPUCTL_SANDBOX": "1" if app.is_sandbox else "0"}
    for key in _INHERITED_SETTINGS:
        setting, variable = app.settings[key], SETTINGS[key].environment
        if setting and variable and setting.source.kind is SourceKind.FLAG:
            variables[variable] = str(setting.value)
    return Hooks(
        given, app.invocation.environ, extra=variables, print_lines=print_lines, pauses=RETRY_PAUSES, clock=app.clock
    )
