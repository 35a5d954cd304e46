"""From the messages found in a log to what is wrong: causes before symptoms, the first failure before its consequences. Pure.

`conclude` judges one log, `merge_scans` makes one of several logs, `conclude_single_message` judges a message without its log,
and `apply_node_evidence` adds what the API says of the node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from tpuctl.command_text import as_quotation
from tpuctl.explain.device_memory import memory_advice
from tpuctl.explain.log_endings import CRASHED_SCORE, LogEnding, is_error
from tpuctl.explain.log_lines import MAX_EVIDENCE_LENGTH, LogLevel, LogPlace, ScanResult, Sighting
from tpuctl.explain.messages import (
    Action,
    CheckFirst,
    MatchedBy,
    MessageOrigin,
    MessageRole,
    classify,
    fill_message,
    message_by_id,
)
from tpuctl.explain.suspect_lines import error_score
from tpuctl.explain.unrecognised import describe, guess, is_final, kind_by_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from tpuctl.explain.log_lines import Suspect
    from tpuctl.explain.messages import Message

# A message and its wrapper stand near each other: at most a long stack trace lies between them.
_NEARBY_LINES = 400
# Messages further apart are unrelated: a program that continued for so long has recovered.
_MAX_GAP = timedelta(hours=1)
_MAX_GAP_LINES = 50_000
# A cause may be logged after its symptoms: other workers log sooner, and a program logs last what ended it.
_MAX_DELAY = timedelta(minutes=2)

_CHECK_FIRST_REASONS = {
    CheckFirst.NODE_STATE: "usually a symptom: check the state of the node first, `tpuctl status {node}`",
    CheckFirst.NODE_HEALTH: "usually a symptom: check the health of the node first, `tpuctl status {node}`",
    CheckFirst.OTHER_WORKERS_LOG: "usually a symptom of a failure on another worker: read the logs of the others first",
    CheckFirst.SEVERAL_CAUSES: "several causes are possible: check first, then fix, in this order",
}
_UNEXPLAINED_REASONS = {
    MessageRole.SYMPTOM: "usually a symptom of another failure, which this log does not show",
    MessageRole.WRAPPER: "it only carries the message of another failure, and no known message stands near it",
    MessageRole.PROGRESS: "the program was still retrying when the log ended",
}
_QUOTED_REASON = "the log only quotes the message, as documentation, a search or a test does; it may not have occurred"
_BINARY_REASON = "this is not text but a program or data, which may only contain the message"
_GUESSED_REASON = "no message that tpuctl knows: this is judged by the words of the line alone"
_HELD_BY_ITSELF = (
    "let only one process of the program use the TPU: run the others, also a parent, with `JAX_PLATFORMS=cpu`",
)
_DESTRUCTIVE = frozenset({Action.RESTART_NODE, Action.RECREATE_NODE, Action.KILL_STALE_PROCESS})
_MINOR_LEVELS = frozenset({LogLevel.INFO, LogLevel.WARNING})
_NODE_CHECKS = frozenset({CheckFirst.NODE_STATE, CheckFirst.NODE_HEALTH})
_MOST_SPECIFIC_FIRST = (MessageRole.CAUSE, MessageRole.SYMPTOM, MessageRole.WRAPPER, MessageRole.PROGRESS)


class Confidence(StrEnum):
    """How certain a verdict is. A contract with scripts."""

    HIGH = "high"  # the message says what is wrong
    MEDIUM = "medium"  # a symptom of something that the log does not show, or over before the log ended
    LOW = "low"  # only quoted, by documentation, a search or a test; or no known message, judged by the words of a line


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One verdict on a log."""

    sighting: Sighting
    confidence: Confidence
    meaning: str
    remedy: tuple[str, ...]  # with all placeholders filled
    symptom_of: str | None = None  # the id of the verdict that caused this one
    why: str | None = None  # the reason in words
    recovered: LogPlace | None = None  # where the log says that the failure was over

    @property
    def id(self) -> str:
        """The id of the message."""
        return self.sighting.message.id

    @property
    def action(self) -> Action:
        """The kind of remedy. What restarts, recreates or kills needs certainty: otherwise there is none."""
        action = self.sighting.message.action
        return Action.NONE if action in _DESTRUCTIVE and self.confidence is not Confidence.HIGH else action


