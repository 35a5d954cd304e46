"""Skips lines that were searched before: logs repeat themselves, only with other numbers.

Compares the letters of a line and of the line before it, so that a message across two lines is searched when these two meet
for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

# Pairs of lines remembered, as numbers: about 5 MiB.
_MOST = 60_000
# If most pairs are new, it is faster to search all lines, and not to compare the next blocks at all.
_NEW_SHARE = 0.5
_SKIPPED_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Novel:
    """Ranges of lines to search, and for each the pairs of lines to remember if it holds no literal."""

    parts: Sequence[tuple[int, int]]
    pairs: Sequence[Sequence[int]]


@dataclass(slots=True)
class Novelty:
    """Remembers which pairs of lines hold no literal."""

    _empty: set[int] = field(default_factory=set)
    _skipped: int = 0

    def copy(self) -> Novelty:
        """Return an independent copy."""
        return Novelty(set(self._empty), self._skipped)

    def of(self, count: int, read: Callable[[], Sequence[bytes]]) -> Novel:
        """Return the new parts among `count` lines, whose letters `read` returns.

        A part has two more lines on each side of a new pair: a literal may span them.
        """
        if self._skipped:
            self._skipped -= 1
            return Novel([(0, count)], [()])
        pairs = list(map(hash, pairwise(read())))
        new = [index for index, pair in enumerate(pairs) if pair not in self._empty]
        if not new:
            return Novel((), ())
        if len(new) > _NEW_SHARE * len(pairs):
            self._skipped = _SKIPPED_BLOCKS if len(self._empty) > _MOST // 6 else 0
            return Novel([(0, count)], [pairs])
        runs: list[tuple[int, int]] = []
        for index in new:
            if runs and index <= runs[-1][1] + 4:
                runs[-1] = (runs[-1][0], index)
            else:
                runs.append((index, index))
        parts = [(max(0, first - 2), last + 4) for first, last in runs]
        return Novel(parts, [pairs[first : last + 1] for first, last in runs])

    def remember(self, novel: Novel, read: Callable[[tuple[int, int]], bytes], hits: Sequence[bytes]) -> None:
        """Remember the pairs of the parts without any of the literals that were found; `read` returns the text of a part."""
        if len(self._empty) > _MOST:
            self._empty.clear()
        for part, pairs in zip(novel.parts, novel.pairs, strict=True):
            if not pairs:
                continue
            text = read(part) if hits else b""
            if not any(hit in text for hit in hits):
                self._empty.update(pairs)
