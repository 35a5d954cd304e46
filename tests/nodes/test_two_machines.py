"""Two machines that bring up one node: they share the cloud, and neither a journal nor leases."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import EventfulClock, two_machines
from tests.nodes.test_up_race import RACE, ZONES, interrupted_race
from tests.nodes.test_zone_search import ANY, stockout
from tpuctl.sandbox.administration import end_stockouts
from tpuctl.sandbox.faults import remove_fault

pytestmark = two_machines


@pytest.fixture
def other(tpuctl: Console, tmp_path: Path) -> Console:
    """The program on another machine."""
    return replace(tpuctl, environ={**tpuctl.environ, "TPUCTL_STATE_DIR": str(tmp_path / "other")})


def test_node_that_another_machine_made_meanwhile_is_adopted(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, other: Console
) -> None:
    stockout(sandbox)
    ends = []

    def be_faster() -> None:
        with sandbox.state.write() as session:
            end_stockouts(session)
        ends.append(other(*ANY, "us-east5-b", "--timeout", "2h")[2])

    clock.after(timedelta(minutes=10), be_faster)
    zones = "us-east1-d,us-east5-b"
    out, err, code = tpuctl(*ANY, zones, "--timeout", "2h")

    assert (out, code, ends) == ("demo\tREADY\n", 0, [0]), err
    assert [line.split("\t")[1] for line in tpuctl("list")[0].splitlines()] == ["us-east5-b"]


def test_down_on_another_machine_does_not_call_a_silent_zone_gone(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, other: Console
) -> None:
    interrupted_race(tpuctl, sandbox, clock)

    silence = sandbox.fault("unreachable", zone=ZONES[1], count=0)
    _, err, code = other("down", "t", "--yes", "--timeout", "5m")
    assert (code, f"  {ZONES[1]} does not answer" in err.splitlines()) == (1, True), err

    with sandbox.state.write() as session:
        remove_fault(session, silence)
    assert other("down", "t", "--yes")[::2] == ("t\n", 0)
    assert tpuctl("queue", "list")[0] == ""


@pytest.mark.parametrize("queue", [pytest.param((), id="create"), pytest.param(("--queue",), id="queue")])
def test_killed_race_is_not_adopted_in_one_of_its_zones(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, other: Console, queue: tuple[str, ...]
) -> None:
    interrupted_race(tpuctl, sandbox, clock)

    _, err, code = other("up", "t", "--type", "v6e-8", "--spot", "--zone", "any", "--timeout", "1h", *queue)

    assert (code, "error: `t` exists, or is requested, in 3 zones: " in err, sandbox.changes()) == (
        8,
        True,
        ["create"] * 3,
    )
    with sandbox.state.write() as session:
        end_stockouts(session)
    _, err, code = other(*RACE, "--timeout", "1h")
    # The journal of this machine does not know whose they are: it names them.
    assert (code, sandbox.changes()) == (8, ["create"] * 3)
    assert all(zone in err.splitlines()[-2] for zone in (*ZONES, "`t` is requested by another race already"))
    assert tpuctl("up", "t", "--timeout", "1h")[::2] == ("t\tREADY\n", 0)
    assert len(tpuctl("queue", "list")[0].splitlines()) == 1