@dataclass(frozen=True, slots=True)
class Explanation:
    """All verdicts on a log."""

    conclusions: tuple[Conclusion, ...]
    harmless: tuple[Conclusion, ...]  # messages that only look alarming
    suspicious: tuple[LogPlace, ...]  # the lines most like an error, if no message is known, or each is only quoted
    lines: int
    size: int
    is_binary: bool = False

    @property
    def is_recognised(self) -> bool:
        """Whether a verdict rests on a known message, not on the words of a line alone."""
        return any(kind_by_id(one.id) is None for one in self.conclusions)


@dataclass(frozen=True, slots=True)
class _FailureTimeline:
    """The failures in a log, and the messages that say that a failure is over."""

    failures: tuple[Sighting, ...]
    recoveries: tuple[Sighting, ...]
    is_timed: bool  # all messages have comparable times

    def recovered(self, failure: Sighting) -> LogPlace | None:
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
            message.role is MessageRole.SYMPTOM
            and message.where is MessageOrigin.TRAINING_LOG
            and message.check_first is not None
        )
        others = [one for one in self.failures if one is not effect and message.id not in one.message.explained_by]
        possible = [one for one in others if self._may_have_caused(one, effect)]
        causes = [one for one in possible if one.message.role is MessageRole.CAUSE]
        likely = [one for one in possible if one.message.id in message.explained_by or _is_lost_node(one, effect)]
        if message.role is MessageRole.WRAPPER:
            likely += causes
        elif not likely and may_follow_anything:
            likely = [one for one in causes if one.message.where is MessageOrigin.TRAINING_LOG]
        return min(likely, key=lambda one: self.preference(one, effect), default=None)

    def _may_have_caused(self, cause: Sighting, effect: Sighting) -> bool:
        is_one_log = cause.first.source == effect.first.source
        line = effect.first.line
        if effect.message.role is MessageRole.WRAPPER:
            is_near = (
                abs(cause.first.line - line) <= _NEARBY_LINES
                or cause.first.line <= line <= cause.last.line + _NEARBY_LINES
            )
            return is_one_log and is_near
        if self._recovered_between(cause, effect):
            return False
        if _is_lost_node(cause, effect) and is_before(effect.first, cause.first):
            # A person may have checked the node long after the failure.
            return not self._recovered_between(effect, cause)
        gap = _time_between(cause, effect)
        if gap is not None:
            return -_MAX_DELAY <= gap <= _MAX_GAP
        return not is_one_log or (
            line - cause.first.line >= -_NEARBY_LINES and line - cause.last.line <= _MAX_GAP_LINES
        )

    def _recovered_between(self, first: Sighting, second: Sighting) -> bool:
        """Return whether the log says, between two failures, that the program works again."""
        places = (place for recovery in self.recoveries for place in (recovery.first, recovery.last))
        return any(is_before(first.last, place) and is_before(place, second.first) for place in places)

    def moment(self, sighting: Sighting) -> tuple[float, int]:
        """Return the sort key for the first occurrence: a log may start with its newest line."""
        times = [place.time.timestamp() for place in (sighting.first, sighting.last) if place.time is not None]
        return (min(times) if self.is_timed else 0.0, sighting.first.line)

    def preference(self, cause: Sighting, effect: Sighting) -> tuple[object, ...]:
        """Return the sort key of a possible cause: causes before symptoms; for a wrapper the nearest, else the oldest."""
        role = _MOST_SPECIFIC_FIRST.index(cause.message.role)
        if effect.message.role is MessageRole.WRAPPER:
            lines = [effect.first.line - place.line for place in (cause.first, cause.last)]
            # A cause before its wrapper is nearer than one after it.
            return (role, min(distance if distance >= 0 else -2 * distance for distance in lines))
        return (role, *self.moment(cause))

    def rank(self, conclusion: Conclusion) -> tuple[object, ...]:
        """Return the sort key of a conclusion: real before quoted, causes before symptoms, the oldest first."""
        message = conclusion.sighting.message
        has_several_causes = message.check_first is CheckFirst.SEVERAL_CAUSES
        is_open = message.role is MessageRole.CAUSE and not (has_several_causes or _is_self_explanatory(message))
        role = _MOST_SPECIFIC_FIRST.index(MessageRole.SYMPTOM if is_open else message.role)
        return (
            conclusion.confidence is Confidence.LOW,
            conclusion.symptom_of is not None,
            conclusion.recovered is not None,
            role,
            *self.moment(conclusion.sighting),
        )


