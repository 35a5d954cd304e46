"""Counts how often each known message occurs, and keeps the first and the last place."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from tpuctl.diagnosis.messages import Detail
from tpuctl.diagnosis.sightings import Sighting

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.diagnosis.messages import Message
    from tpuctl.diagnosis.sightings import Place

_MOST_WORKERS = 8192
# The list of tasks stands right behind its message; source: jax-ml/jax, errors of the coordination service.
_TASK = re.compile(r"/job:[\w.-]{1,80}/(?:replica:\d{1,6}/)?task:(\d{1,6})")
_BLAMED = re.compile(r"timed out task names:", re.IGNORECASE)
_LISTED = 4096


@dataclass(slots=True)
class _Half:
    """The real occurrences of a message, or its quotes."""

    count: int = 0
    first: Place | None = None
    last: Callable[[], Place] | None = None
    facts: dict[str, str] = field(default_factory=dict)
    workers: dict[str, Place] = field(default_factory=dict)
    following: str | None = None

    def copy(self) -> _Half:
        return replace(self, facts=dict(self.facts), workers=dict(self.workers))


@dataclass(slots=True)
class Tally:
    """All occurrences of one message."""

    message: Message
    real: _Half = field(default_factory=_Half)
    quoted: _Half = field(default_factory=_Half)

    def copy(self) -> Tally:
        """Return an independent copy."""
        return Tally(self.message, self.real.copy(), self.quoted.copy())

    def add(
        self,
        found: re.Match[str],
        *,
        is_quoted: bool,
        worker: str | None,
        place: Callable[[], Place],
        following: Callable[[], str],
    ) -> None:
        """Count an occurrence. `place` and `following` are expensive, and called only if needed."""
        half = self.quoted if is_quoted else self.real
        half.count += 1
        half.last = place
        if half.first is None:
            half.first = place()
            half.facts = {name: text for name, text in found.groupdict().items() if text}
            if self.message.detail is not None:
                half.following = following()
        else:
            for name in self.message.latest:
                if text := found[name]:
                    half.facts[name] = text
        if worker is not None and worker not in half.workers and len(half.workers) < _MOST_WORKERS:
            half.workers[worker] = place()

    def settle(self) -> None:
        """Release the text that holds the last place."""
        for half in (self.real, self.quoted):
            if half.last is not None:
                half.last = _constant(half.last())

    def sighting(self) -> Sighting:
        """Return the occurrences so far."""
        half = self.real if self.real.count else self.quoted
        assert half.first is not None and half.last is not None  # noqa: S101, PT018  # a tally begins with an occurrence
        facts, memory = dict(half.facts), None
        if half.following is not None and self.message.detail is Detail.MEMORY:
            from tpuctl.diagnosis.memory_use import read_memory  # noqa: PLC0415  # few logs are about memory

            memory = read_memory(half.following)
        if half.following is not None and self.message.detail is Detail.TASKS:
            # A message about a barrier names the task that arrived first, too, before those that did not arrive.
            blamed = _BLAMED.split(half.following[:_LISTED], maxsplit=1)[-1]
            if tasks := ", ".join(dict.fromkeys(_TASK.findall(blamed))):
                facts["tasks"] = tasks
        return Sighting(
            self.message,
            half.first,
            half.last(),
            self.real.count + self.quoted.count,
            self.quoted.count,
            MappingProxyType(facts),
            MappingProxyType(dict(half.workers)),
            memory,
        )


def _constant(place: Place) -> Callable[[], Place]:
    return lambda: place
