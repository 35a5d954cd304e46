"""`decide` after failed changes, and during an API outage."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.nodes.readiness_cases import AT_NOW, NAME, SECOND, UP, WAIT, YES, decision_for, node
from tpuctl.errors import (
    AccessError,
    ConflictError,
    InvalidRequestError,
    NoCapacityError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    TpuctlError,
)
from tpuctl.models.node import Node
from tpuctl.nodes.conditions import ApiOutage, Condition, Fail, FailedChange, ObservedState, Policy, Verb
from tpuctl.nodes.decide import decide

_FULL, _QUOTA, _FAULT = NoCapacityError("no room"), QuotaError("no quota"), TpuctlError("internal error")
_ADVICE = (
    "the service often reports this when it has no capacity for that size: try other zones (`--zone any`), "
    "other tiers (`--tier spot,on-demand`) or a smaller size"
)
_UNANSWERED = "the API has not answered for 40s (no route); it is unknown whether `trainer` is usable by ssh"
_PATIENT = replace(UP, retries_without_capacity=True)


def failed(
    error: TpuctlError, seconds: float = 0, times: int = 1, verb: Verb = Verb.CREATE, **more: Any
) -> FailedChange:
    return FailedChange(verb, error, -timedelta(seconds=seconds), times, **more)


@pytest.mark.parametrize(
    ("policy", "seen_node", "failure", "expected"),
    [
        # A permanent refusal ends the run, even a patient one.
        (_PATIENT, None, failed(AccessError("no")), "not_allowed: no"),
        (_PATIENT, None, failed(InvalidRequestError("no")), "invalid_request: no"),
        (_PATIENT, None, failed(ConflictError("no")), "conflict: no"),
        (_PATIENT, None, failed(NotFoundError("no network")), "not_found: no network"),
        # No capacity or quota: ends the run, or is retried with pauses that double up to the longest.
        (UP, None, failed(_FULL, 9999), "no_capacity: no room"),
        (UP, None, failed(_QUOTA, 9999), "quota: no quota"),
        (_PATIENT, None, failed(_FULL), "wait 2: create failed: no room [create it in 60]"),
        (_PATIENT, None, failed(_FULL, 59), "wait 1: create failed: no room [create it in 1]"),
        (_PATIENT, None, failed(_FULL, 60), "create: there is none yet"),
        (_PATIENT, None, failed(_QUOTA, 60, 3), "wait 2: create failed: no quota [create it in 180]"),
        (_PATIENT, None, failed(_FULL, 899, 99), "wait 1: create failed: no room [create it in 1]"),
        (_PATIENT, None, failed(_FULL, 900, 99), "create: there is none yet"),
        (UP, node("STOPPED"), failed(_FULL, verb=Verb.START), "no_capacity: no room"),
        # It may still become READY.
        (UP, node("STARTING"), failed(_FULL, verb=Verb.START), "wait 2: it is STARTING [restart it in 900]"),
        (
            _PATIENT,
            node("STOPPED"),
            failed(_FULL, 1, verb=Verb.START),
            "wait 2: start failed: no room [start it in 59]",
        ),
        (_PATIENT, node("STOPPED"), failed(_FULL, 60, verb=Verb.START), "start: it is STOPPED"),
        # An internal error of the service: two retries.
        (UP, None, failed(_FAULT, 29), "wait 1: create failed: internal error [create it in 1]"),
        (UP, None, failed(_FAULT, 30), "create: there is none yet"),
        (UP, None, failed(_FAULT, 59, 2), "wait 1: create failed: internal error [create it in 1]"),
        (UP, None, failed(_FAULT, 60, 2), "create: there is none yet"),
        (UP, None, failed(_FAULT, 9999, 3), "failure: internal error"),
        (
            UP,
            node("PREEMPTED"),
            failed(_FAULT, 30, verb=Verb.DELETE),
            "delete 7: it was preempted: only its record is left",
        ),
        # A policy without the permission to retry ends with the error.
        (WAIT, None, failed(_FAULT), "failure: internal error"),
        (replace(UP, goal=Condition.GONE), node(), failed(_FAULT, verb=Verb.DELETE), "failure: internal error"),
        # The record that a failed creation left is deleted first, and no other.
        (UP, node("CREATING"), failed(_FAULT, node_id="7"), "delete 7: its creation failed: internal error"),
        (UP, node("CREATING"), failed(_FAULT, 30, node_id="6"), "wait 2: it is CREATING"),
        (UP, node("CREATING"), failed(_FAULT, 30), "wait 2: it is CREATING"),
        (UP, node("CREATING"), failed(_FULL, node_id="7"), "no_capacity: no room"),
        # A READY node counts more than the error.
        (UP, node(), failed(_FULL), "reached"),
        (UP, None, failed(_FAULT, 0, 9, Verb.DELETE), "create: there is none yet"),
    ],
)
def test_failed_change_is_retried_by_its_kind(
    policy: Policy, seen_node: Node | None, failure: FailedChange, expected: str
) -> None:
    assert decision_for(policy, seen_node, failure=failure, workers=(YES,)) == expected


def test_repeated_internal_error_has_advice() -> None:
    error = ServiceUnavailableError("internal error", hint="id 13")
    decision = decide(UP, ObservedState(name=NAME, node=None, failure=failed(error, times=3)), AT_NOW)

    assert isinstance(decision, Fail)
    assert (type(decision.error), decision.error.message, decision.error.hint) == (
        ServiceUnavailableError,
        "internal error",
        f"id 13\ntried 3 times; {_ADVICE}",
    )
    assert error.hint == "id 13"


@pytest.mark.parametrize(
    ("policy", "times", "left", "expected"),
    [
        (UP, 1, 900, "wait 2: API not answering for 40s"),
        (UP, 3, 900, "wait 4.5: API not answering for 40s"),
        (UP, 99, 900, "wait 15: API not answering for 40s"),
        (UP, 99, 1, "wait 1: API not answering for 40s"),
        (replace(UP, timeout=None), 99, 0, "wait 15: API not answering for 40s"),
        (
            UP,
            1,
            0,
            f"timed_out: {_UNANSWERED}; its last known state is PREEMPTED",
        ),
    ],
)
def test_outage_only_waits_until_the_deadline(policy: Policy, times: int, left: int, expected: str) -> None:
    silence = ApiOutage(-timedelta(seconds=40), times, ServiceUnavailableError("no route"))
    waited = timedelta(minutes=30) - left * SECOND

    seen = {"outage": silence, "waited": waited, "failure": failed(_FAULT, times=9), "pending": Verb.CREATE}
    assert decision_for(policy, node("PREEMPTED"), **seen) == expected
