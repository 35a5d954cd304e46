"""Analyse journal entries: durations of states, times in which a node was usable, used repairs. Pure.

An entry is one line of a node's journal: `at`, `event`, `by`, and the data of the event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.clock import parse_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from tpuctl.readiness import Tried

Entries = Sequence[Mapping[str, Any]]  # JSON

_CREATING, _READY = "CREATING", "READY"
# Transient states. The duration of any other state predicts nothing about other nodes.
_PASSING = frozenset({"STARTING", "STOPPING", "RESTARTING", "REPAIRING"})
_ACTIONS = frozenset({"create", "delete", "stop", "start", "restart", "reboot"})
_USABLE = frozenset({"usable", "recovered"})
_NOT_USABLE = _ACTIONS | {"bringing-up", "preempted", "gave-up"}
_REPAIRS = {"reboot": "reboots", "restart": "restarts", "delete": "recreates"}


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time. `end` is None while it has not ended."""

    start: datetime
    end: datetime | None = None

    def within(self, since: datetime, now: datetime) -> timedelta:
        """Return how much of the span lies between two times."""
        return max(min(self.end or now, now) - max(self.start, since), timedelta())


def durations(nodes: Iterable[Entries], *, limit: int | None = None) -> dict[str, tuple[timedelta, ...]]:
    """Return the sorted durations of each transient state; at most the `limit` most recent ones.

    CREATING lasts from the request, or from its first observation, until READY is first observed; STARTING, STOPPING,
    RESTARTING and REPAIRING last until the next state. A state counts if one writer observed it from beginning to end.
    """
    found: dict[str, list[Span]] = {}
    for entries in nodes:
        by_writer: dict[str, list[tuple[datetime, Mapping[str, Any]]]] = {}
        for at, entry in _dated(entries):
            by_writer.setdefault(str(entry.get("by")), []).append((at, entry))
        for of_one in by_writer.values():
            for state, span in _passages(of_one):
                found.setdefault(state, []).append(span)
    lasted: dict[str, tuple[timedelta, ...]] = {}
    for state, spans in found.items():
        ended = sorted(((span.end, span.end - span.start) for span in spans if span.end), reverse=True)
        lasted[state] = tuple(sorted(length for _, length in ended[:limit]))
    return lasted


def of_type(entries: Entries, accelerator_type: str) -> list[Mapping[str, Any]]:
    """Return the entries of the times in which the node had this accelerator type, by its spec."""
    kept, matches = [], False
    for entry in entries:
        if spec := entry.get("spec"):
            matches = isinstance(spec, dict) and spec.get("accelerator_type") == accelerator_type
        if matches:
            kept.append(entry)
    return kept


def usable_spans(entries: Entries) -> list[Span]:
    """Return the spans in which the node was usable, according to its entries."""
    spans: list[Span] = []
    since: datetime | None = None
    for at, entry in _dated(entries):
        if entry.get("event") in _USABLE:
            since = since or at
        elif since and _ends_usable(entry):
            spans.append(Span(since, at))
            since = None
    return [*spans, Span(since)] if since else spans


def budget(entries: Entries, *, refill: timedelta, now: datetime) -> Tried:
    """Return the repairs since the node was last usable for `refill` without interruption.

    A delete counts as a recreation only with `repair: true`; a reboot and a restart count unless `repair` is false.
    """
    from tpuctl.readiness import Tried  # noqa: PLC0415  # a timeline needs none of the rules

    full = [span for span in usable_spans(entries) if (span.end or now) - span.start >= refill]
    since = full[-1].start if full else None
    counts = dict.fromkeys(_REPAIRS.values(), 0)
    for at, entry in _dated(entries):
        if (since is None or at > since) and is_repair(entry):
            counts[_REPAIRS[entry["event"]]] += 1
    return Tried(**counts)


def is_repair(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry is a repair that counts against a budget."""
    event = entry.get("event")
    return event in _REPAIRS and bool(entry.get("repair", event != "delete"))


def _ends_usable(entry: Mapping[str, Any]) -> bool:
    if entry.get("event") != "state":
        return entry.get("event") in _NOT_USABLE
    # A health that is not reported proves nothing.
    return entry.get("state") != _READY or entry.get("health") not in {None, "", "HEALTHY", "HEALTH_UNSPECIFIED"}


def _passages(entries: Sequence[tuple[datetime, Mapping[str, Any]]]) -> Iterator[tuple[str, Span]]:
    """Yield the states that one writer observed from beginning to end."""
    begun: _Begun | None = None
    last: object = None
    has_seen = False  # the state in the first line of a writer may have begun long before
    for at, entry in entries:
        event, state = entry.get("event"), entry.get("state")
        if event == "create":
            begun = _Begun(_CREATING, at)
        if event != "state":
            has_seen = has_seen or event in _ACTIONS
            continue
        if begun and begun.state == _CREATING and begun.node_id is None and state in {None, _CREATING}:
            # Just after the request the node may not exist yet.
            begun = _Begun(_CREATING, begun.start, entry.get("id"))
        elif not has_seen or state != last:
            if begun and begun.ends_with(entry) and at >= begun.start:
                yield begun.state, Span(begun.start, at)
            is_passing = has_seen and isinstance(state, str) and state in _PASSING | {_CREATING}
            begun = _Begun(str(state), at, entry.get("id")) if is_passing else None
        last, has_seen = state, True


@dataclass(frozen=True, slots=True)
class _Begun:
    """A state whose beginning was observed, and the id of the node if it is known."""

    state: str
    start: datetime
    node_id: str | None = None

    def ends_with(self, entry: Mapping[str, Any]) -> bool:
        """Return whether the next state ends this one successfully, for the same node."""
        state, node_id = entry.get("state"), entry.get("id")
        is_same_node = None in {self.node_id, node_id} or self.node_id == node_id
        return is_same_node and (state == _READY if self.state == _CREATING else state is not None)


def _dated(entries: Entries) -> Iterator[tuple[datetime, Mapping[str, Any]]]:
    for entry in entries:
        at = parse_timestamp(entry.get("at"))
        if at is not None:
            yield at, entry
