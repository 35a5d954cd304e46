"""The rule about other nodes and requests with the node's name: a row for each case."""

from __future__ import annotations

import pytest

from tests.check.offer_facts import ZONE, facts, found_by, node, request, resources, summaries, wanted
from tpuctl.check.facts import Absent, CheckFacts, Unknown
from tpuctl.check.rules.zone_rules import node_name_is_free

SLOW = Unknown("no answer within 15s", is_passing=True)
UNREAD = "the nodes and queued resources of the project, and their use of quota and grants, could not be read"

OWNER = f"projects/p/locations/{ZONE}/queuedResources/q"
ONE = {"node": {"acceleratorType": "v4-8"}, "nodeId": "trainer"}


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (facts(resources=resources(node(f"{ZONE}/other"))), []),
        (facts(resources=None), []),
        (facts(wanted(creates=False), resources=resources(node(f"{ZONE}/trainer"))), []),
        (facts(wanted(name=None), resources=resources(node(f"{ZONE}/trainer"))), []),
        (
            facts(wanted(node=node(f"{ZONE}/trainer")), resources=resources(node(f"{ZONE}/trainer"))),
            [],
        ),
        (
            facts(
                wanted(replaces=node(f"{ZONE}/trainer", owner=OWNER)),
                resources=resources(node(f"{ZONE}/trainer", owner=OWNER), request(f"{ZONE}/q", [ONE])),
            ),
            [],
        ),
        (
            facts(resources=resources(node(f"{ZONE}/trainer"))),
            [("warning", "trainer", f"a node `trainer` is in {ZONE} (READY)")],
        ),
        (
            facts(resources=resources(node(f"{ZONE}/trainer", state="PREEMPTED"))),
            [("note", "trainer", f"the record of a dead node `trainer` is in {ZONE} (PREEMPTED)")],
        ),
        (
            facts(resources=resources(node("us-west4-a/trainer", state="STOPPED"))),
            [("warning", "trainer", "a node `trainer` is in us-west4-a (STOPPED)")],
        ),
        (
            facts(resources=resources(node("us-west4-a/trainer", state="TERMINATED"))),
            [("note", "trainer", "the record of a dead node `trainer` is in us-west4-a (TERMINATED)")],
        ),
        (
            facts(resources=resources(request("us-west4-a/q", [ONE], state="ACCEPTED"))),
            [("warning", "trainer", "the queued resource `q` in us-west4-a (ACCEPTED) will create a node `trainer`")],
        ),
        (
            facts(resources=resources(request(f"{ZONE}/q", [ONE], state="FAILED"))),
            [("note", "trainer", f"the queued resource `q` in {ZONE} (FAILED) requested a node `trainer`")],
        ),
        # A node that is there speaks for its request.
        (
            facts(resources=resources(node(f"{ZONE}/trainer", owner=OWNER), request(f"{ZONE}/q", [ONE]))),
            [("warning", "trainer", f"a node `trainer` is in {ZONE} (READY)")],
        ),
        (
            facts(resources=resources(unreachable=("us-west4-a",))),
            [("unknown", "trainer", "the nodes in us-west4-a could not be read: it does not answer")],
        ),
        (
            facts(resources=resources(node("us-west1-c/trainer"), unreachable=("a-b1-a", "a-b1-b"))),
            [
                ("warning", "trainer", "a node `trainer` is in us-west1-c (READY)"),
                ("unknown", "trainer", "the nodes in a-b1-a, a-b1-b could not be read: they do not answer"),
            ],
        ),
        (facts(resources=SLOW), [("unknown", "trainer", f"{UNREAD}: no answer within 15s")]),
        (facts(wanted(name=None), resources=Absent("no project `p`")), [("unknown", "p", f"{UNREAD}: no project `p`")]),
    ],
)
def test_name_conflicts_are_reported(about: CheckFacts, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(node_name_is_free, about) == expected


def test_name_conflict_command_deletes_it() -> None:
    several = {"node": {"acceleratorType": "v4-8"}, "multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "trainer"}}
    about = facts(
        wanted(name="trainer-1"),
        resources=resources(
            node("us-west4-a/trainer-1"), request("us-west1-c/q", [several], state="WAITING_FOR_RESOURCES")
        ),
    )

    assert [remedy.command for found in found_by(node_name_is_free, about) for remedy in found.remedies] == [
        "tpuctl down us-west4-a/trainer-1 --project=p",
        "tpuctl down us-west1-c/trainer-1 --project=p --all-nodes",
    ]
