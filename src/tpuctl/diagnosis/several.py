"""Several logs of one failure, such as one for each worker, taken together."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tpuctl.diagnosis.sightings import Place, Seen, Sighting

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUSPICIOUS_SHOWN: Final = 10
# `run --log-dir` writes `worker-3.log`; a worker calls itself `t1v-n-1a2b3c4d-w-3`.
_WORKER: Final = re.compile(r"(?:\bworker|-w)[-_.]?(?P<number>\d{1,5})(?!\d)")


def together(logs: Mapping[str, Seen]) -> Seen:
    """Return what was seen in several logs, by the name of each, as of one. A line without a worker gets that of the log."""
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
    number = _WORKER.search(name)
    whose = number["number"] if number else name

    def place(one: Place) -> Place:
        return replace(one, source=name, worker=one.worker or whose)

    workers = {worker: place(one) for worker, one in sighting.workers.items()} or {whose: place(sighting.first)}
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
