"""`decide` on a broken or slow node: a row for each rule and each boundary."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.nodes.readiness_cases import (
    NO_HOST,
    NO_KEY,
    SECOND,
    SICK,
    SILENT,
    UP,
    WAIT,
    YES,
    decision_for,
    node,
    queued,
    slice_,
    spot,
)
from tpuctl.models.node import Node
from tpuctl.nodes.conditions import Condition, Policy, Repair, RepairAttempts, SshAnswer, StartupState, WorkerSnapshot

_UNSET: dict[str, Any] = {"health": None}
_UNHEALTHY, _UNANSWERED = timedelta(minutes=5), timedelta(minutes=10)
_STARTING, _REPAIRING = timedelta(minutes=15), timedelta(minutes=30)
_RECHECK = timedelta(minutes=3)
_WORKER = timedelta(seconds=10)
_OURS: dict[str, Any] = {"is_ours": True, "in_state": _UNHEALTHY}
_BOTH: dict[str, Any] = _OURS | {"in_state": _UNHEALTHY + _WORKER}  # a slice of two
_SICK_TEXT = "it is READY but UNHEALTHY_TENSORFLOW"
_REBOOT, _RECREATE, _NONE = (replace(UP, repair=step) for step in (Repair.REBOOT, Repair.RECREATE, Repair.NONE))
_FORCED, _RECREATE_FORCED = replace(UP, ignores_use=True), replace(_RECREATE, ignores_use=True)
_SLICE_TEXT = "it is a slice of 2 workers, and the service stops single-worker nodes only"
_SPOT_TEXT = "it is a spot node, and those cannot be started again once stopped"
_QUEUED_TEXT = "it belongs to the queued resource `q1`, whose nodes cannot be stopped"
_ENTERED_TEXT = "not recreated: a worker still accepts ssh (`--yes` overrides)"
_LATE: dict[str, Any] = {"in_state": _UNANSWERED, "workers": (SILENT,)}
_NO_ANSWER = "it is READY but its worker does not answer ssh"
_WHY_SILENT = "its worker does not answer ssh"
_ONCE, _TWICE, _SPENT = RepairAttempts(1), RepairAttempts(1, 2), RepairAttempts(1, 2, 1)
_TRIED = "unchanged after 1 reboot and 2 restarts"
_HELD = WorkerSnapshot(SshAnswer.YES, holders=("1234 python3", "1235 python3"))
_DEVICES, _DEVICES_TOO = replace(UP, goal=Condition.DEVICES), replace(_RECREATE, goal=Condition.DEVICES)
_SHORT = WorkerSnapshot(SshAnswer.YES, startup=StartupState.DONE, chips=3)
_SHORT_TEXT = "it is READY but its worker sees 3 of 4 chips"
_WINDOW = {"windowStartTime": "2026-01-01T11:00:00Z", "windowEndTime": "2026-01-01T13:00:00Z"}
_OPEN: dict[str, Any] = {"upcomingMaintenance": {"maintenanceStatus": "PENDING"} | _WINDOW}
_ONGOING: dict[str, Any] = {"upcomingMaintenance": {"maintenanceStatus": "ONGOING"}}
_PENDING: dict[str, Any] = {
    "upcomingMaintenance": {"maintenanceStatus": "PENDING", "windowStartTime": "2026-01-01T12:00:01Z"}
}


_Row = tuple[Policy, Node, dict[str, Any], str]

_EVIDENCE: list[_Row] = [
    # Health: a defect is repaired from its threshold on, and only on our node or one that cannot be in use.
    (UP, node(**SICK), _OURS | {"in_state": _UNHEALTHY - SECOND}, f"wait 15: {_SICK_TEXT} [restart it in 1]"),
    (UP, node(**SICK), _OURS, f"restart: {_SICK_TEXT}"),
    (
        UP,
        slice_(**SICK),
        _BOTH | {"in_state": _UNHEALTHY + 9 * SECOND, "workers": (YES, YES)},
        f"wait 15: {_SICK_TEXT} [reboot every worker in 1]",
    ),
    (UP, slice_(**SICK), _BOTH | {"workers": (YES, YES)}, f"reboot: {_SICK_TEXT}"),
    (UP, node(health="TIMEOUT"), _OURS, "restart: it is READY but TIMEOUT"),
    (UP, node(**SICK), _OURS | {"is_ours": False}, f"broken: `trainer`: {_SICK_TEXT}"),
    (UP, node(**SICK), _OURS | {"is_ours": False, "workers": (YES,)}, f"broken: `trainer`: {_SICK_TEXT}"),
    (UP, node(**SICK), _OURS | {"is_ours": False, "workers": (NO_KEY,)}, f"broken: `trainer`: {_SICK_TEXT}"),
    (UP, node(**SICK), _OURS | {"is_ours": False, "workers": (NO_HOST,)}, f"broken: `trainer`: {_SICK_TEXT}"),
    (UP, node(**SICK), _OURS | {"is_ours": False, "workers": (SILENT,)}, f"restart: {_SICK_TEXT}; {_WHY_SILENT}"),
    (_FORCED, node(**SICK), _OURS | {"is_ours": False, "workers": (YES,)}, f"reboot: {_SICK_TEXT}"),
    (WAIT, node(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}"),
    (_NONE, node(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}"),
    # Without evidence of a defect the run only waits.
    (
        UP,
        node(health="UNHEALTHY_MAINTENANCE"),
        _LATE | {"is_ours": True},
        "wait 15: it is READY but UNHEALTHY_MAINTENANCE",
    ),
    (UP, node(**SICK, **_ONGOING), _OURS, f"wait 15: {_SICK_TEXT}"),
    (UP, node(**SICK, **_OPEN), _OURS, f"wait 15: {_SICK_TEXT}"),
    (UP, node(**SICK, **_PENDING), _OURS, f"restart: {_SICK_TEXT}"),
    (UP, node(health="BRAND_NEW"), _OURS, "wait 15: it is READY but BRAND_NEW"),
    (UP, node(health="BRAND_NEW"), _LATE | {"is_ours": True}, "wait 15: it is READY but BRAND_NEW"),
    (UP, node(**_UNSET), _OURS, "wait 15: it is READY, its health is not reported yet"),
    # No worker answers ssh.
    (
        UP,
        node(),
        _LATE | {"is_ours": True, "in_state": _UNANSWERED - SECOND},
        f"wait 15: {_WHY_SILENT} [restart it in 1]",
    ),
    (UP, node(), _LATE | {"is_ours": True}, f"restart: {_NO_ANSWER}"),
    (UP, node(**_UNSET), _LATE | {"is_ours": True}, f"restart: {_NO_ANSWER}"),
    (UP, node(), _LATE, f"wait 15: {_WHY_SILENT}"),
    (_FORCED, node(), _LATE, f"restart: {_NO_ANSWER}"),
    (UP, node(), _LATE | {"is_ours": True, "workers": (NO_KEY,)}, "wait 15: its worker refuses the key"),
    (UP, node(), _LATE | {"is_ours": True, "workers": (NO_HOST,)}, "wait 15: its worker has another host key"),
    (WAIT, node(), _LATE, f"wait 15: {_WHY_SILENT}"),
    # Devices.
    (
        _DEVICES,
        node(),
        _OURS | {"workers": (_SHORT,), "in_state": _UNHEALTHY - SECOND},
        "wait 15: its worker sees 3 of 4 chips [reboot every worker in 1]",
    ),
    (_DEVICES, node(), _OURS | {"workers": (_SHORT,)}, f"reboot: {_SHORT_TEXT}"),
    (_DEVICES, node(), _OURS | {"workers": (_SHORT,), "is_ours": False}, f"broken: `trainer`: {_SHORT_TEXT}"),
    (_DEVICES, node(), _OURS | {"workers": (_SHORT,), "attempts": _ONCE}, f"restart: {_SHORT_TEXT}"),
    (
        _DEVICES_TOO,
        node(),
        _OURS | {"workers": (_SHORT,), "attempts": RepairAttempts(0, 1)},
        f"broken: `trainer`: {_SHORT_TEXT}, unchanged after 1 restart; {_ENTERED_TEXT}",
    ),
    (
        replace(_DEVICES_TOO, ignores_use=True),
        node(),
        _OURS | {"workers": (_SHORT,), "attempts": RepairAttempts(0, 1)},
        f"delete 7 to repair: {_SHORT_TEXT}",
    ),
    (
        replace(_DEVICES, probe="true"),
        node(),
        _OURS | {"workers": (replace(_SHORT, failed="exit 3"),)},
        "reboot: it is READY but its worker fails the probe (exit 3)",
    ),
    # A node in use is not repaired.
    (
        UP,
        node(**SICK),
        _OURS | {"workers": (_HELD,)},
        f"broken: `trainer`: {_SICK_TEXT}; not repaired: process 1234 python3 holds the TPU of worker 0",
    ),
    (_FORCED, node(**SICK), _OURS | {"workers": (_HELD,)}, f"reboot: {_SICK_TEXT}"),
    # Neither is one that another client repairs.
    (UP, node(**SICK), _OURS | {"held_by": "ann"}, "wait 15: it is being repaired by ann"),
    (WAIT, node(**SICK), _OURS | {"held_by": "ann"}, "wait 15: it is being repaired by ann"),
    (UP, node("STOPPED"), {"held_by": "ann"}, "wait 2: it is being repaired by ann"),
    (
        UP,
        node(**SICK),
        {"held_by": "ann", "unchanged_since": timedelta(hours=1)},
        f"wait 2: {_SICK_TEXT}; ann may repair it",
    ),
]

_LADDER: list[_Row] = [
    (_REBOOT, node(**SICK), _OURS | {"workers": (YES,)}, f"reboot: {_SICK_TEXT}"),
    (_REBOOT, node(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}, a restart is not allowed"),
    (
        _REBOOT,
        node(**SICK),
        _OURS | {"workers": (YES,), "attempts": _ONCE},
        f"broken: `trainer`: {_SICK_TEXT}, unchanged after 1 reboot",
    ),
    (UP, node(**SICK), _OURS | {"workers": (YES,), "attempts": _ONCE}, f"restart: {_SICK_TEXT}"),
    (replace(UP, max_reboots=0), node(**SICK), _OURS | {"workers": (YES,)}, f"restart: {_SICK_TEXT}"),
    (
        UP,
        slice_(**SICK),
        _BOTH | {"workers": (YES, SILENT)},
        f"broken: `trainer`: {_SICK_TEXT}, 1 of 2 workers do not answer ssh (1); {_SLICE_TEXT}",
    ),
    (UP, slice_(**SICK), _BOTH, f"broken: `trainer`: {_SICK_TEXT}, {_SLICE_TEXT}"),
    (UP, spot("READY", **SICK), _OURS | {"workers": (YES,)}, f"reboot: {_SICK_TEXT}"),
    (UP, spot("READY", **SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}, {_SPOT_TEXT}"),
    (UP, queued("READY", **SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}, {_QUEUED_TEXT}"),
    (UP, node(**SICK), _OURS | {"refused_stop": "no"}, f"broken: `trainer`: {_SICK_TEXT}, no"),
    (UP, node(**SICK), _OURS | {"attempts": RepairAttempts(1, 1)}, f"restart: {_SICK_TEXT}"),
    (UP, node(**SICK), _OURS | {"attempts": _TWICE}, f"broken: `trainer`: {_SICK_TEXT}, {_TRIED}"),
    (_RECREATE, node(**SICK), _OURS, f"restart: {_SICK_TEXT}"),
    (_RECREATE, node(**SICK), _OURS | {"attempts": _TWICE}, f"delete 7 to repair: {_SICK_TEXT}"),
    (_RECREATE, node(**SICK, id="8"), _OURS | {"attempts": _TWICE}, f"delete 8 to repair: {_SICK_TEXT}"),
    (_RECREATE, slice_(**SICK), _BOTH, f"delete 7 to repair: {_SICK_TEXT}; {_SLICE_TEXT}"),
    (
        _RECREATE,
        node(**SICK),
        _OURS | {"attempts": _SPENT},
        f"broken: `trainer`: {_SICK_TEXT}, unchanged after 1 reboot, 2 restarts and 1 recreation",
    ),
    (_RECREATE, queued("READY", **SICK), _OURS | {"attempts": _TWICE}, f"broken: `trainer`: {_SICK_TEXT}, {_TRIED}"),
    (
        _RECREATE,
        node(**SICK),
        _OURS | {"attempts": _TWICE, "workers": (YES,)},
        f"broken: `trainer`: {_SICK_TEXT}, {_TRIED}; {_ENTERED_TEXT}",
    ),
    (
        _RECREATE_FORCED,
        node(**SICK),
        _OURS | {"attempts": _TWICE, "workers": (YES,)},
        f"delete 7 to repair: {_SICK_TEXT}",
    ),
    (_RECREATE, node(**SICK), _OURS | {"attempts": _TWICE, "is_ours": False}, f"broken: `trainer`: {_SICK_TEXT}"),
    # After a repair its effect is awaited, shorter than the first time.
    (
        UP,
        node(**SICK),
        _OURS | {"attempts": _ONCE, "since_repair": _RECHECK - SECOND},
        f"wait 15: {_SICK_TEXT} [restart it in 1]",
    ),
    (UP, node(**SICK), _OURS | {"attempts": _ONCE, "since_repair": _RECHECK}, f"restart: {_SICK_TEXT}"),
    (UP, node(**SICK), _OURS | {"in_state": _RECHECK, "since_repair": _RECHECK}, f"restart: {_SICK_TEXT}"),
]

_SLOW: list[_Row] = [
    (UP, node("STARTING"), {"in_state": _STARTING - SECOND}, "wait 15: it is STARTING [restart it in 1]"),
    (UP, node("STARTING"), {"in_state": _STARTING}, "restart: it has been STARTING for 15m"),
    (UP, node("REPAIRING"), {"in_state": _REPAIRING - SECOND}, "wait 15: it is REPAIRING [restart it in 1]"),
    (UP, node("REPAIRING"), {"in_state": _REPAIRING}, "restart: it has been REPAIRING for 30m"),
    (UP, node("REPAIRING", **_ONGOING), {"in_state": _REPAIRING}, "wait 15: it has been REPAIRING for 30m"),
    (UP, node("RESTARTING"), {"in_state": _STARTING}, "restart: it has been RESTARTING for 15m"),
    (UP, node("STARTING"), {"in_state": _STARTING, "attempts": _TWICE}, "wait 15: it has been STARTING for 15m"),
    (UP, node("STARTING"), {"in_state": _STARTING, "refused_stop": "no"}, "wait 15: it has been STARTING for 15m"),
    (UP, slice_("STARTING"), {"in_state": _STARTING + 9 * SECOND}, "wait 15: it is STARTING"),
    (UP, slice_("STARTING"), {"in_state": _STARTING + _WORKER}, "wait 15: it has been STARTING for 15m10s"),
    (
        _RECREATE,
        slice_("STARTING"),
        {"in_state": _STARTING + _WORKER},
        f"delete 7 to repair: it has been STARTING for 15m10s; {_SLICE_TEXT}",
    ),
    (
        _RECREATE,
        node("STARTING"),
        {"in_state": _STARTING, "refused_stop": "no"},
        "delete 7 to repair: it has been STARTING for 15m; no",
    ),
    (_RECREATE, node("STARTING"), {"in_state": _STARTING, "attempts": _SPENT}, "wait 15: it has been STARTING for 15m"),
    (UP, spot("STARTING"), {"in_state": _STARTING}, "wait 15: it has been STARTING for 15m"),
    (_REBOOT, node("STARTING"), {"in_state": _STARTING}, "wait 15: it has been STARTING for 15m"),
    (WAIT, node("STARTING"), {"in_state": _STARTING}, "wait 15: it has been STARTING for 15m"),
    (UP, node("CREATING"), {"in_state": timedelta(hours=5)}, "wait 15: it is CREATING"),
    (UP, node("STOPPING"), {"in_state": timedelta(hours=5)}, "wait 15: it is STOPPING"),
    # A node that cannot be started again.
    (UP, spot("STOPPED"), {}, f"conflict: `trainer` is STOPPED, and {_SPOT_TEXT}"),
    (UP, queued("STOPPED"), {}, f"conflict: `trainer` is STOPPED, and {_QUEUED_TEXT}"),
    (UP, spot("TERMINATED"), {}, "delete 7: it was preempted: only its record is left"),
]


@pytest.mark.parametrize(("policy", "seen_node", "fields", "expected"), _EVIDENCE + _LADDER + _SLOW)
def test_repair_has_thresholds_budgets_and_limits(
    policy: Policy, seen_node: Node, fields: dict[str, Any], expected: str
) -> None:
    assert decision_for(policy, seen_node, **fields) == expected
