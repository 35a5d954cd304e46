"""`tpuctl up` with faults of the node and the zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, EventfulClock, put, said, still, told
from tests.others import somebody
from tpuctl.sandbox import administration

SICK = "READY UNHEALTHY_TENSORFLOW"
REBOOT = [
    "if nothing changes: reboot every worker in 5m",
    "rebooting every worker: READY but UNHEALTHY_TENSORFLOW for 5m",
    "if nothing changes: restart it in 3m",
]
RESTART = ["restarting: READY but UNHEALTHY_TENSORFLOW for 3m", "STOPPING", "STOPPED", "starting (was STOPPED)"]
CREATE = ["creating v4-8 (tpu-ubuntu2204-base, about $12.88/h)", "CREATING"]
SILENT = "its worker does not answer ssh"
REMEDY = (
    "  hint: `tpuctl reset demo --mode recreate --zone us-central2-b` deletes and recreates it (its boot disk is lost)"
)


def test_unhealthy_new_node_is_rebooted_then_restarted(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy")

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create", "stop", "start"])
    assert told(err) == [
        *CREATE,
        SICK,
        *REBOOT,
        *RESTART,
        "STARTING",
        "READY",
        "usable (ssh) after 14m43s",
    ]


def test_unhealthy_node_without_ssh_is_restarted_at_once(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None]
) -> None:
    fake_ssh("exit 255")
    sandbox.fault("unhealthy")

    _, err, _ = tpuctl(*UP, "--timeout", "12m")

    assert told(err)[2:7] == [
        SICK,
        "if nothing changes: restart it in 5m",
        f"restarting: READY but UNHEALTHY_TENSORFLOW for 5m; {SILENT}",
        *RESTART[1:3],
    ]


def test_reboots_and_restarts_are_limited(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy", count=0)

    out, err, code = tpuctl(*UP, "--max-restarts", "1")

    assert (out, code, sandbox.changes()) == ("", 10, ["create", "stop", "start"])
    assert told(err) == [
        *CREATE,
        SICK,
        *REBOOT,
        *RESTART,
        "STARTING",
        SICK,
        "if nothing changes: give up in 3m",
        "error: `demo`: it is READY but UNHEALTHY_TENSORFLOW, unchanged after 1 reboot and 1 restart",
        REMEDY,
    ]


def test_recreation_must_be_allowed_and_is_limited(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy", count=0)

    _, _, code = tpuctl(
        *UP, "--repair", "recreate", "--max-restarts", "0", "--max-recreates", "2", "--timeout", "2h", "--yes"
    )

    assert (code, sandbox.changes()) == (10, ["create", "delete", "create", "delete", "create"])


def test_unhealthy_node_in_use_is_not_repaired(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, health="UNHEALTHY_TENSORFLOW")

    assert tpuctl("up", "demo") == (
        "",
        said(
            "demo: READY UNHEALTHY_TENSORFLOW",
            "demo: if nothing changes: give up in 5m",
            "error: `demo`: it is READY but UNHEALTHY_TENSORFLOW",
            (
                "  hint: not repaired, because it may be in use; `tpuctl reset demo` restarts it, "
                "`tpuctl up demo --yes` repairs it"
            ),
        ),
        10,
    )
    assert sandbox.changes() == []
    assert tpuctl("up", "demo", "--yes")[::2] == ("demo\tREADY\n", 0)
    assert sandbox.changes() == ["stop", "start"]


@pytest.mark.parametrize(
    ("options", "end", "answer", "code", "changes"),
    [
        pytest.param((), "reboot or restart it", "n", 1, [], id="no"),
        pytest.param((), "reboot or restart it", "y", 0, ["stop", "start"], id="yes"),
        pytest.param(
            ("--repair", "recreate"), "reboot, restart or recreate it, with a new boot disk", "n", 1, [], id="recreate"
        ),
    ],
)
def test_person_is_asked_before_a_node_in_use_is_repaired(
    tpuctl: Console, sandbox: Sandbox, *, options: tuple[str, ...], end: str, answer: str, code: int, changes: list[str]
) -> None:
    put(sandbox, health="UNHEALTHY_TENSORFLOW")

    _, err, ended = tpuctl("up", "demo", *options, stdin=f"{answer}\n")

    assert f"`demo` may be in use\nit is UNHEALTHY_TENSORFLOW: {end} if it stays so? [y/N] " in err
    assert (ended, sandbox.changes()) == (code, changes)


def test_person_is_not_asked_about_a_node_that_was_never_usable(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy")
    tpuctl(*UP, "--timeout", "6m")

    _, err, code = tpuctl(*UP, stdin="")

    assert (code, "[y/N]" in err) == (0, False)


def test_interrupted_run_is_continued_and_its_node_repaired(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy")
    tpuctl(*UP, "--timeout", "6m")

    out, _, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create", "stop", "start"])


def test_run_interrupted_before_it_observed_its_node_is_continued(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy")
    tpuctl(*UP, "--no-wait")
    (journal,) = Path(tpuctl.environ["TPUCTL_STATE_DIR"]).rglob("demo.jsonl")
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])  # as if it was killed before it wrote more
    sandbox.advance(minutes=10)

    assert tpuctl(*UP)[::2] == ("demo\tREADY\n", 0)
    assert sandbox.changes() == ["create", "stop", "start"]


def test_node_that_was_usable_before_is_not_repaired(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP)
    sandbox.fault("unhealthy")

    assert tpuctl(*UP)[::2] == ("", 10)
    assert sandbox.changes() == ["create"]


def test_maintenance_is_awaited_without_repair(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("maintenance", duration=timedelta(minutes=20))

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, [])
    assert told(err) == [
        "READY UNHEALTHY_MAINTENANCE",
        "maintenance is ONGOING from 2026-01-01T00:00:00Z to 2026-01-01T00:20:00Z",
        "it is READY but UNHEALTHY_MAINTENANCE (the node is under maintenance)",
        *still("READY but UNHEALTHY_MAINTENANCE (the node is under maintenance)", 5, 10, 15),
        "READY HEALTHY",
        "usable (ssh) after 20m13s",
    ]


def test_unreachable_node_of_this_run_is_restarted(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, fake_ssh: Callable[[str], None]
) -> None:
    fake_ssh("exit 255")
    clock.after(timedelta(minutes=20), lambda: fake_ssh("exit 0"))

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create", "stop", "start"])
    assert "restarting: READY but its worker does not answer ssh for 10m" in told(err)


def test_node_stuck_in_creating_is_not_deleted(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("hang", state="CREATING")

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("", 5, ["create"])
    assert told(err) == [
        *CREATE,
        *still("CREATING", 5, 10, 15, 20, 25),
        "error: `demo` is not usable by ssh after 30m: it is CREATING",
        (
            "  hint: no change was undone; continue with `tpuctl wait demo --for ssh --zone us-central2-b`, "
            "or delete it with `tpuctl down demo --zone us-central2-b`"
        ),
    ]


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ({"kind": "operation-error"}, 6, 'There is no more capacity in the zone "us-central2-b"'),
        ({"kind": "quota"}, 7, "Quota limit 'TPUV4sPodPerProjectPerZoneForTPUAPI' has been exceeded."),
        ({"kind": "operation-error", "code": 3, "message": "Invalid network."}, 2, "Invalid network."),
    ],
)
def test_failed_create_has_its_cause_and_a_hint(
    tpuctl: Console, sandbox: Sandbox, fault: dict[str, Any], code: int, says: str
) -> None:
    sandbox.fault(**{"code": 8, **fault})

    out, err, ended = tpuctl(*UP)

    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (out, ended, len(lines), sandbox.changes()) == ("", code, 1, ["create"])
    assert says in lines[0]
    assert "\n  hint: " in err


def test_create_with_an_internal_error_is_retried_twice(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("operation-error", code=13)
    assert tpuctl(*UP)[::2] == ("demo\tREADY\n", 0)
    assert sandbox.changes() == ["create", "create"]
    tpuctl("down", "demo", "--yes")
    sandbox.fault("operation-error", code=13, count=0)

    _, err, code = tpuctl(*UP)

    fault = (
        "the service failed by itself; this is more frequent when many nodes are created at once and when capacity is "
        "short: an internal error has occurred"
    )
    again = "creating v4-8 (tpu-ubuntu2204-base, about $12.88/h)"
    assert told(err) == [
        *CREATE,
        "gone",
        f"create failed: {fault}; if nothing changes: create it in 30s",
        again,
        "CREATING",
        "gone",
        f"create failed: {fault}; if nothing changes: create it in 1m",
        again,
        "CREATING",
        "gone",
        f"error: {fault}",
        "  hint: check for leftovers with `tpuctl status demo --zone us-central2-b`",
        "  hint: try again two or three times with pauses, then in every zone with `--zone any`",
        (
            "  hint: tried 3 times; the service often reports this when it has no capacity for that size: "
            "try other zones (`--zone any`), other tiers (`--tier spot,on-demand`) or a smaller size"
        ),
    ]
    assert (code, sandbox.changes()) == (1, ["create"] * 2 + ["delete"] + ["create"] * 3)


def test_failed_create_names_the_record_that_it_left(tpuctl: Console, sandbox: Sandbox) -> None:
    administration.set_setting(sandbox.state, "keep_failed_nodes", value=True)
    sandbox.fault("operation-error")

    _, err, code = tpuctl(*UP)

    assert (code, told(err)[2]) == (6, "its record still exists: `tpuctl down demo` deletes it")
    assert tpuctl("down", "demo", "--yes")[::2] == ("demo\n", 0)


def test_start_without_capacity_leaves_the_node_stopped(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="STOPPED")
    sandbox.fault("operation-error", method="*.start")

    _, err, code = tpuctl(*UP)

    assert (code, sandbox.changes()) == (6, ["start"])
    assert told(err)[:4] == ["STOPPED", "starting (was STOPPED)", "STARTING", "STOPPED"]


def test_node_deleted_by_another_client_is_not_recreated(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    clock.after(timedelta(minutes=1), lambda: somebody(sandbox, "delete"))

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("", 3, ["create", "delete"])
    assert told(err)[2:] == [
        "DELETING",
        "error: `demo` in us-central2-b is being deleted by another client",
        ("  hint: it was not created again; `tpuctl up demo --type v4-8 --zone us-central2-b` creates it"),
    ]


def test_node_deleted_by_another_tpuctl_is_not_recreated_and_names_it(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    clock.after(timedelta(minutes=1), lambda: tpuctl("delete", "demo", "--yes", "--no-wait"))

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("", 3, ["create", "delete"])
    assert told(err)[2] == "DELETING"
    assert told(err)[3].startswith("error: `delete` ended `demo` (delete on ")
    # Not a word about a watch: `up` has no lease to force.
    assert told(err)[4] == "  hint: `tpuctl up demo --type v4-8 --zone us-central2-b` starts or creates it again"


def test_unwritable_journal_prevents_a_deletion(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED")
    for folder in (sandbox.state.path.parent, sandbox.state.path.parent.parent):
        (folder / "journal").write_text("not a folder")

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("", 1, [])
    path = sandbox.state.path.parent / "journal" / "sandbox" / ZONE / "demo.jsonl"
    assert told(err) == [
        f"warning: cannot read the journal: {path}: Not a directory",
        "PREEMPTED: the service took it back",
        f"error: cannot write the journal: {path}: Not a directory",
        "  hint: the change was not sent; free some space or make the folder writable, or set TPUCTL_STATE_DIR",
    ]
