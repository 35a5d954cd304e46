"""What is known of one question that was asked of the cloud: an answer, that there is nothing, or why it is not known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Known(Generic[T_co]):
    """The cloud's own answer."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Absent:
    """The API itself says that what was asked for does not exist."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """It could not be read. `permission` is the one whose holder would get the answer, where that is the cause.

    `is_passing` tells whether the same question may well be answered later: a deadline, an API that is down. `error_id` is
    what `diagnosis` calls the refusal.
    """

    reason: str
    permission: str | None = None
    is_passing: bool = False
    error_id: str | None = None


# Whoever takes a fact has to say what it does with each of the three.
Fact = Known[T_co] | Absent | Unknown


def known(fact: Fact[T_co] | None) -> T_co | None:
    """Return the answer, or nothing where there is none; for where the difference does not matter."""
    return fact.value if isinstance(fact, Known) else None
