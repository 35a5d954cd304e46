"""Wait for something in the cloud: the one loop around a step that looks, and may send one request.

An API that does not answer is no evidence: the step is taken again. The reconciler of nodes has the other loop, for what is
decided from many facts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.errors import QuotaError, ServiceUnavailableError, TpuctlError
from tpuctl.fan_out import fan_out
from tpuctl.models.events import EventKind
from tpuctl.nodes.polling import poll_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.clock import Clock

KeyT = TypeVar("KeyT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Wait:
    """A step waits for something, and is taken again."""

    reason: str
    # At least so long; None: the time since the reason began decides.
    pause: timedelta | None = None
    # What the event has besides, such as a state.
    data: Mapping[str, object] = field(default_factory=dict)


class Reporter(Protocol):
    """Where a wait is reported, with its name: `ActionContext` for a node."""

    @property
    def clock(self) -> Clock:
        """The clock of the wait."""

    def report(self, kind: EventKind, name: Any, text: str, **data: object) -> None:
        """Report a wait."""


@dataclass(slots=True)
class Notes:
    """Reports a wait that no node is the subject of: a note when it begins, and once a minute."""

    clock: Clock
    notify: Callable[[str], None]
    _noted: timedelta | None = None

    def report(self, kind: EventKind, name: Any, text: str, **data: object) -> None:  # noqa: ARG002  # the signature of `Reporter`
        """Report a wait."""
        now = self.clock.monotonic()
        if self._noted is None or now - self._noted >= timedelta(minutes=1):
            self._noted = now
            self.notify(text)


def poll(
    context: Reporter,
    name: object,
    step: Callable[[], ResultT | TpuctlError | Wait],
    *,
    until: timedelta | None,
    late: Callable[[timedelta, str], ResultT | TpuctlError],
) -> ResultT:
    """Take the step until it returns a value, and return that; see `poll_all`. Raises the error of the step."""
    results: dict[object, ResultT | TpuctlError]
    results = poll_all(context, {name: step}, until=until, late=lambda _, *why: late(*why))
    result = results[name]
    if isinstance(result, TpuctlError):
        raise result
    return result


def poll_all(
    context: Reporter,
    steps: Mapping[KeyT, Callable[[], ResultT | TpuctlError | Wait]],
    *,
    until: timedelta | None,
    late: Callable[[KeyT, timedelta, str], ResultT | TpuctlError],
    name_of: Callable[[Any], object] = lambda name: name,
    at_once: int = 8,
) -> dict[KeyT, ResultT | TpuctlError]:
    """Take each step until it returns a value or raises; return these by key, which is a name, or has one by `name_of`.

    The steps of a round are taken in parallel. After `until`, a moment of the context's monotonic clock, what still waits gets
    the result that `late` makes of its key, the time that it waited, and the reason. A step that the API or a quota of requests
    did not let through is taken again, unless that was its first: the caller then knows nothing. An error that a step returns
    is its result.
    """
    clock = context.clock
    began = clock.monotonic()
    results: dict[KeyT, ResultT | TpuctlError] = {}
    waits: dict[KeyT, tuple[Wait, timedelta]] = {}
    due = dict.fromkeys(steps, began)
    while due:
        now = clock.monotonic()
        time_left = None if until is None else max(until - now, timedelta())
        is_last = time_left == timedelta()
        with limit_cloud_calls(clock, time_left, grace=DEADLINE_GRACE):
            outcomes = fan_out(
                lambda key: steps[key](), [key for key in due if is_last or due[key] <= now], limit=at_once
            )
        now = clock.monotonic()
        for outcome in outcomes:
            key, error, found = outcome.item, outcome.error, outcome.value
            if isinstance(error, ServiceUnavailableError | QuotaError) and key in waits:
                found = Wait("the API does not answer", error.retry_after)
            elif error is not None:
                results[key] = error
            if isinstance(found, Wait):
                before, since = waits.get(key, (None, now))
                since = since if before is not None and before.reason == found.reason else now
                waits[key] = found, since
                if until is None or now < until:
                    lasted = (now - since).total_seconds()
                    context.report(EventKind.WAIT, name_of(key), found.reason, **found.data, in_state=lasted)
                    due[key] = now + max(poll_interval(now - since), found.pause or timedelta())
                    continue
                results[key] = late(key, now - began, found.reason)
            elif error is None:
                results[key] = found  # type: ignore[assignment]  # a step without an error has a value
            del due[key]
        if due:
            soonest, now = min(due.values()), clock.monotonic()
            clock.sleep((soonest if until is None else min(soonest, max(until, now))) - now)
    return results
