"""Decide the next action for a node. Pure: the observed state goes in, one decision comes out.

The rules are level-based: they depend only on the current state, so that the next run can continue one that was killed.
A failed HTTP call is never evidence about a node.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.clock import format_duration
from tpuctl.errors import ConflictError, NodeNotFoundError
from tpuctl.model import Node, NodeState
from tpuctl.readiness.decisions import Create, Decision, Delete, GiveUp, Next, Reached, Start, Wait
from tpuctl.readiness.defects import defect, lasted
from tpuctl.readiness.endings import (
    belongs_to_a_request,
    beyond_repair,
    taken_back,
    timed_out,
    unanswered,
    vanished,
)
from tpuctl.readiness.failures import after_failure
from tpuctl.readiness.ladder import describe_act, mend, mend_slow, slow_after
from tpuctl.readiness.levels import missing_level
from tpuctl.readiness.pacing import delay
from tpuctl.readiness.values import Goal, Policy, Seen, Verb
from tpuctl.readiness.words import usable_note, why_not_usable

if TYPE_CHECKING:
    from datetime import datetime


def decide(policy: Policy, seen: Seen, now: datetime) -> Decision:
    """Return the next action. The first rule that matches wins.

    `now` is the service's time. After the deadline the rules neither wait nor begin a change.
    """
    left = None if policy.timeout is None else policy.timeout - seen.waited
    is_over = left is not None and left <= timedelta()
    if seen.outage:
        if is_over:
            return GiveUp(unanswered(policy, seen, seen.outage))
        pause = delay(seen) if left is None else min(delay(seen), left)
        return Wait(pause, f"API not answering for {format_duration(seen.outage.lasts)}")
    decision = _decide(policy, seen, now)
    if isinstance(decision, Reached | GiveUp):
        return decision
    if is_over:
        return GiveUp(timed_out(policy, seen, decision))
    if seen.held_by and not isinstance(decision, Wait):
        decision = _wait_for_holder(seen)
    if isinstance(decision, Wait) and left is not None:
        return Wait(min(decision.delay, left), decision.reason, decision.next)
    return decision


def _decide(policy: Policy, seen: Seen, now: datetime) -> Decision:
    if seen.failure and (decision := after_failure(policy, seen, seen.failure)):
        return decision
    if seen.pending and not shows(seen.pending, seen.node):
        return _wait(seen, f"{seen.pending} requested")
    if not policy.goal.is_usable:
        return _winding_down(policy, seen)
    return _absent(policy, seen) if seen.node is None else _present(policy, seen, seen.node, now)


def shows(verb: Verb, node: Node | None) -> bool:
    """Return whether the node shows a requested change, so that its state can be trusted again."""
    match verb:
        case Verb.CREATE:
            return node is not None
        case Verb.DELETE:
            return node is None
        case Verb.STOP:
            return node is None or node.state is NodeState.STOPPED
        case Verb.START:
            return node is None or node.state is not NodeState.STOPPED
        case Verb.REBOOT | Verb.UPDATE | Verb.WAIT:
            return True
        case _:
            assert_never(verb)


def _winding_down(policy: Policy, seen: Seen) -> Decision:
    """Decide for the goals STOPPED, GONE and PREEMPTED: this run only waits until a change shows."""
    node, goal = seen.node, policy.goal
    if node is None:
        if goal is Goal.GONE or (goal is Goal.PREEMPTED and _was_taken_back(seen)):
            return Reached(goal)
        return GiveUp(vanished(seen) if seen.has_vanished else NodeNotFoundError(seen.name.node_id, seen.name.zone))
    if goal is Goal.STOPPED and node.state is NodeState.STOPPED:
        return Reached(goal)
    if goal is Goal.STOPPED and seen.has_vanished:
        return GiveUp(vanished(seen))
    if goal is Goal.PREEMPTED and (node.is_preempted or _was_taken_back(seen)):
        return Reached(goal)
    cannot = {
        Goal.STOPPED: node.state.is_dead or node.state is NodeState.DELETING,
        Goal.PREEMPTED: node.state is NodeState.TERMINATED,
    }
    if cannot.get(goal):
        return GiveUp(ConflictError(f"`{seen.name.node_id}` is {node.state} and will not be {goal.upper()}"))
    return _wait(seen, f"it is {node.state}")


def _absent(policy: Policy, seen: Seen) -> Decision:
    """Decide about a node that does not exist."""
    if _was_taken_back(seen):
        return GiveUp(taken_back(seen))
    if seen.held_by:
        # A holder that recreates the node deletes it first.
        return _wait_for_holder(seen)
    if seen.has_vanished and not (policy.may_create and policy.recreate_deleted):
        return GiveUp(vanished(seen))
    if seen.has_vanished:
        return Create("another client deleted it")
    if policy.may_create:
        return Create("the old one is gone" if seen.was_there or seen.tried.recreates else "there is none yet")
    return GiveUp(NodeNotFoundError(seen.name.node_id, seen.name.zone))


def _was_taken_back(seen: Seen) -> bool:
    return seen.request is not None and seen.request.was_suspended_by_service


def _present(policy: Policy, seen: Seen, node: Node, now: datetime) -> Decision:
    """Decide about a node that exists, by its state."""
    if node.state.is_dead:
        return _dead(policy, seen, node)
    if node.state is NodeState.DELETING:
        return _deleting(policy, seen)
    if not node.state.is_known:
        return _wait(seen, f"state {node.state} is new to this version of tpuctl")
    if seen.differences and (policy.may_create or policy.replace):
        return _different(policy, seen, node)
    if node.state in {NodeState.HIDDEN, NodeState.UNKNOWN}:
        return GiveUp(beyond_repair(node))
    if node.state is NodeState.STOPPED:
        return _stopped(policy, seen, node)
    if node.state is NodeState.READY:
        return _ready(policy, seen, node, now)
    threshold = slow_after(policy, node)
    if threshold is None:
        return _wait(seen, f"it is {node.state}")
    return mend_slow(policy, seen, node, threshold, now)


def _dead(policy: Policy, seen: Seen, node: Node) -> Decision:
    if policy.may_create:
        if node.queued_resource:
            return GiveUp(belongs_to_a_request(node))
        word = "was preempted" if node.is_preempted else f"is {node.state}"
        return Delete(f"it {word}: only its record is left", node.id)
    return GiveUp(
        ConflictError(
            f"`{seen.name.node_id}` is {node.state} and cannot be used again",
            hint=f"`tpuctl up {seen.name.node_id}` deletes the record and creates it again",
        )
    )


def _deleting(policy: Policy, seen: Seen) -> Decision:
    if _was_taken_back(seen):
        return GiveUp(taken_back(seen))
    if seen.held_by:
        return _wait_for_holder(seen)
    if seen.has_vanished and not (policy.may_create and policy.recreate_deleted):
        return GiveUp(vanished(seen))
    if policy.may_create:
        return _wait(seen, "it is being deleted")
    return GiveUp(ConflictError(f"`{seen.name.node_id}` is being deleted"))


def _different(policy: Policy, seen: Seen, node: Node) -> Decision:
    if policy.replace and not seen.tried.recreates:
        if node.queued_resource:
            return GiveUp(belongs_to_a_request(node))
        if node.state in {NodeState.CREATING, NodeState.STATE_UNSPECIFIED}:
            return _wait(seen, f"it is {node.state} and will be replaced when that has ended")
        # Counts as a repair, so that a node that differs again is not replaced forever.
        return Delete("it differs: " + "; ".join(map(str, seen.differences)), node.id, is_repair=True)
    return GiveUp(
        ConflictError(
            f"`{seen.name.node_id}` exists and differs from the requested spec:",
            details=[f"  {difference}" for difference in seen.differences],
            hint="to use it unchanged, leave out the options that differ; to delete and recreate it, add `--replace`",
        )
    )


def _stopped(policy: Policy, seen: Seen, node: Node) -> Decision:
    name, why_not = seen.name.node_id, node.why_not_startable()
    if not policy.may_start:
        hint = f"start it with `tpuctl start {name}`"
        return GiveUp(ConflictError(f"`{name}` is STOPPED and does not start by itself", hint=hint))
    if why_not:
        hint = f"recreate it with `tpuctl reset {name} --mode recreate`"
        return GiveUp(ConflictError(f"`{name}` is STOPPED, and {why_not}", hint=hint))
    return Start("it is STOPPED")


def _ready(policy: Policy, seen: Seen, node: Node, now: datetime) -> Decision:
    if missing_level(policy, seen, node) is None:
        return Reached(policy.goal, usable_note(policy, seen, node))
    found = None if policy.goal is Goal.READY or policy.only_looks else defect(policy, seen, node, now)
    why = why_not_usable(policy, seen, node)
    if found is None:
        return _wait(seen, why)
    act = mend(policy, seen, node, found)
    left = found.threshold - lasted(seen)
    if left > timedelta():
        return Wait(delay(seen), why, Next(describe_act(act), left))
    if seen.held_by and isinstance(act, GiveUp):
        return _wait_for_holder(seen)
    return act


def _wait(seen: Seen, reason: str) -> Wait:
    return Wait(delay(seen), reason)


def _wait_for_holder(seen: Seen) -> Wait:
    return _wait(seen, f"it is being repaired by {seen.held_by}")
