"""Finds the known messages in the lines of a log, block by block, each occurrence once, in bounded memory.

Most blocks hold none of the literals (anchors) of known messages, and need no more work. A block that holds one is searched
with patterns, and so is the beginning of the next block, in which a message at the end of a block may continue.

Anchors are compared by their letters alone: white space, colours and numbers, and so wrapped lines and times before each
line, do not separate the parts of a message. Only anchors whose words occur are searched for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.diagnosis.messages import Message

_LETTERS = bytes(range(ord("a"), ord("z") + 1))
_LOWER = bytes(range(256)).lower()
_NO_LETTERS = bytes(sorted(set(range(256)) - set(_LETTERS) - set(_LETTERS.upper())))
_NO_LETTERS_OR_ENDS = _NO_LETTERS.replace(b"\n", b"")
# Separates parts of a text that do not belong together.
BREAK = b"\n\x1e\n"
_NO_LETTERS_OR_BREAKS = _NO_LETTERS.replace(b"\x1e", b"")
_WORDS = bytes(code if code in (*_LETTERS, ord("\n")) else ord(" ") for code in _LOWER)
_WHITE = b" \t\r\n\f\v"
# An anchor with fewer letters is ambiguous without its digits and signs.
_FEWEST_LETTERS = 8


def letters(text: bytes) -> bytes:
    """Return only the letters of a text, in lower case."""
    return text.translate(_LOWER, _NO_LETTERS)


def letters_by_line(text: bytes) -> bytes:
    """Return the letters of a text in lower case, and its line ends."""
    return text.translate(_LOWER, _NO_LETTERS_OR_ENDS)


def squeezed(text: bytes) -> bytes:
    """Return a text in lower case and without white space."""
    return text.translate(_LOWER, _WHITE)


@dataclass(frozen=True, slots=True)
class Literal:
    """The letters of an anchor, and the words that a text must have to contain it."""

    letters: bytes
    inner: frozenset[bytes]  # whole words
    edges: frozenset[bytes]  # the end of the first and the beginning of the last word; of a single word any part


@dataclass(frozen=True, slots=True)
class Anchors:
    """The literals to search for, and the messages of each, by their index in the order of all messages."""

    loose: Sequence[Literal]
    exact: Sequence[bytes]  # literals that need their digits or signs: searched for in `squeezed` text
    owners: Mapping[bytes, frozenset[int]]

    def found(self, text: bytes) -> tuple[list[bytes], bytes]:
        """Return the literals in a text, in which `BREAK` separates unrelated parts; and the letters of the text."""
        flat = text.translate(_LOWER, _NO_LETTERS_OR_BREAKS)
        in_words = text.translate(_WORDS)
        # A word that a line end cuts in two counts as a whole word too.
        lines = [line.strip(b" ") for line in in_words.split(b"\n")]
        joined = {before.rpartition(b" ")[2] + after.partition(b" ")[0] for before, after in pairwise(lines)}
        words = joined.union(in_words.split())
        all_words = b" ".join([b"", *words, b""])
        return [
            literal.letters
            for literal in self.loose
            if literal.inner <= words and all(edge in all_words for edge in literal.edges) and literal.letters in flat
        ], flat

    def found_exactly(self, text: bytes) -> list[bytes]:
        """Return the literals in a squeezed text."""
        return [anchor for anchor in self.exact if anchor in text]


def gather(messages: Sequence[Message]) -> Anchors:
    """Return the anchors of messages. A message without anchors is left out."""
    owners: dict[bytes, set[int]] = {}
    literals: dict[bytes, Literal] = {}
    exact: set[bytes] = set()
    for index, message in enumerate(messages):
        for anchor in message.anchors:
            key = letters(anchor.encode())
            if len(key) < _FEWEST_LETTERS:
                key = squeezed(anchor.encode())
                exact.add(key)
            else:
                words = anchor.encode().translate(_WORDS).split()
                # The first and the last word may be a part of a longer one.
                edges = frozenset((words[0] + b" ", b" " + words[-1]) if len(words) > 1 else words)
                inner = frozenset(words[1:-1])
                if same := literals.get(key):
                    inner, edges = same.inner & inner, same.edges & edges
                literals[key] = Literal(key, inner, edges)
            if key:
                owners.setdefault(key, set()).add(index)
    # An anchor that contains a shorter one is not searched for: the shorter one stands for it.
    loose: list[Literal] = []
    for key, literal in sorted(literals.items(), key=lambda item: (len(item[0]), item[0])):
        inside = next((shorter.letters for shorter in loose if shorter.letters in key), None)
        if inside is None:
            loose.append(literal)
        else:
            owners[inside] |= owners[key]
    return Anchors(
        loose=loose,
        exact=sorted(exact - {b""}),
        owners={anchor: frozenset(indices) for anchor, indices in owners.items()},
    )
