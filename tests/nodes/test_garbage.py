"""What `gc` deletes: one row for each rule and each boundary."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tpuctl.models.billing import NOTHING
from tpuctl.models.node import Node
from tpuctl.models.queued import QueuedResource
from tpuctl.names import NodeName
from tpuctl.nodes.garbage import (
    GarbageFacts,
    GarbageRules,
    Idleness,
    find_garbage,
    freed_quota,
    idle_candidates,
)
from tpuctl.nodes.selection import LabelCondition

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND, HOUR, DAY = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1)
ZONE = "us-central2-b"
PLACE = f"projects/p/locations/{ZONE}"
MINE = {"tpuctl-owner": "ann"}
A = NodeName("p", ZONE, "a")
RULES = GarbageRules(owner="ann")
LABELLED = {"labels": (LabelCondition("team", "x"),)}
IDLE_FOR_A_DAY = {A: Idleness(DAY, "")}
LOST, HELD = {A: "z"}, {A: "up on host"}


def stamp(ago: timedelta) -> str:
    return (NOW - ago).isoformat()


def expires(at: timedelta) -> dict[str, Any]:
    """Return the label of a node that expires this long from now."""
    return {"tpuctl-expires": str(int((NOW + at).timestamp()))}


def node(name: str = "a", state: str = "READY", *, of: str = "", age: timedelta = HOUR, **labels: Any) -> Node:
    owner = {"queuedResource": f"{PLACE}/queuedResources/{of}"} if of else {}
    marks = {**MINE, **{key.replace("_", "-"): value for key, value in labels.items() if value}}
    return Node.from_api(
        {
            "name": f"{PLACE}/nodes/{name}",
            "id": "1",
            "state": state,
            "acceleratorType": "v4-8",
            "createTime": stamp(age),
            "labels": {key: value for key, value in marks.items() if value != "-"},
            **owner,
        }
    )


def changed(found: Node, **fields: Any) -> Node:
    return Node.from_api({**found.raw, **fields})


def request(
    state: str, *ids: str, age: timedelta = HOUR, labels: dict[str, str] | None = None, **fields: Any
) -> QueuedResource:
    body = {"acceleratorType": "v4-8", "labels": {**MINE, **(labels or {})}}
    return QueuedResource.from_api(
        {
            "name": f"{PLACE}/queuedResources/q",
            "createTime": stamp(age),
            "state": {"state": state},
            "tpu": {"nodeSpec": [{"nodeId": each, "node": body} for each in ids or ("a",)]},
            **fields,
        }
    )


def tpu_of(first: str, second: str, **labels: str) -> dict[str, Any]:
    """Return the specs of two nodes of which the second has these labels."""
    bodies = ((first, MINE), (second, labels))
    nodes = [{"nodeId": name, "node": {"acceleratorType": "v4-8", "labels": marks}} for name, marks in bodies]
    return {"nodeSpec": nodes}


def row(
    expected: str, *resources: Node | QueuedResource, named: str, rules: dict[str, Any] | None = None, **facts: Any
) -> Any:
    """Return a row: `delete a: why`, `leave a: because`, or empty if nothing is said."""
    return pytest.param(resources, rules or {}, facts, expected, id=named)


EXPIRED = {"expired": True}
PAST, NOT_YET = expires(timedelta()), expires(SECOND)


@pytest.mark.parametrize(
    ("resources", "rules", "facts", "expected"),
    [
        row("delete a: PREEMPTED", node(state="PREEMPTED"), named="a preempted node is dead"),
        row("delete a: TERMINATED", node(state="TERMINATED"), named="a terminated node is dead"),
        *(
            row("", node(state=state, age=9 * DAY), named=f"a node in {state} is not dead")
            for state in ("READY", "CREATING", "STOPPED", "REPAIRING", "HIDDEN", "UNKNOWN", "NEW_STATE", "DELETING")
        ),
        row("delete q: FAILED", request("FAILED"), named="a failed request is dead"),
        row("delete q: SUSPENDED", request("SUSPENDED"), named="a suspended request is dead"),
        *(
            row("", request(state, age=9 * DAY), named=f"a request in {state} is not dead")
            for state in (
                "CREATING",
                "ACCEPTED",
                "WAITING_FOR_RESOURCES",
                "PROVISIONING",
                "ACTIVE",
                "SUSPENDING",
                "NEW",
            )
        ),
        row("", request("DELETING"), node(state="PREEMPTED", of="q"), named="a request being deleted is not mentioned"),
        row(
            "delete a: PREEMPTED",
            request("SUSPENDED"),
            node(state="PREEMPTED", of="q"),
            named="a request goes with its node",
        ),
        row("delete a: PREEMPTED", request("ACTIVE"), node(state="PREEMPTED", of="q"), named="its only node is dead"),
        row(
            "leave a: its queued resource is SUSPENDING",
            request("SUSPENDING"),
            node(state="PREEMPTED", of="q"),
            named="a request being suspended is not deleted yet",
        ),
        row(
            "leave q: `b` of the same queued resource is READY, and no rule applies to it",
            request("ACTIVE", "a", "b"),
            node(state="PREEMPTED", of="q"),
            node("b", of="q"),
            named="another node of the request is alive",
        ),
        row("", request("SUSPENDED"), node(of="q"), named="the node of a dead request is alive"),
        row("delete q: FAILED", request("FAILED"), node(), named="a failed request does not own the node of its name"),
        row("delete a: PREEMPTED", node(state="PREEMPTED", of="gone"), named="the request of the node is gone"),
        # Lost a race.
        row("delete a: lost the race to z", request("ACTIVE"), node(of="q"), named="lost and ready", lost=LOST),
        row("delete q: lost the race to z", request("WAITING_FOR_RESOURCES"), named="lost and waiting", lost=LOST),
        row("", request("PROVISIONING"), named="lost and not settled", lost=LOST),
        row(
            "leave a: `a` is CREATING",
            request("ACTIVE"),
            node(state="CREATING", of="q"),
            named="lost, created",
            lost=LOST,
        ),
        row(
            "leave a: its queued resource is SUSPENDING",
            request("SUSPENDING"),
            node(of="q"),
            named="lost, being suspended",
            lost=LOST,
        ),
        row(
            "leave a: it is in use: up on host",
            request("ACTIVE"),
            node(of="q"),
            named="lost, a run goes on",
            lost=LOST,
            leases=HELD,
        ),
        row(
            "leave a: it belongs to others",
            request("ACTIVE"),
            node(of="q", tpuctl_owner="bob"),
            named="lost, of others",
            lost=LOST,
        ),
        row(
            "delete a: PREEMPTED", request("ACTIVE"), node(state="PREEMPTED", of="q"), named="lost and dead", lost=LOST
        ),
        # Expired.
        row("delete a: expired 0s ago", node(**PAST), rules=EXPIRED, named="expired now"),
        row("", node(**NOT_YET), rules=EXPIRED, named="expires in a second"),
        row("", node(**PAST), named="expired, and the rule is off"),
        row(
            "delete a: expired 0s ago", node(state="STOPPED", **PAST), rules=EXPIRED, named="a stopped node has expired"
        ),
        row("", node(state="NEW_STATE", **PAST), rules=EXPIRED, named="expired in a state that is not known"),
        row(
            "leave a: it is not a time", node(tpuctl_expires="soon"), rules=EXPIRED, named="a wrong label never expires"
        ),
        row(
            "leave a: `a` is CREATING",
            node(state="CREATING", **PAST),
            rules=EXPIRED,
            named="expired while it is created",
        ),
        row("leave a: `a` is STARTING", node(state="STARTING", **PAST), rules=EXPIRED, named="expired while it starts"),
        row(
            "delete q: expired 0s ago",
            request("WAITING_FOR_RESOURCES", labels=PAST),
            rules=EXPIRED,
            named="a waiting request has expired",
        ),
        row(
            "",
            request("ACTIVE", labels=PAST),
            node(of="q", **NOT_YET),
            rules=EXPIRED,
            named="the label of the node counts, which was extended",
        ),
        row("", request("PROVISIONING", labels=PAST), rules=EXPIRED, named="an expired request is being provisioned"),
        row(
            "leave q: `b` of the same queued resource is READY, and no rule applies to it",
            request("ACTIVE", "a", "b"),
            node(of="q", **PAST),
            node("b", of="q", **NOT_YET),
            rules=EXPIRED,
            named="one of two nodes has expired",
        ),
        row(
            "delete q: expired 0s ago",
            request("ACTIVE", "a", "b"),
            node(of="q", **PAST),
            node("b", "PREEMPTED", of="q"),
            rules=EXPIRED,
            named="one node has expired and the other is dead",
        ),
        # Older.
        row("delete a: older than 3d", node(age=3 * DAY), rules={"older_than": 3 * DAY}, named="as old as the limit"),
        row("", node(age=3 * DAY - SECOND), rules={"older_than": 3 * DAY}, named="a second younger than the limit"),
        row("", changed(node(), createTime=""), rules={"older_than": HOUR}, named="the age is unknown"),
        row("", request("ACCEPTED", age=9 * DAY), rules={"older_than": HOUR}, named="a waiting request is no old node"),
        # Waiting.
        row(
            "delete q: waits for 6h", request("ACCEPTED", age=6 * HOUR), rules={"waiting_for": 6 * HOUR}, named="waits"
        ),
        row(
            "", request("ACCEPTED", age=6 * HOUR - SECOND), rules={"waiting_for": 6 * HOUR}, named="waits a second less"
        ),
        row(
            "",
            request("ACCEPTED", age=9 * HOUR, queueingPolicy={"validAfterTime": stamp(HOUR)}),
            rules={"waiting_for": 6 * HOUR},
            named="it may wait only since its start time",
        ),
        row("", node(age=9 * DAY), rules={"waiting_for": HOUR}, named="a node does not wait"),
        row("", request("PROVISIONING", age=DAY), rules={"waiting_for": HOUR}, named="it does not wait any more"),
        # Idle.
        row("delete a: idle for 24h", node(), rules={"idle": DAY}, idleness=IDLE_FOR_A_DAY, named="idle for the limit"),
        row("", node(), rules={"idle": DAY + SECOND}, idleness=IDLE_FOR_A_DAY, named="idle a second less"),
        row("", node(), rules={"idle": DAY}, named="nobody asked its workers"),
        row(
            "leave a: worker 0 did not answer",
            node(),
            rules={"idle": DAY},
            idleness={A: Idleness(None, "worker 0 did not answer")},
            named="what cannot be looked at is not idle",
        ),
        row(
            "", node(state="STOPPED"), rules={"idle": DAY}, idleness=IDLE_FOR_A_DAY, named="a stopped node is not idle"
        ),
        # What keeps it.
        row(
            "leave a: its label `tpuctl-keep` keeps it",
            node(state="PREEMPTED", tpuctl_keep="yes"),
            rules={"everyones": True},
            named="a kept node stays, even dead",
        ),
        row("leave a: it belongs to others", node(state="PREEMPTED", tpuctl_owner="bob"), named="a node of others"),
        row("leave a: it belongs to others", node(state="PREEMPTED", tpuctl_owner="-"), named="an unknown owner"),
        row(
            "leave a: it belongs to others", node(state="PREEMPTED"), rules={"owner": None}, named="the user is unknown"
        ),
        row(
            "delete a: PREEMPTED",
            node(state="PREEMPTED", tpuctl_owner="bob"),
            rules={"everyones": True},
            named="a node of others with --everyones",
        ),
        row(
            "leave q: it belongs to others",
            request("ACTIVE", "a", "b"),
            node(state="PREEMPTED", of="q"),
            node("b", "PREEMPTED", of="q", tpuctl_owner="bob"),
            named="one of two nodes belongs to others",
        ),
        row("", node(state="PREEMPTED"), rules=LABELLED, named="without the label"),
        row("delete a: PREEMPTED", node(state="PREEMPTED", team="x"), rules=LABELLED, named="labelled"),
        row(
            "leave a: it is in use: up on host",
            node(state="PREEMPTED"),
            leases=HELD,
            named="another process works on it",
        ),
        row(
            "leave q: it is in use: up on host",
            request("FAILED", "a"),
            leases=HELD,
            named="another process requests the node",
        ),
        row("", node(state="PREEMPTED"), unreachable=frozenset({ZONE}), named="its zone did not answer"),
        row("", request("FAILED"), unreachable=frozenset({ZONE}), named="the zone of the request did not answer"),
        *(
            row(f"leave q: {because}", request("FAILED", tpu=tpu_of("a", "b", **labels)), named=named)
            for because, labels, named in (
                ("its label `tpuctl-keep` keeps it", {**MINE, "tpuctl-keep": ""}, "the second requested node is kept"),
                ("it belongs to others", {"tpuctl-owner": "bob"}, "the second requested node belongs to others"),
            )
        ),
    ],
)
def test_rule_applies_to_a_group(
    resources: tuple[Node | QueuedResource, ...], rules: dict[str, Any], facts: dict[str, Any], expected: str
) -> None:
    nodes = [one for one in resources if isinstance(one, Node)]
    requests = [one for one in resources if isinstance(one, QueuedResource)]
    found = find_garbage(
        GarbageFacts(project="p", nodes=nodes, requests=requests, **facts),
        GarbageRules(**{"owner": "ann", **rules}),
        NOW,
    )

    assert (
        "; ".join(
            f"delete {item.group.id}: {item.why}" if item.is_deleted else f"leave {item.group.id}: {item.left_because}"
            for item in found
        )
        == expected
    )


LITE = {"name": "projects/p/locations/us-central1-a/nodes/a", "acceleratorType": "v5litepod-16"}


@pytest.mark.parametrize(
    ("found", "amount", "dollars"),
    [
        pytest.param(node(state="PREEMPTED"), "8 cores of on-demand v4", "0", id="a dead record costs nothing"),
        pytest.param(node(state="TERMINATED"), "8 cores of on-demand v4", "0", id="a terminated node costs nothing"),
        pytest.param(changed(node(**PAST), **LITE), "16 chips of on-demand v5e", "19.20", id="a running node"),
        pytest.param(node(**PAST), "8 cores of on-demand v4", "12.88", id="a price of a single source"),
        pytest.param(
            changed(node(state="STOPPED", **PAST), **LITE), "16 chips of on-demand v5e", None, id="a disk has no price"
        ),
        pytest.param(
            changed(node(state="HIDDEN", **PAST), **LITE),
            "16 chips of on-demand v5e",
            None,
            id="unknown whether it bills",
        ),
    ],
)
def test_item_says_what_it_holds_and_costs(found: Node, amount: str, dollars: str | None) -> None:
    rules = GarbageRules(owner="ann", expired=True)
    items = find_garbage(GarbageFacts(project="p", nodes=[found], requests=()), rules, NOW)

    assert [item.per_hour.amount for item in items] == [None if dollars is None else Decimal(dollars)]
    assert [str(held) for held in freed_quota(items)] == [amount]


def test_node_that_a_grant_covers_costs_nothing() -> None:
    found = changed(node(**PAST), **LITE)
    facts = GarbageFacts(project="p", nodes=[found], requests=(), covered=(found.name,))

    assert [item.per_hour for item in find_garbage(facts, replace(RULES, expired=True), NOW)] == [NOTHING]


def test_request_holds_quota_for_all_its_nodes() -> None:
    items = find_garbage(GarbageFacts(project="p", nodes=(), requests=[request("FAILED", "a", "b")]), RULES, NOW)

    assert [str(held) for held in freed_quota(items)] == ["16 cores of on-demand v4"]


@pytest.mark.parametrize(
    ("found", "asked"),
    [
        pytest.param(node(), True, id="a ready node"),
        pytest.param(node(state="STOPPED"), False, id="a stopped node has no workers to ask"),
        pytest.param(node(state="PREEMPTED"), False, id="a dead node goes anyway"),
        pytest.param(node(tpuctl_owner="bob"), False, id="a node of others stays anyway"),
        pytest.param(node(tpuctl_keep="1"), False, id="a kept node stays anyway"),
    ],
)
def test_only_workers_whose_answer_matters_are_asked(found: Node, *, asked: bool) -> None:
    rules = GarbageRules(owner="ann", idle=HOUR)

    assert bool(idle_candidates(GarbageFacts(project="p", nodes=[found], requests=()), rules, NOW)) is asked
