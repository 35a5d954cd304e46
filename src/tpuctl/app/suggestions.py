"""Suggestions for mistyped words of the command line: never a word that does more harm than the one that was typed.

A harmful word is suggested only for a plain typing error in it: one wrong, missing, extra or exchanged letter, not the first,
and no shorter word than three letters. A harmless word is also suggested for its beginning. Of these the least harmful one is
suggested. All suggestions of commands, of options and of their choices are made here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from tpuctl.names import closest_match

if TYPE_CHECKING:
    from collections.abc import Collection


class Harm(IntEnum):
    """What a word can do to nodes, in the order of harm."""

    NONE = 0
    # Creates or changes something, or costs money.
    CHANGES = 1
    # Ends what runs on a node.
    STOPS = 2
    # Deletes something, or takes away a question or a safeguard.
    DESTROYS = 3


_HARMFUL_WORDS: Final = {
    Harm.CHANGES: (
        "advance attach-disk create extend fault renew resume retry run scenario scp seed set start stock sync test trust "
        "unset up update watch --exclusive --no-check --no-expiry --race --repair"
    ),
    Harm.STOPS: "kill maintenance reboot reset restart stop unstick --detach-disk --fail-fast --perform --signal",
    Harm.DESTROYS: (
        "cancel delete down gc recreate rm --all --all-nodes --allow-unreachable --anyway --delete --everyones --force "
        "--force-lease --no-sandbox --prune --quiet-confirm --recreate-deleted --remove --replace --rm "
        "--skip-check --skip-validation --steal --trust-project-file --yes"
    ),
}
_HARM: Final = {word: harm for harm, words in _HARMFUL_WORDS.items() for word in words.split()}
# What people type for a value of ours.
_MEANT: Final = {"absent": "gone", "deleted": "gone", "removed": "gone", "running": "ready", "up": "ready"}
# Of shorter words every letter counts.
_SHORTEST: Final = 3
# Below that, words of four letters are alike that mean different things.
_SIMILARITY: Final = 0.7


def harm_of(word: str) -> Harm:
    """Return what a command, an option or a value can do to nodes."""
    return _HARM.get(word, Harm.NONE)


def suggest_word(word: str, known: Collection[str]) -> str | None:
    """Return the known word that was probably meant, None if there is none."""
    if (meant := _MEANT.get(word)) in known:
        return meant
    bare = word.lstrip("-")
    harmless = {one.lstrip("-"): one for one in known if harm_of(one) is Harm.NONE}
    longer = {one for text, one in harmless.items() if len(bare) >= _SHORTEST and text.startswith(bare)}
    if near := longer | mistyped_words(word, known):
        return min(near, key=lambda one: (harm_of(one), len(one), one))
    similar = closest_match(bare, harmless, similarity=_SIMILARITY)
    return harmless[similar] if similar is not None else None


def mistyped_words(word: str, known: Collection[str]) -> set[str]:
    """Return the known words in which one plain typing error makes the word that was typed."""
    return {one for one in known if min(len(word), len(one)) >= _SHORTEST + _dashes(word) and _is_one_error(word, one)}


def _is_one_error(typed: str, word: str) -> bool:
    """Return whether one letter is wrong, missing, extra or exchanged with the next, but not the first after the dashes."""
    start = _dashes(word) + 1
    if typed[:start] != word[:start] or abs(len(typed) - len(word)) > 1:
        return False
    at = next(
        (at for at, (one, other) in enumerate(zip(typed, word, strict=False)) if one != other),
        min(len(typed), len(word)),
    )
    one, other = typed[at:], word[at:]
    return one[1:] in {other, other[1:]} or one == other[1:] or (one[:2] == other[1::-1] and one[2:] == other[2:])


def _dashes(word: str) -> int:
    return len(word) - len(word.lstrip("-"))
