"""Merge several logs of one failure, such as one for each worker."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tpuctl.diagnosis.sightings import Place, Seen, Sighting

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUSPICIOUS_SHOWN: Final = 10
# `run --log-dir` writes `worker-3.log`; the host name of a worker is like `t1v-n-1a2b3c4d-w-3`.
_WORKER: Final = re.compile(r"(?:\bworker|-w)[-_.]?(?P<number>\d{1,5})(?!\d)")


def together(logs: Mapping[str, Seen]) -> Seen:
    """Return the content of several logs, by name, as if they were one. A line without a worker gets the one of its log."""
    found: dict[str, Sighting] = {}
    for name, seen in logs.items():
        for sighting in seen.sightings:
            named = _with_source(sighting, name)
            known = found.get(sighting.message.id)
            found[sighting.message.id] = _merged(known, named) if known else named
    suspicious = [replace(place, source=name) for name, seen in logs.items() for place in seen.suspicious]
    return Seen(
        tuple(found.values()),
        tuple(suspicious[:_SUSPICIOUS_SHOWN]),
        sum(seen.lines for seen in logs.values()),
        sum(seen.size for seen in logs.values()),
        is_binary=bool(logs) and all(seen.is_binary for seen in logs.values()),
    )


def _with_source(sighting: Sighting, name: str) -> Sighting:
    number = _WORKER.search(name)
    default_worker = number["number"] if number else name

    def with_source(place: Place) -> Place:
        return replace(place, source=name, worker=place.worker or default_worker)

    first = with_source(sighting.first)
    workers = {worker: with_source(place) for worker, place in sighting.workers.items()} or {default_worker: first}
    return replace(sighting, first=first, last=with_source(sighting.last), workers=workers)


def _merged(one: Sighting, other: Sighting) -> Sighting:
    """Merge one message of two logs. A real occurrence goes before a quote, then an older one if both logs give times."""
    is_other_first = one.is_quoted and not other.is_quoted
    if one.is_quoted == other.is_quoted and one.first.time is not None and other.first.time is not None:
        has_same_form = (one.first.time.tzinfo is None) == (other.first.time.tzinfo is None)
        is_other_first = has_same_form and other.first.time < one.first.time
    first, second = (other, one) if is_other_first else (one, other)
    last = second.last
    if first.last.time and second.last.time:
        last = max(first.last, second.last, key=lambda place: place.time.timestamp() if place.time else 0.0)
    return replace(
        first,
        last=last,
        count=first.count + second.count,
        quoted=first.quoted + second.quoted,
        # The places of the first log win.
        workers={
            **first.workers,
            **{name: place for name, place in second.workers.items() if name not in first.workers},
        },
        memory=first.memory or second.memory,
    )
