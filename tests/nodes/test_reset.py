"""`tpuctl reset`: the modes, and what each keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, EventfulClock, both_faces, put, said, told

SLICE: dict[str, Any] = {"acceleratorType": "v4-16"}
RESTART = "restart `demo` (terminates what runs on it, keeps its boot disk; the start needs free capacity)?"


@both_faces
def test_auto_restarts_a_node_that_can_be_stopped(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)

    out, err, code = tpuctl("reset", "demo", stdin="y\n")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["stop", "start"])
    lines = told(err.removeprefix(f"{RESTART} [y/N] "))
    assert lines[:5] == [
        "restarting", "STOPPING", "STOPPED", "starting (was STOPPED)", "STARTING",
    ]  # fmt: skip
    assert lines[-1].startswith("usable (ssh) after ")


@pytest.mark.parametrize("fields", [SLICE, {"schedulingConfig": {"spot": True}}, {"queued_resource": "research"}])
def test_auto_reboots_a_node_that_cannot_be_stopped(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None], tmp_path: Path, fields: dict[str, Any]
) -> None:
    node = put(sandbox, **fields)
    fake_ssh(f'for word; do :; done; echo "$word" >> {tmp_path}/ran')

    out, err, code = tpuctl("reset", "demo", "--yes")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, [])
    assert told(err)[:2] == ["rebooting every worker", "READY HEALTHY"]
    assert (tmp_path / "ran").read_text().count("sudo reboot") == len(node["networkEndpoints"])


def test_auto_without_restart_or_reboot_hints_at_recreate(
    tpuctl: Console, sandbox: Sandbox, fake_ssh: Callable[[str], None]
) -> None:
    put(sandbox, **SLICE)
    fake_ssh("exit 255")

    assert tpuctl("reset", "demo", "--yes") == (
        "",
        said(
            "error: `demo` cannot be rebooted from inside: 2 of 2 workers do not answer ssh (0, 1)",
            "  hint: `tpuctl reset demo --mode recreate` deletes and recreates it (its boot disk is lost)",
        ),
        8,
    )
    assert sandbox.changes() == []


@pytest.mark.parametrize(
    ("mode", "fields", "lines"),
    [
        (
            "restart",
            SLICE,
            (
                "`demo` cannot be restarted: it is a slice of 2 workers, and the service stops single-worker nodes only",
                "`tpuctl reset demo --mode reboot` keeps it; `--mode recreate` deletes and recreates it",
            ),
        ),
        (
            "auto",
            {"state": "PREEMPTED"},
            (
                "`demo` is PREEMPTED, but only a READY node can be reset in place",
                (
                    "`tpuctl reset demo --mode recreate` deletes and recreates it (its boot disk is lost); "
                    "`tpuctl up demo` creates it again with what it had"
                ),
            ),
        ),
        (
            "auto",
            {"state": "STOPPED", "schedulingConfig": {"spot": True}},
            (
                "`demo` is STOPPED, but only a READY node can be reset in place",
                "`tpuctl reset demo --mode recreate` deletes and recreates it (its boot disk is lost)",
            ),
        ),
        (
            "reboot",
            {"state": "STOPPED"},
            (
                "`demo` is STOPPED, but only a READY node can be reset in place",
                "`tpuctl start demo` starts it and keeps its boot disk",
            ),
        ),
        (
            "recreate",
            {"queued_resource": "research"},
            (
                "`demo` belongs to the queued resource `research` and cannot be recreated on its own",
                "`tpuctl reset demo --mode reboot` keeps it; `tpuctl down demo` deletes it with its queued resource",
            ),
        ),
    ],
)
def test_yes_does_not_change_the_mode(
    tpuctl: Console, sandbox: Sandbox, mode: str, fields: dict[str, Any], lines: tuple[str, str]
) -> None:
    put(sandbox, **fields)

    assert tpuctl("reset", "demo", "--yes", "--mode", mode) == (
        "",
        said(f"error: {lines[0]}", f"  hint: {lines[1]}"),
        8,
    )
    assert sandbox.changes() == []


@both_faces
def test_recreate_creates_the_same_node(tpuctl: Console, sandbox: Sandbox) -> None:
    before = put(
        sandbox,
        acceleratorType="v4-16",
        schedulingConfig={"spot": True},
        labels={"team": "vision"},
        metadata={"startup-script": "true"},
        tags=["web"],
        description="for ada",
    )

    out, err, code = tpuctl("reset", "demo", "--mode", "recreate", "--yes")

    assert (out, code, sandbox.changes()) == ("demo\tREADY\n", 0, ["delete", "create"])
    assert told(err)[:5] == [
        "deleting it, to create it again",
        "DELETING",
        "gone",
        "creating v4-16 (tpu-ubuntu2204-base, spot)",
        "CREATING",
    ]
    after = json.loads(tpuctl("status", "demo", "-o", "json", "--show-metadata")[0])[0]
    kept = ("acceleratorType", "runtimeVersion", "schedulingConfig", "tags", "description", "networkConfig")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert after["labels"]["team"] == "vision"
    assert after["metadata"]["startup-script"] == "true"
    assert after["id"] != before["id"]


def test_reset_without_capacity_reports_the_stopped_node(tpuctl: Console, sandbox: Sandbox) -> None:
    put(sandbox)
    sandbox.fault("operation-error", method="*.start")

    out, _, code = tpuctl("reset", "demo", "--yes")

    assert (out, code, sandbox.changes()) == ("", 6, ["stop", "start"])
    assert tpuctl("list")[0].split("\t")[3] == "STOPPED"


@pytest.fixture
def clock() -> EventfulClock:
    return EventfulClock()


# After so long a reset is interrupted: the mode, and what it says was sent.
INTERRUPTED = {
    "deleted": (1, "recreate", "its deletion was sent, its creation was not"),
    "created": (60, "recreate", "its deletion and its creation were sent; it is not usable yet"),
    "stopped": (1, "restart", "its stop was sent, its start was not"),
    "started": (90, "restart", "its start was sent; it is not usable yet"),
}


@pytest.mark.parametrize(("seconds", "mode", "left"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_interrupted_reset_says_what_was_sent(
    sandbox: Sandbox, tpuctl: Console, clock: EventfulClock, *, seconds: int, mode: str, left: str
) -> None:
    put(sandbox)

    def interrupt() -> None:
        raise KeyboardInterrupt

    clock.after(timedelta(seconds=seconds), interrupt)

    _, err, code = tpuctl("reset", "demo", "--mode", mode, "--yes")

    assert (code, err.splitlines()[-2:]) == (
        130,
        [f"warning: interrupted: `{ZONE}/demo`: {left}", f"  resume: tpuctl up {ZONE}/demo"],
    )