def conclude(
    scan: ScanResult, *, known: Mapping[str, str] = MappingProxyType({}), has_failed: bool = False
) -> Explanation:
    """Return what is wrong. `known` are facts that no log names, such as `node`; the words of the log win.

    Without a known message, or with only the wrapper of an unknown reason, it is a guess from the most telling line.
    `has_failed`: the program is known to have failed, however its log ends.
    """
    if has_failed:
        scan = replace(scan, endings=())
    return _with_guess(_conclude_known(scan, known), scan, known)


def _with_guess(explanation: Explanation, scan: ScanResult, known: Mapping[str, str]) -> Explanation:
    unknown_ends = [
        ending
        for ending in scan.endings
        if ending.resumed and ending.failure and not _is_recognised(ending.failure, scan)
    ]
    is_answered = any(not _leaves_cause_open(one) for one in explanation.conclusions) and not unknown_ends
    if scan.is_binary or _ends_well(scan) or is_answered:
        return explanation
    # The line of a wrapper may hold the reason, too.
    known_lines = [one for one in scan.sightings if one.message.role is not MessageRole.WRAPPER]
    recognised = {(place.source, place.line) for one in known_lines for place in (one.first, one.last)}
    unknown = [
        one
        for one in scan.suspects
        if (one.place.source, one.place.line) not in recognised
        and not any(_first_behind(one.place, ending, *_ends_of_a_guess(one, ending)) for ending in scan.endings)
    ]
    guessed = guess(unknown, scan.lines)
    if guessed is None:
        return explanation
    conclusion = replace(_conclusion(guessed, Confidence.LOW, known, _GUESSED_REASON), meaning=describe(guessed))
    return replace(explanation, conclusions=(*explanation.conclusions, conclusion))


def _ends_of_a_guess(suspect: Suspect, ending: LogEnding) -> tuple[LogPlace | None, ...]:
    """Return what shows that a line of which no message is known was no failure."""
    # Much may be logged behind an exception that ended a program.
    if is_final(suspect):
        return (ending.works, ending.made, ending.resumed)
    is_minor = not is_error(suspect.place, suspect.score) and _is_of_the_same_program(suspect.place, ending)
    calm = ending.at_peace if is_minor else _calm_behind(suspect.place, ending)
    return (ending.works, ending.made, ending.resumed, ending.traced, calm)


def _leaves_cause_open(conclusion: Conclusion) -> bool:
    """Return whether a verdict only says that there is a cause, which no known message tells, or that there are several."""
    if conclusion.symptom_of is not None or conclusion.confidence is Confidence.LOW:
        return False
    is_doubtful = conclusion.confidence is Confidence.MEDIUM and conclusion.action is Action.NONE
    return conclusion.sighting.message.role is MessageRole.WRAPPER or is_doubtful


