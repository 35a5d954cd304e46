"""Encode, decode and analyse the lines of a journal: durations of states, usable time, used repairs. Pure.

A line is a JSON object with `at` (RFC 3339, to the millisecond), `event`, `by` (host and process of the writer) and the
data of the event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.durations import parse_timestamp
from tpuctl.errors import NoCapacityError
from tpuctl.models.spec import JOURNALED_SPEC
from tpuctl.shapes import NUMBER, SEGMENT, TIME, ListOf, Scalar, Shape, ShapeError, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from tpuctl.nodes.conditions import RepairAttempts

JournalEntry = dict[str, Any]  # JSON
ENTRY_SHAPE = Shape(
    "",
    {
        **dict.fromkeys(("by", "event", "id", "state", "health", "reason", "text", "level", "error", "refused"), str),
        **dict.fromkeys(("race", "winner", "created"), str),
        "zones": ListOf(SEGMENT),
        **dict.fromkeys(("ok", "repair", "over"), bool),
        **dict.fromkeys(("at", "until"), TIME),
        "took": Scalar("a number of seconds", lambda value: NUMBER.accepts(value) and 0 <= float(value) < 10**10),
        "spec": JOURNALED_SPEC,
    },
    nullable=True,
)


def encode_entry(event: str, at: datetime, *, by: str, data: Mapping[str, Any]) -> bytes:
    """Return one line with its line end."""
    moment = at.astimezone(UTC)
    fraction = f".{moment.microsecond // 1000:03d}" if moment.microsecond >= 1000 else ""
    stamp = f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"
    return (json.dumps({"at": stamp, "by": by, "event": event, **data}, sort_keys=True) + "\n").encode()


def decode_entries(content: bytes) -> tuple[list[JournalEntry], tuple[int, ...], bool]:
    """Return the entries in order, the numbers (from 1) of damaged lines, and whether the last line is torn.

    A torn line has no end. A torn line before the last was reported when it was the last.
    """
    entries: list[JournalEntry] = []
    damaged: list[int] = []
    is_torn = False
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            try:
                entry: JournalEntry | None = dict(ENTRY_SHAPE.read(parse_json(line)))
            except ShapeError:
                entry = None
            is_torn = entry is None and not line.rstrip().endswith(b"}")
            if entry is not None:
                entries.append(entry)
            elif not is_torn:
                damaged.append(number)
    return entries, tuple(damaged), is_torn


def split_halves(content: bytes, *, before: bytes = b"") -> tuple[bytes, bytes]:
    """Return the older and the newer half of a journal, split between lines.

    `before` is the earlier content that is dropped. If the last spec is in it, its line is kept at the head of the older
    half.
    """
    lines = _lines(content)
    first, size = len(lines), 0
    while first and size + len(lines[first - 1]) <= len(content) // 2:
        first -= 1
        size += len(lines[first])
    carried = b"" if _spec_line(lines) else _spec_line(_lines(before))
    return b"".join([carried, *lines[:first]]), b"".join(lines[first:])


def shorten_journal(content: bytes) -> bytes:
    """Return the newer half. The line of the last spec is kept at its head if it would be lost."""
    older, newer = split_halves(content)
    return (b"" if _spec_line(_lines(newer)) else _spec_line(_lines(older))) + newer


def merge_journals(older: bytes, newer: bytes) -> bytes:
    """Merge two generations. A crash during a rotation leaves the older half in both: it is used once."""
    first = newer[: newer.find(b"\n") + 1]
    start = older.find(first) if first else -1
    is_repeated = start >= 0 and newer.startswith(older[start:])
    return (older[:start] if is_repeated else older) + newer


def _spec_line(lines: Sequence[bytes]) -> bytes:
    """Return the last line with a spec, also one that only another version of tpuctl can read; empty if there is none."""
    for line in reversed(lines):
        if b'"spec"' in line:
            with suppress(ShapeError):
                entry = parse_json(line)
                if isinstance(entry, dict) and entry.get("spec"):
                    return line
    return b""


def _lines(content: bytes) -> list[bytes]:
    # Not `splitlines`: a torn line may contain other bytes that end lines.
    return [line + b"\n" for line in content.split(b"\n") if line]


JournalEntries = Sequence[Mapping[str, Any]]  # JSON

_CREATING, _READY, _ON_DEMAND = "CREATING", "READY", "on-demand"
# Transient states. The duration of any other state predicts nothing about other nodes.
_PASSING = frozenset({"STARTING", "STOPPING", "RESTARTING", "REPAIRING"})
_ACTIONS = frozenset({"create", "delete", "stop", "start", "restart", "reboot"})
_USABLE = frozenset({"usable", "recovered"})
_NOT_USABLE = _ACTIONS | {"bringing-up", "preempted", "gave-up"}
_REPAIRS = {"reboot": "reboots", "restart": "restarts", "delete": "recreates"}


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A span of time. `end` is None while it has not ended."""

    start: datetime
    end: datetime | None = None

    def within(self, since: datetime, now: datetime) -> timedelta:
        """Return how much of the span lies between two times."""
        return max(min(self.end or now, now) - max(self.start, since), timedelta())


