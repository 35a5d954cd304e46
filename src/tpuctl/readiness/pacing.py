"""When to look again: often where a change is likely, seldom elsewhere, never more often than once in a second. Pure."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from tpuctl.model import NodeState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.readiness.values import Seen

_SHORTEST = timedelta(seconds=1)
_DENSE = timedelta(seconds=1.7)
_SHORT = timedelta(seconds=2)
_LONGEST = timedelta(seconds=15)
# How long after an action of ours a look costs little and shows whether it was taken up.
_FRESH = timedelta(seconds=20)


def delay(seen: Seen) -> timedelta:
    """Return the time until the next look: 1 to 15 seconds, with a jitter of a fifth.

    Where durations of this state are known, the looks are dense while it usually ends; else they follow its age.
    """
    pace = seen.pace
    if seen.silence:
        return _jittered(_SHORT * 1.5 ** min(seen.silence.times - 1, 9), seen)
    usual = () if seen.node and seen.node.state is NodeState.READY else pace.usual
    if usual and seen.pending is None:
        begin, end = window(usual)
        if seen.in_state < begin:
            # Without jitter: the look is to fall on the begin of the window.
            return _bounded((begin - seen.in_state) * 2 ** _throttling(seen))
        if seen.in_state <= end:
            return _jittered(min(_SHORT, max(_DENSE, (end - begin) / 10)), seen)
        return _jittered(interval(seen.in_state - end), seen)
    if pace.since_action is not None and pace.since_action < _FRESH:
        return _jittered(_SHORT, seen)
    return _jittered(interval(seen.in_state), seen)


def interval(lasted: timedelta) -> timedelta:
    """Return how long to wait where nothing is known but how long it has lasted: a tenth, from 2 to 15 seconds."""
    return min(_LONGEST, max(_SHORT, lasted / 10))


def window(usual: Sequence[timedelta]) -> tuple[timedelta, timedelta]:
    """Return when a state usually ends, from samples of its duration, sorted: from their 5th to their 95th percentile.

    It is wider the fewer they are.
    """
    margin = usual[len(usual) // 2] * (0.15 if len(usual) < 3 else 0.08 if len(usual) < 10 else 0.02)
    return max(timedelta(), _percentile(usual, 0.05) - margin), _percentile(usual, 0.95) + margin


def _percentile(values: Sequence[timedelta], share: float) -> timedelta:
    place = share * (len(values) - 1)
    below, above = next(pairwise(values[int(place) :]), (values[int(place)],) * 2)
    return below + (above - below) * (place - int(place))


def _jittered(base: timedelta, seen: Seen) -> timedelta:
    return _bounded(base * 2 ** _throttling(seen) * (0.8 + 0.4 * seen.pace.jitter))


def _throttling(seen: Seen) -> int:
    return min(seen.pace.throttled, 4)


def _bounded(duration: timedelta) -> timedelta:
    return min(_LONGEST, max(_SHORTEST, duration))
