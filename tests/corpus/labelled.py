"""The labelled logs, and what is wrong with an explanation of one of them. `labels.yaml` says what a label means."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpuctl.explain.conclusion import Confidence
from tpuctl.explain.explanation_rendering import first_failed_worker
from tpuctl.explain.unrecognised import kind_by_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.explain.conclusion import Conclusion, Explanation

LOGS: Final = Path(__file__).parent / "logs"
NO_VERDICT: Final = "none"
_ANY: Final = "any"


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """A log and its label. `name` is the path below `logs/`."""

    name: str
    label: Mapping[str, Any]

    @property
    def category(self) -> str:
        """The folder that the log is in."""
        return self.name.partition("/")[0]

    @property
    def data(self) -> bytes:
        """The log, byte for byte."""
        return (LOGS / self.name).read_bytes()

    @property
    def first(self) -> tuple[str, ...]:
        """The ids of which one must come first."""
        return _several(self.label["first"])

    @property
    def is_harmless(self) -> bool:
        """Whether there must be no verdict but a guess."""
        return self.first == (NO_VERDICT,)

    @property
    def is_failure(self) -> bool:
        """Whether something went wrong."""
        return self.category == "unknown" or not self.is_harmless

    @property
    def ids(self) -> frozenset[str]:
        """All ids that the label names."""
        symptoms: Mapping[str, str] = self.label.get("symptoms", {})
        named = {*self.first, *symptoms, *symptoms.values()}
        for key in ("also", "not", "not_first"):
            named.update(self.label.get(key, ()))
        return frozenset(named - {NO_VERDICT, _ANY})


@functools.cache
def corpus() -> tuple[Labelled, ...]:
    """Return all labelled logs, in the order of the labels."""
    import yaml  # noqa: PLC0415  # only who reads the corpus needs it

    text = (LOGS.parent / "labels.yaml").read_text("utf-8")
    labels: dict[str, dict[str, Any]] = yaml.load(text, Loader=yaml.CSafeLoader)
    return tuple(Labelled(name, label) for name, label in labels.items())


def wrong_verdicts(log: Labelled, explanation: Explanation) -> tuple[str, ...]:
    """Return in words what is wrong with the verdicts, their order, their causes, the worker and the confidence."""
    return tuple(_wrong_verdicts(log, explanation.conclusions))


def wrong_details(log: Labelled, explanation: Explanation) -> tuple[str, ...]:
    """Return in words what is wrong with the number of occurrences and the facts of the verdict that the label is about."""
    about = next((one for one in explanation.conclusions if one.id in log.first), None)
    return () if about is None else tuple(_wrong_details(log, about))


def _wrong_verdicts(log: Labelled, conclusions: tuple[Conclusion, ...]) -> Iterator[str]:
    label, ids = log.label, [one.id for one in conclusions]
    if not conclusions:
        if NO_VERDICT not in log.first:
            yield f"no verdict, not {' or '.join(log.first)}"
        return
    first = conclusions[0]
    if log.is_harmless:
        if known := [id_ for id_ in ids if kind_by_id(id_) is None]:
            yield f"a verdict: {', '.join(known)}"
        return
    if log.first != (_ANY,) and first.id not in log.first:
        yield f"first is {first.id}, not {' or '.join(log.first)}"
    if label.get("action") not in {None, first.sighting.message.action}:
        yield f"the action of {first.id} is {first.sighting.message.action}, not {label['action']}"
    yield from (f"without {id_}" for id_ in label.get("also", ()) if id_ not in ids)
    yield from (f"with {id_}" for id_ in label.get("not", ()) if id_ in ids)
    if first.id in label.get("not_first", ()):
        yield f"{first.id} comes first"
    yield from _wrong_causes(label.get("symptoms", {}), {one.id: one.symptom_of for one in conclusions})
    if label.get("worker") not in {None, first_failed_worker(first)}:
        yield f"worker {first_failed_worker(first)}, not {label['worker']}"
    if label.get("confidence") not in {None, first.confidence}:
        yield f"confidence {first.confidence}, not {label['confidence']}"
    if label.get("only_quoted"):
        yield from (f"{one.id} is {one.confidence}" for one in conclusions if one.confidence is not Confidence.LOW)
    elif first.confidence is Confidence.LOW:
        yield f"{first.id} is taken for a quotation"


def _wrong_causes(symptoms: Mapping[str, str], symptom_of: Mapping[str, str | None]) -> Iterator[str]:
    for symptom, cause in symptoms.items():
        chain: list[str] = []
        now = symptom_of.get(symptom)
        while now is not None and now not in chain:
            chain.append(now)
            now = symptom_of.get(now)
        if symptom not in symptom_of:
            yield f"without {symptom}"
        elif cause not in chain:
            yield f"{symptom} is a symptom of {' of '.join(chain) or 'nothing'}, not of {cause}"


def _wrong_details(log: Labelled, about: Conclusion) -> Iterator[str]:
    count = log.label.get("count")
    if count not in {None, about.sighting.count}:
        yield f"{about.sighting.count} times, not {count}"
    facts = about.sighting.facts
    for name, value in log.label.get("facts", {}).items():
        if facts.get(name) != value:
            yield f"{name} is {facts.get(name)}, not {value}"


def _several(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
