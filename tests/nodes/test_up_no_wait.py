"""`tpuctl up NODE --no-wait`: what it sends, and what it says of the rest."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, put, told
from tpuctl.sandbox.stock import put_stockout

ELSEWHERE = "us-east5-b"
QUEUE = ("up", "demo", "--type", "v6e-8", "--zone", ELSEWHERE, "--queue")


def test_request_that_is_not_waited_for_has_a_row(tpuctl: Console, sandbox: Sandbox) -> None:
    with sandbox.state.write() as session:
        put_stockout(session, zone=ELSEWHERE)

    out, _, code = tpuctl(*QUEUE, "--no-wait")
    again, *_ = tpuctl(*QUEUE, "--no-wait", "-o", "json")

    name, state = out.split()
    assert (name, state in {"ACCEPTED", "WAITING_FOR_RESOURCES", "CREATING"}, code) == ("demo", True, 0)
    assert json.loads(again)["nodeId"] == "demo"


def test_zones_that_are_not_tried_are_named(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl("up", "demo", "--type", "v6e-8", "--zone", f"{ELSEWHERE},us-east1-d", "--no-wait")

    assert (code, sandbox.changes()) == (0, ["create"])
    assert f"not waited for: if {ELSEWHERE} has no capacity, the others are tried only without `--no-wait`" in told(
        err
    ), err


@pytest.mark.parametrize("command", [("stop", "demo", "--yes"), ("reset", "demo", "--yes")], ids=lambda one: one[0])
def test_hint_for_a_preempted_node_ends(tpuctl: Console, sandbox: Sandbox, command: tuple[str, ...]) -> None:
    put(sandbox, "demo", state="PREEMPTED")

    _, err, code = tpuctl(*command, "--zone", ZONE)

    assert (code, "wait" in err) == (8, False), err
    assert "`tpuctl up demo" in err