def _conclude_known(scan: ScanResult, known: Mapping[str, str]) -> Explanation:
    harmless = [
        _conclusion(one, Confidence.HIGH, known) for one in scan.sightings if one.message.role is MessageRole.HARMLESS
    ]
    alarming = [one for one in scan.sightings if one.message.role not in {MessageRole.HARMLESS, MessageRole.RECOVERY}]
    places = [place for one in alarming for place in (one.first, one.last)]
    timeline = _FailureTimeline(
        tuple(one for one in alarming if not (one.is_quoted or scan.is_binary)),
        tuple(one for one in scan.sightings if one.message.role is MessageRole.RECOVERY and not one.is_quoted),
        is_timed=all(place.time for place in places) and len(set(map(_is_naive, places))) == 1,
    )
    why = _BINARY_REASON if scan.is_binary else _QUOTED_REASON
    conclusions: list[Conclusion] = []
    for one in alarming:
        recovered = timeline.recovered(one)
        if one.is_quoted and (_ends_well(scan) or _over_at(one, scan.endings)):
            harmless.append(_conclusion(one, Confidence.LOW, known, why))
        elif one.is_quoted or scan.is_binary:
            conclusions.append(_conclusion(one, Confidence.LOW, known, why))
        elif recovered and (
            one.message.role in {MessageRole.SYMPTOM, MessageRole.PROGRESS} or _works_from(recovered, scan)
        ):
            harmless.append(_recovered(_conclusion(one, Confidence.MEDIUM, known), recovered))
        elif over := _over_at(one, scan.endings):
            harmless.append(_recovered(_conclusion(one, Confidence.MEDIUM, known), over))
        else:
            conclusions.append(_conclude_failure(one, timeline, recovered, known))
    conclusions = [_doubted(one, conclusions, scan) for one in conclusions]
    is_explained = any(one.confidence is not Confidence.LOW for one in conclusions)
    return Explanation(
        tuple(sorted(_without_circles(conclusions), key=timeline.rank)),
        tuple(harmless),
        () if is_explained or _ends_well(scan) else tuple(suspect.place for suspect in scan.suspects),
        scan.lines,
        scan.size,
        scan.is_binary,
    )


def _doubted(conclusion: Conclusion, all_of_them: Sequence[Conclusion], scan: ScanResult) -> Conclusion:
    """Return a conclusion with less confidence if it need not be what ended the program."""
    if not _is_open_cause(conclusion):
        return conclusion
    failure, message = conclusion.sighting, conclusion.sighting.message
    if message.action is Action.KILL_STALE_PROCESS and (pid := failure.facts.get("pid")) in scan.own_pids:
        doubted = _with_doubt(conclusion, f"the log names process {pid} as one of this run")
        own = replace(failure, message=replace(message, action=Action.FIX_TRAINING_CODE))
        meaning = "another process of the same run holds the TPU; only one process can hold it"
        return replace(doubted, sighting=own, meaning=meaning, remedy=_HELD_BY_ITSELF)
    for other in all_of_them:
        if _is_open_cause(other) and other.sighting.message.action is not message.action:
            return _with_doubt(conclusion, f"the log also has `{other.id}`, which needs another remedy")
    if message.action in _DESTRUCTIVE and failure.last.level in _MINOR_LEVELS and not message.of_the_node:
        return _with_doubt(conclusion, "the program only warns of it")
    for ending in scan.endings:
        if mark := _first_behind(failure.last, ending, ending.goes_on):
            return _with_doubt(conclusion, f"the log goes on: line {mark.line} says `{mark.text[:80]}`")
        last = ending.failure
        if last is None or not is_before(failure.last, last) or _is_recognised(last, scan):
            continue
        if ending.resumed is not None and is_before(failure.last, ending.resumed):
            return _with_doubt(
                conclusion, f"the program worked again before it failed in line {last.line} for another reason"
            )
        if message.action in _DESTRUCTIVE:
            return _with_doubt(conclusion, f"the program failed later, in line {last.line}, perhaps for another reason")
    return conclusion


def _with_doubt(conclusion: Conclusion, why: str) -> Conclusion:
    return replace(conclusion, confidence=Confidence.MEDIUM, why=why)


# A message may begin in the line before or after the name of the exception.
_MESSAGE_LINES = 3


def _is_recognised(place: LogPlace, scan: ScanResult) -> bool:
    """Return whether a known message stands in a line."""
    known = (one for sighting in scan.sightings for one in (sighting.first, sighting.last))
    return any(one.source == place.source and abs(one.line - place.line) <= _MESSAGE_LINES for one in known)


def _is_open_cause(conclusion: Conclusion) -> bool:
    return conclusion.confidence is Confidence.HIGH and conclusion.symptom_of is None and conclusion.recovered is None


