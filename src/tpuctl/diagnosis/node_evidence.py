"""How the state of the node changes the verdicts on a log: a program that lost its worker may blame anything."""

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
    """What the API says of a node now. A preempted node has the state PREEMPTED here, however the API shows that."""

    name: str
    state: str | None  # None if there is no such node
    health: str | None = None
    created: datetime | None = None

    @property
    def words(self) -> str:
        """The text that the messages about nodes are matched against."""
        return f"state: {self.state or 'none'} health: {self.health or 'none'}"


def with_node(explanation: Explanation, evidence: NodeEvidence) -> Explanation:
    """Apply the state of the node: it comes first if it is a failure, and the messages that it explains become symptoms."""
    verdict = classify(evidence.words, where=Where.NODE, known={"node": evidence.name})
    message = by_id(verdict.id) if verdict else None
    if verdict is None or message is None:
        health = f" and {evidence.health}" if evidence.health else ""
        why = f"`{evidence.name}` is {evidence.state}{health} now, so check its workers next"
        conclusions = tuple(
            replace(one, why=_recreated(one, evidence) or why) if _is_of_the_node(one) else one
            for one in explanation.conclusions
        )
        return replace(explanation, conclusions=conclusions)
    text = evidence.words.removesuffix(" health: none")
    sighting = Sighting(message, *(Place(0, text),) * 2, count=0)
    why = f"the API reports this for `{evidence.name}` now"
    of_the_node = Conclusion(sighting, Confidence.HIGH, verdict.meaning, verdict.remedy, why=why)
    following: list[Conclusion] = []
    for one in explanation.conclusions:
        if not _is_of_the_node(one) or one.recovered:
            following.append(one)
        elif recreated := _recreated(one, evidence):
            following.append(replace(one, why=recreated))
        else:
            why = f"it follows from `{of_the_node.id}`: the state of the node explains it"
            following.append(replace(one, symptom_of=of_the_node.id, confidence=Confidence.HIGH, why=why))
    following.sort(key=lambda one: (one.confidence is Confidence.LOW, one.symptom_of is not None))
    return replace(explanation, conclusions=(of_the_node, *following), suspicious=())


def _is_of_the_node(conclusion: Conclusion) -> bool:
    """Tell whether the state of the node decides about a verdict."""
    is_open = conclusion.symptom_of is None and conclusion.confidence is not Confidence.LOW
    return is_open and conclusion.sighting.message.check_first in _OF_THE_NODE


def _recreated(conclusion: Conclusion, evidence: NodeEvidence) -> str | None:
    """Return why the state now does not count: the node was recreated after the message. None if it was not."""
    time = conclusion.sighting.last.time
    if evidence.created is not None and time is not None and time.tzinfo is not None and time < evidence.created:
        return "the node was recreated since, so its state now does not explain the log"
    return None
