"""Secrets recognized by their form or place, and the rules that find them.

A span is a secret in a piece of text; its tail describes how it continues if the piece ends inside it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Bytes. The longest match of a rule from its anchor on, or back from it, without the part that a `tail` describes.
REACH = 24 * 1024
LONG = 16
_LONG_WORD = b"a" * LONG
_OF_WORDS = bytes(
    ord("a") if char in b"abcdefghijklmnopqrstuvwxyz0123456789_-.~/:+=" else ord(" ") for char in range(256)
)


@dataclass(frozen=True, slots=True)
class Span:
    """A secret in a piece of text."""

    start: int
    end: int
    kind: str  # empty: not a secret, but searched already
    tail: re.Pattern[bytes] | None = None  # matches the rest of a secret that continues in the next piece
    label: bytes | None = None  # replaces the secret; None for `[redacted KIND]`

    @property
    def text(self) -> bytes:
        """The text that replaces the secret."""
        return b"[redacted %s]" % self.kind.encode() if self.label is None else self.label


@dataclass(frozen=True, slots=True)
class Rule:
    """How to find secrets of one kind: at each occurrence of the anchor, `find` returns the secrets."""

    anchor: bytes  # in lower case
    find: Callable[[bytes, int], Iterable[Span]]
    is_long: bool = False  # search only words of at least `LONG` characters


class Words:
    """The long words of a text, in lower case: much less to search than the whole text."""

    def __init__(self, lowered: bytes) -> None:
        marked = lowered.translate(_OF_WORDS)
        words, self._starts, self._positions = [], [0], [0]
        at, length = marked.find(_LONG_WORD), 0
        while at >= 0:
            end = marked.find(b" ", at + LONG)
            words.append(lowered[at : end if end >= 0 else len(lowered)])
            self._starts.append(length)
            self._positions.append(at)
            length += len(words[-1]) + 1
            at = marked.find(_LONG_WORD, end) if end >= 0 else -1
        self.text = b"\n".join(words)

    def place(self, at: int) -> int:
        """Return the position in the text of a position in these words."""
        part = bisect_right(self._starts, at) - 1
        return self._positions[part] + at - self._starts[part]


def run_of(characters: bytes) -> re.Pattern[bytes]:
    """Return the pattern for a run of these characters."""
    return re.compile(rb"[%s]*" % characters)


def going_on(data: bytes, start: int, at: int, kind: str, tail: re.Pattern[bytes]) -> Span:
    """Return the secret that begins at `start`, is known up to `at`, and continues as far as `tail` matches."""
    found = tail.match(data, at)
    return Span(start, found.end() if found else at, kind, tail)
