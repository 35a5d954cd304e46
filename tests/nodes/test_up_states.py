"""`tpuctl up` for each state of a node."""

from __future__ import annotations

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, put, said, still, told

RECREATED = ["DELETING", "gone", "creating v4-8 (tpu-ubuntu2204-base, on-demand, about $12.88/h)", "CREATING"]
TAKEN = "PREEMPTED: the service took it back"
STARTED = ["STOPPED", "starting (was STOPPED)", "STARTING", "READY"]


@pytest.mark.parametrize(
    ("found", "lines", "changes"),
    [
        ("READY", ["READY HEALTHY"], []),
        ("STARTING", ["STARTING", "READY HEALTHY"], []),
        ("RESTARTING", ["RESTARTING", "READY HEALTHY"], []),
        ("REPAIRING", ["REPAIRING", "READY HEALTHY"], []),
        ("REIMAGING", ["REIMAGING", "READY HEALTHY"], []),
        ("UNHIDING", ["UNHIDING", "READY HEALTHY"], []),
        ("STOPPED", STARTED, ["start"]),
        ("STOPPING", ["STOPPING", *STARTED], ["start"]),
        ("DELETING", [*RECREATED, "READY HEALTHY"], ["create"]),
        (
            "PREEMPTED",
            [TAKEN, "deleting it: it was preempted: only its record is left", *RECREATED, "READY HEALTHY"],
            ["delete", "create"],
        ),
        (
            "TERMINATED",
            ["TERMINATED", "deleting it: it is TERMINATED: only its record is left", *RECREATED, "READY HEALTHY"],
            ["delete", "create"],
        ),
    ],
)
def test_up_continues_from_each_state(
    tpuctl: Console, sandbox: Sandbox, found: str, lines: list[str], changes: list[str]
) -> None:
    put(sandbox, state=found)

    out, err, code = tpuctl(*UP)

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, changes)
    assert told(err)[:-1] == lines
    assert told(err)[-1].startswith("usable (ssh) after ")


@pytest.mark.parametrize(
    ("found", "error"),
    [
        ("HIDDEN", "error: `demo` is HIDDEN: the service has withdrawn it"),
        ("UNKNOWN", "error: `demo` is in the state UNKNOWN, which follows a failed repair"),
    ],
)
def test_up_of_a_node_that_the_service_gave_up_fails(tpuctl: Console, sandbox: Sandbox, found: str, error: str) -> None:
    put(sandbox, state=found)

    assert tpuctl(*UP) == (
        "",
        f"demo: {found}\n{error}\n  hint: delete it with `tpuctl delete demo --zone us-central2-b`, then create it again\n",
        10,
    )
    assert sandbox.changes() == []


@pytest.mark.parametrize("found", ["STATE_UNSPECIFIED", "DEFRAGMENTING"])
def test_up_with_an_unknown_state_waits(tpuctl: Console, sandbox: Sandbox, found: str) -> None:
    put(sandbox, state=found)

    _, err, code = tpuctl(*UP)

    new = ["state DEFRAGMENTING is new to this version of tpuctl"] if found == "DEFRAGMENTING" else []
    assert (told(err), code, sandbox.changes()) == (
        [
            found,
            *new,
            *still(f"{found} ({new[0]})" if new else found, 5, 10, 15, 20, 25),
            f"error: `demo` is not usable by ssh after 30m: it is {found}",
            (
                "  hint: no change was undone; continue with `tpuctl wait demo --for ssh --zone us-central2-b`, "
                "or delete it with `tpuctl down demo --zone us-central2-b`"
            ),
        ],
        5,
        [],
    )
    put(sandbox)  # the sandbox checks the state at the end against the values of the service


def test_up_adopts_a_node_in_creation(tpuctl: Console, sandbox: Sandbox) -> None:
    tpuctl(*UP, "--no-wait")

    out, err, code = tpuctl("up", "demo", "--for", "ready")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create"])
    assert told(err) == ["CREATING", "READY", "ready after 3m28s"]


def test_up_recreates_a_node_preempted_during_the_run(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("preempt", node="demo")

    out, err, code = tpuctl(*UP, "--spot")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["create", "delete", "create"])
    assert told(err)[1:5] == [
        "CREATING",
        TAKEN,
        "deleting it: it was preempted: only its record is left",
        "DELETING",
    ]


def test_up_recreates_a_preempted_node_with_its_spec(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="TERMINATED", schedulingConfig={"spot": True}, labels={"team": "vision"})

    _, err, code = tpuctl("up", "demo")

    assert (code, sandbox.changes()) == (0, ["delete", "create"])
    assert told(err)[:3] == [
        "TERMINATED: the service took it back",
        "deleting it: it was preempted: only its record is left",
        "DELETING",
    ]
    assert tpuctl("list")[0].split("\t")[:4] == ["demo", ZONE, "v4-8", "READY"]
    assert tpuctl("list")[0].split("\t")[7] == "spot"


def test_up_of_a_stopped_spot_node_sends_no_request(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="STOPPED", schedulingConfig={"spot": True})

    assert tpuctl("up", "demo") == (
        "",
        said(
            "demo: STOPPED",
            "error: `demo` is STOPPED, and it is a spot node, and those cannot be started again once stopped",
            "  hint: recreate it with `tpuctl reset demo --mode recreate` (its boot disk is lost)",
        ),
        8,
    )
    assert sandbox.changes() == []


def test_up_does_not_recreate_a_preempted_node_of_a_queued_resource(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox, state="PREEMPTED", queued_resource="research")

    assert tpuctl("up", "demo") == (
        "",
        said(
            f"demo: {TAKEN}",
            "error: `demo` is PREEMPTED and belongs to the queued resource `research`: it cannot be recreated on its own",
            "  hint: `tpuctl down demo` deletes both; then `tpuctl up demo --type v4-8` creates a node",
        ),
        8,
    )
    assert sandbox.changes() == []
