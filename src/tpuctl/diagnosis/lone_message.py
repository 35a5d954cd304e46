"""What one message means that somebody hands over, without the log it is from."""

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

# Where a message may be from that is too short, or too general, to be looked for in logs.
_PLACES: Final = (Where.API, Where.OPERATION, Where.QUEUED_RESOURCE, Where.SSH)


def conclude_message(text: str, seen: Seen, *, known: Mapping[str, str] = MappingProxyType({})) -> Explanation:
    """Return what a message means. `seen` is what a log that holds only the message would tell.

    Quotation marks round it are the user's, so it is never taken for a quote.
    """
    meant = tuple(replace(sighting, quoted=0) for sighting in seen.sightings)
    explanation = conclude(replace(seen, sightings=meant), known=known)
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
            found = Conclusion(sighting, confidence, verdict.meaning, verdict.remedy, why=why)
            return replace(explanation, conclusions=(found,), suspicious=())
    return explanation
