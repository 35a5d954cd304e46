"""Reports: the order of findings, when a check fails, which reports are cached, and the effect of accepting a finding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.rule_cases import FACTS
from tpuctl.check.findings import CheckReport, CheckRule, Finding, Level, RuleResult, evaluate_rules, join_reports

ERROR, WARNING, UNKNOWN, NOTE = Level


def finding(level: Level, *, accepted: bool = False, is_passing: bool = False) -> Finding:
    found = RuleResult(level=level, subject="it", text="so", is_passing=is_passing)
    return Finding("TPU1", "", found, accepted=accepted)


def report(*levels: Level) -> CheckReport:
    return CheckReport(tuple(finding(level) for level in levels))


@pytest.mark.parametrize(
    ("levels", "fails", "fails_when_strict"),
    [
        ((), False, False),
        ((NOTE,), False, False),
        ((UNKNOWN, NOTE), False, True),
        ((WARNING, UNKNOWN), False, True),
        ((NOTE, ERROR, WARNING), True, True),
    ],
)
def test_report_fails_on_errors_and_strictly_on_warnings(
    levels: tuple[Level, ...], *, fails: bool, fails_when_strict: bool
) -> None:
    """An unread fact is worse than a note, and not an error."""
    seen = report(*levels)

    assert (seen.fails(), seen.fails(strict=True)) == (fails, fails_when_strict)


@pytest.mark.parametrize(
    ("findings", "lasts"),
    [
        ((), True),
        ((finding(NOTE), finding(WARNING), finding(UNKNOWN)), True),
        ((finding(ERROR),), False),
        ((finding(UNKNOWN, is_passing=True),), False),
        ((finding(WARNING, is_passing=True),), False),
        # Accepted, it is a warning for this once; the next run may not accept it.
        ((finding(ERROR, accepted=True),), False),
        ((finding(WARNING, accepted=True),), True),
    ],
)
def test_report_with_error_or_passing_gap_is_not_cached(findings: tuple[Finding, ...], *, lasts: bool) -> None:
    assert CheckReport(findings).is_lasting is lasts


@pytest.mark.parametrize(("level", "accepted"), [(ERROR, WARNING), (WARNING, NOTE), (UNKNOWN, UNKNOWN), (NOTE, NOTE)])
def test_accepted_finding_is_one_level_milder(level: Level, accepted: Level) -> None:
    assert (finding(level).level, finding(level, accepted=True).level) == (level, accepted)


def rule(id_: str, *found: tuple[Level, str]) -> CheckRule[Any]:
    return CheckRule(
        id_, "", "", lambda _: [RuleResult(level=level, subject=subject, text="") for level, subject in found]
    )


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        ((), "error 2 a, error 2 b, error 3 a, warning 1 a, unknown 1 c, note 1 b"),
        (("2",), "error 3 a, warning 1 a, warning 2 a, warning 2 b, unknown 1 c, note 1 b"),
        (("all",), "warning 2 a, warning 2 b, warning 3 a, unknown 1 c, note 1 a, note 1 b"),
    ],
)
def test_report_sorts_by_level_id_and_subject(accepted: tuple[str, ...], expected: str) -> None:
    rules = (
        rule("3", (ERROR, "a")),
        rule("1", (NOTE, "b"), (WARNING, "a"), (UNKNOWN, "c")),
        rule("2", (ERROR, "b"), (ERROR, "a")),
        rule("0"),
    )

    found = evaluate_rules(FACTS, rules, accepted=accepted).findings

    assert ", ".join(f"{one.level} {one.id} {one.found.subject}" for one in found) == expected


def test_report_of_levels_keeps_order() -> None:
    seen = report(ERROR, WARNING, UNKNOWN, WARNING, NOTE)

    assert [one.level for one in seen.of(WARNING, NOTE)] == [WARNING, WARNING, NOTE]


def test_joined_reports_have_each_finding_once_and_all_rules() -> None:
    """Two parts of a command may run the same rule about the same facts."""
    one, two = (evaluate_rules(FACTS, (rule("1", (NOTE, "a")), rule(id_, (ERROR, "b")))) for id_ in ("2", "3"))

    joined = join_reports(one, two, accepted=("3",))

    assert [(finding.id, finding.level) for finding in joined.findings] == [("2", ERROR), ("3", WARNING), ("1", NOTE)]
    assert list(joined.examined) == ["1", "2", "3"]