def state_durations(nodes: Iterable[JournalEntries], *, limit: int | None = None) -> dict[str, tuple[timedelta, ...]]:
    """Return the sorted durations of each transient state of nodes and queued resources; at most the `limit` most recent ones.

    CREATING lasts from the request, or from its first observation, until READY is first observed; STARTING, STOPPING,
    RESTARTING and REPAIRING last until the next state. A state counts if one writer observed it from beginning to end.
    """
    found: dict[str, list[TimeSpan]] = {}
    for entries in nodes:
        by_writer: dict[str, list[tuple[datetime, Mapping[str, Any]]]] = {}
        for at, entry in _dated(entries):
            by_writer.setdefault(str(entry.get("by")), []).append((at, entry))
        for of_one in by_writer.values():
            for state, span in (*_state_spans(of_one), *_request_spans(of_one)):
                found.setdefault(state, []).append(span)
    lasted: dict[str, tuple[timedelta, ...]] = {}
    for state, spans in found.items():
        ended = sorted(((span.end, span.end - span.start) for span in spans if span.end), reverse=True)
        lasted[state] = tuple(sorted(length for _, length in ended[:limit]))
    return lasted


def entries_of_type(entries: JournalEntries, accelerator_type: str) -> list[Mapping[str, Any]]:
    """Return the entries of the times in which the node had this accelerator type, by its spec."""
    kept, matches = [], False
    for entry in entries:
        if spec := entry.get("spec"):
            matches = isinstance(spec, dict) and spec.get("accelerator_type") == accelerator_type
        if matches:
            kept.append(entry)
    return kept


def has_lost_race(entries: JournalEntries, zone: str) -> bool:
    """Return whether another zone won the last race for this node, and no node was created in this one since."""
    has_lost = False
    for entry in entries:
        if entry.get("event") == "race" and entry.get("winner"):
            has_lost = entry["winner"] != zone
        elif entry.get("event") == "create":
            has_lost = False
    return has_lost


def has_failed_creation(entries: JournalEntries) -> bool:
    """Return whether the last attempt to create the node failed, for lack of capacity say, and left no node."""
    has_failed = is_there = is_deleted = False
    for entry in entries:
        match entry.get("event"):
            case "create":
                has_failed = is_there = is_deleted = False
            case "delete":
                is_deleted = True
            case "state":
                is_there = entry.get("state") is not None
            case "gave-up":
                # A request that waits at the deadline is not deleted, and may still get a node.
                has_failed = is_deleted or entry.get("error") != "timed_out"
    return has_failed and not is_there


def may_have_node(entries: JournalEntries, zone: str) -> bool:
    """Return whether tpuctl has requested or seen a node in this zone, and not seen or requested its end since."""
    has_node, winner = False, None
    for entry in entries:
        match entry.get("event"):
            case "create" | "bringing-up" | "usable" | "recovered":
                has_node = True
            case "delete":
                has_node = False
            case "state":
                has_node = entry.get("state") is not None
            case "race":
                winner = entry.get("winner") or winner
                has_node = has_node and (not entry.get("over") or winner == zone)
    return has_node


def usable_spans(entries: JournalEntries) -> list[TimeSpan]:
    """Return the spans in which the node was usable, according to its entries."""
    spans: list[TimeSpan] = []
    since: datetime | None = None
    for at, entry in _dated(entries):
        if entry.get("event") in _USABLE:
            since = since or at
            continue
        if entry.get("event") == "state":
            # A health that is not reported proves nothing.
            is_well = entry.get("health") in {None, "", "HEALTHY", "HEALTH_UNSPECIFIED"}
            is_end = entry.get("state") != _READY or not is_well
        else:
            is_end = entry.get("event") in _NOT_USABLE
        if since and is_end:
            spans.append(TimeSpan(since, at))
            since = None
    return [*spans, TimeSpan(since)] if since else spans


def used_repairs(entries: JournalEntries, *, refill: timedelta, now: datetime) -> RepairAttempts:
    """Return the repairs since the node was last usable for `refill` without interruption.

    A delete counts as a recreation only with `repair: true`; a reboot and a restart count unless `repair` is false.
    """
    from tpuctl.nodes.conditions import RepairAttempts  # noqa: PLC0415  # a timeline needs none of the rules

    full = [span for span in usable_spans(entries) if (span.end or now) - span.start >= refill]
    since = full[-1].start if full else None
    counts = dict.fromkeys(_REPAIRS.values(), 0)
    for at, entry in _dated(entries):
        if (since is None or at > since) and is_repair(entry):
            counts[_REPAIRS[entry["event"]]] += 1
    return RepairAttempts(**counts)


