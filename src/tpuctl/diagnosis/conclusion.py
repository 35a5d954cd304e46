"""From what was seen in a log to what is wrong: causes before symptoms, the first failure before the cascade it set off."""

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

# A message and what carries it on stand near each other: a long stack trace lies between them at most.
_NEAR: Final = 400
# What is further apart has nothing to do with each other: a program that went on for so long has got over it.
_APART: Final = timedelta(hours=1)
_APART_LINES: Final = 50_000
# Causes may be told after their symptoms: other workers are quicker, and a program tells what ended it last.
_AFTERWARDS: Final = timedelta(minutes=2)

_LOOK_FIRST: Final = MappingProxyType(
    {
        CheckFirst.NODE_STATE: "usually the sign of something else: look at the node's state first, `tpuctl status {node}`",
        CheckFirst.NODE_HEALTH: "usually the sign of something else: look at the node's health first, `tpuctl status {node}`",
        CheckFirst.OTHER_WORKERS_LOG: "usually the sign of a failure on another worker: look at the others' logs first",
    }
)
_ALONE: Final = MappingProxyType(
    {
        Role.SYMPTOM: "usually the sign of something else, which the log does not tell",
        Role.WRAPPER: "it only carries the message of another failure, and none that is known stands near it",
        Role.PROGRESS: "it was still being tried when the log ended",
    }
)
_QUOTED: Final = "the log only quotes the message, as documentation, a search or a test does; it may not have happened"
_NO_TEXT: Final = "this is no text but a program or data, which may only contain the message"
_OF_THE_NODE: Final = frozenset({CheckFirst.NODE_STATE, CheckFirst.NODE_HEALTH})
_MOST_SPECIFIC_FIRST: Final = (Role.CAUSE, Role.SYMPTOM, Role.WRAPPER, Role.PROGRESS)


@dataclass(frozen=True, slots=True)
class _Story:
    """What was seen, with what says that something is over."""

    failures: tuple[Sighting, ...]
    recoveries: tuple[Sighting, ...]
    is_timed: bool

    def recovered(self, failure: Sighting) -> Place | None:
        """Return where the log tells that a failure was over for good."""
        for recovery in self.recoveries:
            if failure.message.id in recovery.message.ends:
                for place in (recovery.first, recovery.last):
                    if is_before(failure.last, place):
                        return place
        return None

    def cause_of(self, effect: Sighting) -> Sighting | None:
        """Return the failure whose consequence another one is, as far as the log tells."""
        role, named = effect.message.role, effect.message.explained_by
        others = [
            one for one in self.failures if one is not effect and effect.message.id not in one.message.explained_by
        ]
        possible = [one for one in others if self._may_have_caused(one, effect)]
        causes = [one for one in possible if one.message.role is Role.CAUSE]
        likely = [one for one in possible if one.message.id in named or _is_lost_node(one, effect)]
        if role is Role.WRAPPER:
            likely += causes
        elif not likely and _may_be_of_anything(effect):
            likely = [one for one in causes if one.message.where is Where.TRAINING_LOG]
        return min(likely, key=lambda one: self.preference(one, effect), default=None)

    def _may_have_caused(self, cause: Sighting, effect: Sighting) -> bool:
        is_one_log = cause.first.source == effect.first.source
        if effect.message.role is Role.WRAPPER:
            return is_one_log and (
                abs(cause.first.line - effect.first.line) <= _NEAR or _spans(cause, effect.first.line)
            )
        if self._began_anew(cause, effect):
            return False
        if _is_lost_node(cause, effect) and is_before(effect.first, cause.first):
            # Somebody looked at the node afterwards, perhaps long after.
            return not self._began_anew(effect, cause)
        gap = _gap(cause, effect)
        if gap is not None:
            return -_AFTERWARDS <= gap <= _APART
        after = effect.first.line - cause.first.line
        return not is_one_log or (after >= -_NEAR and effect.first.line - cause.last.line <= _APART_LINES)

    def _began_anew(self, cause: Sighting, effect: Sighting) -> bool:
        """Tell whether the log tells, between a failure and another one, that the program works again."""
        places = (place for recovery in self.recoveries for place in (recovery.first, recovery.last))
        return any(is_before(cause.last, place) and is_before(place, effect.first) for place in places)

    def moment(self, sighting: Sighting) -> tuple[float, int]:
        """Return what sorts sightings by when they were first met: a log may have its newest line first."""
        times = [place.time.timestamp() for place in (sighting.first, sighting.last) if place.time is not None]
        return (min(times) if self.is_timed else 0.0, sighting.first.line)

    def preference(self, cause: Sighting, effect: Sighting) -> tuple[object, ...]:
        """Sort what may have caused something: causes before symptoms, what a wrapper carries by nearness, else the oldest."""
        role = _MOST_SPECIFIC_FIRST.index(cause.message.role)
        if effect.message.role is Role.WRAPPER:
            return (role, min(_distance(place, effect.first) for place in (cause.first, cause.last)))
        return (role, *self.moment(cause))

    def rank(self, conclusion: Conclusion) -> tuple[object, ...]:
        """Sort conclusions: what happened before what is quoted, causes before what follows, the oldest first."""
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
    """Return what is wrong. `known` are facts that no log names, such as `node`; the log's own words win."""
    harmless = [_conclusion(one, Confidence.HIGH, known) for one in seen.sightings if one.message.role is Role.HARMLESS]
    told = [one for one in seen.sightings if one.message.role not in {Role.HARMLESS, Role.RECOVERY}]
    places = [place for one in told for place in (one.first, one.last)]
    story = _Story(
        tuple(one for one in told if not (one.is_quoted or seen.is_binary)),
        tuple(one for one in seen.sightings if one.message.role is Role.RECOVERY and not one.is_quoted),
        is_timed=all(place.time for place in places) and len({_is_naive(place) for place in places}) == 1,
    )
    conclusions: list[Conclusion] = []
    for failure in story.failures:
        over = story.recovered(failure)
        if over is not None and failure.message.role in {Role.SYMPTOM, Role.PROGRESS}:
            harmless.append(
                replace(_conclusion(failure, Confidence.MEDIUM, known), recovered=over, why=_was_over(over))
            )
        else:
            conclusions.append(_judged(failure, story, over, known))
    why = _NO_TEXT if seen.is_binary else _QUOTED
    doubtful = [_conclusion(one, Confidence.LOW, known) for one in told if one.is_quoted or seen.is_binary]
    conclusions += [replace(one, why=why) for one in doubtful]
    return Explanation(
        tuple(sorted(_without_dangling(conclusions), key=story.rank)),
        tuple(harmless),
        () if conclusions else seen.suspicious,
        seen.lines,
        seen.size,
        seen.is_binary,
    )


