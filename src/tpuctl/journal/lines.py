"""The lines of a journal, as bytes and as entries. Pure.

A line is a JSON object with `at` (RFC 3339, to the millisecond), `event`, `by` (host and process that wrote it) and the
event's own data.
"""

from __future__ import annotations

import json
from datetime import UTC
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

Entry = dict[str, Any]  # JSON


def encode(event: str, at: datetime, *, by: str, data: Mapping[str, Any]) -> bytes:
    """Return one whole line, its end included."""
    return (json.dumps({"at": _moment(at), "by": by, "event": event, **data}, sort_keys=True) + "\n").encode()


def decode(content: bytes) -> tuple[list[Entry], bool]:
    """Return what can be read, in order, and whether the last line is torn. A line that is no JSON object is left out."""
    lines = [line for line in content.split(b"\n") if line.strip()]
    entries = [_entry(line) for line in lines]
    return [entry for entry in entries if entry is not None], bool(entries) and entries[-1] is None


def halves(content: bytes, *, before: bytes = b"") -> tuple[bytes, bytes]:
    """Return the older and the newer half of what was written, cut between lines.

    `before` is what came earlier and is given up: where the last spec is in there, its line leads the older half.
    """
    lines = _lines(content)
    first, size = len(lines), 0
    while first and size + len(lines[first - 1]) <= len(content) // 2:
        first -= 1
        size += len(lines[first])
    carried = b"" if _spec_line(lines) else _spec_line(_lines(before))
    return b"".join([carried, *lines[:first]]), b"".join(lines[first:])


def shortened(content: bytes) -> bytes:
    """Return the newer half, led by the line of the last spec where that would be lost."""
    older, newer = halves(content)
    return (b"" if _spec_line(_lines(newer)) else _spec_line(_lines(older))) + newer


def joined(older: bytes, newer: bytes) -> bytes:
    """Return two generations as one. A crash amid a rotation leaves the older half in both: then it is taken once."""
    first = newer[: newer.find(b"\n") + 1]
    start = older.find(first) if first else -1
    is_repeated = start >= 0 and newer.startswith(older[start:])
    return (older[:start] if is_repeated else older) + newer


def _spec_line(lines: Sequence[bytes]) -> bytes:
    """Return the last line that holds a spec, or nothing."""
    return next((line for line in reversed(lines) if b'"spec"' in line and (_entry(line) or {}).get("spec")), b"")


def _lines(content: bytes) -> list[bytes]:
    # Not `splitlines`: what a crash tore may hold other bytes that end lines.
    return [line + b"\n" for line in content.split(b"\n") if line]


def _entry(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except ValueError:  # also for bytes that are no UTF-8
        return None
    return entry if isinstance(entry, dict) else None


def _moment(at: datetime) -> str:
    moment = at.astimezone(UTC)
    fraction = f".{moment.microsecond // 1000:03d}" if moment.microsecond >= 1000 else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"
