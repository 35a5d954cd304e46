"""Wait for something in the cloud: the one loop around a step that looks, and may send one request.

An API that does not answer is no evidence: the step is taken again. The reconciler of nodes has the other loop, for what is
decided from many facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.errors import QuotaError, ServiceUnavailableError, TpuctlError
from tpuctl.fan_out import fan_out
from tpuctl.models.events import EventKind
from tpuctl.nodes.polling import poll_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Wait:
    """A step waits for something, and is taken again."""

    reason: str
    # At least so long; None: the time since the reason began decides.
    pause: timedelta | None = None


def poll(
    context: ActionContext,
    name: NodeName,
    step: Callable[[], ResultT | Wait],
    *,
    until: timedelta | None,
    late: Callable[[timedelta, str], TpuctlError],
) -> ResultT:
    """Take the step until it returns a value, and return that; see `poll_all`. Raises the error of the step."""
    (result,) = poll_all(context, {name: step}, until=until, late=lambda _, *why: late(*why)).values()
    if isinstance(result, TpuctlError):
        raise result
    return result


def poll_all(
    context: ActionContext,
    steps: Mapping[NodeName, Callable[[], ResultT | Wait]],
    *,
    until: timedelta | None,
    late: Callable[[NodeName, timedelta, str], TpuctlError],
    at_once: int = 8,
) -> dict[NodeName, ResultT | TpuctlError]:
    """Take each step until it returns a value or raises; return these by name.

    The steps of a round are taken in parallel. After `until`, a moment of the context's monotonic clock, what still waits
    gets the error that `late` makes of its name, the time that it waited, and the reason. A step that the API or a quota of
    requests did not let through is taken again, unless that was its first: the caller then knows nothing.
    """
    clock = context.clock
    began = clock.monotonic()
    results: dict[NodeName, ResultT | TpuctlError] = {}
    waits: dict[NodeName, tuple[Wait, timedelta]] = {}
    while left := [name for name in steps if name not in results]:
        time_left = None if until is None else max(until - clock.monotonic(), timedelta())
        with limit_cloud_calls(clock, time_left, grace=DEADLINE_GRACE):
            outcomes = fan_out(lambda name: steps[name](), left, limit=at_once)
        now = clock.monotonic()
        pauses = []
        for outcome in outcomes:
            name, error, found = outcome.item, outcome.error, outcome.value
            if isinstance(error, ServiceUnavailableError | QuotaError) and name in waits:
                found = Wait("the API does not answer", error.retry_after)
            elif error is not None:
                results[name] = error
                continue
            if not isinstance(found, Wait):
                results[name] = found  # type: ignore[assignment]  # a step without an error has a value
                continue
            before, since = waits.get(name, (None, now))
            since = since if before is not None and before.reason == found.reason else now
            waits[name] = (found, since)
            if until is not None and now >= until:
                results[name] = late(name, now - began, found.reason)
                continue
            context.report(EventKind.WAIT, name, found.reason, in_state=(now - since).total_seconds())
            pauses.append(max(poll_interval(now - since), found.pause or timedelta()))
        if pauses:
            pause = min(pauses)
            clock.sleep(pause if until is None else min(pause, max(until - now, timedelta())))
    return results
