"""From what was found to findings: the rules of the checkup, and how findings of several origins become one report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.preflight.evaluation import ALL, Report
from tpuctl.preflight.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tpuctl.checkup.surroundings import Surroundings
    from tpuctl.preflight.findings import Found


@dataclass(frozen=True, slots=True)
class CheckupRule:
    """One rule: a question about the surroundings. `text` says, for the reference, what is looked at and why."""

    id: str
    title: str
    text: str
    judge: Callable[[Surroundings], Iterable[Found]]


def rule(id_: str, title: str) -> Callable[[Callable[[Surroundings], Iterable[Found]]], CheckupRule]:
    """Make a rule of a function; its docstring is the reference's text."""

    def made(judge: Callable[[Surroundings], Iterable[Found]]) -> CheckupRule:
        return CheckupRule(id_, title, " ".join((judge.__doc__ or "").split()), judge)

    return made


def findings_of(seen: Surroundings, rules: Iterable[CheckupRule]) -> tuple[Finding, ...]:
    """Return what the rules say."""
    return tuple(Finding(one.id, one.title, found) for one in rules for found in one.judge(seen))


def as_report(findings: Iterable[Finding], *, accepted: Collection[str] = ()) -> Report:
    """Return a report, the worst first, then by id and subject. What is `accepted`, by id or all of it, is one level milder."""
    marked = (replace(one, accepted=one.accepted or bool({one.id, ALL} & set(accepted))) for one in findings)
    return Report(tuple(sorted(marked, key=lambda one: (one.level.rank, one.id, one.found.subject))))
