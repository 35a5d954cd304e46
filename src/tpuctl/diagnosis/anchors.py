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
_WORDS = bytes(code if code in _LETTERS else ord(" ") for code in _LOWER)
_WHITE = b" \t\r\n\f\v"
# An anchor of fewer letters says too little without its digits and signs.
_FEWEST_LETTERS = 8
# A word that a terminal cuts in two is not longer than twice this.
_CUT = 24


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
class Anchors:
    """The literals to search for, and the messages of each, by their place in the order of all messages.

    `worded` are the literals with words that are whole whatever stands before and after, `others` those with the pieces of
    words in them. `exact` need their digits or signs: they are looked for in `squeezed` text.
    """

    worded: Sequence[tuple[bytes, frozenset[bytes]]]
    others: Sequence[tuple[bytes, tuple[bytes, ...]]]
    exact: Sequence[bytes]
    owners: Mapping[bytes, frozenset[int]]
    longest: int

    def found(self, text: bytes) -> tuple[list[bytes], bytes]:
        """Return the literals in a text, of which `BREAK` divides parts that do not belong together; and its letters."""
        flat = text.translate(_LOWER, _NO_LETTERS_OR_BREAKS)
        words = _words(text)
        all_words = b" ".join([b"", *words, b""])
        hits = [anchor for anchor, needed in self.worded if needed <= words and anchor in flat]
        for anchor, pieces in self.others:
            if pieces[0] in all_words and pieces[-1] in all_words and anchor in flat:
                hits.append(anchor)
        return hits, flat

    def found_exactly(self, text: bytes) -> list[bytes]:
        """Return the literals that a squeezed text holds."""
        return [anchor for anchor in self.exact if anchor in text]


def gather(messages: Sequence[Message]) -> Anchors:
    """Return the literals of messages; those without any are left out."""
    owners: dict[bytes, set[int]] = {}
    needed: dict[bytes, frozenset[bytes]] = {}
    pieces: dict[bytes, tuple[bytes, ...]] = {}
    exact: set[bytes] = set()
    for index, message in enumerate(messages):
        for anchor in message.anchors:
            raw = anchor.encode()
            found = letters(raw)
            if len(found) < _FEWEST_LETTERS:
                found = squeezed(raw)
                exact.add(found)
            if found:
                owners.setdefault(found, set()).add(index)
                # The first and the last word may be a part of a longer one.
                words = raw.translate(_WORDS).split()
                inner = frozenset(words[1:-1])
                needed[found] = needed.get(found, inner) & inner
                pieces[found] = (words[0] + b" ", b" " + words[1]) if len(words) == 2 else (max(words, key=len),)
    loose = _without_longer(owners.keys() - exact, owners)
    return Anchors(
        worded=[(anchor, needed[anchor]) for anchor in sorted(loose) if needed[anchor]],
        others=[(anchor, pieces[anchor]) for anchor in sorted(loose) if not needed[anchor]],
        exact=sorted(exact - {b""}),
        owners={anchor: frozenset(those) for anchor, those in owners.items()},
        longest=max(map(len, owners), default=0),
    )


def _words(text: bytes) -> set[bytes]:
    """Return the words of a text, those that the end of a line cuts in two whole as well."""
    words = set(text.translate(_WORDS).split())
    lines = text.split(b"\n")
    ends = [before[-_CUT:] + after[:_CUT] for before, after in pairwise(lines)]
    return words.union(b"\n".join(ends).translate(_WORDS).split())


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
