"""`run --up --rm --ttl` that SIGKILL ends: after the expiry no node is left, by each enforcer alone.

All twenty moments for each of the three: `python -m benchmarks.killed_runs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lifecycle import tmp_path as tmp_path  # noqa: PLC0414  # a fixture
from tests.workers.running.kill_moments import MOMENTS, Enforcer, KillMoment, Left, prove

# A creation takes a tenth of a second.
SPEED = 1500.0
BY_TEXT = {moment.text: moment for moment in MOMENTS}


@pytest.mark.parametrize("text", ["the create is accepted", "the first look at READY", "the delete is sent"])
@pytest.mark.parametrize("enforcer", [Enforcer.GC, Enforcer.WATCH])
def test_killed_run_is_ended_by_gc_and_by_watch(
    tmp_path: Path, fake_ssh: Callable[[str], None], text: str, enforcer: Enforcer
) -> None:
    """The ssh of this machine starts no guard."""
    result = prove(tmp_path, _without_guard(BY_TEXT[text]), enforcer, elsewhere=enforcer is Enforcer.GC, speed=SPEED)

    assert (result.faults, result.left, result.ended_by) == ((), Left.WITHOUT_GUARD, enforcer)


@pytest.mark.sshd
@pytest.mark.parametrize(
    ("text", "left", "ended_by"),
    [
        ("the create is accepted", Left.WITHOUT_GUARD, Enforcer.GC),
        ("the command runs", Left.WITH_GUARD, Enforcer.GUARD),
        ("the delete is accepted", Left.DELETING, None),
    ],
)
def test_killed_run_is_ended_by_its_guard_if_that_was_started(
    tmp_path: Path, text: str, left: Left, ended_by: Enforcer | None
) -> None:
    result = prove(tmp_path, BY_TEXT[text], Enforcer.GUARD, speed=SPEED)

    assert (result.faults, result.left, result.ended_by) == ((), left, ended_by)


def _without_guard(moment: KillMoment) -> KillMoment:
    return replace(moment, leaves=(Left.WITHOUT_GUARD,))
