"""What is wrong, in order: the causes first, the oldest first, then what follows from them. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.diagnosis.sightings import Place, Sighting


class Confidence(StrEnum):
    """How sure a verdict is. A contract with scripts.

    `high`: the message says what is wrong. `medium`: it is the symptom of something that the log does not show, or it was over
    before the log ended. `low`: it is only quoted, in documentation, a search or a test.
    """

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One verdict on a log. `symptom_of` is the id of the verdict whose consequence it is; `why` says in words how we know.

    `remedy` has all placeholders filled. `recovered` is where the log itself tells that it was over.
    """

    sighting: Sighting
    confidence: Confidence
    meaning: str
    remedy: tuple[str, ...]
    symptom_of: str | None = None
    why: str | None = None
    recovered: Place | None = None

    @property
    def id(self) -> str:
        """The id of the message."""
        return self.sighting.message.id


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdicts on a log, what looked bad but is harmless, and, where nothing is known, what looks most like an error."""

    conclusions: tuple[Conclusion, ...]
    harmless: tuple[Conclusion, ...]
    suspicious: tuple[Place, ...]
    lines: int
    size: int
    is_binary: bool = False
