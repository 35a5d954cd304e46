"""Findings of `doctor NODE` about the node itself: a row for each rule and each boundary."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.node.examinations import NOW, node, problems, row_ids
from tpuctl.check.facts import Absent, Known, Unknown
from tpuctl.check.findings import CheckRule
from tpuctl.doctor.doctor_facts import LastFailure, NodeFacts, NodeOperation
from tpuctl.doctor.node_probes import gather_node_facts
from tpuctl.doctor.node_rules import (
    check_addresses,
    check_disks_and_secure_boot,
    check_guest_attributes,
    check_image,
    check_last_failure,
    check_maintenance,
    check_node_health,
    check_node_state,
    check_operations,
    check_queued_resource,
    check_service_account,
    check_symptoms,
    check_tier,
    check_workers_can_be_examined,
)
from tpuctl.durations import format_timestamp
from tpuctl.errors import ServiceUnavailableError
from tpuctl.models.queued import QueuedResource
from tpuctl.nodes.journal import Journal


class Silent:
    """A cloud that does not answer."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object, **__: object) -> None:
            raise ServiceUnavailableError("no answer")

        return fail


KEYS = {"hostkeys/ssh-ed25519": "AAAA"}
OWNER = "projects/p/locations/us-central2-b/queuedResources/q"


def facts(others: dict[str, Any] | None = None, **fields: Any) -> NodeFacts:
    """Return the facts about a healthy node, with `others` in place of the usual facts and with fields of the API."""
    usual: dict[str, Any] = {
        "request": None,
        "published": Known((KEYS, KEYS)),
        "failure": Absent(),
        "operations": Known(()),
    }
    return NodeFacts(node=node(**fields), now=NOW, **(usual | (others or {})))


def request(state: str, initiator: str = "USER") -> dict[str, Any]:
    raw = {"name": OWNER, "state": {"state": state, "stateInitiator": initiator}}
    return {"request": Known(QueuedResource.from_api(raw))}


def coming(hours: float | None) -> dict[str, Any]:
    start = {} if hours is None else {"windowStartTime": format_timestamp(NOW + timedelta(hours=hours))}
    return {"upcomingMaintenance": {"type": "SCHEDULED", "maintenanceStatus": "PENDING", **start}}


def scopes(*names: str) -> dict[str, Any]:
    return {"serviceAccount": {"email": "a@b", "scope": [f"https://www.googleapis.com/auth/{name}" for name in names]}}


def asked(verb: str, *, is_done: bool = True, error: str | None = None, **fields: Any) -> NodeFacts:
    newest = NodeOperation(verb, NOW - timedelta(hours=3), is_done, error, "stockout" if error else None)
    earlier = NodeOperation("create", NOW - timedelta(hours=9), is_done=True, error="it was full")
    return facts({"operations": Known((newest, earlier))}, **fields)


