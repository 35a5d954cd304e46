"""Decide about a change that the service accepted and then did not carry out. Pure."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import (
    AccessError,
    ConflictError,
    InvalidInputError,
    InvalidRequestError,
    NoCapacityError,
    NotFoundError,
    QuotaError,
)
from tpuctl.model import NodeState
from tpuctl.readiness.decisions import Decision, Delete, GiveUp, Next, Wait
from tpuctl.readiness.pacing import delay
from tpuctl.readiness.values import Failure, Verb

if TYPE_CHECKING:
    from tpuctl.errors import TpuctlError
    from tpuctl.readiness.values import Policy, Seen

# A retry cannot succeed.
_FINAL = (AccessError, InvalidRequestError, InvalidInputError, ConflictError, NotFoundError)
_SCARCE = (NoCapacityError, QuotaError)
_AGAIN = {Verb.CREATE: "create it", Verb.START: "start it", Verb.DELETE: "delete it"}


def after_failure(policy: Policy, seen: Seen, failure: Failure) -> Decision | None:
    """Return the action after a failed change. None if the current state decides instead."""
    node = seen.node
    if failure.verb is Verb.DELETE:
        is_overtaken = node is None
    else:
        is_ready = node is not None and node.state is NodeState.READY
        is_overtaken = is_ready or (isinstance(failure.error, NotFoundError) and seen.has_vanished)
    if is_overtaken:
        return None
    error, is_scarce = failure.error, isinstance(failure.error, _SCARCE)
    may_repeat = policy.may_start if failure.verb is Verb.START else policy.may_create
    may_repeat = may_repeat and policy.goal.is_usable and failure.verb in _AGAIN
    if isinstance(error, _FINAL) or not may_repeat or (is_scarce and not policy.is_patient):
        return GiveUp(error)
    if not is_scarce and failure.times > policy.internal_retries:
        return GiveUp(_with_advice(error, failure))
    if failure.verb is Verb.CREATE and node and node.state is NodeState.CREATING and node.id == failure.node_id != "":
        # The record of a failed creation stays and holds the name [observed: terraform-provider-google#16147].
        return Delete(f"its creation failed: {error.message}", node.id)
    pause = min(policy.backoff if is_scarce else policy.backoff / 2, policy.longest_backoff)
    for _ in range(failure.times - 1):
        if not timedelta() < pause < policy.longest_backoff:
            break
        pause = min(policy.longest_backoff, pause * 2)
    left = pause - failure.ago
    if left <= timedelta():
        return None
    return Wait(min(left, delay(seen)), f"{failure.verb} failed: {error.message}", Next(_AGAIN[failure.verb], left))


def _with_advice(error: TpuctlError, failure: Failure) -> TpuctlError:
    """Return an internal error with its usual cause in the hint [observed: code 13 without capacity]."""
    tried = f"tried {failure.times} times; " if failure.times > 1 else ""
    advice = (
        f"{tried}the service often reports this when it has no capacity for that size: try another zone, a smaller size, "
        "or another tier"
    )
    advised = copy.copy(error)
    advised.hint = f"{error.hint}\n{advice}" if error.hint else advice
    return advised