@dataclass(frozen=True, slots=True)
class ZoneMemory:
    """When a zone last had a node of some accelerator type and capacity type, and when it last had none."""

    success: datetime | None = None
    stockout: datetime | None = None

    def merge(self, other: ZoneMemory) -> ZoneMemory:
        """Return the later times of both."""
        return ZoneMemory(_later(self.success, other.success), _later(self.stockout, other.stockout))


def zone_memory(entries: JournalEntries, accelerator_type: str, tier: str | None) -> ZoneMemory:
    """Return what the journal of one node remembers of its zone, for creations of this type and tier; None is on-demand.

    A success is a `create` after which the node was READY or usable; a stock-out is one that failed for lack of capacity.
    """
    success: datetime | None = None
    stockout: datetime | None = None
    is_open = False  # a creation of this kind was requested, and has not ended
    for at, entry in _dated(entries):
        event = entry.get("event")
        if event == "create":
            spec = entry.get("spec") or {}
            asked = (spec.get("accelerator_type"), spec.get("tier") or _ON_DEMAND)
            is_open = asked == (accelerator_type, tier or _ON_DEMAND)
        elif not is_open:
            continue
        elif event in _USABLE or (event == "state" and entry.get("state") == _READY):
            success, is_open = at, False
        elif entry.get("error") == NoCapacityError.kind:
            # A queued resource may still succeed.
            stockout = at
        elif event == "delete":
            is_open = False
    return ZoneMemory(success, stockout)


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max(filter(None, (one, other)), default=None)


def is_repair(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry is a repair that counts against a budget."""
    event = entry.get("event")
    return event in _REPAIRS and bool(entry.get("repair", event != "delete"))


def _state_spans(entries: Sequence[tuple[datetime, Mapping[str, Any]]]) -> Iterator[tuple[str, TimeSpan]]:
    """Yield the states that one writer observed from beginning to end."""
    begun: _StateBegin | None = None
    last: object = None
    has_seen = False  # the state in the first line of a writer may have begun long before
    for at, entry in entries:
        event, state = entry.get("event"), entry.get("state")
        if event == "create":
            begun = _StateBegin(_CREATING, at)
        if event != "state":
            has_seen = has_seen or event in _ACTIONS
            continue
        if begun and begun.state == _CREATING and begun.node_id is None and state in {None, _CREATING}:
            # Just after the request the node may not exist yet.
            begun = _StateBegin(_CREATING, begun.start, entry.get("id"))
        elif not has_seen or state != last:
            if begun and begun.ends_with(entry) and at >= begun.start:
                yield begun.state, TimeSpan(begun.start, at)
            is_passing = has_seen and isinstance(state, str) and state in _PASSING | {_CREATING}
            begun = _StateBegin(str(state), at, entry.get("id")) if is_passing else None
        last, has_seen = state, True


# A queued resource goes on from these to a node. The service decides about others at once, or never.
_QUEUED = {"WAITING_FOR_RESOURCES": {"PROVISIONING", "ACTIVE"}, "PROVISIONING": {"ACTIVE"}}


def _request_spans(entries: Sequence[tuple[datetime, Mapping[str, Any]]]) -> Iterator[tuple[str, TimeSpan]]:
    """Yield the states of queued resources that one writer observed from beginning to end."""
    begun: tuple[str, datetime] | None = None
    for at, entry in entries:
        state = entry.get("state")
        if entry.get("event") == "create":
            begun = None
        elif entry.get("event") == "request":
            if begun and state in _QUEUED[begun[0]]:
                yield begun[0], TimeSpan(begun[1], at)
            begun = (state, at) if state in _QUEUED else None


@dataclass(frozen=True, slots=True)
class _StateBegin:
    """A state whose beginning was observed, and the id of the node if it is known."""

    state: str
    start: datetime
    node_id: str | None = None

    def ends_with(self, entry: Mapping[str, Any]) -> bool:
        """Return whether the next state ends this one successfully, for the same node."""
        state, node_id = entry.get("state"), entry.get("id")
        is_same_node = None in {self.node_id, node_id} or self.node_id == node_id
        return is_same_node and (state == _READY if self.state == _CREATING else state is not None)


def _dated(entries: JournalEntries) -> Iterator[tuple[datetime, Mapping[str, Any]]]:
    for entry in entries:
        at = parse_timestamp(entry.get("at"))
        if at is not None:
            yield at, entry


def request_state_since(entries: JournalEntries, state: str, *, created: datetime | None) -> datetime | None:
    """Return when tpuctl first saw a queued resource in its present state, None if it did not.

    `created` is the creation of the queued resource: older entries are about another one.
    """
    since: datetime | None = None
    for at, entry in _dated(entries):
        if entry.get("event") != "request" or (created is not None and at < created):
            continue
        if entry.get("state") != state:
            since = None
        elif since is None:
            since = at
    return since
