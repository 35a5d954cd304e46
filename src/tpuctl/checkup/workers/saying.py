"""What a rule says of single workers, and how the workers that say the same come to one finding."""

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
    """What mends it on some workers: words, and a command of tpuctl's: its verb, the node, the workers, and the rest."""

    text: str
    verb: str | None = None
    rest: tuple[str, ...] = ()
    takes_workers: bool = False

    @classmethod
    def run(cls, text: str, *command: str) -> Advice:
        """Return the advice to run something on the workers that it is about: one shell line, or the words of a command."""
        return cls(text, "run", ("--", *command), takes_workers=True)

    def remedy(self, node_id: str, workers: tuple[int, ...], *, of: int) -> Remedy:
        """Return it as a remedy on some workers of a node with so many."""
        if self.verb is None:
            return Remedy(self.text)
        some = ["--worker", ranges(workers)] if self.takes_workers and len(workers) < of else []
        return Remedy(self.text, shlex.join(["tpuctl", self.verb, node_id, *some, *self.rest]))


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of one worker's, and how it is shown in place of `{}` in the text."""

    number: float
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Saying:
    """What is said of one worker. In the text `{}` stands for the measure: of several workers for its least and its most."""

    level: Level
    text: str
    why: str | None = None
    advice: tuple[Advice, ...] = ()
    measure: Measure | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)
    is_passing: bool = False


def unread(what: str, fact: Unknown) -> Saying:
    """Return that a worker did not tell something."""
    return Saying(level=Level.UNKNOWN, text=f"{what} could not be read: {fact.reason}", is_passing=fact.is_passing)


def each(
    id_: str, title: str
) -> Callable[[Callable[[WorkersFacts, Examination], Iterable[Saying]]], Rule[WorkersFacts]]:
    """Make a rule of a function that looks at one worker; its docstring is the reference's text."""

    def made(judge: Callable[[WorkersFacts, Examination], Iterable[Saying]]) -> Rule[WorkersFacts]:
        def of_all(facts: WorkersFacts) -> Iterator[Found]:
            said = ((number, one) for number, told in facts.told for one in judge(facts, told))
            return together(said, facts)

        return Rule(id_, title, " ".join((judge.__doc__ or "").split()), of_all)

    return made


def together(said: Iterable[tuple[int, Saying]], facts: WorkersFacts) -> Iterator[Found]:
    """Yield one finding for all workers that say the same."""
    groups: dict[Any, list[tuple[int, Saying]]] = {}
    for number, one in said:
        groups.setdefault((one.level, one.text, one.why, one.advice), []).append((number, one))
    for group in groups.values():
        numbers, first = tuple(number for number, _ in group), group[0][1]
        yield Found(
            level=first.level,
            subject=named(numbers),
            text=first.text.replace("{}", _span([one.measure for _, one in group if one.measure])),
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


def _span(measures: list[Measure]) -> str:
    if not measures:
        return ""
    least, most = (pick(measures, key=lambda one: one.number) for pick in (min, max))
    return least.shown if least.shown == most.shown else f"{least.shown} to {most.shown}"


def in_words(hint: str) -> Remedy:
    """Return a hint as a remedy; one that is nothing but a command, or ends with one after a colon, as that command."""
    text, colon, command = hint.rpartition(": `")
    if colon and command.endswith("`") and "`" not in command[:-1]:
        return Remedy(text, command[:-1])
    return Remedy(hint)
