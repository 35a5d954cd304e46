"""What `doctor NODE` says of the node itself: a row for each rule and each bound."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.doctor_node.examinations import NOW, node, said
from tpuctl.actions.checkup.node import gather
from tpuctl.checkup import node_equipment, node_rules
from tpuctl.checkup.node_catalogue import RULES_OF_NODES, RULES_OF_WORKERS
from tpuctl.checkup.node_facts import LastFailure, NodeFacts
from tpuctl.checkup.node_rule import NodeRule
from tpuctl.clock import format_timestamp
from tpuctl.errors import ServiceUnavailableError
from tpuctl.journal import Journal
from tpuctl.model import QueuedResource
from tpuctl.names import NodeName
from tpuctl.preflight.fact import Absent, Known, Unknown


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


KEYS = {"hostkeys/ssh-ed25519": "AAAA"}
OWNER = "projects/p/locations/us-central2-b/queuedResources/q"


def facts(others: dict[str, Any] | None = None, **fields: Any) -> NodeFacts:
    """Return a healthy node's, with what is `others` than usual and fields of the API's."""
    usual: dict[str, Any] = {"request": None, "published": Known((KEYS, KEYS)), "failure": Absent()}
    return NodeFacts(node=node(**fields), now=NOW, **(usual | (others or {})))


def request(state: str, initiator: str = "USER") -> dict[str, Any]:
    raw = {"name": OWNER, "state": {"state": state, "stateInitiator": initiator}}
    return {"request": Known(QueuedResource.from_api(raw))}


def coming(hours: float | None) -> dict[str, Any]:
    start = {} if hours is None else {"windowStartTime": format_timestamp(NOW + timedelta(hours=hours))}
    return {"upcomingMaintenance": {"type": "SCHEDULED", "maintenanceStatus": "PENDING", **start}}


def scopes(*names: str) -> dict[str, Any]:
    return {"serviceAccount": {"email": "a@b", "scope": [f"https://www.googleapis.com/auth/{name}" for name in names]}}


ROWS: list[tuple[NodeRule[NodeFacts], NodeFacts, list[str]]] = [
    (node_rules.state, facts(), ["ok: it is READY"]),
    (
        node_rules.state,
        facts(state="PREEMPTED"),
        ["error: it is PREEMPTED: the service took it back, with its boot disk"],
    ),
    (
        node_rules.state,
        facts(state="TERMINATED", schedulingConfig={"spot": True}),
        ["error: it is TERMINATED: the service took it back, with its boot disk"],
    ),
    (node_rules.state, facts(state="TERMINATED"), ["error: it is TERMINATED: nothing but its record is left"]),
    (node_rules.state, facts(state="UNKNOWN"), ["error: it is UNKNOWN, and does not come back by itself"]),
    (node_rules.state, facts(state="STOPPED"), ["warning: it is STOPPED"]),
    (node_rules.state, facts(state="CREATING"), ["warning: it is CREATING: on its way"]),
    (node_rules.state, facts(state="STOPPING"), ["warning: it is STOPPING"]),
    (node_rules.state, facts(state="NEW"), ["unknown: it is NEW, a state that this version of tpuctl does not know"]),
    (node_rules.health, facts(), ["ok: it is HEALTHY"]),
    (node_rules.health, facts(state="STOPPED", health="TIMEOUT"), []),
    (
        node_rules.health,
        facts(health=""),
        ["note: the service says nothing of its health, which it does a while after a start"],
    ),
    (node_rules.health, facts(health="TIMEOUT", healthDescription="gone"), ["error: it is TIMEOUT (gone)"]),
    (node_rules.health, facts(health="UNHEALTHY_MAINTENANCE"), ["warning: it is UNHEALTHY_MAINTENANCE"]),
    (node_rules.health, facts(health="NEW"), ["error: it is NEW"]),
    (node_rules.symptoms, facts(), ["ok: the service noticed no symptoms"]),
    (
        node_rules.symptoms,
        facts(
            symptoms=[
                {"symptomType": kind, "workerId": "1", "createTime": format_timestamp(NOW - timedelta(hours=1))}
                for kind in ("OLDER", "LOW_MEMORY", "OUT_OF_MEMORY", "HBM")
            ]
        ),
        [
            (
                "warning: the service noticed HBM on worker 1, 1h ago, OUT_OF_MEMORY on worker 1, 1h ago, "
                "LOW_MEMORY on worker 1, 1h ago, and 1 older"
            ),
        ],
    ),
    (node_rules.maintenance, facts(), ["ok: no maintenance is announced"]),
    (
        node_rules.maintenance,
        facts(**coming(24)),
        ["note: maintenance (SCHEDULED, PENDING) comes in 24h (2026-01-03T00:00:00Z)"],
    ),
    (
        node_rules.maintenance,
        facts(**coming(23.5)),
        ["warning: maintenance (SCHEDULED, PENDING) comes in 23h30m (2026-01-02T23:30:00Z)"],
    ),
    (
        node_rules.maintenance,
        facts(**coming(0)),
        ["warning: maintenance (SCHEDULED, PENDING) comes now, or has begun (2026-01-02T00:00:00Z)"],
    ),
    (
        node_rules.maintenance,
        facts(**coming(None)),
        ["warning: maintenance (SCHEDULED, PENDING) comes at a time that is not told"],
    ),
    (node_rules.tier, facts(), ["ok: its tier is on-demand, and it was made 24h ago"]),
    (
        node_rules.tier,
        facts(schedulingConfig={"spot": True}),
        ["note: its tier is spot, and it was made 24h ago: the service may take it at any moment"],
    ),
    (
        node_rules.tier,
        facts(schedulingConfig={"preemptible": True}, createTime="2026-01-01T12:00:00Z"),
        [
            (
                "note: its tier is preemptible, and it was made 12h ago: the service may take it at any moment, "
                "and in 12h at the latest"
            ),
        ],
    ),
    (node_rules.queued_resource, facts(), []),
    (node_rules.queued_resource, facts(request("ACTIVE")), ["ok: its queued resource `q` is ACTIVE"]),
    (
        node_rules.queued_resource,
        facts(request("SUSPENDED", "SERVICE")),
        ["error: its queued resource `q` is SUSPENDED by the service"],
    ),
    (node_rules.queued_resource, facts(request("PROVISIONING")), ["warning: its queued resource `q` is PROVISIONING"]),
    (
        node_rules.queued_resource,
        facts({"request": Absent()}, queuedResource=OWNER),
        ["warning: the queued resource `q` that it names is not there"],
    ),
    (
        node_rules.queued_resource,
        facts({"request": Unknown("no")}),
        ["unknown: its queued resource could not be read: no"],
    ),
    (node_rules.failure, facts(), ["ok: no change of tpuctl's has failed lately"]),
    (
        node_rules.failure,
        facts({"failure": Known(LastFailure("start failed: no room", "no_capacity", NOW - timedelta(hours=2)))}),
        ["note: the last change did not go well, 2h ago: start failed: no room"],
    ),
    (node_rules.failure, facts({"failure": Unknown("torn")}), ["unknown: the journal could not be read: torn"]),
    (node_equipment.image, facts(), ["ok: `tpu-ubuntu2204-base` fits v4-16"]),
    (
        node_equipment.image,
        facts(acceleratorType="v6e-8"),
        ["error: `tpu-ubuntu2204-base` on v6e-8: it is documented for v2, v3 and v4, not for v6e"],
    ),
    (node_equipment.image, facts(acceleratorType="v9-8"), []),
    (node_equipment.addresses, facts(), ["ok: every worker has an address"]),
    (
        node_equipment.addresses,
        facts(networkEndpoints=[{"ipAddress": "10.0.0.1"}]),
        ["error: it lists 1 address for 2 workers"],
    ),
    (
        node_equipment.addresses,
        facts(networkEndpoints=[{"ipAddress": "10.0.0.1"}, {"ipAddress": "10.0.0.2"}]),
        ["note: its workers have internal addresses only: they are reached by `--iap`, or from inside their network"],
    ),
    (node_equipment.addresses, facts(state="CREATING", networkEndpoints=[]), []),
    (node_equipment.account, facts(), []),
    (node_equipment.account, facts(**scopes("cloud-platform")), ["ok: its scopes let programs at Cloud Storage"]),
    (
        node_equipment.account,
        facts(**scopes("devstorage.read_only", "logging.write")),
        ["warning: its scopes let programs only read from Cloud Storage"],
    ),
    (
        node_equipment.account,
        facts(**scopes("logging.write")),
        ["warning: its scopes keep programs from Cloud Storage"],
    ),
    (node_equipment.equipment, facts(), ["ok: it has no data disk"]),
    (
        node_equipment.equipment,
        facts(
            dataDisks=[{"sourceDisk": "projects/p/zones/z/disks/data", "mode": "READ_WRITE"}],
            shieldedInstanceConfig={"enableSecureBoot": True},
        ),
        ["ok: data disks: `data`; secure boot is on"],
    ),
    (node_equipment.published, facts(), ["ok: every worker publishes its host keys"]),
    (node_equipment.published, facts({"published": Known(())}), ["note: none of its workers publishes host keys"]),
    (
        node_equipment.published,
        facts({"published": Known((KEYS, {}))}),
        ["note: 1 of its workers publish no host keys"],
    ),
    (
        node_equipment.published,
        facts({"published": Unknown("403")}),
        ["unknown: what its workers publish could not be read: 403"],
    ),
    (node_equipment.published, facts({"published": Known(())}, state="STOPPED"), []),
    (node_equipment.can_be_asked, facts(), []),
    (
        node_equipment.can_be_asked,
        facts({"obstacle": "no `ssh` here"}),
        ["unknown: its workers were not looked at: no `ssh` here"],
    ),
]


def test_every_rule_has_an_id_of_its_own_and_says_what_it_is_about() -> None:
    rules: list[NodeRule[Any]] = [*RULES_OF_NODES, *RULES_OF_WORKERS]

    assert len({rule.id for rule in rules}) == len(rules)
    assert [rule.id for rule in rules if not ("TPU950" <= rule.id <= "TPU989" and rule.text and rule.title)] == []


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
def test_the_last_failure_is_the_journals(
    tmp_path: Path, events: list[tuple[str, dict[str, Any]]], expected: Absent | str
) -> None:
    journal, demo = Journal(tmp_path), node()
    for event, data in events:
        journal.append(demo.name, event, NOW, durable=False, **data)

    failure = gather(demo, Silent(), journal, now=NOW).failure

    assert (failure.value.text if isinstance(failure, Known) else failure) == expected


@pytest.mark.parametrize(("rule", "known", "expected"), ROWS)
def test_what_a_rule_says(rule: NodeRule[NodeFacts], known: NodeFacts, expected: list[str]) -> None:
    assert [line.replace(" demo", "") for line in said(rule, known)] == expected
