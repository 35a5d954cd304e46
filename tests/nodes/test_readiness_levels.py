"""`decide` on the levels that the workers report: startup and devices, worker by worker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.nodes.readiness_cases import NAME, NO_KEY, SILENT, UP, YES, decision_for, node, slice_
from tpuctl.models.node import Node
from tpuctl.nodes.conditions import (
    Condition,
    ObservedState,
    Policy,
    SshAnswer,
    StartupState,
    WorkerSnapshot,
    worker_matrix,
)

_DEVICES, _STARTUP = replace(UP, goal=Condition.DEVICES), replace(UP, goal=Condition.STARTUP)
_PROBE = replace(_DEVICES, probe="true")
_DONE = WorkerSnapshot(SshAnswer.YES, startup=StartupState.DONE, chips=4)


@pytest.mark.parametrize(
    ("policy", "seen_node", "workers", "expected"),
    [
        (_STARTUP, node(), (YES,), "wait 2: its worker has not reported its startup"),
        (
            _STARTUP,
            slice_(),
            (replace(_DONE, startup=StartupState.RUNNING), _DONE),
            "wait 2: worker 0 has not ended its startup",
        ),
        (_STARTUP, node(), (replace(_DONE, startup=StartupState.UNKNOWN),), "reached"),
        (_STARTUP, node(), (replace(_DONE, startup=StartupState.FAILED),), "reached: its startup script has failed"),
        (
            _STARTUP,
            slice_(),
            (_DONE, replace(_DONE, startup=StartupState.FAILED)),
            "reached: its startup script has failed on worker 1",
        ),
        (_STARTUP, node(), (replace(_DONE, chips=0),), "reached"),
        (_DEVICES, node(), (_DONE,), "reached"),
        (
            _DEVICES,
            node(),
            (replace(_DONE, chips=3),),
            "wait 2: its worker sees 3 of 4 chips [reboot every worker in 300]",
        ),
        (
            _DEVICES,
            slice_(),
            (_DONE, replace(_DONE, chips=3)),
            "wait 2: worker 1 sees 3 of 4 chips [reboot every worker in 310]",
        ),
        (_DEVICES, node(), (replace(_DONE, chips=None),), "wait 2: its worker has not reported its chips"),
        (
            _DEVICES,
            node(),
            (replace(_DONE, startup=StartupState.RUNNING, chips=3),),
            "wait 2: its worker has not ended its startup",
        ),
        (
            _DEVICES,
            node(acceleratorType="v9-4"),
            (replace(_DONE, chips=3),),
            "reached: the number of chips of `v9-4` is unknown, so it was not compared",
        ),
        (_PROBE, node(), (replace(_DONE, chips=3),), "reached"),
        (
            _PROBE,
            node(),
            (replace(_DONE, failed="exit 3"),),
            "wait 2: its worker fails the probe (exit 3) [reboot every worker in 300]",
        ),
        (_DEVICES, slice_(), (_DONE,), "wait 2: every worker answers ssh"),
    ],
)
def test_higher_levels_depend_on_the_workers(
    policy: Policy, seen_node: Node, workers: tuple[WorkerSnapshot, ...], expected: str
) -> None:
    assert decision_for(policy, seen_node, workers=workers, is_ours=True) == expected


def test_messages_name_eight_workers_and_count_the_others() -> None:
    big = node(acceleratorType="v4-256")
    few = tuple(replace(_DONE, chips=3) if index in {3, 5} else _DONE for index in range(32))
    many = tuple(replace(_DONE, chips=index % 4) for index in range(32))

    assert decision_for(_DEVICES, big, workers=few) == (
        "wait 2: 2 of 32 workers: each sees 3 of 4 chips (3, 5) [give up in 610]"
    )
    named = ", ".join(f"worker {index} sees {index % 4} of 4 chips" for index in range(8))
    assert decision_for(_DEVICES, big, workers=many) == f"wait 2: {named} and 24 more [give up in 610]"
    assert decision_for(UP, big, workers=(SILENT,) * 32) == (
        "wait 2: 32 of 32 workers do not answer ssh (0, 1, 2, 3, 4, 5, 6, 7 and 24 more)"
    )


def test_each_worker_has_a_row_of_levels() -> None:
    seen = ObservedState(
        name=NAME, node=slice_(), workers=(replace(_DONE, startup=StartupState.RUNNING, chips=3), NO_KEY)
    )
    first = {"worker": 0, "ready": True, "healthy": True, "ssh": True, "startup": False, "devices": False}
    second = {"worker": 1, "ready": True, "healthy": True, "ssh": False, "startup": None, "devices": None}

    assert worker_matrix(_DEVICES, seen) == [
        first | {"why": "has not ended its startup"},
        second | {"why": "refuses the key"},
    ]
    assert worker_matrix(UP, replace(seen, node=slice_("CREATING"))) == []
