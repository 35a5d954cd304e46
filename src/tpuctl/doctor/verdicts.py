"""What a rule says, and how that becomes findings about this machine, a node or its workers. Pure.

A rule is a function that yields verdicts, with one of the decorators; its docstring is the text of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from tpuctl.check.facts import Fact, Known, Unknown
from tpuctl.check.findings import CheckRule, Level, Remedy, RuleResult, check_rule
from tpuctl.command_text import join_command

if TYPE_CHECKING:
    from tpuctl.doctor.doctor_facts import AllWorkersFacts, EnvironmentFacts, NodeFacts, WorkerReport
    from tpuctl.models.node import Node


T = TypeVar("T")
HashableT = TypeVar("HashableT")
NodeFactsT = TypeVar("NodeFactsT", "NodeFacts", "AllWorkersFacts")
Judge = Callable[[T], Iterable[RuleResult]]


@dataclass(frozen=True, slots=True)
class NodeRemedy(Remedy):
    """A remedy whose command is `tpuctl VERB NODE REST`; `for_workers`: with `--worker`, if only some are affected."""

    verb: str = ""
    rest: tuple[str, ...] = ()
    for_workers: bool = False

    def on(self, node: Node, workers: Iterable[int]) -> Remedy:
        """Return the remedy for a node, or for some of its workers."""
        numbers = set(workers)
        some = ["--worker", worker_ranges(numbers)] if self.for_workers and len(numbers) < node.workers else []
        return Remedy(self.text, join_command(["tpuctl", self.verb, node.name.node_id, *some, *self.rest]))


def on_node(text: str, verb: str, *rest: str) -> NodeRemedy:
    """Return the remedy that changes or shows the node."""
    return NodeRemedy(text, verb=verb, rest=rest)


def on_workers(text: str, verb: str, *rest: str) -> NodeRemedy:
    """Return the remedy that changes or shows the affected workers."""
    return NodeRemedy(text, verb=verb, rest=rest, for_workers=True)


def run_there(text: str, *command: str) -> NodeRemedy:
    """Return the remedy to run a command on the affected workers: one shell line, or the words of a command."""
    return on_workers(text, "run", "--", *command)


def verdict(level: Level, text: str, *remedies: Remedy, **others: Any) -> RuleResult:
    """Return what a rule says; without a subject it is about that of the rule, about the node or about a worker."""
    return RuleResult(level=level, text=text, remedies=remedies, **{"subject": "", **others})


note, warning, error, unknown = (
    partial(verdict, level) for level in (Level.NOTE, Level.WARNING, Level.ERROR, Level.UNKNOWN)
)


def unread(text: str, fact: Unknown, **others: Any) -> RuleResult:
    """Return the verdict that a fact could not be read; `text` says so, without the reason."""
    return unknown(f"{text}: {fact.reason}", is_passing=fact.is_passing, **others)


def environment_rule(
    id_: str, title: str, subject: str = ""
) -> Callable[[Judge[EnvironmentFacts]], CheckRule[EnvironmentFacts]]:
    """Make a rule about this machine. Its subject is `subject`, unless a verdict has its own."""

    def decorate(judge: Judge[EnvironmentFacts]) -> CheckRule[EnvironmentFacts]:
        rule = wraps(judge)(lambda facts: (replace(one, subject=one.subject or subject) for one in judge(facts)))
        return check_rule(id_, title)(rule)

    return decorate


def node_rule(id_: str, title: str) -> Callable[[Judge[NodeFactsT]], CheckRule[NodeFactsT]]:
    """Make a rule about a node. Its subject is the node, unless a verdict has its own."""

    def results(judge: Judge[NodeFactsT], facts: NodeFactsT) -> Iterator[RuleResult]:
        for one in judge(facts):
            subject = one.subject or facts.node.name.node_id
            yield replace(one, subject=subject, remedies=_remedies(one, facts.node))

    return lambda judge: check_rule(id_, title)(wraps(judge)(lambda facts: results(judge, facts)))


def workers_rule(
    id_: str, title: str
) -> Callable[[Callable[[AllWorkersFacts], Iterable[tuple[int, RuleResult]]]], CheckRule[AllWorkersFacts]]:
    """Make a rule that looks at all workers and yields verdicts with the number of their worker; equal ones become one."""
    return lambda judge: check_rule(id_, title)(wraps(judge)(lambda facts: _merge(judge(facts), facts.node)))


def worker_rule(
    id_: str, title: str, read: Callable[[WorkerReport], Fact[T]], text: str | None = None
) -> Callable[[Callable[[T, WorkerReport, Node], Iterable[RuleResult]]], CheckRule[AllWorkersFacts]]:
    """Make a rule about the fact of one worker that `read` returns. Equal verdicts about several workers become one.

    `text` says that the fact could not be read; None if another rule says so.
    """

    def decorate(judge: Callable[[T, WorkerReport, Node], Iterable[RuleResult]]) -> CheckRule[AllWorkersFacts]:
        def verdicts(facts: AllWorkersFacts) -> Iterator[tuple[int, RuleResult]]:
            for number, report in facts.reports.items():
                match read(report):
                    case Known(value):
                        yield from ((number, one) for one in judge(value, report, facts.node))
                    case Unknown() as fact if text is not None:
                        yield number, unread(text, fact)

        return workers_rule(id_, title)(wraps(judge)(verdicts))

    return decorate


def known_on_workers(facts: AllWorkersFacts, read: Callable[[WorkerReport], Fact[T]]) -> dict[int, T]:
    """Return a fact of each worker that is known there, by the number of the worker."""
    found = {number: read(report) for number, report in facts.reports.items()}
    return {number: fact.value for number, fact in found.items() if isinstance(fact, Known)}


def unread_on_workers(
    facts: AllWorkersFacts, read: Callable[[WorkerReport], Fact[Any]], text: str
) -> Iterator[tuple[int, RuleResult]]:
    """Yield the verdict for each worker on which a fact could not be read."""
    for number, report in facts.reports.items():
        if isinstance(fact := read(report), Unknown):
            yield number, unread(text, fact)


def group_workers(values: Mapping[int, HashableT]) -> list[tuple[HashableT, list[int]]]:
    """Return each value with its workers, the most common one first."""
    groups: dict[HashableT, list[int]] = {}
    for number, value in sorted(values.items()):
        groups.setdefault(value, []).append(number)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def workers_text(workers: Iterable[int]) -> str:
    """Return `worker 3`, or `workers 0-7`."""
    numbers = set(workers)
    return f"worker{'s' if len(numbers) > 1 else ''} {worker_ranges(numbers)}"


def worker_ranges(workers: Iterable[int]) -> str:
    """Return numbers as `--worker` takes them: `0,2-7`."""
    parts: list[list[int]] = []
    for number in sorted(set(workers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _merge(verdicts: Iterable[tuple[int, RuleResult]], node: Node) -> Iterator[RuleResult]:
    """Yield one result for all workers with the same verdict."""
    groups: dict[Any, dict[int, RuleResult]] = {}
    for number, one in verdicts:
        groups.setdefault((one.level, one.text, one.why, one.remedies), {})[number] = one
    for group in groups.values():
        first = next(iter(group.values()))
        measures = sorted(one.measure for one in group.values() if one.measure)
        shown = dict.fromkeys(text for _, text in (*measures[:1], *measures[-1:]))
        yield replace(
            first,
            subject=workers_text(group),
            text=first.text.replace("{}", " to ".join(shown)),
            remedies=_remedies(first, node, group),
            facts={"workers": list(group), "seen": [dict(one.facts) for one in group.values()]},
            is_passing=any(one.is_passing for one in group.values()),
        )


def _remedies(one: RuleResult, node: Node, workers: Iterable[int] = ()) -> tuple[Remedy, ...]:
    return tuple(remedy.on(node, workers) if isinstance(remedy, NodeRemedy) else remedy for remedy in one.remedies)
