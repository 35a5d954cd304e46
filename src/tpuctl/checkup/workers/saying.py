"""Rules about the workers of a node: chips, processes, disks, memory, clocks, variables.

A rule yields findings for single workers; the same finding on several workers becomes one.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpuctl.preflight.fact import Unknown
from tpuctl.preflight.findings import Found, Level, Remedy, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tpuctl.checkup.workers.facts import Examination, WorkersFacts


@dataclass(frozen=True, slots=True)
class Advice:
    """A remedy for some workers: a text, and a tpuctl command: its verb, its node, `--worker` if needed, and the `rest`."""

    text: str
    verb: str | None = None
    rest: tuple[str, ...] = ()
    takes_workers: bool = False

    @classmethod
    def run(cls, text: str, *command: str) -> Advice:
        """Return the remedy to run a command on the affected workers: one shell line, or the words of a command."""
        return cls(text, "run", ("--", *command), takes_workers=True)

    def remedy(self, node_id: str, workers: tuple[int, ...], *, of: int) -> Remedy:
        """Return the remedy for these workers of a node that has `of` workers."""
        if self.verb is None:
            return Remedy(self.text)
        some = ["--worker", ranges(workers)] if self.takes_workers and len(workers) < of else []
        return Remedy(self.text, shlex.join(["tpuctl", self.verb, node_id, *some, *self.rest]))


@dataclass(frozen=True, slots=True)
class Measure:
    """A number from one worker, and the text that replaces `{}`."""

    number: float
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saying:
    """A finding about one worker. `{}` in the text is replaced by the measure, for several workers by its range."""

    level: Level
    text: str
    why: str | None = None
    advice: tuple[Advice, ...] = ()
    measure: Measure | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)
    is_passing: bool = False


def unread(what: str, fact: Unknown) -> Saying:
    """Return the finding that something could not be read on a worker."""
    return Saying(level=Level.UNKNOWN, text=f"{what} could not be read: {fact.reason}", is_passing=fact.is_passing)


def each(
    id_: str, title: str
) -> Callable[[Callable[[WorkersFacts, Examination], Iterable[Saying]]], Rule[WorkersFacts]]:
    """Make a rule of a function that judges one worker. Its docstring is the text of the reference."""

    def made(judge: Callable[[WorkersFacts, Examination], Iterable[Saying]]) -> Rule[WorkersFacts]:
        def of_all(facts: WorkersFacts) -> Iterator[Found]:
            findings = ((number, one) for number, report in facts.reports for one in judge(facts, report))
            return together(findings, facts)

        return Rule(id_, title, " ".join((judge.__doc__ or "").split()), of_all)

    return made


def together(findings: Iterable[tuple[int, Saying]], facts: WorkersFacts) -> Iterator[Found]:
    """Yield one finding for all workers with the same finding."""
    groups: dict[Any, list[tuple[int, Saying]]] = {}
    for number, one in findings:
        groups.setdefault((one.level, one.text, one.why, one.advice), []).append((number, one))
    for group in groups.values():
        numbers, first = tuple(number for number, _ in group), group[0][1]
        measures = sorted((one.measure for _, one in group if one.measure), key=lambda measure: measure.number)
        shown = dict.fromkeys(measure.shown for measure in (*measures[:1], *measures[-1:]))
        yield Found(
            level=first.level,
            subject=named(numbers),
            text=first.text.replace("{}", " to ".join(shown)),
            why=first.why,
            remedies=tuple(
                advice.remedy(facts.node.name.node_id, numbers, of=facts.node.workers) for advice in first.advice
            ),
            facts={"workers": list(numbers), "seen": [dict(one.facts) for _, one in group]},
            is_passing=any(one.is_passing for _, one in group),
        )


def named(workers: Iterable[int]) -> str:
    """Return `worker 3`, or `workers 0-7`."""
    numbers = sorted(set(workers))
    return f"worker{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def ranges(workers: Iterable[int]) -> str:
    """Return numbers as `--worker` takes them: `0,2-7`."""
    parts: list[list[int]] = []
    for number in sorted(set(workers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def in_words(hint: str) -> Remedy:
    """Return a hint as a remedy. A command after the last colon becomes the command of the remedy."""
    text, colon, command = hint.rpartition(": `")
    if colon and command.endswith("`") and "`" not in command[:-1]:
        return Remedy(text, command[:-1])
    return Remedy(hint)
