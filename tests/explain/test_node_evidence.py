"""What the state of a node has to do with a log: it is looked at before training code is blamed."""

from __future__ import annotations

import pytest

from tests.explain.reported import BEGAN, message, place, scan_of, sighting
from tpuctl.explain.conclusion import NodeEvidence, apply_node_evidence, conclude
from tpuctl.explain.messages import Action, CheckFirst, MessageRole

SOCKET = message("socket", MessageRole.SYMPTOM, check_first=CheckFirst.NODE_STATE)
MEMORY = message("memory")
LOG = conclude(scan_of(sighting(SOCKET, place(5, minute=1)), sighting(MEMORY, place(90, minute=200))))


@pytest.mark.parametrize(
    ("state", "health", "id_", "action"),
    [
        ("PREEMPTED", None, "node-preempted", Action.RECREATE_NODE),
        ("TERMINATED", None, "node-terminated", Action.RECREATE_NODE),
        (None, None, "node-gone", Action.NONE),
        ("STOPPED", None, "node-stopped", Action.RESTART_NODE),
        ("STOPPING", None, "node-stopped", Action.RESTART_NODE),
        ("DELETING", None, "node-deleting", Action.NONE),
        ("CREATING", None, "node-in-transition", Action.WAIT),
        ("STARTING", None, "node-in-transition", Action.WAIT),
        ("RESTARTING", None, "node-in-transition", Action.WAIT),
        ("REPAIRING", None, "node-in-transition", Action.WAIT),
        ("REIMAGING", None, "node-in-transition", Action.WAIT),
        ("UNHIDING", None, "node-in-transition", Action.WAIT),
        ("HIDDEN", None, "node-broken", Action.RECREATE_NODE),
        ("UNKNOWN", None, "node-broken", Action.RECREATE_NODE),
        ("READY", "UNHEALTHY_MAINTENANCE", "node-maintenance", Action.WAIT),
        ("READY", "UNHEALTHY_TENSORFLOW", "node-unhealthy", Action.RESTART_NODE),
        ("READY", "TIMEOUT", "node-unhealthy", Action.RESTART_NODE),
    ],
)
def test_node_failure_comes_first(state: str | None, health: str | None, id_: str, action: Action) -> None:
    first, *others = apply_node_evidence(LOG, NodeEvidence("trainer", state, health)).conclusions
    assert (first.id, first.sighting.message.action, first.sighting.first.line) == (id_, action, 0)
    assert [(one.id, one.symptom_of, str(one.confidence)) for one in others] == [
        ("memory", None, "high"),
        ("socket", id_, "high"),
    ]


@pytest.mark.parametrize(
    ("state", "health"), [("READY", "HEALTHY"), ("READY", None), ("STATE_UNSPECIFIED", None), ("SOMETHING_NEW", None)]
)
def test_healthy_or_unclear_node_changes_no_verdict(state: str, health: str | None) -> None:
    conclusions = apply_node_evidence(LOG, NodeEvidence("trainer", state, health)).conclusions
    assert [(one.id, one.symptom_of) for one in conclusions] == [("memory", None), ("socket", None)]
    state_and_health = f"{state} and {health}" if health else state
    assert conclusions[1].why == f"`trainer` is {state_and_health} now, so check its workers next"
    assert conclusions[0].why is None


@pytest.mark.parametrize("state", ["READY", "PREEMPTED"])
def test_recreated_node_explains_no_older_log(state: str) -> None:
    evidence = NodeEvidence("trainer", state, None, created=BEGAN.replace(hour=23))
    by_id = {one.id: one for one in apply_node_evidence(LOG, evidence).conclusions}
    assert (by_id["socket"].symptom_of, by_id["socket"].why) == (
        None,
        "the node was recreated since, so its state now does not explain the log",
    )


def test_quote_is_not_explained_by_node() -> None:
    quoted = conclude(scan_of(sighting(SOCKET, place(5), is_quoted=True)))
    first, second = apply_node_evidence(quoted, NodeEvidence("trainer", "PREEMPTED")).conclusions
    assert (first.id, second.symptom_of, str(second.confidence)) == ("node-preempted", None, "low")


def test_node_explains_log_without_messages() -> None:
    empty = conclude(scan_of(suspicious=(place(3),)))
    explanation = apply_node_evidence(empty, NodeEvidence("trainer", "PREEMPTED"))
    assert [one.id for one in explanation.conclusions] == ["node-preempted"]
    assert explanation.suspicious == ()
