"""The lines of a journal, as bytes and as entries. Pure.

A line is a JSON object with `at` (RFC 3339, to the millisecond), `event`, `by` (host and process that wrote it) and the
event's own data.
"""

from __future__ import annotations

import json
from datetime import UTC
from typing import TYPE_CHECKING, Any

from tpuctl.model.spec import SPEC
from tpuctl.shapes import NUMBER, TIME, Scalar, Shape, ShapeError, parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

Entry = dict[str, Any]  # JSON
_LINE = Shape(
    "",
    {
        **dict.fromkeys(("by", "event", "id", "state", "health", "reason", "text", "level", "error", "refused"), str),
        **dict.fromkeys(("ok", "repair"), bool),
        "at": TIME,
        "took": Scalar("a number of seconds", lambda value: NUMBER.accepts(value) and 0 <= float(value) < 10**10),
        "spec": SPEC,
    },
    nullable=True,
)


def encode(event: str, at: datetime, *, by: str, data: Mapping[str, Any]) -> bytes:
    """Return one whole line, its end included."""
    return (json.dumps({"at": _moment(at), "by": by, "event": event, **data}, sort_keys=True) + "\n").encode()


def decode(content: bytes) -> tuple[list[Entry], tuple[int, ...], bool]:
    """Return what can be read, in order; the numbers, from 1, of damaged lines; and whether the last line is torn.

    A torn line has no end. One before the last was the last once, when that was told.
    """
    entries: list[Entry] = []
    damaged: list[int] = []
    is_torn = False
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            entry = _entry(line)
            is_torn = entry is None and not line.rstrip().endswith(b"}")
            if entry is not None:
                entries.append(entry)
            elif not is_torn:
                damaged.append(number)
    return entries, tuple(damaged), is_torn


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
    """Return the last line that holds a spec, or None."""
    return next((line for line in reversed(lines) if b'"spec"' in line and _has_spec(line)), b"")


def _has_spec(line: bytes) -> bool:
    """Return whether a line holds a spec, also one that only another version of tpuctl can read."""
    try:
        entry = parse_json(line)
    except ShapeError:
        return False
    return isinstance(entry, dict) and bool(entry.get("spec"))


def _lines(content: bytes) -> list[bytes]:
    # Not `splitlines`: what a crash tore may hold other bytes that end lines.
    return [line + b"\n" for line in content.split(b"\n") if line]


def _entry(line: bytes) -> Entry | None:
    try:
        return dict(_LINE.read(parse_json(line)))
    except ShapeError:
        return None


def _moment(at: datetime) -> str:
    moment = at.astimezone(UTC)
    fraction = f".{moment.microsecond // 1000:03d}" if moment.microsecond >= 1000 else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"
