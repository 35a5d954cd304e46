"""Leaves out of a search what was searched before: logs say the same again and again, only with other numbers.

Compared are the letters of a line and of the one before it, so that what spans two lines is searched where these two meet for
the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress, pairwise

# Pairs of lines remembered, as numbers: about 5 MiB.
_MOST = 60_000
# Where most pairs are new it is quicker to search all, and not to ask for some blocks.
_MOSTLY, _REST = 0.5, 3


@dataclass(frozen=True, slots=True)
class Novel:
    """What is to be searched: from which line to which, and the pairs of lines, to be remembered if nothing is found there."""

    parts: Sequence[tuple[int, int]]
    pairs: Sequence[Sequence[int]]


@dataclass(slots=True)
class Novelty:
    """Knows which pairs of lines hold nothing."""

    _empty: set[int] = field(default_factory=set)
    _rest: int = 0

    def copy(self) -> Novelty:
        """Return one that goes on independently."""
        return Novelty(set(self._empty), self._rest)

    def of(self, count: int, read: Callable[[], Sequence[bytes]]) -> Novel:
        """Return what is new in so many lines, whose letters `read` returns.

        Round each new pair two more lines belong to it: an anchor may span more.
        """
        if self._rest:
            self._rest -= 1
            return Novel([(0, count)], [()])
        pairs = list(map(hash, pairwise(read())))
        empty = self._empty
        is_new = [pair not in empty for pair in pairs]
        how_many = sum(is_new)
        if not how_many:
            return Novel((), ())
        if how_many > _MOSTLY * len(pairs):
            self._rest = _REST if len(empty) > _MOST // 6 else 0
            return Novel([(0, count)], [pairs])
        parts: list[tuple[int, int]] = []
        held: list[Sequence[int]] = []
        for start, end in _runs(compress(range(len(pairs)), is_new)):
            parts.append((max(0, start - 2), end + 4))
            held.append(pairs[start : end + 1])
        return Novel(parts, held)

    def remember(self, novel: Novel, read: Callable[[tuple[int, int]], bytes], hits: Sequence[bytes]) -> None:
        """Remember the pairs of those parts that hold none of the literals that were found; `read` returns the text of one."""
        if len(self._empty) > _MOST:
            self._empty.clear()
        for part, pairs in zip(novel.parts, novel.pairs, strict=True):
            if pairs and not (hits and _has_any(read(part), hits)):
                self._empty.update(pairs)


def _has_any(text: bytes, hits: Sequence[bytes]) -> bool:
    return any(hit in text for hit in hits)


def _runs(places: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Yield the first and the last of places that are near each other."""
    first = last = -1
    for place in places:
        if last < 0:
            first = place
        elif place > last + 4:
            yield first, last
            first = place
        last = place
    if last >= 0:
        yield first, last
