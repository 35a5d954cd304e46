"""One line for each change, where nobody looks at a screen: nothing is said twice."""

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

# A silence is told again after this long.
_STILL_SILENT = timedelta(minutes=1)
# A step that is further off is no news yet.
_SOON = timedelta(minutes=5)
_LASTS = re.compile(r" for \d+(?:\.\d+)?[smhd][0-9smhd]*$")


def untold(event: Event) -> str:
    """Return what the words of a wait say beyond the state and health that are shown anyway; without its duration."""
    reason = _LASTS.sub("", event.text)
    state, health = event.data.get("state"), event.data.get("health")
    if state and reason in {f"it is {state}", f"it has been {state}", f"it is {state} but {health}"}:
        return ""
    return reason


def hints(event: Event) -> Iterator[str]:
    """Yield what to do about a node that was given up, as the hints of an error are shown."""
    for line in str(event.data.get("hint") or "").splitlines():
        yield f"  hint: {line}"


class Changes:
    """Decides which events are worth a line, and words it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: dict[NodeName, tuple[str, str | None]] = {}  # reason and next step, as last told
        self._silent: dict[str, set[NodeName]] = {}  # by zone: the nodes of which nothing is known
        self._said: dict[str, timedelta] = {}  # by zone: when its silence was last told

    def lines(self, event: Event) -> Iterator[str]:
        """Yield the lines that an event is worth."""
        if event.kind is EventKind.SILENT:
            yield from self._silence(event)
            return
        yield from self._end_of_silence(event)
        if event.kind is EventKind.WAIT:
            yield from self._wait(event)
            return
        self._told[event.node] = "", None
        yield f"{event.node.node_id}: {event.text}"
        yield from hints(event)

    def _wait(self, event: Event) -> Iterator[str]:
        reason, following, after = untold(event), event.data.get("next"), event.data.get("next_in")
        if after is not None and timedelta(seconds=after) > _SOON:
            following = None
        if event.data.get("state") and (reason == "it is being deleted" or reason.endswith(" requested")):
            reason = ""  # The line before has told it.
        before = self._told.get(event.node, ("", None))
        self._told[event.node] = reason, following
        news = reason if reason != before[0] else ""
        if following and following != before[1]:
            when = f" in {format_duration(timedelta(seconds=max(after, 0)))}" if after is not None else ""
            news = f"{news}; if nothing changes: {following}{when}".removeprefix("; ")
        if news:
            yield f"{event.node.node_id}: {news}"

    def _silence(self, event: Event) -> Iterator[str]:
        zone, now = event.node.zone, self._clock.monotonic()
        self._silent.setdefault(zone, set()).add(event.node)
        said = self._said.get(zone)
        if said is None or now - said >= _STILL_SILENT:
            self._said[zone] = now
            yield f"{self._whose(event)}: {event.text}"

    def _end_of_silence(self, event: Event) -> Iterator[str]:
        silent = self._silent.get(event.node.zone)
        if not silent or event.node not in silent:
            return
        whose = self._whose(event)
        silent.discard(event.node)
        if not silent and self._said.pop(event.node.zone, None) is not None:
            yield f"{whose}: the API answers again"

    def _whose(self, event: Event) -> str:
        # The API is silent about all nodes of a zone: a line for each would be the same line a thousand times.
        several = len(self._told) > 1 or len(self._silent.get(event.node.zone, ())) > 1
        return event.node.zone if several else event.node.node_id
