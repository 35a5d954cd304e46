"""`tpuctl wait`: polls until the goal, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, EventfulClock, both_faces, put, said, told


@pytest.mark.parametrize(
    ("found", "goal", "lines"),
    [
        ({"state": "STARTING"}, "ready", ["STARTING", "READY HEALTHY", "ready after 1m03s"]),
        ({"state": "STARTING"}, "healthy", ["STARTING", "READY HEALTHY", "healthy after 1m03s"]),
        ({"state": "STARTING"}, "ssh", ["STARTING", "READY HEALTHY", "usable (ssh) after 1m03s"]),
        ({"state": "STOPPING"}, "stopped", ["STOPPING", "STOPPED", "stopped after 1m03s"]),
        (
            {"health": "UNHEALTHY_TENSORFLOW"},
            "ready",
            ["READY UNHEALTHY_TENSORFLOW", "ready after 0s; the service reports UNHEALTHY_TENSORFLOW"],
        ),
    ],
)
def test_wait_for_each_level(
    tpuctl: Console, sandbox: Sandbox, found: dict[str, str], goal: str, lines: list[str]
) -> None:
    put(sandbox, **found)

    out, err, code = tpuctl("wait", "demo", "--for", goal)

    state = "STOPPED" if goal == "stopped" else "READY"
    assert (out, told(err), code) == (f"demo\t{state}\n", lines, 0)
    assert sandbox.changes() == []


@both_faces
def test_wait_for_gone_accepts_a_missing_node(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="DELETING")

    assert tpuctl("wait", "demo", "--for", "gone") == (
        "",
        said("demo: DELETING", "demo: gone after 1m03s"),
        0,
    )
    assert tpuctl("wait", "other", "--for", "gone") == ("", "", 0)


def test_wait_for_an_impossible_goal_fails_at_once(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED")

    out, err, code = tpuctl("wait", "demo")

    error = "error: `demo` is PREEMPTED and cannot be used again"
    assert (out, told(err)[:2], code) == ("", ["PREEMPTED: the service took it back", error], 8)
    assert sandbox.changes() == []


def test_wait_for_a_missing_node_fails(tpuctl: Console, sandbox: Sandbox) -> None:
    assert tpuctl("wait", "demo", "--zone", ZONE) == (
        "",
        said("error: no node `demo` in us-central2-b", "  hint: run `tpuctl list` to see the nodes of all zones"),
        3,
    )
    assert tpuctl("wait", "demo")[2] == 3


def test_wait_for_several_nodes_has_one_deadline(tpuctl: Console, sandbox: Sandbox) -> None:
    for name in ("a", "b"):
        put(sandbox, name, state="STARTING")
        sandbox.fault("hang", node=name, state="STARTING")

    out, err, code = tpuctl("wait", "a", "b", "--for", "ready", "--timeout", "5m")

    assert (out, code) == ("", 5)
    assert err.splitlines() == [
        "a: STARTING",
        "b: STARTING",
        "error: `a` is not ready after 5m: it is STARTING",
        "  hint: no change was undone; continue with `tpuctl wait a --for ready`, or delete it with `tpuctl down a`",
        "error: `b` is not ready after 5m: it is STARTING",
        "  hint: no change was undone; continue with `tpuctl wait b --for ready`, or delete it with `tpuctl down b`",
    ]


def test_wait_for_a_node_that_is_deleted_fails(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    put(sandbox, state="REPAIRING")
    clock.after(timedelta(seconds=10), lambda: tpuctl("delete", "demo", "--yes", "--no-wait"))
    clock.after(timedelta(seconds=10), lambda: sandbox.advance(minutes=2))

    out, err, code = tpuctl("wait", "demo")

    assert (out, code) == ("", 3)
    assert told(err) == [
        "REPAIRING",
        "gone",
        "error: `demo` in us-central2-b was deleted by another client at 2026-01-01T00:00:08Z",
        "  hint: it was not created again; `tpuctl up demo` creates it",
    ]


def test_wait_reports_a_refused_key_without_adding_it(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None]
) -> None:
    put(sandbox)
    fake_ssh("echo 'ada@10.0.0.1: Permission denied (publickey).' >&2; exit 255")

    out, err, code = tpuctl("wait", "demo", "--timeout", "1m")

    assert (out, code, sandbox.changes()) == ("", 5, [])
    assert told(err)[1:3] == [
        "its worker refuses the key",
        "error: `demo` is not usable by ssh after 1m: it is READY, but its worker refuses the key",
    ]


@pytest.mark.parametrize("name", ["demo", f"{ZONE}/demo", f"projects/sandbox/locations/{ZONE}/queuedResources/demo"])
def test_wait_for_a_requested_node_follows_its_queued_resource(tpuctl: Console, sandbox: Sandbox, name: str) -> None:
    tpuctl("create", "demo", "--type", "v4-8", "--zone", ZONE, "--queue", "--no-wait")

    out, err, code = tpuctl("wait", name, "--for", "ready")

    lines = [
        "queued resource CREATING",
        "queued resource ACCEPTED",
        "queued resource WAITING_FOR_RESOURCES",
        "CREATING",
        "queued resource PROVISIONING",
        "READY",
        "queued resource ACTIVE",
        "ready after 5m56s",
    ]
    assert (out, told(err), code) == ("demo\tREADY\n", lines, 0)
    assert sandbox.changes() == ["create"]


@pytest.mark.parametrize(
    ("request_state", "error", "exit_code"),
    [
        (
            "WAITING_FOR_RESOURCES",
            "`demo` is not ready after 2m: its queued resource `ask` is WAITING_FOR_RESOURCES",
            5,
        ),
        ("FAILED", "the queued resource `ask` FAILED; the service gives no reason", 6),
        (
            "SUSPENDED",
            "`demo` was preempted: its queued resource `ask` is SUSPENDED, and it cannot be recreated on its own",
            8,
        ),
        ("DELETING", "the queued resource `ask` is being deleted", 8),
    ],
)
def test_wait_for_a_requested_node_ends_as_its_queued_resource(
    tpuctl: Console, sandbox: Sandbox, request_state: str, error: str, exit_code: int
) -> None:
    sandbox.add_queued_resource("ask", zone=ZONE, state=request_state, node_ids=("demo",), initiator="SERVICE")

    out, err, code = tpuctl("wait", "ask", "--for", "ready", "--timeout", "2m")

    assert (out, told(err)[:2], code) == ("", [f"queued resource {request_state}", f"error: {error}"], exit_code)


@pytest.mark.parametrize(("name", "waits_for"), [("team", ["a", "b"]), ("b", ["b"]), (f"{ZONE}/team", ["a", "b"])])
def test_wait_for_a_queued_resource_waits_for_each_of_its_nodes(
    tpuctl: Console, sandbox: Sandbox, name: str, waits_for: list[str]
) -> None:
    sandbox.add_queued_resource("team", zone=ZONE, node_ids=("a", "b"))
    for node in ("a", "b"):
        put(sandbox, node)

    assert tpuctl("wait", name, "--for", "ready")[::2] == ("".join(f"{each}\tREADY\n" for each in waits_for), 0)
