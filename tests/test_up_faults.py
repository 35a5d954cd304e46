"""`tpuctl up` when things go wrong: in the node, in the zone, on the way to the API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, EventfulClock, one_face, put, said, told
from tpuctl.sandbox import admin

SICK = "READY UNHEALTHY_TENSORFLOW"
RESTART = ["restarting it: it is READY but UNHEALTHY_TENSORFLOW", "STOPPING", "STOPPED", "starting it: it is STOPPED"]
CREATE = ["creating v4-8 with tpu-ubuntu2204-base: there is none yet", "CREATING"]
REMEDY = "  hint: `tpuctl reset demo --mode recreate` deletes it and makes it anew (its boot disk is lost)"


@pytest.fixture
def clock() -> EventfulClock:
    return EventfulClock()


@one_face
def test_a_node_that_comes_up_unhealthy_once_is_restarted(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy")

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create", "stop", "start"])
    assert told(err)[:-1] == [*CREATE, SICK, *RESTART, "STARTING", "READY"]


@one_face
def test_restarts_are_bounded(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy", count=0)

    out, err, code = tpuctl(*UP, "--max-restarts", "1")

    assert (out, code, sandbox.changes()) == ("", 10, ["create", "stop", "start"])
    assert told(err)[3:] == [
        *RESTART,
        "STARTING",
        SICK,
        "error: `demo`: it is READY but UNHEALTHY_TENSORFLOW, still so after 1 restart",
        REMEDY,
    ]


@one_face
def test_recreating_has_to_be_allowed_and_is_bounded_too(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy", count=0)

    _, _, code = tpuctl(
        *UP, "--repair", "recreate", "--max-restarts", "0", "--max-recreates", "2", "--timeout", "2h", "--yes"
    )

    assert (code, sandbox.changes()) == (10, ["create", "delete", "create", "delete", "create"])


@one_face
def test_an_unhealthy_node_that_may_be_in_use_is_left_alone(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, health="UNHEALTHY_TENSORFLOW")

    assert tpuctl("up", "demo") == (
        "",
        said(
            "demo: READY UNHEALTHY_TENSORFLOW",
            "error: `demo`: it is READY but UNHEALTHY_TENSORFLOW",
            "  hint: it may be in use and was left alone; `tpuctl reset demo` restarts it, "
            "`tpuctl up demo --yes` repairs it",
        ),
        10,
    )
    assert sandbox.changes() == []
    assert tpuctl("up", "demo", "--yes")[::2] == ("demo\tREADY\n", 0)
    assert sandbox.changes() == ["stop", "start"]


@one_face
def test_a_run_that_ended_early_is_gone_on_with_and_repairs_what_it_made(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("unhealthy")
    tpuctl(*UP, "--timeout", "6m")

    out, _, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create", "stop", "start"])


@one_face
def test_a_node_that_was_handed_over_is_nobodys_to_repair(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP)
    sandbox.fault("unhealthy")

    assert tpuctl(*UP)[::2] == ("", 10)
    assert sandbox.changes() == ["create"]


@one_face
def test_maintenance_is_only_waited_for(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("maintenance", duration=timedelta(minutes=20))

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, [])
    assert told(err)[:2] == [
        "READY UNHEALTHY_MAINTENANCE",
        "it is READY but UNHEALTHY_MAINTENANCE (the node is under maintenance)",
    ]


@one_face
def test_a_silent_node_that_this_run_made_is_restarted(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, fake_ssh: Callable[[str], None]
) -> None:
    fake_ssh("exit 255")
    clock.after(timedelta(minutes=20), lambda: fake_ssh("exit 0"))

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create", "stop", "start"])
    assert "restarting it: it is READY but its worker does not answer ssh" in told(err)


@one_face
def test_a_node_that_hangs_in_creating_is_not_deleted(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("hang", state="CREATING")

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("", 5, ["create"])
    assert told(err) == [
        *CREATE,
        "error: `demo` is not usable by ssh after 30m: it is CREATING",
        "  hint: nothing was undone; go on waiting with `tpuctl wait demo --for ssh`, or end it with `tpuctl down demo`",
    ]


@one_face
@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        ({"kind": "operation-error"}, 6, 'There is no more capacity in the zone "us-central2-b"'),
        ({"kind": "quota"}, 7, "Quota limit 'TPUV4sPodPerProjectPerZoneForTPUAPI' has been exceeded."),
        ({"kind": "operation-error", "code": 13}, 1, "an internal error has occurred"),
    ],
)
def test_a_create_that_fails_says_why_and_what_to_do(
    tpuctl: Console, sandbox: Sandbox, fault: dict[str, object], code: int, says: str
) -> None:
    sandbox.fault(str(fault["kind"]), code=fault.get("code", 8))

    out, err, ended = tpuctl(*UP)

    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (out, ended, len(lines), sandbox.changes()) == ("", code, 1, ["create"])
    assert says in lines[0]
    assert "\n  hint: " in err


@one_face
def test_what_a_failed_create_leaves_behind_is_named(tpuctl: Console, sandbox: Sandbox) -> None:
    admin.set_setting(sandbox.world, "keep_failed_nodes", value=True)
    sandbox.fault("operation-error")

    _, err, code = tpuctl(*UP)

    assert (code, told(err)[2]) == (6, "its record is still there: `tpuctl down demo` deletes it")
    assert tpuctl("down", "demo", "--yes")[::2] == ("demo\n", 0)


@one_face
def test_a_start_without_capacity_leaves_the_node_stopped(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="STOPPED")
    sandbox.fault("operation-error", method="*.start")

    _, err, code = tpuctl(*UP)

    assert (code, sandbox.changes()) == (6, ["start"])
    assert told(err)[:4] == ["STOPPED", "starting it: it is STOPPED", "STARTING", "STOPPED"]


@pytest.mark.parametrize(
    ("call", "found", "changes"),
    [
        ("create", {}, ["create"]),
        ("delete", {"state": "PREEMPTED"}, ["delete", "create"]),
        ("start", {"state": "STOPPED"}, ["start"]),
        ("stop", {"health": "UNHEALTHY_TENSORFLOW"}, ["stop", "start"]),
    ],
)
def test_a_lost_answer_changes_nothing(
    tpuctl: Console, sandbox: Sandbox, call: str, found: dict[str, str], changes: list[str]
) -> None:
    for lost in ("drop-before", "drop-after"):
        before = sandbox.changes()
        if found:
            put(sandbox, lost, **found)
        sandbox.fault(lost, method=f"*.nodes.{call}")

        out, _, code = tpuctl("up", lost, "--type", "v4-8", "--zone", ZONE, "--yes")

        assert (out, code, sandbox.changes()) == (f"{lost}\tREADY\n", 0, before + changes)


@pytest.mark.parametrize("status", [429, 503])
def test_an_api_that_does_not_answer_is_waited_out(tpuctl: Console, sandbox: Sandbox, status: int) -> None:
    sandbox.fault("http-error", method="*.operations.get", status=status, count=12)

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])
    assert [line.partition(" for ")[0] for line in told(err)][1] == "the API has not answered"


def test_an_api_that_never_answers_is_waited_for_until_the_deadline(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("http-error", method="*.operations.get", count=0)

    _, err, code = tpuctl(*UP, "--timeout", "5m")

    assert (code, sandbox.changes()) == (5, ["create"])
    assert "so whether `demo` is usable by ssh is not known" in told(err)[-2]
    assert told(err)[-1] == "  hint: nothing was undone; look again with `tpuctl status demo`"


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_not_allowed_ends_the_wait_at_once(tpuctl: Console, sandbox: Sandbox, status: int) -> None:
    put(sandbox, state="STARTING")
    sandbox.fault("http-error", method="*.nodes.get", status=status, count=0)

    out, err, code = tpuctl("wait", "demo", "--zone", ZONE)

    assert (out, code) == ("", 4)
    assert err.startswith("error: ")


def test_a_zone_that_cannot_be_reached_is_not_an_empty_one(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("unreachable", zone=ZONE, count=0)

    assert tpuctl("up", "demo") == (
        "",
        said(
            "error: `demo` was not found, but us-central2-b could not be asked: it may be there",
            "  hint: try again later, or name the zone with `--zone`",
        ),
        1,
    )
    assert tpuctl(*UP)[2] == 1
    assert sandbox.changes() == []


def test_a_node_that_somebody_deletes_is_not_made_again(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock
) -> None:
    clock.after(timedelta(minutes=1), lambda: tpuctl("delete", "demo", "--yes", "--no-wait"))

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("", 3, ["create", "delete"])
    assert told(err)[2:] == [
        "DELETING",
        "error: `demo` is being deleted from us-central2-b: by somebody else, or because a request to create it failed",
        "  hint: nothing was created in its place; run `tpuctl up demo` again if you still want it",
    ]


@one_face
def test_a_journal_that_cannot_be_written_lets_nothing_be_destroyed(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED")
    for folder in (sandbox.world.path.parent, sandbox.world.path.parent.parent):
        (folder / "journal").write_text("not a folder")

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("", 1, [])
    assert told(err)[1].startswith("error: the journal cannot be written: ")
