"""Reports: the order of findings, when a check fails, which reports are cached, and the effect of accepting a finding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.rule_cases import FACTS
from tpuctl.check.findings import CheckReport, CheckRule, Finding, Level, RuleResult, evaluate_rules

ERROR, WARNING, UNKNOWN, NOTE, OK = Level


def finding(level: Level, *, accepted: bool = False, is_passing: bool = False) -> Finding:
    found = RuleResult(level=level, subject="it", text="so", is_passing=is_passing)
    return Finding("TPU1", "", found, accepted=accepted)


def report(*levels: Level) -> CheckReport:
    return CheckReport(tuple(finding(level) for level in levels))


@pytest.mark.parametrize(
    ("levels", "worst", "fails", "fails_when_strict"),
    [
        ((), OK, False, False),
        ((OK,), OK, False, False),
        ((NOTE, OK), NOTE, False, False),
        ((UNKNOWN, NOTE), UNKNOWN, False, True),
        ((OK, WARNING, UNKNOWN), WARNING, False, True),
        ((NOTE, ERROR, WARNING), ERROR, True, True),
    ],
)
def test_report_fails_on_errors_and_strictly_on_warnings(
    levels: tuple[Level, ...], worst: Level, *, fails: bool, fails_when_strict: bool
) -> None:
    """An unread fact is worse than a note, and not an error."""
    seen = report(*levels)

    assert (seen.worst, seen.fails(), seen.fails(strict=True)) == (worst, fails, fails_when_strict)


@pytest.mark.parametrize(
    ("findings", "lasts"),
    [
        ((), True),
        ((finding(OK), finding(NOTE), finding(WARNING), finding(UNKNOWN)), True),
        ((finding(OK), finding(ERROR)), False),
        ((finding(UNKNOWN, is_passing=True), finding(OK)), False),
        ((finding(WARNING, is_passing=True),), False),
        # Accepted, it is a warning for this once; the next run may not accept it.
        ((finding(ERROR, accepted=True),), False),
        ((finding(WARNING, accepted=True),), True),
    ],
)
def test_report_with_error_or_passing_gap_is_not_cached(findings: tuple[Finding, ...], *, lasts: bool) -> None:
    assert CheckReport(findings).is_lasting is lasts


@pytest.mark.parametrize(
    ("level", "accepted"), [(ERROR, WARNING), (WARNING, NOTE), (UNKNOWN, UNKNOWN), (NOTE, NOTE), (OK, OK)]
)
def test_accepted_finding_is_one_level_milder(level: Level, accepted: Level) -> None:
    assert (finding(level).level, finding(level, accepted=True).level) == (level, accepted)


def rule(id_: str, *found: tuple[Level, str]) -> CheckRule[Any]:
    return CheckRule(
        id_, "", "", lambda _: [RuleResult(level=level, subject=subject, text="") for level, subject in found]
    )


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        ((), "error 2 a, error 2 b, error 3 a, warning 1 a, unknown 1 c, note 1 b, ok 0 a"),
        (("2",), "error 3 a, warning 1 a, warning 2 a, warning 2 b, unknown 1 c, note 1 b, ok 0 a"),
        (("all",), "warning 2 a, warning 2 b, warning 3 a, unknown 1 c, note 1 a, note 1 b, ok 0 a"),
    ],
)
def test_report_sorts_by_level_id_and_subject(accepted: tuple[str, ...], expected: str) -> None:
    rules = (
        rule("3", (ERROR, "a")),
        rule("1", (NOTE, "b"), (WARNING, "a"), (UNKNOWN, "c")),
        rule("2", (ERROR, "b"), (ERROR, "a")),
        rule("0", (OK, "a")),
    )

    found = evaluate_rules(FACTS, rules, accepted=accepted).findings

    assert ", ".join(f"{one.level} {one.id} {one.found.subject}" for one in found) == expected


def test_report_of_levels_keeps_order() -> None:
    seen = report(ERROR, WARNING, NOTE, WARNING, OK)

    assert [one.level for one in seen.of(WARNING, OK)] == [WARNING, WARNING, OK]
