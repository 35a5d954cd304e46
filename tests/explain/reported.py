"""Messages and sightings made by hand, for tests of conclusions and of their rendering."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tpuctl.explain.log_endings import LogEnding
from tpuctl.explain.log_lines import LogPlace, ScanResult, Sighting, Suspect
from tpuctl.explain.messages import Action, Message, MessageOrigin, MessageRole

BEGAN = datetime(2026, 3, 1, 10, tzinfo=UTC)


def message(id_: str, role: MessageRole = MessageRole.CAUSE, **fields: Any) -> Message:
    """Return a message of that role."""
    defaults: dict[str, Any] = {
        "where": MessageOrigin.TRAINING_LOG,
        "match": id_,
        "kind": "failure",
        "meaning": f"{id_} happened",
        "remedy": (f"fix {id_} of {{node}}",),
        "action": Action.FIX_TRAINING_CODE,
        "retriable": False,
        "source": "a test",
    }
    for name in ("explained_by", "ends", "latest"):
        fields[name] = frozenset(fields.get(name, ()))
    return Message(id=id_, role=role, **{**defaults, **fields})


def place(line: int, *, minute: float | None = None, worker: str | None = None, source: str | None = None) -> LogPlace:
    """Return a place, with a time if a minute after ten is given."""
    time = None if minute is None else BEGAN + timedelta(minutes=minute)
    return LogPlace(line, f"line {line}", worker=worker, time=time, source=source)


def sighting(known: Message, first: LogPlace, last: LogPlace | None = None, **fields: Any) -> Sighting:
    """Return a sighting; one place alone is the first and the last."""
    return Sighting(known, first, last or first, **fields)


def scan_of(
    *sightings: Sighting, suspicious: tuple[LogPlace, ...] = (), endings: tuple[LogEnding, ...] = ()
) -> ScanResult:
    """Return the scan of a log with these sightings."""
    suspects = tuple(Suspect(place, score=9) for place in suspicious)
    return ScanResult(sightings, suspects, lines=100_000, size=1, endings=endings)
