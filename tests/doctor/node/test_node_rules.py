"""Findings of `doctor NODE` about the node itself: a row for each rule and each boundary."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.doctor.node.examinations import NOW, node, problems, row_ids
from tpuctl.check.facts import Known, Unknown
from tpuctl.check.findings import CheckRule
from tpuctl.doctor.doctor_facts import NodeFacts
from tpuctl.doctor.node_probes import read_guest_attributes
from tpuctl.doctor.node_rules import (
    check_addresses,
    check_guest_attributes,
    check_maintenance,
    check_node_state,
    check_symptoms,
    check_workers_can_be_examined,
)
from tpuctl.durations import format_timestamp
from tpuctl.errors import ServiceUnavailableError


class Silent:
    """A cloud that does not answer."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise ServiceUnavailableError("no answer")

        return fail


KEYS = {"hostkeys/ssh-ed25519": "AAAA"}


def facts(others: dict[str, Any] | None = None, **fields: Any) -> NodeFacts:
    """Return the facts about a healthy node, with `others` in place of the usual facts and with fields of the API."""
    usual: dict[str, Any] = {"published": Known((KEYS, KEYS))}
    return NodeFacts(node=node(**fields), now=NOW, **(usual | (others or {})))


def coming(hours: float | None) -> dict[str, Any]:
    start = {} if hours is None else {"windowStartTime": format_timestamp(NOW + timedelta(hours=hours))}
    return {"upcomingMaintenance": {"type": "SCHEDULED", "maintenanceStatus": "PENDING", **start}}


ROWS: list[tuple[CheckRule[NodeFacts], NodeFacts, list[str]]] = [
    (check_node_state, facts(), []),
    (
        check_node_state,
        facts(state="PREEMPTED"),
        ["error: it is PREEMPTED: the service took it back, with its boot disk"],
    ),
    (
        check_node_state,
        facts(state="TERMINATED", schedulingConfig={"spot": True}),
        ["error: it is TERMINATED: the service took it back, with its boot disk"],
    ),
    (check_node_state, facts(state="TERMINATED"), ["error: it is TERMINATED: only its record is left"]),
    (check_node_state, facts(state="UNKNOWN"), ["error: it is UNKNOWN, and does not recover by itself"]),
    (check_node_state, facts(state="STOPPED"), ["warning: it is STOPPED"]),
    (check_node_state, facts(state="CREATING"), ["warning: it is CREATING, and not READY yet"]),
    (check_node_state, facts(state="STOPPING"), ["warning: it is STOPPING"]),
    (check_node_state, facts(state="NEW"), ["unknown: it is NEW, a state that this version of tpuctl does not know"]),
    (check_node_state, facts(), []),
    (check_node_state, facts(state="STOPPED", health="TIMEOUT"), ["warning: it is STOPPED"]),
    (
        check_node_state,
        facts(health=""),
        ["note: the service reports no health, which is normal for a while after a start"],
    ),
    (check_node_state, facts(health="TIMEOUT", healthDescription="gone"), ["error: it is TIMEOUT (gone)"]),
    (check_node_state, facts(health="UNHEALTHY_MAINTENANCE"), ["warning: it is UNHEALTHY_MAINTENANCE"]),
    (check_node_state, facts(health="NEW"), ["error: it is NEW"]),
    (check_symptoms, facts(), []),
    (
        check_symptoms,
        facts(
            symptoms=[
                {"symptomType": kind, "workerId": "1", "createTime": format_timestamp(NOW - timedelta(hours=1))}
                for kind in ("OLDER", "LOW_MEMORY", "OUT_OF_MEMORY", "HBM")
            ]
        ),
        [
            (
                "warning: the service reports HBM on worker 1, 1h ago, OUT_OF_MEMORY on worker 1, 1h ago, "
                "LOW_MEMORY on worker 1, 1h ago, and 1 older"
            ),
        ],
    ),
    (check_maintenance, facts(), []),
    (
        check_maintenance,
        facts(**coming(24)),
        ["note: maintenance (SCHEDULED, PENDING) comes in 24h (2026-01-03T00:00:00Z)"],
    ),
    (
        check_maintenance,
        facts(**coming(23.5)),
        ["warning: maintenance (SCHEDULED, PENDING) comes in 23h30m (2026-01-02T23:30:00Z)"],
    ),
    (
        check_maintenance,
        facts(**coming(0)),
        ["warning: maintenance (SCHEDULED, PENDING) comes now, or has begun (2026-01-02T00:00:00Z)"],
    ),
    (
        check_maintenance,
        facts(**coming(None)),
        ["warning: maintenance (SCHEDULED, PENDING) comes at an unknown time"],
    ),
    (check_addresses, facts(), []),
    (
        check_addresses,
        facts(networkEndpoints=[{"ipAddress": "10.0.0.1"}]),
        ["error: it lists 1 address for 2 workers"],
    ),
    (
        check_addresses,
        facts(networkEndpoints=[{"ipAddress": "10.0.0.1"}, {"ipAddress": "10.0.0.2"}]),
        ["note: its workers have internal addresses only: connect with `--iap`, or from inside their network"],
    ),
    (check_addresses, facts(state="CREATING", networkEndpoints=[]), []),
    (check_guest_attributes, facts(), []),
    (check_guest_attributes, facts({"published": Known(())}), ["note: none of its workers publishes host keys"]),
    (
        check_guest_attributes,
        facts({"published": Known((KEYS, {}))}),
        ["note: 1 of its workers publish no host keys"],
    ),
    (
        check_guest_attributes,
        facts({"published": Unknown("403")}),
        ["unknown: the guest attributes of its workers could not be read: 403"],
    ),
    (check_guest_attributes, facts({"published": Known(())}, state="STOPPED"), []),
    (check_workers_can_be_examined, facts(), []),
    (
        check_workers_can_be_examined,
        facts({"obstacle": "no `ssh` here"}),
        ["unknown: its workers were not examined: no `ssh` here"],
    ),
]


def test_guest_attributes_without_an_answer_are_unknown() -> None:
    silent: Any = Silent()

    assert read_guest_attributes(silent, node().name) == Unknown("no answer", is_passing=True)


@pytest.mark.parametrize(("rule", "known", "expected"), ROWS, ids=row_ids(ROWS))
def test_rule_yields_the_findings_of_each_case(
    rule: CheckRule[NodeFacts], known: NodeFacts, expected: list[str]
) -> None:
    assert [line.replace(" demo", "") for line in problems(rule, known)] == expected
