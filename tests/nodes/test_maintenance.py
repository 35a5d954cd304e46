"""`tpuctl maintenance`: the announced window of a node, and its start by the user."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import EventfulClock, both_faces, put, told
from tests.others import interrupt

ZONE = "us-central2-b"
WINDOW = {
    "windowStartTime": "2026-01-01T03:00:00Z",
    "latestWindowStartTime": "2026-01-02T03:00:00Z",
    "windowEndTime": "2026-01-01T05:00:00Z",
}
PENDING = {"type": "SCHEDULED", "maintenanceStatus": "PENDING", "canReschedule": True, **WINDOW}
MINE, GOOGLES, BEGUN = PENDING, {**PENDING, "canReschedule": False}, {**PENDING, "maintenanceStatus": "ONGOING"}


def test_maintenance_shows_the_window(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("trainer", upcomingMaintenance=MINE)

    out, err, code = tpuctl("maintenance", "trainer")

    assert ([line.split("\t") for line in out.splitlines()], err, code) == (
        [
            ["node", f"{ZONE}/trainer"],
            ["status", "PENDING"],
            ["type", "SCHEDULED"],
            ["starts", "2026-01-01T03:00:00Z (in 3h)"],
            ["latest start", "2026-01-02T03:00:00Z (in 27h)"],
            ["ends", "2026-01-01T05:00:00Z (in 5h)"],
            ["can be started", "yes, by `--perform`"],
        ],
        "",
        0,
    )


@pytest.mark.parametrize("announced", [MINE, GOOGLES, None], ids=["announced", "by Google", "none"])
def test_maintenance_in_json_has_the_field_of_the_api(
    tpuctl: Console, sandbox: Sandbox, announced: dict[str, object] | None
) -> None:
    sandbox.add_node("trainer", **({"upcomingMaintenance": announced} if announced else {}))

    out, _, code = tpuctl("maintenance", "trainer", "-o", "json")

    place = {"nodeId": "trainer", "zone": ZONE, "project": "sandbox", "sandbox": True}
    assert (json.loads(out), code) == ({**place, "upcomingMaintenance": announced}, 0)


@both_faces
@pytest.mark.parametrize(
    ("queued", "call"),
    [("", "performMaintenance"), ("request", "performMaintenanceQueuedResource")],
    ids=["node", "node of a queued resource"],
)
def test_perform_starts_the_maintenance_and_waits_for_its_end(
    tpuctl: Console, sandbox: Sandbox, queued: str, call: str
) -> None:
    if queued:
        sandbox.add_queued_resource(queued, node_ids=("trainer",))
    sandbox.add_node("trainer", upcomingMaintenance=MINE, queued_resource=queued)

    out, err, code = tpuctl("maintenance", "trainer", "--perform", "--yes")

    assert (out, err, code) == ("trainer\tREADY\n", "trainer: starting its maintenance\n", 0)
    assert sandbox.changes() == [call]
    assert tpuctl("maintenance", "trainer")[1] == "no maintenance is announced for `trainer`\n"


def test_perform_with_no_wait_returns_during_the_maintenance(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("trainer", upcomingMaintenance=MINE)

    assert tpuctl("maintenance", "trainer", "--perform", "--yes", "--no-wait")[2] == 0
    assert json.loads(tpuctl("status", "trainer", "-o", "json")[0])[0]["health"] == "UNHEALTHY_MAINTENANCE"


def test_perform_after_the_timeout_names_the_command_that_waits(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("trainer", upcomingMaintenance=MINE)

    out, err, code = tpuctl("maintenance", "trainer", "--perform", "--yes", "--timeout", "1m")

    assert (out, code) == ("", 5)
    assert f"hint: it continues in the cloud; wait for it with `tpuctl wait {ZONE}/trainer --for healthy`" in err


def test_interrupted_perform_names_what_continues(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    sandbox.add_node("trainer", upcomingMaintenance=MINE)

    clock.after(timedelta(seconds=30), interrupt)

    _, err, code = tpuctl("maintenance", "trainer", "--perform", "--yes")

    assert (code, sandbox.changes()) == (130, ["performMaintenance"])
    assert err.splitlines()[-2:] == [
        f"warning: interrupted: the maintenance of `{ZONE}/trainer` may have begun",
        f"  resume: tpuctl wait {ZONE}/trainer --for healthy",
    ]


@pytest.mark.parametrize(
    ("announced", "message"),
    [
        (None, "no maintenance is announced for `trainer`"),
        (GOOGLES, "only Google can start the maintenance of `trainer`"),
        (BEGUN, "the maintenance of `trainer` is ONGOING already"),
    ],
    ids=["none", "by Google", "begun"],
)
def test_maintenance_that_cannot_be_started_is_a_conflict(
    tpuctl: Console, sandbox: Sandbox, announced: dict[str, object] | None, message: str
) -> None:
    sandbox.add_node("trainer", **({"upcomingMaintenance": announced} if announced else {}))

    out, err, code = tpuctl("maintenance", "trainer", "--perform", "--yes")

    assert (out, err.splitlines()[0], code) == ("", f"error: {message}", 8)
    assert not announced or f"can be started\tno: {message}" in tpuctl("maintenance", "trainer")[0]
    assert sandbox.changes() == []


def test_perform_without_a_confirmation_does_nothing(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("trainer", upcomingMaintenance=MINE)

    piped = tpuctl("maintenance", "trainer", "--perform")
    refused = tpuctl("maintenance", "trainer", "--perform", terminal=True, stdin="n\n")

    assert (piped[2], "pass `--yes`" in piped[1], refused[2]) == (2, True, 1)
    assert sandbox.changes() == []


def test_guest_attributes_of_workers(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.add_node("trainer", acceleratorType="v4-16")
    rows = [["0", "tpu", "accelerator-type", "v4-16"], ["0", "tpu", "agent-worker-number", "0"]]
    rows += [["1", "tpu", "accelerator-type", "v4-16"], ["1", "tpu", "agent-worker-number", "1"]]

    out, err, code = tpuctl("get-guest-attributes", "trainer", "--query-path", "tpu/")
    one = tpuctl("get-guest-attributes", "trainer", "--worker", "1", "--query-path", "tpu/agent", "-o", "json")[0]

    assert ([line.split("\t") for line in out.splitlines()], err, code) == (rows, "", 0)
    assert json.loads(one) == [
        {"worker": 1, "namespace": "tpu", "key": "agent-worker-number", "value": "1", "sandbox": True}
    ]


@pytest.mark.parametrize(
    ("node", "options", "answer"),
    [
        ({"state": "CREATING"}, (), ("no worker of `trainer` has published such attributes yet\n", 0)),
        ({}, ("--worker", "1"), ("error: `trainer` has no worker 1\n  hint: it has one worker, number 0\n", 2)),
    ],
    ids=["not booted", "no such worker"],
)
def test_guest_attributes_that_do_not_exist(
    tpuctl: Console, sandbox: Sandbox, node: dict[str, str], options: tuple[str, ...], answer: tuple[str, int]
) -> None:
    sandbox.add_node("trainer", **node)

    out, err, code = tpuctl("attributes", "trainer", *options, terminal=True, NO_COLOR="1")

    assert (out, answer[0] in err, code) == ("", True, answer[1]), err


def test_up_that_may_recreate_names_the_command_that_ends_maintenance(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, health="UNHEALTHY_MAINTENANCE")

    _, err, code = tpuctl("up", "demo", "--repair", "recreate", "--for", "healthy", "--timeout", "5m")

    again = "`tpuctl reset demo --mode recreate`"
    advice = f"the service ends maintenance, repair does not: {again} recreates it now, its boot disk is lost"
    assert (f"it is READY but UNHEALTHY_MAINTENANCE; {advice}" in told(err), f"  hint: {advice}" in err, code) == (
        True,
        True,
        5,
    )
    assert sandbox.changes() == []
