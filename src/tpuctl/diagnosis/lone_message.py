"""The verdict on one message that the user gives without its log."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tpuctl.diagnosis.classify import classify
from tpuctl.diagnosis.conclusion import conclude
from tpuctl.diagnosis.explanation import Conclusion, Confidence, Explanation
from tpuctl.diagnosis.messages import By, Where, by_id
from tpuctl.diagnosis.sightings import LONGEST_EVIDENCE, Place, Sighting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.diagnosis.sightings import Seen

# Possible origins of a message that is too short, or too general, to search logs for it.
_PLACES: Final = (Where.API, Where.OPERATION, Where.QUEUED_RESOURCE, Where.SSH)


def conclude_message(text: str, seen: Seen, *, known: Mapping[str, str] = MappingProxyType({})) -> Explanation:
    """Return what a message means. `seen` is the content of a log that holds only the message.

    Quotation marks round the message are the user's: it is never treated as a quote.
    """
    unquoted = tuple(replace(sighting, quoted=0) for sighting in seen.sightings)
    explanation = conclude(replace(seen, sightings=unquoted), known=known)
    if explanation.conclusions or explanation.harmless:
        return explanation
    for where in _PLACES:
        verdict = classify(text, where=where, known=known)
        message = by_id(verdict.id) if verdict else None
        if verdict is not None and message is not None:
            place = Place(1, " ".join(text.split())[:LONGEST_EVIDENCE])
            sighting = Sighting(message, place, place, facts={**verdict.facts})
            confidence = Confidence.HIGH if message.by is By.TEXT else Confidence.MEDIUM
            why = None if message.by is By.TEXT else "only the status of the message is known, not its words"
            conclusion = Conclusion(sighting, confidence, verdict.meaning, verdict.remedy, why=why)
            return replace(explanation, conclusions=(conclusion,), suspicious=())
    return explanation
