"""Encode and decode the lines of a journal. Pure.

A line is a JSON object with `at` (RFC 3339, to the millisecond), `event`, `by` (host and process of the writer) and the
data of the event.
"""

from __future__ import annotations

import json
from contextlib import suppress
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
    """Return one line with its line end."""
    moment = at.astimezone(UTC)
    fraction = f".{moment.microsecond // 1000:03d}" if moment.microsecond >= 1000 else ""
    stamp = f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"
    return (json.dumps({"at": stamp, "by": by, "event": event, **data}, sort_keys=True) + "\n").encode()


def decode(content: bytes) -> tuple[list[Entry], tuple[int, ...], bool]:
    """Return the entries in order, the numbers (from 1) of damaged lines, and whether the last line is torn.

    A torn line has no end. A torn line before the last was reported when it was the last.
    """
    entries: list[Entry] = []
    damaged: list[int] = []
    is_torn = False
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            try:
                entry: Entry | None = dict(_LINE.read(parse_json(line)))
            except ShapeError:
                entry = None
            is_torn = entry is None and not line.rstrip().endswith(b"}")
            if entry is not None:
                entries.append(entry)
            elif not is_torn:
                damaged.append(number)
    return entries, tuple(damaged), is_torn


def halves(content: bytes, *, before: bytes = b"") -> tuple[bytes, bytes]:
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


def shortened(content: bytes) -> bytes:
    """Return the newer half. The line of the last spec is kept at its head if it would be lost."""
    older, newer = halves(content)
    return (b"" if _spec_line(_lines(newer)) else _spec_line(_lines(older))) + newer


def joined(older: bytes, newer: bytes) -> bytes:
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
