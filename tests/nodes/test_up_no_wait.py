"""`tpuctl up NODE --no-wait`: what it sends, and what it says of the rest."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, one_face, put, told
from tests.others import errors
from tpuctl.sandbox.stock import put_stockout

ELSEWHERE = "us-east5-b"
QUEUE = ("up", "demo", "--type", "v6e-8", "--zone", ELSEWHERE, "--queue")


@one_face
@pytest.mark.parametrize(
    ("begin", "words", "zone"),
    [
        pytest.param(UP, (*UP, "--spot", "--replace", "--yes"), ZONE, id="node"),
        pytest.param((*UP, "--spot"), ("up", "demo"), ZONE, id="preempted node"),
        pytest.param((*QUEUE, "--no-wait"), (*QUEUE, "--spot", "--replace", "--yes"), ELSEWHERE, id="request"),
    ],
)
def test_deletion_before_a_creation_names_the_command_that_creates(
    tpuctl: Console, sandbox: Sandbox, begin: tuple[str, ...], words: tuple[str, ...], zone: str
) -> None:
    with sandbox.state.write() as session:
        put_stockout(session, zone=ELSEWHERE)
    tpuctl(*begin)
    if words == ("up", "demo"):
        sandbox.fault("preempt", node="demo")

    out, err, code = tpuctl(*words, "--no-wait")

    assert (out, code) == ("", 5), err
    assert errors(err) == ["error: `demo` is being deleted, and `--no-wait` does not wait for that"]
    assert f"  hint: `tpuctl up {zone}/demo` creates it again\n" in err
    assert sandbox.changes() == ["create", "delete"]
    if zone == ZONE:
        assert tpuctl("up", f"{zone}/demo")[::2] == ("demo\tREADY\n", 0)


@one_face
def test_deletion_that_is_not_sent_is_no_success(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP)
    sandbox.fault("drop-before", method="*.nodes.delete", count=0)

    out, err, code = tpuctl(*UP, "--spot", "--replace", "--yes", "--no-wait")

    assert (out, code, sandbox.changes()) == ("", 5, ["create"]), err
    assert errors(err)[0].startswith("error: `demo` is not ended: ")


@one_face
def test_request_that_is_not_waited_for_has_a_row(tpuctl: Console, sandbox: Sandbox) -> None:
    with sandbox.state.write() as session:
        put_stockout(session, zone=ELSEWHERE)

    out, _, code = tpuctl(*QUEUE, "--no-wait")
    again, *_ = tpuctl(*QUEUE, "--no-wait", "-o", "json")

    name, state = out.split()
    assert (name, state in {"ACCEPTED", "WAITING_FOR_RESOURCES", "CREATING"}, code) == ("demo", True, 0)
    assert json.loads(again)["nodeId"] == "demo"


@one_face
def test_zones_that_are_not_tried_are_named(tpuctl: Console, sandbox: Sandbox) -> None:
    _, err, code = tpuctl("up", "demo", "--type", "v6e-8", "--zone", f"{ELSEWHERE},us-east1-d", "--no-wait")

    assert (code, sandbox.changes()) == (0, ["create"])
    assert f"not waited for: if {ELSEWHERE} has no capacity, the others are tried only without `--no-wait`" in told(
        err
    ), err


@one_face
@pytest.mark.parametrize("command", [("stop", "demo", "--yes"), ("reset", "demo", "--yes")], ids=lambda one: one[0])
def test_hint_for_a_preempted_node_ends(tpuctl: Console, sandbox: Sandbox, command: tuple[str, ...]) -> None:
    put(sandbox, "demo", state="PREEMPTED")

    _, err, code = tpuctl(*command, "--zone", ZONE)

    assert (code, "wait" in err) == (8, False), err
    assert "`tpuctl up demo" in err
