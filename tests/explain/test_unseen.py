"""The sets of logs that nobody tuned on keep what they once measured: figures are in `python -m benchmarks accuracy`."""

from __future__ import annotations

import pytest

from tests.corpus.unseen import SETS, accuracy, set_names, unseen_set
from tpuctl.explain.messages import Action

_ACTIONS = frozenset(map(str, Action))


@pytest.mark.parametrize("name", set_names())
def test_set_has_a_label_for_each_log_and_known_words(name: str) -> None:
    logs = unseen_set(name)

    assert {log.name for log in logs} == {file.name for file in (SETS / name / "logs").iterdir()}
    assert {action for log in logs for action in log.label.get("actions", ())} <= _ACTIONS


@pytest.mark.parametrize("name", set_names())
def test_most_failures_are_answered_and_few_harmless_logs_have_a_guess(name: str) -> None:
    found = accuracy(unseen_set(name))

    print(found)  # noqa: T201  # shown when the test fails, and with -s
    assert found.answered >= 0.75 * found.failures
    assert found.low_alarms <= 0.1 * found.harmless