def _ends_well(scan: ScanResult) -> bool:
    """Return whether the last lines of each worker show that the program works or has ended well."""
    return bool(scan.endings) and all(ending.is_well for ending in scan.endings)


def _works_from(place: LogPlace, scan: ScanResult) -> bool:
    """Return whether the log shows behind a place that a program works, and nothing that looks like its end."""
    behind = [one for one in scan.endings if one.works and is_before(place, one.works)]
    return bool(behind) and not any(one.failure and is_before(place, one.failure) for one in scan.endings)


def _over_at(failure: Sighting, endings: Sequence[LogEnding]) -> LogPlace | None:
    """Return where the log shows that a failure was over, as each worker that wrote of it went on; None if one did not."""
    message = failure.message
    if message.lasts and not all(ending.is_done for ending in endings):
        return None
    is_passing = message.role is not MessageRole.PROGRESS and not message.of_the_node
    is_minor = is_passing and all(
        place.level in _MINOR_LEVELS or _says_that_it_goes_on(place) for place in (failure.first, failure.last)
    )
    places = (*failure.workers.values(), failure.last)
    marks = [_over_after(place, message, endings, is_minor=is_minor) for place in places]
    return marks[-1] if all(marks) else None


# A line that says itself that the next try comes, or that the program goes on all the same.
_RETRIED = re.compile(
    r"(?i)\b(?:re)?try(?:ing)?(?: again)? (?:in|after) \d|\bwill (?:be )?(?:automatically )?retr(?:y|ied)\b"
)
_GOES_ON = re.compile(
    r"(?i)\b(?:continuing|proceeding) (?:without|anyway)\b|\bdismissed an error as retryable\b|\bretryable error:"
)
# An error of the API as gcloud prints it.
_PRINTED_ERROR = re.compile(r"\s{0,40}\"?message\"?: ")


def _says_that_it_goes_on(place: LogPlace) -> bool:
    return _GOES_ON.search(place.text) is not None and error_score(place.text) < CRASHED_SCORE


def _over_after(
    place: LogPlace, message: Message, endings: Sequence[LogEnding], *, is_minor: bool = False
) -> LogPlace | None:
    """Return where the worker that wrote a line shows later that it works, None if it does not."""
    ends = is_error(place, error_score(place.text)) or _PRINTED_ERROR.match(place.text) is not None
    goes_on = _says_that_it_goes_on(place)
    is_fatal = message.role is MessageRole.CAUSE and ends and not (is_minor and goes_on)
    may_be_made = message.where is not MessageOrigin.TRAINING_LOG

    def over_in(place: LogPlace, ending: LogEnding) -> LogPlace | None:
        if is_fatal:
            passed = ending.passed if _is_of_the_same_program(place, ending) else None
            return _first_behind(place, ending, ending.steps, passed, ending.made if may_be_made else None)
        is_announced = is_minor and (goes_on or _RETRIED.search(place.text) is not None)
        calm = _calm_behind(place, ending) if is_minor else None
        return _first_behind(place, ending, ending.works, calm, ending.at_peace if is_announced else None)

    own = next(filter(None, (over_in(place, ending) for ending in endings)), None)
    named = [ending for ending in endings if ending.worker]
    if own or place.worker or not named or is_fatal:
        return own
    # What names no worker may be of any: each must work afterwards, and take steps if it may be a cause.
    of_each = [(replace(place, worker=ending.worker), ending) for ending in named]
    is_cause = message.role is MessageRole.CAUSE
    marks = [_first_behind(*one, one[1].steps) if is_cause else over_in(*one) for one in of_each]
    return marks[-1] if all(marks) else None


def _calm_behind(place: LogPlace, ending: LogEnding) -> LogPlace | None:
    """Return from where on there is no alarm behind a line."""
    return (ending.calm or ending.quiet) if _is_of_the_same_program(place, ending) else None


def _is_of_the_same_program(place: LogPlace, ending: LogEnding) -> bool:
    """Return whether the program that wrote a line prints the end of the log, not another one behind a later prompt."""
    return ending.prompt is None or is_before(ending.prompt, place)


