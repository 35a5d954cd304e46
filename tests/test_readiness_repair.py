"""`decide` about a node that is broken or slow: a row for each rule and each boundary."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tpuctl.model import Node
from tpuctl.readiness import (
    Policy,
    Repair,
)

from .readiness_cases import (
    NO_HOST,
    NO_KEY,
    SECOND,
    SICK,
    SILENT,
    UP,
    WAIT,
    YES,
    look,
    node,
    queued,
    slice_,
    spot,
)

_UNSET: dict[str, Any] = {"health": None}
_SICK_FOR = UP.unhealthy_after
_SILENT_FOR = UP.unanswered_after
_SLOW_FOR = UP.slow_after
_OURS: dict[str, Any] = {"is_ours": True, "in_state": _SICK_FOR}
_SICK_TEXT = "it is READY but UNHEALTHY_TENSORFLOW"
_REBOOT, _RECREATE, _NONE = (replace(UP, repair=step) for step in (Repair.REBOOT, Repair.RECREATE, Repair.NONE))
_FORCED = replace(UP, forced=True)
_SPENT: dict[str, Any] = _OURS | {"restarts": 2}
_SLICE_TEXT = "it is a slice of 2 workers, and the service stops single-worker nodes only"
_SPOT_TEXT = "it is a spot node, and those cannot be started again once stopped"
_QUEUED_TEXT = "it belongs to the queued resource `q1`, whose nodes cannot be stopped"
_LATE: dict[str, Any] = {"in_state": _SILENT_FOR, "workers": (SILENT,)}
_NO_ANSWER = "it is READY but its worker does not answer ssh"


@pytest.mark.parametrize(
    ("policy", "seen_node", "fields", "expected"),
    [
        # Health: a defect is acted on from its threshold on, and only on a node of ours or one that nobody can be using.
        (UP, node(**SICK), _OURS | {"in_state": _SICK_FOR - SECOND}, f"wait 15: {_SICK_TEXT}"),
        (UP, node(**SICK), _OURS, f"restart: {_SICK_TEXT}"),
        (UP, node(health="TIMEOUT"), _OURS, "restart: it is READY but TIMEOUT"),
        (UP, node(**SICK), _OURS | {"is_ours": False}, f"broken: `trainer`: {_SICK_TEXT}"),
        (UP, node(**SICK), _OURS | {"is_ours": False, "workers": (YES,)}, f"broken: `trainer`: {_SICK_TEXT}"),
        (UP, node(**SICK), _OURS | {"is_ours": False, "workers": (NO_KEY,)}, f"broken: `trainer`: {_SICK_TEXT}"),
        (UP, node(**SICK), _OURS | {"is_ours": False, "workers": (NO_HOST,)}, f"broken: `trainer`: {_SICK_TEXT}"),
        (UP, node(**SICK), _OURS | {"is_ours": False, "workers": (SILENT,)}, f"restart: {_SICK_TEXT}"),
        (_FORCED, node(**SICK), _OURS | {"is_ours": False, "workers": (YES,)}, f"restart: {_SICK_TEXT}"),
        (WAIT, node(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}"),
        (_NONE, node(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}"),
        # What is no evidence of a defect is only waited for.
        (UP, node(health="UNHEALTHY_MAINTENANCE"), _LATE | {"is_ours": True}, "wait 15: it is READY but UNHEALTHY_MAINTENANCE"),
        (UP, node(health="BRAND_NEW"), _OURS, "wait 15: it is READY but BRAND_NEW"),
        (UP, node(**_UNSET), _OURS, "wait 15: it is READY, its health is not known yet"),
        # Silence.
        (UP, node(), _LATE | {"is_ours": True, "in_state": _SILENT_FOR - SECOND}, "wait 15: its worker does not answer ssh"),
        (UP, node(), _LATE | {"is_ours": True}, f"restart: {_NO_ANSWER}"),
        (UP, node(**_UNSET), _LATE | {"is_ours": True}, f"restart: {_NO_ANSWER}"),
        (UP, node(), _LATE, "wait 15: it is READY, but its worker does not answer ssh"),
        (_FORCED, node(), _LATE, f"restart: {_NO_ANSWER}"),
        (UP, node(), _LATE | {"is_ours": True, "workers": (NO_KEY,)}, "wait 15: its worker refuses the key"),
        (WAIT, node(), _LATE, "wait 15: it is READY, but its worker does not answer ssh"),
        # The ladder: what cannot be restarted is rebooted; what is used up is recreated, where that is allowed.
        (_REBOOT, node(**SICK), _OURS | {"workers": (YES,)}, f"reboot: {_SICK_TEXT}"),
        (_REBOOT, node(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}, a restart is not allowed"),
        (UP, slice_(**SICK), _OURS | {"workers": (YES, SILENT)}, f"reboot: {_SICK_TEXT}; {_SLICE_TEXT}"),
        (UP, slice_(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}, {_SLICE_TEXT}"),
        (UP, spot("READY", **SICK), _OURS | {"workers": (YES,)}, f"reboot: {_SICK_TEXT}; {_SPOT_TEXT}"),
        (UP, queued("READY", **SICK), _OURS | {"workers": (YES,)}, f"reboot: {_SICK_TEXT}; {_QUEUED_TEXT}"),
        (UP, node(**SICK), _OURS | {"refused_stop": "no", "workers": (YES,)}, f"reboot: {_SICK_TEXT}; no"),
        (UP, node(**SICK), _OURS | {"refused_stop": "no"}, f"broken: `trainer`: {_SICK_TEXT}, no"),
        (UP, node(**SICK), _OURS | {"restarts": 1}, f"restart: {_SICK_TEXT}"),
        (UP, node(**SICK), _SPENT, f"broken: `trainer`: {_SICK_TEXT}, still so after 2 restarts"),
        (UP, node(**SICK), _SPENT | {"workers": (YES,)}, f"broken: `trainer`: {_SICK_TEXT}, still so after 2 restarts"),
        (_RECREATE, node(**SICK), _OURS, f"restart: {_SICK_TEXT}"),
        (_RECREATE, node(**SICK), _SPENT, f"delete 7: {_SICK_TEXT}"),
        (_RECREATE, slice_(**SICK), _OURS, f"delete 7: {_SICK_TEXT}"),
        (
            _RECREATE,
            node(**SICK),
            _SPENT | {"recreates": 1},
            f"broken: `trainer`: {_SICK_TEXT}, still so after 2 restarts",
        ),
        (_RECREATE, node(**SICK), _SPENT | {"is_ours": False}, f"broken: `trainer`: {_SICK_TEXT}"),
        # Too long in a passing state.
        (UP, node("STARTING"), {"in_state": _SLOW_FOR - SECOND}, "wait 15: it is STARTING"),
        (UP, node("STARTING"), {"in_state": _SLOW_FOR}, "restart: it has been STARTING for 15m"),
        (UP, node("REPAIRING"), {"in_state": _SLOW_FOR}, "restart: it has been REPAIRING for 15m"),
        (UP, node("RESTARTING"), {"in_state": _SLOW_FOR}, "restart: it has been RESTARTING for 15m"),
        (UP, node("STARTING"), {"in_state": _SLOW_FOR, "restarts": 2}, "wait 15: it has been STARTING for 15m"),
        (UP, node("STARTING"), {"in_state": _SLOW_FOR, "refused_stop": "no"}, "wait 15: it has been STARTING for 15m"),
        (UP, slice_("STARTING"), {"in_state": _SLOW_FOR + 9 * SECOND}, "wait 15: it is STARTING"),
        (UP, slice_("STARTING"), {"in_state": _SLOW_FOR + 10 * SECOND}, "wait 15: it has been STARTING for 15m10s"),
        (UP, spot("STARTING"), {"in_state": _SLOW_FOR}, "wait 15: it has been STARTING for 15m"),
        (_REBOOT, node("STARTING"), {"in_state": _SLOW_FOR}, "wait 15: it has been STARTING for 15m"),
        (WAIT, node("STARTING"), {"in_state": _SLOW_FOR}, "wait 15: it has been STARTING for 15m"),
        (UP, node("CREATING"), {"in_state": timedelta(hours=5)}, "wait 15: it is CREATING"),
        (UP, node("STOPPING"), {"in_state": timedelta(hours=5)}, "wait 15: it is STOPPING"),
        # What cannot be started again.
        (UP, spot("STOPPED"), {}, f"conflict: `trainer` is STOPPED, and {_SPOT_TEXT}"),
        (UP, queued("STOPPED"), {}, f"conflict: `trainer` is STOPPED, and {_QUEUED_TEXT}"),
        (UP, spot("TERMINATED"), {}, "delete 7: it was preempted: only its record is left"),
    ],
)  # fmt: skip
def test_repair_has_thresholds_budgets_and_limits(
    policy: Policy, seen_node: Node, fields: dict[str, Any], expected: str
) -> None:
    assert look(policy, seen_node, **fields) == expected
