"""Run rules on facts and build a report of their findings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from tpuctl.preflight.findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tpuctl.preflight.findings import Rule

T = TypeVar("T")
ALL = "all"


@dataclass(frozen=True, slots=True)
class Report:
    """Findings sorted by level, id and subject; the worst first."""

    findings: tuple[Finding, ...]

    def of(self, *levels: Level) -> tuple[Finding, ...]:
        """Return the findings of these levels."""
        return tuple(finding for finding in self.findings if finding.level in levels)

    @property
    def worst(self) -> Level:
        """The worst level of all findings; `ok` if there are none."""
        return min((finding.level for finding in self.findings), key=lambda level: level.rank, default=Level.OK)

    def fails(self, *, strict: bool = False) -> bool:
        """Return whether the check has failed: on an error; with `strict` on everything except ok and notes."""
        return self.worst is Level.ERROR or (strict and self.worst.rank < Level.NOTE.rank)

    @property
    def is_lasting(self) -> bool:
        """Return whether the report may be cached: it has no error, and no value that could not be read just now."""
        return not any(finding.found.level is Level.ERROR or finding.found.is_passing for finding in self.findings)


def evaluate(facts: T, rules: Iterable[Rule[T]], *, accepted: Collection[str] = ()) -> Report:
    """Run the rules and return a report.

    A finding whose id is `accepted` (or `all`) is one level milder and blocks nothing.
    """
    return as_report(findings_of(facts, rules), accepted=accepted)


def findings_of(facts: T, rules: Iterable[Rule[T]]) -> tuple[Finding, ...]:
    """Run the rules and return their findings, in the order of the rules."""
    return tuple(Finding(rule.id, rule.title, found) for rule in rules for found in rule.judge(facts))


def as_report(findings: Iterable[Finding], *, accepted: Collection[str] = ()) -> Report:
    """Return a report of findings, possibly from several sources; `accepted` as for `evaluate`."""
    marked = (replace(finding, accepted=bool({finding.id, ALL} & set(accepted))) for finding in findings)
    return Report(tuple(sorted(marked, key=lambda finding: (finding.level.rank, finding.id, finding.found.subject))))
