"""The known word that is most similar to a misspelled one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def closest_match(word: str, candidates: Iterable[str], *, similarity: float = 0.6) -> str | None:
    """Return the candidate that is most similar to the word, None if none is similar."""
    return next(iter(closest_matches(word, candidates, most=1, similarity=similarity)), None)


def closest_matches(word: str, candidates: Iterable[str], *, most: int, similarity: float = 0.6) -> list[str]:
    """Return up to `most` candidates that are similar to the word, the most similar first."""
    import difflib  # noqa: PLC0415  # only for misspelled words

    return difflib.get_close_matches(word, list(candidates), n=most, cutoff=similarity)
