"""From the messages found in a log to what is wrong: causes before symptoms, the first failure before its consequences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tpuctl.diagnosis.explanation import Conclusion, Confidence, Explanation
from tpuctl.diagnosis.memory_advice import advice
from tpuctl.diagnosis.messages import CheckFirst, Role, Where

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpuctl.diagnosis.messages import Message
    from tpuctl.diagnosis.sightings import Place, Seen, Sighting

# A message and its wrapper stand near each other: at most a long stack trace lies between them.
_NEAR: Final = 400
# Messages further apart are unrelated: a program that continued for so long has recovered.
_APART: Final = timedelta(hours=1)
_APART_LINES: Final = 50_000
# A cause may be logged after its symptoms: other workers log sooner, and a program logs last what ended it.
_AFTERWARDS: Final = timedelta(minutes=2)

_LOOK_FIRST: Final = MappingProxyType(
    {
        CheckFirst.NODE_STATE: "usually a symptom: check the state of the node first, `tpuctl status {node}`",
        CheckFirst.NODE_HEALTH: "usually a symptom: check the health of the node first, `tpuctl status {node}`",
        CheckFirst.OTHER_WORKERS_LOG: "usually a symptom of a failure on another worker: read the logs of the others first",
    }
)
_ALONE: Final = MappingProxyType(
    {
        Role.SYMPTOM: "usually a symptom of another failure, which this log does not show",
        Role.WRAPPER: "it only carries the message of another failure, and no known message stands near it",
        Role.PROGRESS: "the program was still retrying when the log ended",
    }
)
_QUOTED: Final = "the log only quotes the message, as documentation, a search or a test does; it may not have occurred"
_NO_TEXT: Final = "this is not text but a program or data, which may only contain the message"
_OF_THE_NODE: Final = frozenset({CheckFirst.NODE_STATE, CheckFirst.NODE_HEALTH})
_MOST_SPECIFIC_FIRST: Final = (Role.CAUSE, Role.SYMPTOM, Role.WRAPPER, Role.PROGRESS)


@dataclass(frozen=True, slots=True)
class _Story:
    """The failures in a log, and the messages that say that a failure is over."""

    failures: tuple[Sighting, ...]
    recoveries: tuple[Sighting, ...]
    is_timed: bool  # all messages have comparable times

    def recovered(self, failure: Sighting) -> Place | None:
        """Return where the log says that a failure was over for good."""
        for recovery in self.recoveries:
            if failure.message.id in recovery.message.ends:
                for place in (recovery.first, recovery.last):
                    if is_before(failure.last, place):
                        return place
        return None

    def cause_of(self, effect: Sighting) -> Sighting | None:
        """Return the failure that caused another one, None if the log does not show it."""
        message = effect.message
        # Other workers only notice that a program is gone: any of its failures may be the cause.
        may_follow_anything = (
            message.role is Role.SYMPTOM and message.where is Where.TRAINING_LOG and message.check_first is not None
        )
        others = [one for one in self.failures if one is not effect and message.id not in one.message.explained_by]
        possible = [one for one in others if self._may_have_caused(one, effect)]
        causes = [one for one in possible if one.message.role is Role.CAUSE]
        likely = [one for one in possible if one.message.id in message.explained_by or _is_lost_node(one, effect)]
        if message.role is Role.WRAPPER:
            likely += causes
        elif not likely and may_follow_anything:
            likely = [one for one in causes if one.message.where is Where.TRAINING_LOG]
        return min(likely, key=lambda one: self.preference(one, effect), default=None)

    def _may_have_caused(self, cause: Sighting, effect: Sighting) -> bool:
        is_one_log = cause.first.source == effect.first.source
        line = effect.first.line
        if effect.message.role is Role.WRAPPER:
            is_near = abs(cause.first.line - line) <= _NEAR or cause.first.line <= line <= cause.last.line + _NEAR
            return is_one_log and is_near
        if self._recovered_between(cause, effect):
            return False
        if _is_lost_node(cause, effect) and is_before(effect.first, cause.first):
            # A person may have checked the node long after the failure.
            return not self._recovered_between(effect, cause)
        gap = _gap(cause, effect)
        if gap is not None:
            return -_AFTERWARDS <= gap <= _APART
        return not is_one_log or (line - cause.first.line >= -_NEAR and line - cause.last.line <= _APART_LINES)

    def _recovered_between(self, first: Sighting, second: Sighting) -> bool:
        """Tell whether the log says, between two failures, that the program works again."""
        places = (place for recovery in self.recoveries for place in (recovery.first, recovery.last))
        return any(is_before(first.last, place) and is_before(place, second.first) for place in places)

    def moment(self, sighting: Sighting) -> tuple[float, int]:
        """Return the sort key for the first occurrence: a log may start with its newest line."""
        times = [place.time.timestamp() for place in (sighting.first, sighting.last) if place.time is not None]
        return (min(times) if self.is_timed else 0.0, sighting.first.line)

    def preference(self, cause: Sighting, effect: Sighting) -> tuple[object, ...]:
        """Return the sort key of a possible cause: causes before symptoms; for a wrapper the nearest, else the oldest."""
        role = _MOST_SPECIFIC_FIRST.index(cause.message.role)
        if effect.message.role is Role.WRAPPER:
            lines = [effect.first.line - place.line for place in (cause.first, cause.last)]
            # A cause before its wrapper is nearer than one after it.
            return (role, min(distance if distance >= 0 else -2 * distance for distance in lines))
        return (role, *self.moment(cause))

    def rank(self, conclusion: Conclusion) -> tuple[object, ...]:
        """Return the sort key of a conclusion: real before quoted, causes before symptoms, the oldest first."""
        message = conclusion.sighting.message
        is_open = message.role is Role.CAUSE and not _is_plain(message)
        role = _MOST_SPECIFIC_FIRST.index(Role.SYMPTOM if is_open else message.role)
        return (
            conclusion.confidence is Confidence.LOW,
            conclusion.symptom_of is not None,
            conclusion.recovered is not None,
            role,
            *self.moment(conclusion.sighting),
        )


def conclude(seen: Seen, *, known: Mapping[str, str] = MappingProxyType({})) -> Explanation:
    """Return what is wrong. `known` are facts that no log names, such as `node`; the words of the log win."""
    harmless = [_conclusion(one, Confidence.HIGH, known) for one in seen.sightings if one.message.role is Role.HARMLESS]
    alarming = [one for one in seen.sightings if one.message.role not in {Role.HARMLESS, Role.RECOVERY}]
    places = [place for one in alarming for place in (one.first, one.last)]
    story = _Story(
        tuple(one for one in alarming if not (one.is_quoted or seen.is_binary)),
        tuple(one for one in seen.sightings if one.message.role is Role.RECOVERY and not one.is_quoted),
        is_timed=all(place.time for place in places) and len({_is_naive(place) for place in places}) == 1,
    )
    conclusions: list[Conclusion] = []
    for failure in story.failures:
        recovered = story.recovered(failure)
        if recovered is not None and failure.message.role in {Role.SYMPTOM, Role.PROGRESS}:
            harmless.append(_recovered(failure, recovered, known))
        else:
            conclusions.append(_judge(failure, story, recovered, known))
    why = _NO_TEXT if seen.is_binary else _QUOTED
    doubtful = [_conclusion(one, Confidence.LOW, known) for one in alarming if one.is_quoted or seen.is_binary]
    conclusions += [replace(one, why=why) for one in doubtful]
    return Explanation(
        tuple(sorted(_without_circles(conclusions), key=story.rank)),
        tuple(harmless),
        () if conclusions else seen.suspicious,
        seen.lines,
        seen.size,
        seen.is_binary,
    )


def is_before(one: Place, other: Place) -> bool:
    """Tell whether one place is before another: by time if the log gives both times, else by line within one file."""
    if (
        one.time is not None
        and other.time is not None
        and _is_naive(one) == _is_naive(other)
        and one.time != other.time
    ):
        return one.time < other.time
    return one.source == other.source and one.line < other.line


def _judge(failure: Sighting, story: _Story, recovered: Place | None, known: Mapping[str, str]) -> Conclusion:
    """Return the verdict on one failure: a symptom, recovered, a cause, or something to check first."""
    cause, message = story.cause_of(failure), failure.message
    if cause is not None:
        is_certain = cause.message.id in message.explained_by or message.role is Role.WRAPPER
        why = f"it follows from `{cause.message.id}` in line {cause.first.line}"
        conclusion = _conclusion(failure, Confidence.HIGH if is_certain else Confidence.MEDIUM, known)
        return replace(conclusion, symptom_of=cause.message.id, why=why, recovered=recovered)
    if recovered is not None:
        return _recovered(failure, recovered, known)
    if _is_plain(message):
        return _conclusion(failure, Confidence.HIGH, known)
    conclusion = _conclusion(failure, Confidence.MEDIUM, known)
    if message.check_first is not None:
        why = message.filled(_LOOK_FIRST[message.check_first], {**known, **failure.facts})
    else:
        why = _ALONE[message.role]
    return replace(conclusion, why=why)


def _conclusion(sighting: Sighting, confidence: Confidence, known: Mapping[str, str]) -> Conclusion:
    message, facts = sighting.message, {**known, **sighting.facts}
    remedy = tuple(message.filled(line, facts) for line in message.remedy)
    if sighting.memory is not None:
        remedy = advice(sighting.memory) or remedy
    return Conclusion(sighting, confidence, message.filled(message.meaning, facts), remedy)


def _recovered(failure: Sighting, place: Place, known: Mapping[str, str]) -> Conclusion:
    why = f"it recovered by itself: line {place.line} says `{place.text[:80]}`"
    return replace(_conclusion(failure, Confidence.MEDIUM, known), recovered=place, why=why)


def _without_circles(conclusions: Sequence[Conclusion]) -> Iterable[Conclusion]:
    """Yield the conclusions; of two that explain each other the older one becomes a cause."""
    by_id = {one.id: one for one in conclusions}
    for one in conclusions:
        path = [one.id]
        while (cause := by_id[path[-1]].symptom_of) is not None and cause in by_id and cause not in path:
            path.append(cause)
        is_circle = cause == one.id and min(path, key=lambda id_: by_id[id_].sighting.first.line) == one.id
        yield replace(one, symptom_of=None, why=None) if is_circle or cause not in {None, *by_id} else one


def _is_plain(message: Message) -> bool:
    """Tell whether a message alone says what is wrong, so that there is no need to check anything first."""
    return message.role is Role.CAUSE and (message.check_first is None or message.of_the_node)


def _is_lost_node(cause: Sighting, effect: Sighting) -> bool:
    """Tell whether one message says something of the node that explains why a program lost it."""
    return cause.message.of_the_node and not effect.message.of_the_node and effect.message.check_first in _OF_THE_NODE


def _gap(cause: Sighting, effect: Sighting) -> timedelta | None:
    """Return how long before an effect its cause occurred last, negative if only afterwards. None without times."""
    begin, end, met = cause.first, cause.last, effect.first
    if begin.time is None or end.time is None or met.time is None:
        return None
    if len({_is_naive(begin), _is_naive(end), _is_naive(met)}) > 1:
        return None
    if begin.time <= met.time <= end.time:
        return timedelta()
    return met.time - (end.time if met.time > end.time else begin.time)


def _is_naive(place: Place) -> bool:
    return place.time is not None and place.time.tzinfo is None
