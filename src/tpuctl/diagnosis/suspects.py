"""The lines that look most like an error, for a log without a known message. Bounded in number and in cost."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.diagnosis.sightings import Place

_MOST = 8
# Lines examined for each word in a block. Kinds of lines remembered, and letters that make a kind.
_PER_WORD = 30
_KINDS, _KIND = 600, 200
_LONGEST = 1000
_WORDS = (b"error", b"exception", b"fatal", b"failed", b"aborted", b"panic", b"denied", b"killed")
_SCORES = (
    (re.compile(r"^(?:\w{1,80}\.){0,12}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit)\b(?::|$)"), 9),
    (
        re.compile(
            r"Check fail(?:ed|ure)|Segmentation fault|core dumped|\bpanic:|\bFATAL\b|Fatal Python error|terminate called"
        ),
        8,
    ),
    (re.compile(r"\b[A-Z]\w{0,80}(?:Error|Exception): "), 7),
    (re.compile(r"^(?:CRITICAL|E\d{4})\b|\bERROR\b|^fatal: |^error: "), 6),
    (re.compile(r"(?i)\b(?:permission denied|connection refused|no such file|command not found|killed|aborted)\b"), 5),
    (re.compile(r"(?i)\b(?:failed|failure|cannot|unable to|could not|timed out)\b"), 4),
    (re.compile(r"(?i)\b(?:error|invalid|not found|exception)\b"), 2),
)
_BEST = _SCORES[0][1]
# Wordings that look alarming but are harmless.
_MILD = re.compile(
    r"(?i)\b(?:0|no|zero|without|any) (?:errors?|failures?|failed)\b|error[_ ]rate|mean[ _]\w{1,20}[ _]error|\bmse\b|\brmse\b|"
    r"\berrors?[=: ]{1,3}(?:0\b|none\b|\d[\d.]{0,20}(?:e-?\d{1,3})?(?:\s|,|$))|\bfailed[=: ]{1,3}0\b|^\s{0,40}File \"|"
    r"^\s{0,40}(?:raise|except) "
)


@dataclass(slots=True)
class Suspects:
    """Keeps the lines that look most like an error, of each kind of line the first."""

    _kept: list[tuple[int, int, Place]] = field(default_factory=list)
    _kinds: set[int] = field(default_factory=set)
    _taken: int = 0

    def copy(self) -> Suspects:
        """Return an independent copy."""
        return Suspects(list(self._kept), set(self._kinds), self._taken)

    @property
    def places(self) -> tuple[Place, ...]:
        """The lines with the highest scores, the highest first; of equals the first in the log."""
        return tuple(place for _, _, place in self._kept)

    def may_be_in(self, text: bytes) -> bool:
        """Tell whether a text may hold a line to keep. Only the letters of the text are given."""
        if len(self._kinds) >= _KINDS or (len(self._kept) == _MOST and self._kept[-1][0] <= -_BEST):
            return False
        return any(word in text for word in _WORDS)

    def candidates(self, lines: bytes) -> list[int]:
        """Return the indices of the lines to score; of each line the letters are given."""
        found: set[int] = set()
        for word in _WORDS:
            at = lines.find(word)
            for _ in range(_PER_WORD):
                if at < 0:
                    break
                start, end = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at)
                kind = hash(lines[start : end if end >= 0 else None][:_KIND])
                if kind not in self._kinds:
                    self._kinds.add(kind)
                    found.add(lines.count(b"\n", 0, at))
                at = lines.find(word, end) if end >= 0 else -1
        return sorted(found)

    def take(self, place: Place) -> None:
        """Keep a line if it looks more like an error than one of those kept."""
        if points := score(place.text):
            self._taken += 1
            self._kept = sorted([*self._kept, (-points, self._taken, place)], key=lambda kept: kept[:2])[:_MOST]


def score(line: str) -> int:
    """Return how much a line looks like an error: 0 not at all, 9 like the last line of a traceback."""
    if _MILD.search(line[:_LONGEST]):
        return 0
    return next((points for pattern, points in _SCORES if pattern.search(line[:_LONGEST])), 0)