def _first_behind(place: LogPlace, ending: LogEnding, *marks: LogPlace | None) -> LogPlace | None:
    """Return the first of the marks in the log of a worker that is behind a line of that worker, None if there is none."""
    if (ending.worker, ending.source) != (place.worker, place.source):
        return None
    return next((mark for mark in marks if mark and is_before(place, mark)), None)


def is_before(one: LogPlace, other: LogPlace) -> bool:
    """Return whether one place is before another: by time if the log gives both times, else by line within one file."""
    if (
        one.time is not None
        and other.time is not None
        and _is_naive(one) == _is_naive(other)
        and one.time != other.time
    ):
        return one.time < other.time
    return one.source == other.source and one.line < other.line


def _conclude_failure(
    failure: Sighting, timeline: _FailureTimeline, recovered: LogPlace | None, known: Mapping[str, str]
) -> Conclusion:
    """Return the verdict on one failure: a symptom, recovered, a cause, or something to check first."""
    cause, message = timeline.cause_of(failure), failure.message
    conclusion = _conclusion(failure, Confidence.MEDIUM, known)
    if cause is not None:
        is_certain = cause.message.id in message.explained_by or message.role is MessageRole.WRAPPER
        return replace(
            conclusion,
            confidence=Confidence.HIGH if is_certain else Confidence.MEDIUM,
            symptom_of=cause.message.id,
            why=f"it follows from `{cause.message.id}` in line {cause.first.line}",
            recovered=recovered,
        )
    if recovered is not None:
        return _recovered(conclusion, recovered)
    if _is_self_explanatory(message):
        return replace(conclusion, confidence=Confidence.HIGH)
    if message.check_first is not None:
        why = fill_message(_CHECK_FIRST_REASONS[message.check_first], known, failure.facts)
    else:
        why = _UNEXPLAINED_REASONS[message.role]
    return replace(conclusion, why=why)


def _conclusion(
    sighting: Sighting, confidence: Confidence, known: Mapping[str, str], why: str | None = None
) -> Conclusion:
    message = sighting.message
    remedy = tuple(fill_message(line, known, sighting.facts) for line in message.remedy)
    if sighting.memory is not None:
        remedy = memory_advice(sighting.memory) or remedy
    return Conclusion(sighting, confidence, fill_message(message.meaning, known, sighting.facts), remedy, why=why)


def _recovered(conclusion: Conclusion, place: LogPlace) -> Conclusion:
    return replace(
        conclusion,
        recovered=place,
        why=f"it recovered by itself: line {place.line} says `{as_quotation(place.text[:80])}`",
    )


def _without_circles(conclusions: Sequence[Conclusion]) -> Iterable[Conclusion]:
    """Yield the conclusions; of two that explain each other the older one becomes a cause."""
    by_id = {one.id: one for one in conclusions}
    for one in conclusions:
        path = [one.id]
        while (cause := by_id[path[-1]].symptom_of) is not None and cause in by_id and cause not in path:
            path.append(cause)
        is_circle = cause == one.id and min(path, key=lambda id_: by_id[id_].sighting.first.line) == one.id
        yield replace(one, symptom_of=None, why=None) if is_circle or cause not in {None, *by_id} else one


def _is_self_explanatory(message: Message) -> bool:
    """Return whether a message alone says what is wrong, so that there is no need to check anything first."""
    return message.role is MessageRole.CAUSE and (message.check_first is None or message.of_the_node)


def _is_lost_node(cause: Sighting, effect: Sighting) -> bool:
    """Return whether one message says something of the node that explains why a program lost it."""
    return cause.message.of_the_node and not effect.message.of_the_node and effect.message.check_first in _NODE_CHECKS


def _time_between(cause: Sighting, effect: Sighting) -> timedelta | None:
    """Return how long before an effect its cause occurred last, negative if only afterwards. None without times."""
    begin, end, met = cause.first, cause.last, effect.first
    if begin.time is None or end.time is None or met.time is None:
        return None
    if len({_is_naive(begin), _is_naive(end), _is_naive(met)}) > 1:
        return None
    if begin.time <= met.time <= end.time:
        return timedelta()
    return met.time - (end.time if met.time > end.time else begin.time)


