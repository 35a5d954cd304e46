"""A secret in a piece of text: where it is, of what kind, and what still belongs to it where the piece ends in its midst."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# The longest match of a rule from its anchor on, or back from it, not counting the rest of a secret that a `tail` describes.
REACH = 24 * 1024
LONG = 16
_LONG_WORD = b"a" * LONG
_OF_WORDS = bytes(
    ord("a") if char in b"abcdefghijklmnopqrstuvwxyz0123456789_-.~/:+=" else ord(" ") for char in range(256)
)


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `end` of a piece are a secret. `tail` matches, where they touch the end of the piece, what goes on.

    `label` replaces it; nothing for `[redacted KIND]`. Without a `kind` it is none, and need not be looked at again.
    """

    start: int
    end: int
    kind: str
    tail: re.Pattern[bytes] | None = None
    label: bytes | None = None

    @property
    def text(self) -> bytes:
        """What stands in its place."""
        return b"[redacted %s]" % self.kind.encode() if self.label is None else self.label


@dataclass(frozen=True, slots=True)
class Rule:
    """How secrets of one kind are found: where the anchor, in lower case, is met, `look` tells what is there, if anything.

    A rule that finds only what is long looks only into words of at least `LONG` characters.
    """

    anchor: bytes
    look: Callable[[bytes, int], Iterable[Span]]
    is_long: bool = False


class Words:
    """The long words of a text, in lower case: few, where all of the text is much."""

    def __init__(self, lowered: bytes) -> None:
        marked = lowered.translate(_OF_WORDS)
        words, self._here, self._there = [], [0], [0]
        at, length = marked.find(_LONG_WORD), 0
        while at >= 0:
            end = marked.find(b" ", at + LONG)
            words.append(lowered[at : end if end >= 0 else len(lowered)])
            self._here.append(length)
            self._there.append(at)
            length += len(words[-1]) + 1
            at = marked.find(_LONG_WORD, end) if end >= 0 else -1
        self.text = b"\n".join(words)

    def place(self, at: int) -> int:
        """Return where in the text stands what stands here."""
        part = bisect_right(self._here, at) - 1
        return self._there[part] + at - self._here[part]


def run_of(characters: bytes) -> re.Pattern[bytes]:
    """Return the pattern of as many of these characters as there are."""
    return re.compile(rb"[%s]*" % characters)


def going_on(data: bytes, start: int, at: int, kind: str, tail: re.Pattern[bytes]) -> Span:
    """Return the secret that begins at `start`, is known up to `at`, and goes on as `tail` says."""
    found = tail.match(data, at)
    return Span(start, found.end() if found else at, kind, tail)
