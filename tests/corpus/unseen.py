"""Sets of logs that nobody had tuned on when they were judged, and how well the verdicts on them are: right, precise, calm.

A set is a folder of `tests/corpus/unseen/` with the date on which its labels were written, by somebody who had not seen the
patterns. A set that was tuned on afterwards is no measure any more: then a new one is needed. The sets `2026-11-23` to `-g`
have been tuned on; `-f` was written for that, a third of it from the list of known messages. `-h` was not used for it.

A label names the kinds of remedy (`actions`) that an expert accepts, and the kinds of failure (`kinds`) that a tool may name
that does not know the message; or `harmless`, and `alarms` if there still is a verdict of high or medium confidence.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpuctl.explain.conclusion import Confidence, conclude
from tpuctl.explain.messages import Action
from tpuctl.explain.scanner import LogReader

if TYPE_CHECKING:
    from tpuctl.explain.conclusion import Conclusion, Explanation

SETS: Final = Path(__file__).parent / "unseen"
_KIND_PREFIX: Final = "unrecognised-"
DESTRUCTIVE: Final = frozenset({Action.RESTART_NODE, Action.RECREATE_NODE, Action.KILL_STALE_PROCESS})


@dataclass(frozen=True, slots=True, eq=False)
class UnseenLog:
    """A log of a set, its label, and what tpuctl says of it."""

    name: str
    label: Mapping[str, Any]
    explanation: Explanation

    @property
    def is_harmless(self) -> bool:
        """Whether nothing is wrong."""
        return bool(self.label.get("harmless"))

    def is_right(self, verdict: Conclusion) -> bool:
        """Tell whether an expert would accept a verdict."""
        if verdict.id.startswith(_KIND_PREFIX):
            return verdict.id.removeprefix(_KIND_PREFIX) in self.label.get("kinds", ())
        return str(verdict.action) in self.label.get("actions", ())

    @property
    def is_answered(self) -> bool:
        """Whether one of the first two verdicts is right."""
        return any(map(self.is_right, self.explanation.conclusions[:2]))

    def verdicts(self, confidence: Confidence) -> list[Conclusion]:
        """Return the verdicts with that confidence."""
        return [one for one in self.explanation.conclusions if one.confidence is confidence]


@functools.cache
def unseen_set(name: str) -> tuple[UnseenLog, ...]:
    """Return the logs of a set, explained."""
    import yaml  # noqa: PLC0415  # only who reads a set needs it

    labels = yaml.load((SETS / name / "labels.yaml").read_text("utf-8"), Loader=yaml.CSafeLoader)
    return tuple(UnseenLog(log, label, _explained(SETS / name / "logs" / log)) for log, label in labels.items())


def set_names() -> list[str]:
    """Return the names of the sets, the oldest first."""
    return sorted(folder.name for folder in SETS.iterdir() if folder.is_dir())


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Figures of a set."""

    failures: int
    spoken_to: int
    answered: int  # right within the first two verdicts
    right_by_confidence: Mapping[Confidence, tuple[int, int]]  # of how many verdicts on failures
    destructive: int  # verdicts with high or medium confidence whose action destroys or kills
    wrongly_destructive: int
    harmless: int
    alarming: frozenset[str]  # the names of harmless logs with a verdict of high or medium confidence
    low_alarms: int  # harmless logs with one of low confidence only


def accuracy(logs: Sequence[UnseenLog]) -> Accuracy:
    """Return the figures of these logs."""
    failures = [log for log in logs if not log.is_harmless]
    harmless = [log for log in logs if log.is_harmless]
    by_confidence = {
        level: [log.is_right(one) for log in failures for one in log.verdicts(level) if one.symptom_of is None]
        for level in Confidence
    }
    destructive = [
        log.is_right(one)
        for log in logs
        for one in (*log.verdicts(Confidence.HIGH), *log.verdicts(Confidence.MEDIUM))
        if one.action in DESTRUCTIVE
    ]
    alarming = [log for log in harmless if log.verdicts(Confidence.HIGH) or log.verdicts(Confidence.MEDIUM)]
    return Accuracy(
        failures=len(failures),
        spoken_to=sum(bool(log.explanation.conclusions) for log in failures),
        answered=sum(log.is_answered for log in failures),
        right_by_confidence={level: (sum(found), len(found)) for level, found in by_confidence.items()},
        destructive=len(destructive),
        wrongly_destructive=destructive.count(False),
        harmless=len(harmless),
        alarming=frozenset(log.name for log in alarming),
        low_alarms=sum(bool(log.explanation.conclusions) for log in harmless if log not in alarming),
    )


def _explained(path: Path) -> Explanation:
    reader = LogReader(name=path.name)
    reader.feed(path.read_bytes())
    return conclude(reader.so_far())
