"""`run --up --rm` that is killed: after the end of its node's time any clean-up leaves no node."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import ZONE, EventfulClock, one_face
from tests.lifecycle import tmp_path as tmp_path  # noqa: PLC0414  # a fixture
from tests.others import KilledError, another_machine, kill

RUN = ("run", "ci", "--up", "v4-8", "--zone", ZONE, "--no-sync", "--rm")
# The node of the sandbox is READY after about two minutes, and usable soon after.
MOMENTS = [timedelta(seconds=7 * number) for number in range(20)]


@pytest.fixture
def clock() -> EventfulClock:
    return EventfulClock()


@one_face
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment.total_seconds():.0f}s")
def test_killed_run_leaves_no_node_after_its_time(
    tpuctl: Console, sandbox: Sandbox, clock: EventfulClock, moment: timedelta
) -> None:
    """By `gc` and by `watch`, each alone, on another machine that knows nothing of the run."""
    number = MOMENTS.index(moment)
    clock.after(moment, kill)
    with suppress(KilledError):
        tpuctl(*RUN, "--ttl" if number % 4 < 2 else "--timeout", "1h", "--", "true")
    other = another_machine(tpuctl)
    listed = json.loads(other("list", "-o", "json")[0])
    assert all("expires" in node for node in listed)
    sandbox.advance(hours=2, minutes=1)

    if number % 2:
        assert other("gc", "--expired", "--yes")[2] == 0
    elif listed:
        assert other("watch", "ci", "--zone", ZONE, "--for", "healthy")[2] == 0

    assert other("list")[0] == ""
