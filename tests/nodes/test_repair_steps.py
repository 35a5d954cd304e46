"""Repair: reboot, restart, recreate; skipped repairs and their reasons; what is never deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, EventfulClock, put, told
from tests.others import changes, errors, events
from tpuctl.sandbox import administration

FakeSsh = Callable[[str], None]
SICK = "it is READY but UNHEALTHY_TENSORFLOW"
QUICK: dict[str, Any] = {
    "TPUCTL_UNHEALTHY_AFTER": "1m",
    "TPUCTL_DEVICES_AFTER": "1m",
    "TPUCTL_RECHECK_AFTER": "30s",
    "TPUCTL_TIMEOUT": "1h",
}
# The first repair waits for a minute, each further one for the 30 s of `recheck_after`.
REBOOTING = "rebooting every worker: READY but UNHEALTHY_TENSORFLOW for 1m"
RESTARTING = "restarting: READY but UNHEALTHY_TENSORFLOW for 30s"
REPAIR = ("up", "demo", "--yes", "--repair", "recreate", "--events", "-")


def actions_in(out: str) -> list[str]:
    """Return the actions and their reasons from the lines of `--events -`."""
    return [text for kind, text in events(out) if kind == "action"]


def worker_report(chips: int = 4, holders: str = "-") -> str:
    return f"printf 'tpuctl-worker startup=done about=- chips={chips} holders={holders}\\n'"


def test_each_repair_is_exhausted_before_the_next(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy", count=0)
    put(sandbox, health="UNHEALTHY_TENSORFLOW")

    out, err, code = tpuctl(*REPAIR, **QUICK)

    again = [RESTARTING, "starting (was STOPPED)"]
    made = "creating v4-8 (tpu-ubuntu2204-base, on-demand, about $12.88/h)"
    assert actions_in(out) == [REBOOTING, *again, *again, f"deleting it: {SICK}", made]
    assert (errors(err), code) == (
        [f"error: `demo`: {SICK}, unchanged after 1 reboot, 2 restarts and 1 recreation"],
        10,
    )
    assert sandbox.changes() == ["stop", "start", "stop", "start", "delete", "create"]


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (("--repair", "none"), []),
        (("--repair", "reboot"), ["reboot"]),
        (("--repair", "restart", "--max-restarts", "1"), ["reboot", "stop", "start"]),
        (("--repair", "recreate", "--max-reboots", "0", "--max-restarts", "0"), ["delete", "create"]),
        (("--repair", "recreate", "--max-recreates", "0", "--max-restarts", "0"), ["reboot"]),
    ],
)
def test_repair_option_limits_the_steps(
    tpuctl: Console, sandbox: Sandbox, options: tuple[str, ...], changes: list[str]
) -> None:
    sandbox.fault("unhealthy", count=0)
    put(sandbox, health="UNHEALTHY_TENSORFLOW")

    out, _, code = tpuctl("up", "demo", "--yes", "--events", "-", *options, **QUICK)

    reboots = [verb for kind, verb in events(out, "event", "text") if verb.startswith("rebooting")]
    assert (["reboot"] * len(reboots) + sandbox.changes(), code) == (changes, 10)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"acceleratorType": "v4-16"}, "it is a slice of 2 workers, and the service stops single-worker nodes only"),
        ({"schedulingConfig": {"spot": True}}, "it is a spot node, and those cannot be started again once stopped"),
    ],
)
def test_impossible_repair_is_skipped_with_its_reason(
    tpuctl: Console, sandbox: Sandbox, found: dict[str, Any], why: str
) -> None:
    put(sandbox, health="UNHEALTHY_TENSORFLOW", **found)

    out, _, code = tpuctl(*REPAIR, **QUICK)

    assert (actions_in(out)[:2], code) == ([REBOOTING, f"deleting it: {SICK}; {why}"], 0)
    assert sandbox.changes() == ["delete", "create"]


def test_node_of_a_queued_resource_is_only_rebooted(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, queued_resource="research", health="UNHEALTHY_TENSORFLOW")
    sandbox.add_queued_resource("research", node_ids=("demo",))

    out, err, code = tpuctl(*REPAIR, **QUICK)

    assert (actions_in(out), code, sandbox.changes()) == ([REBOOTING], 10, [])
    why = "it belongs to the queued resource `research`, whose nodes cannot be stopped"
    assert errors(err) == [f"error: `demo`: {SICK}, unchanged after 1 reboot; {why}"]


def test_node_with_a_process_on_the_tpu_is_not_repaired(tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh) -> None:
    sandbox.fault("unhealthy", count=2)
    fake_ssh(worker_report(holders="77:python3"))

    _, err, code = tpuctl(*UP, **QUICK)

    assert (errors(err), code, sandbox.changes()) == (
        [f"error: `demo`: {SICK}; not repaired: process 77 python3 holds the TPU of worker 0"],
        10,
        ["create"],
    )
    assert tpuctl(*UP, "--yes", **QUICK)[::2] == ("demo\tREADY\n", 0)


def test_refused_stop_leads_to_the_next_repair(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("operation-error", method="*.stop", code=9, message="Node is busy.")
    put(sandbox)
    sandbox.fault("unhealthy", count=2)

    out, _, code = tpuctl(*REPAIR, **QUICK)

    rebooted, restarted, deleted, _ = actions_in(out)
    assert (rebooted, restarted) == (REBOOTING, RESTARTING)
    assert deleted.startswith(f"deleting it: {SICK}; ")
    assert "Node is busy." in deleted
    assert (code, sandbox.changes()) == (0, ["stop", "delete", "create"])


@pytest.mark.parametrize(
    ("repair", "code", "changes"), [("recreate", 0, ["start", "delete", "create"]), ("restart", 5, ["start"])]
)
def test_stuck_state_with_a_refused_stop_is_recreated_if_allowed(
    tpuctl: Console, sandbox: Sandbox, repair: str, code: int, changes: list[str]
) -> None:
    """The service stops no node that is STARTING: it is recreated if that is allowed."""
    put(sandbox, state="STOPPED")
    sandbox.fault("hang", state="STARTING")

    _, _, ended = tpuctl(*UP, "--repair", repair, "--timeout", "15m", TPUCTL_STARTING_AFTER="5m")

    assert (ended, sandbox.changes()) == (code, changes)


def test_devices_that_reappear_end_the_repair(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, fake_ssh: FakeSsh
) -> None:
    def look() -> None:
        if "start" in sandbox.changes():
            fake_ssh(worker_report())
        else:
            clock.after(timedelta(seconds=30), look)

    fake_ssh(worker_report(chips=3))
    clock.after(timedelta(minutes=4), look)

    out, _, code = tpuctl(*UP, "--for", "devices", **QUICK)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create", "stop", "start"])


def test_devices_missing_after_a_restart_cause_no_second_restart(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: FakeSsh
) -> None:
    fake_ssh(worker_report(chips=3))

    _, err, code = tpuctl(*UP, "--for", "devices", "--repair", "recreate", **QUICK)

    tried = "unchanged after 1 reboot and 1 restart; not recreated: a worker still accepts ssh (`--yes` overrides)"
    assert (errors(err), code, sandbox.changes()) == (
        [f"error: `demo`: it is READY but its worker sees 3 of 4 chips, {tried}"],
        10,
        ["create", "stop", "start"],
    )


def in_a_bucket(sandbox: Sandbox) -> dict[str, Any]:
    """Return the environment of a lease in a bucket that takes ten seconds for each write."""
    administration.add_bucket(sandbox.state, "data")
    sandbox.fault("slow", method="storage.objects.insert", duration=timedelta(seconds=10), count=0)
    return {"TPUCTL_LEASE": "gs://data/leases"}


def test_node_recreated_by_another_client_is_not_deleted(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    """It was created between the snapshot and the deletion, which was decided for its predecessor."""
    slow = in_a_bucket(sandbox)
    put(sandbox, state="PREEMPTED")
    clock.after(timedelta(seconds=5), lambda: put(sandbox))

    out, err, code = tpuctl(*UP, **slow)

    assert (out, code, changes(sandbox)) == ("demo\tREADY\n", 0, [])
    assert told(err)[1:5] == [
        "deleting it: it was preempted: only its record is left",
        "it changed right before the request, which was not sent",
        "another client recreated the node; following the new node",
        "READY HEALTHY",
    ]


def test_spec_is_in_the_journal_before_a_deletion(tpuctl: Console, sandbox: Sandbox, clock: EventfulClock) -> None:
    found: list[object] = []

    def look() -> None:
        entries = json.loads(tpuctl("history", "demo", "--zone", ZONE, "-o", "json")[0])
        found.append([entry["spec"]["accelerator_type"] for entry in entries if entry["event"] == "delete"])

    put(sandbox, state="PREEMPTED", schedulingConfig={"spot": True})
    sandbox.fault("slow", method="*.nodes.delete", duration=timedelta(seconds=5))
    clock.after(timedelta(seconds=1), look)

    assert tpuctl("up", "demo")[2] == 0
    assert found == [["v4-8"]]


def test_unwritable_journal_prevents_deletions_but_not_reads(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED")
    put(sandbox, "sick", health="UNHEALTHY_TENSORFLOW")
    (sandbox.state.path.parent / "journal").write_text("not a folder")

    for command in (
        ("up", "demo"),
        ("watch", "demo", "--until", "10m"),
        ("up", "sick", "--yes", "--repair", "recreate", "--max-reboots", "0", "--max-restarts", "0"),
        ("reset", "sick", "--mode", "recreate", "--yes"),
        ("reset", "sick", "--mode", "restart", "--yes"),
    ):
        _, err, code = tpuctl(*command, **QUICK)
        assert (code, "cannot write the journal" in err) == (1, True), command
    assert sandbox.changes() == []
    for line in ("list", "status demo", "wait sick --for ready", "wait demo --for preempted"):
        assert tpuctl(*line.split())[2] == 0, line
