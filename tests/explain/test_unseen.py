"""The sets of unseen logs keep what was reached on them: figures are in `python -m benchmarks accuracy`."""

from __future__ import annotations

import pytest

from tests.corpus.unseen import SETS, accuracy, set_names, unseen_set
from tpuctl.explain.conclusion import Confidence
from tpuctl.explain.messages import Action

_ACTIONS = frozenset(map(str, Action))


@pytest.mark.parametrize("name", set_names())
def test_set_has_a_label_for_each_log_and_known_words(name: str) -> None:
    logs = unseen_set(name)

    assert {log.name for log in logs} == {file.name for file in (SETS / name / "logs").iterdir()}
    assert {action for log in logs for action in log.label.get("actions", ())} <= _ACTIONS


@pytest.mark.parametrize("name", set_names())
def test_set_most_failures_are_answered_rightly_and_harmless_logs_have_no_verdict(name: str) -> None:
    logs = unseen_set(name)
    found = accuracy(logs)

    print(found)  # noqa: T201  # shown when the test fails, and with -s
    right, high = found.right_by_confidence[Confidence.HIGH]
    assert found.answered >= 0.75 * found.failures
    assert right >= 0.95 * high
    assert found.wrongly_destructive == 0
    assert found.alarming == {log.name for log in logs if log.label.get("alarms")}
    assert found.low_alarms <= 0.1 * found.harmless