def _is_naive(place: LogPlace) -> bool:
    return place.time is not None and place.time.tzinfo is None


_SUSPICIOUS_SHOWN = 10
# `run --log-dir` writes `worker-3.log`; the host name of a worker is like `t1v-n-1a2b3c4d-w-3`.
_WORKER = re.compile(r"(?:\bworkers/|(?:\bworker|-w)[-_.]?)(\d{1,5})(?!\d)")


def merge_scans(logs: Mapping[str, ScanResult]) -> ScanResult:
    """Return the content of several logs, by name, as if they were one. A line without a worker gets the one of its log."""
    found: dict[str, Sighting] = {}
    for name, scan in logs.items():
        for sighting in scan.sightings:
            named = _with_source(sighting, name)
            known = found.get(sighting.message.id)
            found[sighting.message.id] = _merged(known, named) if known else named
    suspects = [
        replace(one, place=replace(one.place, source=name)) for name, scan in logs.items() for one in scan.suspects
    ]
    suspects.sort(key=lambda one: -one.score)
    return ScanResult(
        tuple(found.values()),
        tuple(suspects[:_SUSPICIOUS_SHOWN]),
        sum(scan.lines for scan in logs.values()),
        sum(scan.size for scan in logs.values()),
        endings=tuple(_ending_of(name, ending) for name, scan in logs.items() for ending in scan.endings),
        is_binary=bool(logs) and all(scan.is_binary for scan in logs.values()),
        own_pids=frozenset().union(*(scan.own_pids for scan in logs.values())),
    )


def _ending_of(name: str, ending: LogEnding) -> LogEnding:
    number = _WORKER.search(name)
    marks = (
        "works",
        "calm",
        "at_peace",
        "quiet",
        "prompt",
        "failure",
        "resumed",
        "steps",
        "made",
        "passed",
        "traced",
        "goes_on",
    )
    named = {mark: place and replace(place, source=name) for mark in marks for place in (getattr(ending, mark),)}
    worker = ending.worker or (number[1] if number else name)
    return replace(ending, worker=worker, source=name, **named)


def _with_source(sighting: Sighting, name: str) -> Sighting:
    number = _WORKER.search(name)
    default_worker = number[1] if number else name

    def with_source(place: LogPlace) -> LogPlace:
        return replace(place, source=name, worker=place.worker or default_worker)

    first = with_source(sighting.first)
    workers = {worker: with_source(place) for worker, place in sighting.workers.items()} or {default_worker: first}
    return replace(sighting, first=first, last=with_source(sighting.last), workers=workers)


def _merged(one: Sighting, other: Sighting) -> Sighting:
    """Merge one message of two logs: only the real occurrences if one has any, the older first if both logs give times."""
    if one.is_quoted != other.is_quoted:
        return other if one.is_quoted else one
    is_other_first = False
    if one.first.time is not None and other.first.time is not None:
        has_same_form = (one.first.time.tzinfo is None) == (other.first.time.tzinfo is None)
        is_other_first = has_same_form and other.first.time < one.first.time
    first, second = (other, one) if is_other_first else (one, other)
    last = second.last
    if first.last.time and second.last.time:
        last = max(first.last, second.last, key=lambda place: place.time.timestamp() if place.time else 0.0)
    return replace(
        first,
        last=last,
        count=first.count + second.count,
        workers={**first.workers, **second.workers, **first.workers},  # in this order; the places of the first log win
        memory=first.memory or second.memory,
    )


# Possible origins of a message that is too short, or too general, to search logs for it.
_FALLBACK_ORIGINS = (
    MessageOrigin.API,
    MessageOrigin.OPERATION,
    MessageOrigin.QUEUED_RESOURCE,
    MessageOrigin.SSH,
)


