"""The answer of the cloud to one question: a value, that it does not exist, or why it is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Known(Generic[T_co]):
    """The API returned a value."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Absent:
    """The API said that the resource does not exist."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The value could not be read.

    `permission` is the missing permission, if that is the cause. `is_passing`: the same request may succeed later, as
    after a timeout or an outage. `error_id` is the id of the error in the message catalogue.
    """

    reason: str
    permission: str | None = None
    is_passing: bool = False
    error_id: str | None = None


# Code that takes a fact must handle all three cases.
Fact = Known[T_co] | Absent | Unknown


def known(fact: Fact[T_co] | None) -> T_co | None:
    """Return the value; None if it is absent or unknown. Use it only if the difference does not matter."""
    return fact.value if isinstance(fact, Known) else None
