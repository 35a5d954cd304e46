"""Compute the delay until the next poll: short while a change is likely, at least one second. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.nodes.conditions import Now, ObservedState

# How often a node is fetched that is usable, or that something beside the loop is about: a set-up, a deletion.
WATCH_INTERVAL = timedelta(seconds=15)
_SHORTEST_DELAY = timedelta(seconds=1)
_DENSE_DELAY = timedelta(seconds=1.7)
_SHORT_DELAY = timedelta(seconds=2)
_LONGEST_DELAY = timedelta(seconds=15)
# For this long after our own change, short delays show whether the change took effect.
_RECENT_ACTION = timedelta(seconds=20)
# Most creations end within this share of the usual duration around it.
_SPREAD = 0.15


def poll_delay(seen: ObservedState, now: Now) -> timedelta:
    """Return the delay until the next poll: 1 to 15 seconds, with a jitter of a fifth.

    While a creation usually ends, the delay is short, and rarely a poll comes before; else it grows with the age of the state.
    """
    pace, lasted = seen.poll_state, seen.in_state(now)
    if seen.outage:
        return _jittered(_SHORT_DELAY * 1.5 ** min(seen.outage.times - 1, 9), seen)
    if pace.usual and seen.pending is None:
        begin, end = pace.usual * (1 - _SPREAD), pace.usual * (1 + _SPREAD)
        if lasted < begin:
            # No jitter: the poll falls on the beginning of the window.
            return _bounded((begin - lasted) * 2 ** _throttling(seen))
        if lasted <= end:
            return _jittered(min(_SHORT_DELAY, max(_DENSE_DELAY, (end - begin) / 10)), seen)
        return _jittered(poll_interval(lasted - end), seen)
    if pace.acted_at is not None and now.at - pace.acted_at < _RECENT_ACTION:
        return _jittered(_SHORT_DELAY, seen)
    return _jittered(poll_interval(lasted), seen)


def poll_interval(lasted: timedelta) -> timedelta:
    """Return the delay for a state that has lasted this long: a tenth, from 2 to 15 seconds."""
    return min(_LONGEST_DELAY, max(_SHORT_DELAY, lasted / 10))


def _jittered(base: timedelta, seen: ObservedState) -> timedelta:
    return _bounded(base * 2 ** _throttling(seen) * (0.8 + 0.4 * seen.poll_state.jitter))


def _throttling(seen: ObservedState) -> int:
    return min(seen.poll_state.throttled, 4)


def _bounded(duration: timedelta) -> timedelta:
    return min(_LONGEST_DELAY, max(_SHORTEST_DELAY, duration))
