"""Several logs of one failure, such as one for each worker, taken together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tpuctl.diagnosis.sightings import Place, Seen, Sighting

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUSPICIOUS_SHOWN: Final = 10


def together(logs: Mapping[str, Seen]) -> Seen:
    """Return what was seen in several logs, by the name of each, as of one. A line that names no worker gets the log's name."""
    found: dict[str, Sighting] = {}
    for name, seen in logs.items():
        for sighting in seen.sightings:
            named = _named(sighting, name)
            known = found.get(sighting.message.id)
            found[sighting.message.id] = _both(known, named) if known else named
    return Seen(
        tuple(found.values()),
        tuple(replace(place, source=name) for name, seen in logs.items() for place in seen.suspicious)[
            :_SUSPICIOUS_SHOWN
        ],
        sum(seen.lines for seen in logs.values()),
        sum(seen.size for seen in logs.values()),
        is_binary=bool(logs) and all(seen.is_binary for seen in logs.values()),
    )


def _named(sighting: Sighting, name: str) -> Sighting:
    def place(one: Place) -> Place:
        return replace(one, source=name, worker=one.worker or name)

    workers = {worker: place(one) for worker, one in sighting.workers.items()} or {name: place(sighting.first)}
    return replace(sighting, first=place(sighting.first), last=place(sighting.last), workers=workers)


def _both(one: Sighting, other: Sighting) -> Sighting:
    """Return one message that two logs hold. What is no quote goes first, then what is older where both logs tell the time."""
    first, second = (other, one) if _is_first(other, one) else (one, other)
    return replace(
        first,
        last=max(first.last, second.last, key=_moment) if first.last.time and second.last.time else second.last,
        count=first.count + second.count,
        quoted=first.quoted + second.quoted,
        workers={
            **first.workers,
            **{name: place for name, place in second.workers.items() if name not in first.workers},
        },
        memory=first.memory or second.memory,
    )


def _is_first(one: Sighting, other: Sighting) -> bool:
    if one.is_quoted != other.is_quoted:
        return other.is_quoted
    if (
        one.first.time is None
        or other.first.time is None
        or (one.first.time.tzinfo is None) != (other.first.time.tzinfo is None)
    ):
        return False
    return one.first.time < other.first.time


def _moment(place: Place) -> float:
    return place.time.timestamp() if place.time else 0.0
