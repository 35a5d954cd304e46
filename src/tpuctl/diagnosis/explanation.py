"""The verdicts on a log, in order: causes first, the oldest first, then their symptoms. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.diagnosis.sightings import Place, Sighting


class Confidence(StrEnum):
    """How certain a verdict is. A contract with scripts."""

    HIGH = "high"  # the message says what is wrong
    MEDIUM = "medium"  # a symptom of something that the log does not show, or over before the log ended
    LOW = "low"  # only quoted, by documentation, a search or a test


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One verdict on a log."""

    sighting: Sighting
    confidence: Confidence
    meaning: str
    remedy: tuple[str, ...]  # with all placeholders filled
    symptom_of: str | None = None  # the id of the verdict that caused this one
    why: str | None = None  # the reason in words
    recovered: Place | None = None  # where the log says that the failure was over

    @property
    def id(self) -> str:
        """The id of the message."""
        return self.sighting.message.id


@dataclass(frozen=True, slots=True)
class Explanation:
    """All verdicts on a log."""

    conclusions: tuple[Conclusion, ...]
    harmless: tuple[Conclusion, ...]  # messages that only look alarming
    suspicious: tuple[Place, ...]  # the lines most like an error, if no message is known
    lines: int
    size: int
    is_binary: bool = False
