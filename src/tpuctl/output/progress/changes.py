"""Events as lines of text, one for each change and without repetition, for output that is not a terminal."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import format_duration
from tpuctl.events import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.clock import Clock
    from tpuctl.names import NodeName

# How often an outage of the API is reported again.
_STILL_SILENT = timedelta(minutes=1)
# A step that is further ahead is not reported yet.
_SOON = timedelta(minutes=5)
_LASTS = re.compile(r" for \d+(?:\.\d+)?[smhd][0-9smhd]*$")


def untold(event: Event) -> str:
    """Return the reason of a wait without its duration; empty if it repeats only the state and health shown beside it."""
    reason = _LASTS.sub("", event.text)
    state, health = event.data.get("state"), event.data.get("health")
    if state and reason in {f"it is {state}", f"it has been {state}", f"it is {state} but {health}"}:
        return ""
    return reason


def hints(event: Event) -> Iterator[str]:
    """Yield the hints of a node that was given up, in the form of an error's hints."""
    for line in str(event.data.get("hint") or "").splitlines():
        yield f"  hint: {line}"


class Changes:
    """Selects the events that are reported, and formats their lines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported: dict[NodeName, tuple[str, str | None]] = {}  # reason and next step in the last line
        self._silent: dict[str, set[NodeName]] = {}  # by zone: the nodes without an answer
        self._outages: dict[str, timedelta] = {}  # by zone: when its outage was last reported

    def lines(self, event: Event) -> Iterator[str]:
        """Yield the lines for an event, often none."""
        name = event.node
        if event.kind is EventKind.SILENT:
            now, reported = self._clock.monotonic(), self._outages.get(name.zone)
            self._silent.setdefault(name.zone, set()).add(name)
            if reported is None or now - reported >= _STILL_SILENT:
                self._outages[name.zone] = now
                yield f"{self._subject(event)}: {event.text}"
            return
        silent = self._silent.get(name.zone)
        if silent and name in silent:
            subject = self._subject(event)
            silent.discard(name)
            if not silent and self._outages.pop(name.zone, None) is not None:
                yield f"{subject}: the API answers again"
        if event.kind is not EventKind.WAIT:
            self._reported[name] = "", None
            yield f"{name.node_id}: {event.text}"
            yield from hints(event)
            return
        reason, following, after = untold(event), event.data.get("next"), event.data.get("next_in")
        if after is not None and timedelta(seconds=after) > _SOON:
            following = None
        if event.data.get("state") and (reason == "it is being deleted" or reason.endswith(" requested")):
            reason = ""  # The line before says the same.
        before = self._reported.get(name, ("", None))
        self._reported[name] = reason, following
        news = reason if reason != before[0] else ""
        if following and following != before[1]:
            when = f" in {format_duration(timedelta(seconds=max(after, 0)))}" if after is not None else ""
            news = f"{news}; if nothing changes: {following}{when}".removeprefix("; ")
        if news:
            yield f"{name.node_id}: {news}"

    def _subject(self, event: Event) -> str:
        # An outage concerns all nodes of a zone: one line for the zone replaces the same line for each node.
        several = len(self._reported) > 1 or len(self._silent.get(event.node.zone, ())) > 1
        return event.node.zone if several else event.node.node_id
