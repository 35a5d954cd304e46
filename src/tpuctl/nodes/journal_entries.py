"""Encode and decode the lines of a journal, and choose those that outlive a rotation. Pure.

A line is a JSON object with `at` (RFC 3339, to the millisecond), `event`, `by` (host and process of the writer) and the
data of the event.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.decoding import Range, ShapeError, parse_json, read_fields
from tpuctl.models.api_values import ApiCount, ApiFloat, ApiText, ApiTime, Segment
from tpuctl.models.spec import NodeSpec

if TYPE_CHECKING:
    from datetime import datetime

JournalEntry = dict[str, Any]  # JSON


@dataclass(frozen=True, slots=True)
class EntryFields:
    """The fields of entries that tpuctl reads: what an event has depends on the event. Null is absent."""

    by: ApiText | None = None
    event: ApiText | None = None
    id: ApiText | None = None
    state: ApiText | None = None
    health: ApiText | None = None
    reason: ApiText | None = None
    text: ApiText | None = None
    level: ApiText | None = None
    error: ApiText | None = None
    refused: ApiText | None = None
    unsent: ApiText | None = None
    script: ApiText | None = None
    race: ApiText | None = None
    winner: ApiText | None = None
    created: ApiText | None = None
    job: ApiText | None = None
    node: ApiText | None = None
    tier: ApiText | None = None
    token: ApiText | None = None
    verdict: ApiText | None = None
    worker: ApiText | None = None
    zone: ApiText | None = None
    zones: tuple[Segment, ...] | None = None
    attempt: ApiCount | None = None
    code: ApiCount | None = None
    price: ApiFloat | None = None
    ok: bool | None = None
    repair: bool | None = None
    over: bool | None = None
    same: bool | None = None
    at: ApiTime | None = None
    until: ApiTime | None = None
    took: Annotated[float, Range(0, 10**10)] | None = None
    spec: NodeSpec | None = None


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
                entry: JournalEntry | None = parse_json(line)
                read_fields(EntryFields, entry)
            except ShapeError:
                entry = None
            is_torn = entry is None and not line.rstrip().endswith(b"}")
            if entry is not None:
                entries.append(entry)
            elif not is_torn:
                damaged.append(number)
    return entries, tuple(damaged), is_torn


def last_lines(content: bytes) -> bytes:
    """Return the lines that outlive a rotation, in order: the last one with a spec, and the last of each other event.

    Of the notes only the refusals count. Lines that only another version of tpuctl can read are among them.
    """
    kept: dict[str, bytes] = {}
    for line in _lines(content):
        try:
            entry = parse_json(line)
        except ShapeError:
            continue
        if isinstance(entry, dict) and (entry.get("event") != "note" or entry.get("refused")):
            key = "spec" if entry.get("spec") else str(entry.get("event"))
            kept.pop(key, None)
            kept[key] = line
    return b"".join(kept.values())


def shorten_journal(content: bytes, size: int) -> bytes:
    """Return the newest lines, at most `size` bytes, behind those of the others that outlive a rotation."""
    lines = _lines(content)
    first, total = len(lines), 0
    while first and total + len(lines[first - 1]) <= size:
        first -= 1
        total += len(lines[first])
    return last_lines(b"".join(lines[:first])) + b"".join(lines[first:])


def merge_journals(older: bytes, newer: bytes) -> bytes:
    """Return the lines of two files, without those that a rotation has copied into the newer one."""
    known = {*_lines(older)}
    return older + b"".join(line for line in _lines(newer) if line not in known) if known else newer


def _lines(content: bytes) -> list[bytes]:
    # Not `splitlines`: a torn line may contain other bytes that end lines.
    return [line + b"\n" for line in content.split(b"\n") if line]
