"""What the state of the node at hand has to do with a log: a program that lost its worker blames anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tpuctl.diagnosis.classify import classify
from tpuctl.diagnosis.explanation import Conclusion, Confidence
from tpuctl.diagnosis.messages import CheckFirst, Where, by_id
from tpuctl.diagnosis.sightings import Place, Sighting

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.diagnosis.explanation import Explanation

_OF_THE_NODE: Final = frozenset({CheckFirst.NODE_STATE, CheckFirst.NODE_HEALTH, CheckFirst.OTHER_WORKERS_LOG})


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What the API says of a node just now. `state` and `health` are its words, and no `state` is a node that is not there.

    A node that was taken back has the state PREEMPTED here, however the API shows that.
    """

    name: str
    state: str | None
    health: str | None = None
    created: datetime | None = None

    @property
    def words(self) -> str:
        """What the messages about nodes are matched against."""
        return f"state: {self.state or 'none'} health: {self.health or 'none'}"


def with_node(explanation: Explanation, evidence: NodeEvidence) -> Explanation:
    """Return the explanation in the light of the node's state: what follows from that is its symptom, and it comes first."""
    verdict = classify(evidence.words, where=Where.NODE, known={"node": evidence.name})
    message = by_id(verdict.id) if verdict else None
    if verdict is None or message is None:
        return replace(explanation, conclusions=tuple(_reassured(one, evidence) for one in explanation.conclusions))
    said = evidence.words.removesuffix(" health: none")
    sighting = Sighting(message, *(Place(0, said),) * 2, count=0)
    why = f"the API says so of `{evidence.name}` just now"
    of_the_node = Conclusion(sighting, Confidence.HIGH, verdict.meaning, verdict.remedy, why=why)
    followed = [_followed(one, of_the_node, evidence) for one in explanation.conclusions]
    in_order = sorted(followed, key=lambda one: (one.confidence is Confidence.LOW, one.symptom_of is not None))
    return replace(explanation, conclusions=(of_the_node, *in_order), suspicious=())


def _followed(conclusion: Conclusion, cause: Conclusion, evidence: NodeEvidence) -> Conclusion:
    is_open = conclusion.symptom_of is None and conclusion.confidence is not Confidence.LOW
    if not is_open or conclusion.sighting.message.check_first not in _OF_THE_NODE or conclusion.recovered:
        return conclusion
    if _is_older_than_the_node(conclusion, evidence):
        return replace(conclusion, why="the node was made anew since, so that its state now does not tell")
    why = f"it follows from `{cause.id}`: the state of the node explains it"
    return replace(conclusion, symptom_of=cause.id, confidence=Confidence.HIGH, why=why)


def _reassured(conclusion: Conclusion, evidence: NodeEvidence) -> Conclusion:
    is_open = conclusion.symptom_of is None and conclusion.confidence is not Confidence.LOW
    if not is_open or conclusion.sighting.message.check_first not in _OF_THE_NODE:
        return conclusion
    if _is_older_than_the_node(conclusion, evidence):
        return replace(conclusion, why="the node was made anew since, so that its state now does not tell")
    health = f" and {evidence.health}" if evidence.health else ""
    return replace(
        conclusion, why=f"`{evidence.name}` is {evidence.state}{health} just now, so look at its workers next"
    )


def _is_older_than_the_node(conclusion: Conclusion, evidence: NodeEvidence) -> bool:
    met = conclusion.sighting.last.time
    return evidence.created is not None and met is not None and met.tzinfo is not None and met < evidence.created