def is_before(one: Place, other: Place) -> bool:
    """Tell whether one place is before another: by time where the log tells it of both, else by line within one file."""
    if (
        one.time is not None
        and other.time is not None
        and _is_naive(one) == _is_naive(other)
        and one.time != other.time
    ):
        return one.time < other.time
    return one.source == other.source and one.line < other.line


def _judged(failure: Sighting, story: _Story, over: Place | None, known: Mapping[str, str]) -> Conclusion:
    cause, message = story.cause_of(failure), failure.message
    if cause is not None:
        surely = cause.message.id in message.explained_by or message.role is Role.WRAPPER
        why = f"it follows from `{cause.message.id}`, which line {cause.first.line} tells"
        conclusion = _conclusion(failure, Confidence.HIGH if surely else Confidence.MEDIUM, known)
        return replace(conclusion, symptom_of=cause.message.id, why=why, recovered=over)
    if over is not None:
        return replace(_conclusion(failure, Confidence.MEDIUM, known), recovered=over, why=_was_over(over))
    if _is_plain(message):
        return _conclusion(failure, Confidence.HIGH, known)
    conclusion = _conclusion(failure, Confidence.MEDIUM, known)
    if message.check_first is not None:
        look = message.said(_LOOK_FIRST[message.check_first], {**known, **failure.facts})
    else:
        look = _ALONE[message.role]
    return replace(conclusion, why=look)


def _conclusion(sighting: Sighting, confidence: Confidence, known: Mapping[str, str]) -> Conclusion:
    message, facts = sighting.message, {**known, **sighting.facts}
    remedy = tuple(message.said(line, facts) for line in message.remedy)
    if sighting.memory is not None:
        remedy = advice(sighting.memory) or remedy
    return Conclusion(sighting, confidence, message.said(message.meaning, facts), remedy)


def _was_over(over: Place) -> str:
    return f"it was over by itself: line {over.line} tells `{over.text[:80]}`"


def _without_dangling(conclusions: Sequence[Conclusion]) -> Iterable[Conclusion]:
    """Yield the conclusions; of two that explain each other the older one stands for itself."""
    by_id = {one.id: one for one in conclusions}
    for one in conclusions:
        path = [one.id]
        while (cause := by_id[path[-1]].symptom_of) is not None and cause in by_id and cause not in path:
            path.append(cause)
        is_circle = cause == one.id and min(path, key=lambda id_: by_id[id_].sighting.first.line) == one.id
        yield replace(one, symptom_of=None, why=None) if is_circle or cause not in {None, *by_id} else one


def _may_be_of_anything(effect: Sighting) -> bool:
    """Tell whether any failure of a program may be behind it: other workers only see that it is gone."""
    message = effect.message
    return message.role is Role.SYMPTOM and message.where is Where.TRAINING_LOG and message.check_first is not None


def _is_plain(message: Message) -> bool:
    """Tell whether a message by itself says what is wrong, so that nothing needs to be looked at first."""
    return message.role is Role.CAUSE and (message.check_first is None or message.of_the_node)


def _is_lost_node(cause: Sighting, effect: Sighting) -> bool:
    """Tell whether a message tells of the node what would explain that a program has lost it."""
    return cause.message.of_the_node and not effect.message.of_the_node and effect.message.check_first in _OF_THE_NODE


def _distance(cause: Place, wrapper: Place) -> int:
    """Return how far a cause is from what carries it on, in lines; one that is told first is nearer than one told after."""
    lines = wrapper.line - cause.line
    return lines if lines >= 0 else -2 * lines


def _spans(cause: Sighting, line: int) -> bool:
    return cause.first.line <= line <= cause.last.line + _NEAR


def _gap(cause: Sighting, effect: Sighting) -> timedelta | None:
    """Return how long before an effect its cause was met last; negative where it was met only afterwards."""
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