def conclude_single_message(
    text: str, scan: ScanResult, *, known: Mapping[str, str] = MappingProxyType({})
) -> Explanation:
    """Return what a message means. `scan` is the content of a log that holds only the message.

    Quotation marks round the message are the user's: it is never treated as a quote.
    """
    scan = replace(scan, sightings=tuple(replace(sighting, is_quoted=False) for sighting in scan.sightings))
    explanation = _conclude_known(scan, known)
    if explanation.conclusions or explanation.harmless:
        return explanation
    for where in _FALLBACK_ORIGINS:
        verdict = classify(text, where=where, known=known)
        message = message_by_id(verdict.id) if verdict else None
        if verdict is not None and message is not None:
            place = LogPlace(1, " ".join(text.split())[:MAX_EVIDENCE_LENGTH])
            sighting = Sighting(message, place, place, facts={**verdict.facts})
            is_sure = message.by is MatchedBy.TEXT
            conclusion = _conclusion(
                sighting,
                Confidence.HIGH if is_sure else Confidence.MEDIUM,
                known,
                None if is_sure else "only the status of the message is known, not its words",
            )
            return replace(explanation, conclusions=(conclusion,), suspicious=())
    return _with_guess(explanation, scan, known)


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """What the API says of a node now. A preempted node has the state PREEMPTED here, however the API shows that."""

    name: str
    state: str | None  # None if there is no such node
    health: str | None = None
    created: datetime | None = None
    service_account: str | None = None

    @property
    def known(self) -> Mapping[str, str]:
        """What it says that no log may: the names of the node, and of the account that is granted roles."""
        account = {"service_account": self.service_account} if self.service_account else {}
        return {"node": self.name, **account}

    @property
    def words(self) -> str:
        """The text that the messages about nodes are matched against."""
        return f"state: {self.state or 'none'} health: {self.health or 'none'}"


def apply_node_evidence(explanation: Explanation, evidence: NodeEvidence) -> Explanation:
    """Apply the state of the node: it comes first if it is a failure, and the messages that it explains become symptoms.

    A program that lost its worker may blame anything.
    """
    verdict = classify(evidence.words, where=MessageOrigin.NODE, known=evidence.known)
    message = message_by_id(verdict.id) if verdict else None
    if verdict is None or message is None:
        health = f" and {evidence.health}" if evidence.health else ""
        why = f"`{evidence.name}` is {evidence.state}{health} now, so check its workers next"
        conclusions = tuple(
            replace(one, why=_reason_if_recreated(one, evidence) or why) if _depends_on_node(one) else one
            for one in explanation.conclusions
        )
        return replace(explanation, conclusions=conclusions)
    place = LogPlace(0, evidence.words.removesuffix(" health: none"))
    sighting = Sighting(message, place, place, count=0)
    why = f"the API reports this for `{evidence.name}` now"
    of_the_node = Conclusion(sighting, Confidence.HIGH, verdict.meaning, verdict.remedy, why=why)
    following: list[Conclusion] = []
    for one in explanation.conclusions:
        if not _depends_on_node(one) or one.recovered:
            following.append(one)
        elif recreated := _reason_if_recreated(one, evidence):
            following.append(replace(one, why=recreated))
        else:
            why = f"it follows from `{of_the_node.id}`: the state of the node explains it"
            following.append(replace(one, symptom_of=of_the_node.id, confidence=Confidence.HIGH, why=why))
    following.sort(key=lambda one: (one.confidence is Confidence.LOW, one.symptom_of is not None))
    return replace(explanation, conclusions=(of_the_node, *following), suspicious=())


def _depends_on_node(conclusion: Conclusion) -> bool:
    """Return whether the state of the node decides about a verdict."""
    is_open = conclusion.symptom_of is None and conclusion.confidence is not Confidence.LOW
    return is_open and conclusion.sighting.message.check_first is not None


def _reason_if_recreated(conclusion: Conclusion, evidence: NodeEvidence) -> str | None:
    """Return why the state now does not count: the node was recreated after the message. None if it was not."""
    time = conclusion.sighting.last.time
    if evidence.created is not None and time is not None and time.tzinfo is not None and time < evidence.created:
        return "the node was recreated since, so its state now does not explain the log"
    return None
