"""Which of the known messages may be in a piece of a log: a search for literals, as quick as the machine can.

Texts are compared by their letters alone, so that neither white space nor colours nor numbers, and thus neither wrapped lines
nor times before each line, stand between the parts of a message. Only those literals are looked for whose words are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpuctl.diagnosis.messages import Message

_LETTERS = bytes(range(ord("a"), ord("z") + 1))
_LOWER = bytes(range(256)).lower()
_NO_LETTERS = bytes(sorted(set(range(256)) - set(_LETTERS) - set(_LETTERS.upper())))
_NO_LETTERS_OR_ENDS = _NO_LETTERS.replace(b"\n", b"")
# Stands between parts of a text that do not belong together.
BREAK = b"\n\x1e\n"
_NO_LETTERS_OR_BREAKS = _NO_LETTERS.replace(b"\x1e", b"")
_WORDS = bytes(code if code in (*_LETTERS, ord("\n")) else ord(" ") for code in _LOWER)
_WHITE = b" \t\r\n\f\v"
# An anchor of fewer letters says too little without its digits and signs.
_FEWEST_LETTERS = 8


def letters(text: bytes) -> bytes:
    """Return the letters of a text, in lower case, and nothing else."""
    return text.translate(_LOWER, _NO_LETTERS)


def letters_by_line(text: bytes) -> bytes:
    """Return the letters of a text in lower case, and its line ends."""
    return text.translate(_LOWER, _NO_LETTERS_OR_ENDS)


def squeezed(text: bytes) -> bytes:
    """Return a text in lower case and without white space."""
    return text.translate(_LOWER, _WHITE)


@dataclass(frozen=True, slots=True)
class Literal:
    """What is searched for: letters; and what must be among the words of a text for it to hold them.

    `inner` are words that are whole whatever stands before and after, `edges` the ends of words, and of a lone word its middle.
    """

    letters: bytes
    inner: frozenset[bytes]
    edges: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Anchors:
    """The literals to search for, and the messages of each, by their place in the order of all messages.

    `exact` need their digits or signs: they are looked for in `squeezed` text.
    """

    loose: Sequence[Literal]
    exact: Sequence[bytes]
    owners: Mapping[bytes, frozenset[int]]

    def found(self, text: bytes) -> tuple[list[bytes], bytes]:
        """Return the literals in a text, of which `BREAK` divides parts that do not belong together; and its letters."""
        flat = text.translate(_LOWER, _NO_LETTERS_OR_BREAKS)
        words = _words(text)
        all_words = b" ".join([b"", *words, b""])
        return [
            literal.letters
            for literal in self.loose
            if literal.inner <= words and all(edge in all_words for edge in literal.edges) and literal.letters in flat
        ], flat

    def found_exactly(self, text: bytes) -> list[bytes]:
        """Return the literals that a squeezed text holds."""
        return [anchor for anchor in self.exact if anchor in text]


def gather(messages: Sequence[Message]) -> Anchors:
    """Return the literals of messages; those without any are left out."""
    owners: dict[bytes, set[int]] = {}
    literals: dict[bytes, Literal] = {}
    exact: set[bytes] = set()
    for index, message in enumerate(messages):
        for anchor in message.anchors:
            literal = _literal(anchor.encode())
            found = literal.letters
            if len(found) < _FEWEST_LETTERS:
                found = squeezed(anchor.encode())
                exact.add(found)
            elif same := literals.get(found):
                literals[found] = Literal(found, same.inner & literal.inner, same.edges & literal.edges)
            else:
                literals[found] = literal
            if found:
                owners.setdefault(found, set()).add(index)
    return Anchors(
        loose=[literals[found] for found in _without_longer(literals, owners)],
        exact=sorted(exact - {b""}),
        owners={anchor: frozenset(those) for anchor, those in owners.items()},
    )


def _literal(anchor: bytes) -> Literal:
    words = anchor.translate(_WORDS).split()
    # The first and the last word may be a part of a longer one.
    edges = (words[0] + b" ", b" " + words[-1]) if len(words) > 1 else words
    return Literal(letters(anchor), frozenset(words[1:-1]), frozenset(edges))


def _words(text: bytes) -> set[bytes]:
    """Return the words of a text, those that the end of a line cuts in two whole as well."""
    text = text.translate(_WORDS)
    lines = [line.strip(b" ") for line in text.split(b"\n")]
    ends = {before.rpartition(b" ")[2] + after.partition(b" ")[0] for before, after in pairwise(lines)}
    return ends.union(text.split())


def _without_longer(anchors: Iterable[bytes], owners: dict[bytes, set[int]]) -> list[bytes]:
    """Return the anchors that hold no other one, which then stands for them too."""
    kept: list[bytes] = []
    for anchor in sorted(anchors, key=lambda anchor: (len(anchor), anchor)):
        inside = next((short for short in kept if short in anchor), None)
        if inside is None:
            kept.append(anchor)
        else:
            owners[inside] |= owners[anchor]
    return kept
