"""A secret in a piece of text: where it is, of what kind, and what still belongs to it where the piece ends in its midst."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# The longest match of a rule from its anchor on, or back from it, not counting the rest of a secret that a `tail` describes.
REACH = 24 * 1024


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
    """How secrets of one kind are found: where the anchor, in lower case, is met, `look` tells what is there, if anything."""

    anchor: bytes
    look: Callable[[bytes, int], Iterable[Span]]


def run_of(characters: bytes) -> re.Pattern[bytes]:
    """Return the pattern of as many of these characters as there are."""
    return re.compile(rb"[%s]*+" % characters)


def going_on(data: bytes, start: int, at: int, kind: str, tail: re.Pattern[bytes]) -> Span:
    """Return the secret that begins at `start`, is known up to `at`, and goes on as `tail` says."""
    found = tail.match(data, at)
    return Span(start, found.end() if found else at, kind, tail)