ROWS: list[tuple[CheckRule[NodeFacts], NodeFacts, list[str]]] = [
    (check_node_state, facts(), ["ok: it is READY"]),
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
    (check_node_health, facts(), ["ok: it is HEALTHY"]),
    (check_node_health, facts(state="STOPPED", health="TIMEOUT"), []),
    (
        check_node_health,
        facts(health=""),
        ["note: the service reports no health, which is normal for a while after a start"],
    ),
    (check_node_health, facts(health="TIMEOUT", healthDescription="gone"), ["error: it is TIMEOUT (gone)"]),
    (check_node_health, facts(health="UNHEALTHY_MAINTENANCE"), ["warning: it is UNHEALTHY_MAINTENANCE"]),
    (check_node_health, facts(health="NEW"), ["error: it is NEW"]),
    (check_symptoms, facts(), ["ok: the service reports no symptoms"]),
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
    (check_maintenance, facts(), ["ok: no maintenance is announced"]),
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
    (check_tier, facts(), ["ok: its tier is on-demand, and it was created 24h ago"]),
    (
        check_tier,
        facts(schedulingConfig={"spot": True}),
        ["note: its tier is spot, and it was created 24h ago: the service may take it at any moment"],
    ),
    (
        check_tier,
        facts(schedulingConfig={"preemptible": True}, createTime="2026-01-01T12:00:00Z"),
        [
            (
                "note: its tier is preemptible, and it was created 12h ago: the service may take it at any moment, "
                "and in 12h at the latest"
            ),
        ],
    ),
    (check_queued_resource, facts(), []),
    (check_queued_resource, facts(request("ACTIVE")), ["ok: its queued resource `q` is ACTIVE"]),
    (
        check_queued_resource,
        facts(request("SUSPENDED", "SERVICE")),
        ["error: its queued resource `q` is SUSPENDED by the service"],
    ),
    (check_queued_resource, facts(request("PROVISIONING")), ["warning: its queued resource `q` is PROVISIONING"]),
    (
        check_queued_resource,
        facts({"request": Absent()}, queuedResource=OWNER),
        ["warning: the queued resource `q` that it names does not exist"],
    ),
    (
        check_queued_resource,
        facts({"request": Unknown("no")}),
        ["unknown: its queued resource could not be read: no"],
    ),
    (check_last_failure, facts(), ["ok: no recent change by tpuctl failed"]),
    (
        check_last_failure,
        facts({"failure": Known(LastFailure("start failed: no room", "no_capacity", NOW - timedelta(hours=2)))}),
        ["note: the last change failed, 2h ago: start failed: no room"],
    ),
    (check_operations, facts(), ["ok: the API lists no operation on it"]),
    (check_operations, asked("stop"), ["ok: the newest operation on it, stop, 3h ago, succeeded"]),
    (
        check_operations,
        asked("stop", is_done=False),
        ["note: an operation on it is in progress: stop, begun 3h ago"],
    ),
    (
        check_operations,
        asked("start", error="no room"),
        ["note: the newest operation on it, start, 3h ago, failed: no room"],
    ),
    (
        check_operations,
        asked("start", error="no room", state="STOPPED"),
        ["warning: the newest operation on it, start, 3h ago, failed: no room"],
    ),
    (
        check_operations,
        facts({"operations": Unknown("no answer")}),
        ["unknown: its operations could not be listed: no answer"],
    ),
    (check_last_failure, facts({"failure": Unknown("torn")}), ["unknown: the journal could not be read: torn"]),
    (check_image, facts(), ["ok: `tpu-ubuntu2204-base` fits v4-16"]),
    (
        check_image,
        facts(acceleratorType="v6e-8"),
        ["error: `tpu-ubuntu2204-base` on v6e-8: it is documented for v2, v3 and v4, not for v6e"],
    ),
    (check_image, facts(acceleratorType="v9-8"), []),
    (check_addresses, facts(), ["ok: every worker has an address"]),
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
    (check_service_account, facts(), []),
    (check_service_account, facts(**scopes("cloud-platform")), ["ok: its scopes allow programs to use Cloud Storage"]),
    (
        check_service_account,
        facts(**scopes("devstorage.read_only", "logging.write")),
        ["warning: its scopes allow programs only to read from Cloud Storage"],
    ),
    (
        check_service_account,
        facts(**scopes("logging.write")),
        ["warning: its scopes do not allow programs to use Cloud Storage"],
    ),
    (check_disks_and_secure_boot, facts(), ["ok: it has no data disk"]),
    (
        check_disks_and_secure_boot,
        facts(
            dataDisks=[{"sourceDisk": "projects/p/zones/z/disks/data", "mode": "READ_WRITE"}],
            shieldedInstanceConfig={"enableSecureBoot": True},
        ),
        ["ok: data disks: `data`; secure boot is on"],
    ),
    (check_guest_attributes, facts(), ["ok: every worker publishes its host keys"]),
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


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], Absent()),
        ([("create", {}), ("usable", {})], Absent()),
        ([("note", {"text": "start failed: no room", "error": "no_capacity"})], "start failed: no room"),
        ([("gave-up", {"error": "timed_out"}), ("note", {"text": "a remark"})], "timed_out"),
        ([("gave-up", {"error": "timed_out", "reason": "late"}), ("usable", {})], Absent()),
        ([("gave-up", {"error": "timed_out", "id": "another"})], Absent()),
    ],
)
def test_last_failure_comes_from_the_journal(
    tmp_path: Path, events: list[tuple[str, dict[str, Any]]], expected: Absent | str
) -> None:
    journal, demo = Journal(tmp_path), node()
    silent: Any = Silent()
    for event, data in events:
        journal.append(demo.name, event, NOW, durable=False, **data)

    failure = gather_node_facts(demo, silent, silent, journal, now=NOW).failure

    assert (failure.value.text if isinstance(failure, Known) else failure) == expected


@pytest.mark.parametrize(("rule", "known", "expected"), ROWS, ids=row_ids(ROWS))
def test_rule_yields_the_findings_of_each_case(
    rule: CheckRule[NodeFacts], known: NodeFacts, expected: list[str]
) -> None:
    assert [line.replace(" demo", "") for line in problems(rule, known)] == expected
