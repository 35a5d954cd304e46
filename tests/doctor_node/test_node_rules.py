"""What `doctor NODE` says of the node itself: a row for each rule and each bound."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.doctor_node.examinations import NOW, node, said
from tpuctl.actions.checkup.node import gather
from tpuctl.checkup.node import condition, equipment
from tpuctl.checkup.node.facts import Asked, LastFailure, NodeFacts
from tpuctl.clock import format_timestamp
from tpuctl.errors import ServiceUnavailableError
from tpuctl.journal import Journal
from tpuctl.model import QueuedResource
from tpuctl.names import NodeName
from tpuctl.preflight.fact import Absent, Known, Unknown
from tpuctl.preflight.findings import Rule


class Silent:
    """A cloud that does not answer."""

    def get_queued_resource(self, name: str) -> QueuedResource:  # noqa: ARG002  # the Protocol's
        raise ServiceUnavailableError("no answer")

    def guest_attributes(
        self,
        name: NodeName,  # noqa: ARG002  # the Protocol's
        worker: int | None = None,  # noqa: ARG002  # as above
    ) -> tuple[Mapping[str, str], ...]:
        raise ServiceUnavailableError("no answer")

    def operations(self, *_: object, **__: object) -> tuple[Mapping[str, Any], ...]:
        raise ServiceUnavailableError("no answer")


KEYS = {"hostkeys/ssh-ed25519": "AAAA"}
OWNER = "projects/p/locations/us-central2-b/queuedResources/q"


def facts(others: dict[str, Any] | None = None, **fields: Any) -> NodeFacts:
    """Return a healthy node's, with what is `others` than usual and fields of the API's."""
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
    newest = Asked(verb, NOW - timedelta(hours=3), is_done, error, "stockout" if error else None)
    earlier = Asked("create", NOW - timedelta(hours=9), is_done=True, error="it was full")
    return facts({"operations": Known((newest, earlier))}, **fields)


ROWS: list[tuple[Rule[NodeFacts], NodeFacts, list[str]]] = [
    (condition.state, facts(), ["ok: it is READY"]),
    (
        condition.state,
        facts(state="PREEMPTED"),
        ["error: it is PREEMPTED: the service took it back, with its boot disk"],
    ),
    (
        condition.state,
        facts(state="TERMINATED", schedulingConfig={"spot": True}),
        ["error: it is TERMINATED: the service took it back, with its boot disk"],
    ),
    (condition.state, facts(state="TERMINATED"), ["error: it is TERMINATED: only its record is left"]),
    (condition.state, facts(state="UNKNOWN"), ["error: it is UNKNOWN, and does not recover by itself"]),
    (condition.state, facts(state="STOPPED"), ["warning: it is STOPPED"]),
    (condition.state, facts(state="CREATING"), ["warning: it is CREATING, and not READY yet"]),
    (condition.state, facts(state="STOPPING"), ["warning: it is STOPPING"]),
    (condition.state, facts(state="NEW"), ["unknown: it is NEW, a state that this version of tpuctl does not know"]),
    (condition.health, facts(), ["ok: it is HEALTHY"]),
    (condition.health, facts(state="STOPPED", health="TIMEOUT"), []),
    (
        condition.health,
        facts(health=""),
        ["note: the service reports no health, which is normal for a while after a start"],
    ),
    (condition.health, facts(health="TIMEOUT", healthDescription="gone"), ["error: it is TIMEOUT (gone)"]),
    (condition.health, facts(health="UNHEALTHY_MAINTENANCE"), ["warning: it is UNHEALTHY_MAINTENANCE"]),
    (condition.health, facts(health="NEW"), ["error: it is NEW"]),
    (condition.symptoms, facts(), ["ok: the service reports no symptoms"]),
    (
        condition.symptoms,
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
    (condition.maintenance, facts(), ["ok: no maintenance is announced"]),
    (
        condition.maintenance,
        facts(**coming(24)),
        ["note: maintenance (SCHEDULED, PENDING) comes in 24h (2026-01-03T00:00:00Z)"],
    ),
    (
        condition.maintenance,
        facts(**coming(23.5)),
        ["warning: maintenance (SCHEDULED, PENDING) comes in 23h30m (2026-01-02T23:30:00Z)"],
    ),
    (
        condition.maintenance,
        facts(**coming(0)),
        ["warning: maintenance (SCHEDULED, PENDING) comes now, or has begun (2026-01-02T00:00:00Z)"],
    ),
    (
        condition.maintenance,
        facts(**coming(None)),
        ["warning: maintenance (SCHEDULED, PENDING) comes at an unknown time"],
    ),
    (condition.tier, facts(), ["ok: its tier is on-demand, and it was created 24h ago"]),
    (
        condition.tier,
        facts(schedulingConfig={"spot": True}),
        ["note: its tier is spot, and it was created 24h ago: the service may take it at any moment"],
    ),
    (
        condition.tier,
        facts(schedulingConfig={"preemptible": True}, createTime="2026-01-01T12:00:00Z"),
        [
            (
                "note: its tier is preemptible, and it was created 12h ago: the service may take it at any moment, "
                "and in 12h at the latest"
            ),
        ],
    ),
    (condition.queued_resource, facts(), []),
    (condition.queued_resource, facts(request("ACTIVE")), ["ok: its queued resource `q` is ACTIVE"]),
    (
        condition.queued_resource,
        facts(request("SUSPENDED", "SERVICE")),
        ["error: its queued resource `q` is SUSPENDED by the service"],
    ),
    (condition.queued_resource, facts(request("PROVISIONING")), ["warning: its queued resource `q` is PROVISIONING"]),
    (
        condition.queued_resource,
        facts({"request": Absent()}, queuedResource=OWNER),
        ["warning: the queued resource `q` that it names does not exist"],
    ),
    (
        condition.queued_resource,
        facts({"request": Unknown("no")}),
        ["unknown: its queued resource could not be read: no"],
    ),
    (condition.failure, facts(), ["ok: no recent change by tpuctl failed"]),
    (
        condition.failure,
        facts({"failure": Known(LastFailure("start failed: no room", "no_capacity", NOW - timedelta(hours=2)))}),
        ["note: the last change failed, 2h ago: start failed: no room"],
    ),
    (condition.operations, facts(), ["ok: the API lists no operation on it"]),
    (condition.operations, asked("stop"), ["ok: the newest operation on it, stop, 3h ago, succeeded"]),
    (
        condition.operations,
        asked("stop", is_done=False),
        ["note: an operation on it is in progress: stop, begun 3h ago"],
    ),
    (
        condition.operations,
        asked("start", error="no room"),
        ["note: the newest operation on it, start, 3h ago, failed: no room"],
    ),
    (
        condition.operations,
        asked("start", error="no room", state="STOPPED"),
        ["warning: the newest operation on it, start, 3h ago, failed: no room"],
    ),
    (
        condition.operations,
        facts({"operations": Unknown("no answer")}),
        ["unknown: its operations could not be listed: no answer"],
    ),
    (condition.failure, facts({"failure": Unknown("torn")}), ["unknown: the journal could not be read: torn"]),
    (equipment.image, facts(), ["ok: `tpu-ubuntu2204-base` fits v4-16"]),
    (
        equipment.image,
        facts(acceleratorType="v6e-8"),
        ["error: `tpu-ubuntu2204-base` on v6e-8: it is documented for v2, v3 and v4, not for v6e"],
    ),
    (equipment.image, facts(acceleratorType="v9-8"), []),
    (equipment.addresses, facts(), ["ok: every worker has an address"]),
    (
        equipment.addresses,
        facts(networkEndpoints=[{"ipAddress": "10.0.0.1"}]),
        ["error: it lists 1 address for 2 workers"],
    ),
    (
        equipment.addresses,
        facts(networkEndpoints=[{"ipAddress": "10.0.0.1"}, {"ipAddress": "10.0.0.2"}]),
        ["note: its workers have internal addresses only: connect with `--iap`, or from inside their network"],
    ),
    (equipment.addresses, facts(state="CREATING", networkEndpoints=[]), []),
    (equipment.account, facts(), []),
    (equipment.account, facts(**scopes("cloud-platform")), ["ok: its scopes allow programs to use Cloud Storage"]),
    (
        equipment.account,
        facts(**scopes("devstorage.read_only", "logging.write")),
        ["warning: its scopes allow programs only to read from Cloud Storage"],
    ),
    (
        equipment.account,
        facts(**scopes("logging.write")),
        ["warning: its scopes do not allow programs to use Cloud Storage"],
    ),
    (equipment.equipment, facts(), ["ok: it has no data disk"]),
    (
        equipment.equipment,
        facts(
            dataDisks=[{"sourceDisk": "projects/p/zones/z/disks/data", "mode": "READ_WRITE"}],
            shieldedInstanceConfig={"enableSecureBoot": True},
        ),
        ["ok: data disks: `data`; secure boot is on"],
    ),
    (equipment.published, facts(), ["ok: every worker publishes its host keys"]),
    (equipment.published, facts({"published": Known(())}), ["note: none of its workers publishes host keys"]),
    (
        equipment.published,
        facts({"published": Known((KEYS, {}))}),
        ["note: 1 of its workers publish no host keys"],
    ),
    (
        equipment.published,
        facts({"published": Unknown("403")}),
        ["unknown: the guest attributes of its workers could not be read: 403"],
    ),
    (equipment.published, facts({"published": Known(())}, state="STOPPED"), []),
    (equipment.can_be_asked, facts(), []),
    (
        equipment.can_be_asked,
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
    for event, data in events:
        journal.append(demo.name, event, NOW, durable=False, **data)

    failure = gather(demo, Silent(), Silent(), journal, now=NOW).failure

    assert (failure.value.text if isinstance(failure, Known) else failure) == expected


@pytest.mark.parametrize(("rule", "known", "expected"), ROWS)
def test_rule_yields_the_findings_of_each_case(rule: Rule[NodeFacts], known: NodeFacts, expected: list[str]) -> None:
    assert [line.replace(" demo", "") for line in said(rule, known)] == expected
