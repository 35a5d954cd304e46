"""The goal, the deadline and the limits of a run, from what the user named and the settings; calls that retry until then."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tpuctl.clock import CLOUD_CALL_TIMEOUT, DEADLINE_GRACE, SystemClock, deadline_has_passed, limit_cloud_calls
from tpuctl.cloud.errors import is_connection_refused
from tpuctl.durations import format_duration, format_timestamp, parse_duration, parse_timestamp
from tpuctl.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.nodes.conditions import Condition, Policy, Repair, Thresholds
from tpuctl.nodes.idle_limit import IdleAction, IdleChange, IdleLimit
from tpuctl.nodes.poll import Notes, Wait, poll
from tpuctl.nodes.queueing import UNATTENDED_WAIT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from tpuctl.app.app import App
    from tpuctl.models.spec import NodeSpec

T = TypeVar("T")


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
    obstacle = app.services.workers.obstacle()
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
    last: list[TpuctlError] = []

    def step() -> T | Wait:
        try:
            return ask()
        except (ServiceUnavailableError, QuotaError) as error:
            if is_connection_refused(error) or error.__cause__ is None:
                raise
            last[:] = [error]
            app.silent_since = began if app.silent_since is None else app.silent_since
            return Wait(f"API not answering, retrying: {error.message}")

    until = None if timeout is None else began + timeout
    notes = Notes(app.clock, app.terminal.note)
    return poll(notes, "the API", step, until=until, late=lambda *_: unanswered_error(app, last[0]))


def unanswered_error(app: App, error: TpuctlError) -> TimedOutError:
    """Return the error for a time limit that passed before the API answered where a node is."""
    return TimedOutError(
        f"the API has not answered in time: {error.message}",
        hint=f"nothing was changed; retry: `{app.command_line()}`",
    )


# The service needs longer to look for capacity.
_SHORTEST_QUEUE_WAIT = timedelta(minutes=1)


def queue_policy(
    app: App,
    spec: NodeSpec | None,
    *,
    timeout: timedelta | str | None,
    is_awaited: bool,
    queue_for: timedelta | str | None = None,
    start_after: str | None = None,
) -> dict[str, Any]:
    """Return the time limit of the command and the limits of the queued resource, as fields of `Policy`.

    `is_awaited`: the command waits until there is a node.
    Raises `InvalidInputError` for options without a queue, and for limits that exclude one another.
    """
    limit = deadline(app, timeout)
    if spec is not None and not spec.is_queued:
        given = {"queue-for": queue_for, "start-after": start_after}
        if flag := next((name for name, value in given.items() if value is not None), None):
            raise InvalidInputError(f"`--{flag}` needs a queued resource", hint="add `--queue`, or leave it out")
    wait = queue_for if isinstance(queue_for, timedelta) else None
    if wait is not None and wait < _SHORTEST_QUEUE_WAIT:
        raise InvalidInputError(
            f"`--queue-for {format_duration(wait)}` is too short: the service needs longer to look for capacity",
            hint="give it at least 1m",
        )
    if queue_for is None and not is_awaited and spec is not None and spec.is_queued:
        # The deadline of the command says nothing about the request.
        wait = UNATTENDED_WAIT
    if queue_for is not None and wait is None:
        if timeout is not None and is_awaited:
            raise InvalidInputError(
                "cannot combine `--queue-for forever` and `--timeout`: the request would outlive the command",
                hint="leave `--timeout` out, or name a time such as `--queue-for 24h`",
            )
        limit = None
    begin = None if start_after is None else _parse_start(app, start_after)
    if wait is not None and timeout is None and limit is not None:
        # The command waits for the request, and then for the node.
        limit += wait
    end = wait if wait is not None else limit
    if begin is not None and end is not None and begin >= app.now() + end:
        raise InvalidInputError(
            f"`--start-after {start_after}` ({format_timestamp(begin)}) is after the end of the request, in "
            f"{format_duration(end)}",
            hint="let it wait for longer: `--queue-for 12h`",
        )
    return {"timeout": limit, "queue_for": wait, "start_after": begin}


def _parse_start(app: App, text: str) -> datetime:
    moment = parse_timestamp(text) if "-" in text else None
    if moment is None:
        try:
            return app.now() + parse_duration(text)
        except ValueError:
            raise InvalidInputError(
                f"`--start-after {text}` is not a time", hint="write it like 2026-12-01T08:00:00Z, or like 8h"
            ) from None
    if moment <= app.now():
        raise InvalidInputError(f"`--start-after {text}` is past", hint="leave it out to start at once")
    return moment.astimezone(UTC)


# The setting of each field of `Thresholds`.
THRESHOLD_SETTINGS: Final = {
    each.name: each.name if each.name == "per_worker" else f"{each.name}_after" for each in fields(Thresholds)
}


def repair_policy(
    app: App,
    flags: Mapping[str, str],
    *,
    goal: str | None = None,
    probe: str | None = None,
    yes: bool = False,
    **further: Any,  # fields of Policy
) -> Policy:
    """Return the policy of `up`, `watch` and `run --up`: `flags` override the settings of repair.

    With `yes` repair may interrupt workers in use.
    """
    settings = app.settings_with(dict(flags))
    thresholds = {name: settings.duration(key) for name, key in THRESHOLD_SETTINGS.items()}
    return Policy(
        repair=Repair(settings.text("repair") or Repair.RESTART),
        max_reboots=settings.number("max_reboots"),
        max_restarts=settings.number("max_restarts"),
        max_recreates=settings.number("max_recreates"),
        thresholds=Thresholds(**thresholds),
        goal=choose_goal(app, goal, probe=probe),
        probe=probe,
        accepts_healthy=goal is None,
        may_create=True,
        may_start=True,
        ignores_use=yes,
        **further,
    )


# Workers are examined once a minute: a shorter time would be known from too few looks.
SHORTEST_IDLE: Final = timedelta(minutes=5)
LONGEST_IDLE: Final = timedelta(days=365)


def idle_change(app: App, after: timedelta | str | None, on_idle: str | None = None) -> IdleChange:
    """Return the limit that the user named (`forever`: none), else that of the setting. Raises `InvalidInputError`."""
    is_named = after is not None
    if after is None and app.settings["idle"]:
        after = app.settings.duration("idle")
    if after is None or isinstance(after, str):  # `--idle forever`
        if on_idle is not None:
            raise InvalidInputError("`--on-idle` needs a time", hint="add `--idle 2h`")
        return IdleChange(is_named=is_named)
    if not SHORTEST_IDLE <= after <= LONGEST_IDLE:
        bounds = f"between {format_duration(SHORTEST_IDLE)} and {format_duration(LONGEST_IDLE)}"
        raise InvalidInputError(
            f"`--idle {format_duration(after)}` is not {bounds}", hint="name a time such as `--idle 2h`"
        )
    return IdleChange(
        IdleLimit(after, IdleAction(on_idle) if on_idle else None, app.services.owner_label), is_named=is_named
    )
