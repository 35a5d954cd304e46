"""From facts to findings: every rule is asked, the worst comes first."""

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
    """The findings, the worst first, then by id and subject."""

    findings: tuple[Finding, ...]

    def of(self, *levels: Level) -> tuple[Finding, ...]:
        """Return the findings of some levels."""
        return tuple(finding for finding in self.findings if finding.level in levels)

    @property
    def worst(self) -> Level:
        """The worst level of all; `ok` where nothing was found."""
        return min((finding.level for finding in self.findings), key=lambda level: level.rank, default=Level.OK)

    def fails(self, *, strict: bool = False) -> bool:
        """Tell whether the check has failed: by an error; where it is strict by anything that is not ok or a note."""
        return self.worst is Level.ERROR or (strict and self.worst.rank < Level.NOTE.rank)

    @property
    def is_lasting(self) -> bool:
        """Tell whether it may be remembered: no error, and nothing that could not be read just now."""
        return not any(finding.found.level is Level.ERROR or finding.found.is_passing for finding in self.findings)


def evaluate(facts: T, rules: Iterable[Rule[T]], *, accepted: Collection[str] = ()) -> Report:
    """Return what the rules say. What is `accepted`, by id or all of it, is one level milder and stops nothing."""
    return as_report(findings_of(facts, rules), accepted=accepted)


def findings_of(facts: T, rules: Iterable[Rule[T]]) -> tuple[Finding, ...]:
    """Return what the rules say, in their order."""
    return tuple(Finding(rule.id, rule.title, found) for rule in rules for found in rule.judge(facts))


def as_report(findings: Iterable[Finding], *, accepted: Collection[str] = ()) -> Report:
    """Return findings, also of several origins, as one report; `accepted` is as of `evaluate`."""
    marked = (replace(finding, accepted=bool({finding.id, ALL} & set(accepted))) for finding in findings)
    return Report(tuple(sorted(marked, key=lambda finding: (finding.level.rank, finding.id, finding.found.subject))))
