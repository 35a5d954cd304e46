"""When gcloud reads an operation until it has ended. Pure; observed with gcloud 528 and checked against it in each run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

_FIRST, _SECOND, _GROWTH, _CEILING = 1.0, 2.0, 1.4, 180.0
GIVES_UP = 1800.0


def read_times(random: Random) -> Iterator[float]:
    """Yield the seconds after the answer to a create at which gcloud reads its operation, until it gives up.

    The first read comes after 1 s, then it sleeps 2.0 * 1.4 ** n + U(0, 1) s, at most 180 s.
    """
    moment, pause = _FIRST, _SECOND
    while moment < GIVES_UP:
        yield moment
        moment += min(pause + random.random(), _CEILING)
        pause = min(pause * _GROWTH, _CEILING)


def notice_time(length: float, random: Random) -> tuple[float, int]:
    """Return when gcloud notices the end of an operation of that length, and the number of reads until then."""
    count = 0
    for moment in read_times(random):
        count += 1
        if moment >= length:
            return moment, count
    return GIVES_UP, count
