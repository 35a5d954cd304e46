"""The rules. Pure: what was seen goes in, one decision comes out; the first rule that matches wins.

They are level-based: they look only at what is there now, so that a run that was killed is continued by the next
one. The failure of an HTTP call is never among the things seen.
"""

from __future__ import annotations

from datetime import timedelta

from tpuctl.clock import format_duration
from tpuctl.errors import BrokenNodeError, ConflictError, NodeNotFoundError
from tpuctl.model import Health, Node, NodeState
from tpuctl.readiness.values import (
    Answer,
    Create,
    Decision,
    Delete,
    GiveUp,
    Goal,
    Policy,
    Reached,
    Reboot,
    Repair,
    Restart,
    Seen,
    Start,
    Verb,
    Wait,
)
from tpuctl.readiness.words import (
    belongs_to_a_request,
    beyond_repair,
    describe_answers,
    described_health,
    health_note,
    timed_out,
    vanished,
    why_not_usable,
)

# States that end by themselves.
PASSING = frozenset(
    {
        NodeState.CREATING,
        NodeState.STARTING,
        NodeState.RESTARTING,
        NodeState.REPAIRING,
        NodeState.REIMAGING,
        NodeState.STOPPING,
        NodeState.DELETING,
        NodeState.HIDING,
        NodeState.UNHIDING,
    }
)
# Passing states in which a stop may be tried when they last too long.
_MAY_BE_STOPPED = frozenset({NodeState.STARTING, NodeState.RESTARTING, NodeState.REPAIRING})
# Health values that are evidence of a defect. UNHEALTHY_MAINTENANCE is not: the service reschedules it by itself.
_DEFECTIVE = frozenset({Health.TIMEOUT, Health.UNHEALTHY_TENSORFLOW})


def decide(policy: Policy, seen: Seen) -> Decision:
    """Return the one thing to do next. The first rule that matches wins."""
    if seen.failure:
        return GiveUp(seen.failure)
    if seen.pending and not _shows(seen.pending, seen.node):
        decision: Decision = _wait(seen, f"{seen.pending} requested")
    else:
        decision = _absent(policy, seen) if seen.node is None else _present(policy, seen, seen.node)
    if isinstance(decision, Wait) and policy.timeout is not None:
        left = policy.timeout - seen.waited
        if left <= timedelta():
            return GiveUp(timed_out(policy, seen))
        return Wait(min(decision.delay, left), decision.reason)
    return decision


def interval(in_state: timedelta) -> timedelta:
    """Return how long to wait before the next look: short after a change, never above 15 seconds."""
    return min(timedelta(seconds=15), max(timedelta(seconds=2), in_state / 10))


def _shows(verb: Verb, node: Node | None) -> bool:
    """Tell whether a change that was requested can be seen in the node, so that its state may be trusted again."""
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


def _absent(policy: Policy, seen: Seen) -> Decision:
    if policy.goal is Goal.GONE:
        return Reached()
    if seen.has_vanished:
        return GiveUp(vanished(seen))
    if policy.may_create:
        return Create("the old one is gone" if seen.was_there or seen.recreates else "there is none yet")
    return GiveUp(NodeNotFoundError(seen.name.node_id, seen.name.zone))


def _present(policy: Policy, seen: Seen, node: Node) -> Decision:
    if policy.goal in {Goal.STOPPED, Goal.GONE}:
        return _winding_down(policy, seen, node)
    if node.state.is_dead:
        return _dead(policy, seen, node)
    if node.state is NodeState.DELETING:
        if policy.may_create:
            return GiveUp(vanished(seen)) if seen.has_vanished else _wait(seen, "it is being deleted")
        return GiveUp(ConflictError(f"`{seen.name.node_id}` is being deleted"))
    if not node.state.is_known:
        return _wait(seen, f"state {node.state} is new to this version of tpuctl")
    if seen.differences and (policy.may_create or policy.replace):
        return _different(policy, seen, node)
    if node.state in {NodeState.HIDDEN, NodeState.UNKNOWN}:
        return GiveUp(beyond_repair(node))
    if node.state is NodeState.STOPPED:
        return _stopped(policy, seen, node)
    if node.state is NodeState.READY:
        return _ready(policy, seen, node)
    if node.state in _MAY_BE_STOPPED and seen.in_state >= _slow_after(policy, node):
        return _slow(policy, seen, node)
    return _wait(seen, f"it is {node.state}")


def _winding_down(policy: Policy, seen: Seen, node: Node) -> Decision:
    if policy.goal is Goal.STOPPED:
        if node.state is NodeState.STOPPED:
            return Reached()
        if node.state.is_dead or node.state is NodeState.DELETING:
            return GiveUp(ConflictError(f"`{seen.name.node_id}` is {node.state} and will not be STOPPED"))
    return _wait(seen, f"it is {node.state}")


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


def _different(policy: Policy, seen: Seen, node: Node) -> Decision:
    if policy.replace and not seen.recreates:
        if node.queued_resource:
            return GiveUp(belongs_to_a_request(node))
        if node.state in {NodeState.CREATING, NodeState.STATE_UNSPECIFIED}:
            return _wait(seen, f"it is {node.state} and will be replaced when that has ended")
        return Delete("it differs: " + "; ".join(map(str, seen.differences)), node.id)
    lines = "".join(f"\n  {difference}" for difference in seen.differences)
    return GiveUp(
        ConflictError(
            f"`{seen.name.node_id}` exists and differs from what is asked for:{lines}",
            hint=f"use it as it is: `tpuctl up {seen.name.node_id}` without these flags; "
            "or delete it and make it anew: add `--replace`",
        )
    )


def _stopped(policy: Policy, seen: Seen, node: Node) -> Decision:
    why_not = node.why_not_startable()
    if not policy.may_start:
        hint = f"start it: `tpuctl start {seen.name.node_id}`"
        return GiveUp(ConflictError(f"`{seen.name.node_id}` is STOPPED and does not start by itself", hint=hint))
    if why_not:
        hint = f"make it anew: `tpuctl reset {seen.name.node_id} --mode recreate`"
        return GiveUp(ConflictError(f"`{seen.name.node_id}` is STOPPED, and {why_not}", hint=hint))
    return Start("it is STOPPED")


def _ready(policy: Policy, seen: Seen, node: Node) -> Decision:
    if policy.goal is Goal.READY:
        return Reached(health_note(node))
    all_answer = bool(seen.answers) and all(answer is Answer.YES for answer in seen.answers)
    is_healthy = node.health is Health.HEALTHY and len(node.endpoints) >= node.workers
    # An unset health is normal for a while; it counts once every worker answers.
    if all_answer and (is_healthy or node.health is Health.HEALTH_UNSPECIFIED):
        return Reached(health_note(node))
    if is_healthy and policy.goal is Goal.HEALTHY:
        return Reached()
    if node.health in _DEFECTIVE and seen.in_state >= policy.unhealthy_after:
        return _repair(policy, seen, node, f"it is READY but {described_health(node)}")
    if _is_silent(seen) and not node.health.value.startswith("UNHEALTHY") and seen.in_state >= policy.unanswered_after:
        if seen.is_ours or policy.forced:
            return _repair(policy, seen, node, f"it is READY but {describe_answers(seen.answers)}")
        return _wait(seen, f"it is READY, but {describe_answers(seen.answers)}")
    return _wait(seen, why_not_usable(seen, node))


def _repair(policy: Policy, seen: Seen, node: Node, reason: str) -> Decision:
    """Return the lowest rung of the ladder that is allowed, possible and not used up."""
    name = seen.name.node_id
    if policy.repair is Repair.NONE:
        hint = f"`tpuctl reset {name}` restarts it"
        return GiveUp(BrokenNodeError(f"`{name}`: {reason}", hint=hint))
    # A worker that refuses us is alive all the same, and may be working for somebody else.
    is_alive = not seen.answers or any(answer is not Answer.UNREACHABLE for answer in seen.answers)
    if is_alive and not seen.is_ours and not policy.forced:
        hint = f"it may be in use and was left alone; `tpuctl reset {name}` restarts it, `tpuctl up {name} --yes` repairs it"
        return GiveUp(BrokenNodeError(f"`{name}`: {reason}", hint=hint))
    why_not = node.why_not_restartable() or seen.refused_stop
    if seen.restarts < policy.max_restarts:
        if not why_not and policy.repair.allows(Repair.RESTART):
            return Restart(reason)
        if Answer.YES in seen.answers:
            return Reboot(reason + (f"; {why_not}" if why_not else ""))
    may_recreate = policy.repair.allows(Repair.RECREATE) and policy.may_create and not node.queued_resource
    # A worker that can be entered may hold what somebody wants to keep.
    may_recreate = may_recreate and (policy.forced or Answer.YES not in seen.answers)
    if may_recreate and seen.recreates < policy.max_recreates:
        return Delete(reason, node.id)
    tried = (
        f"still so after {seen.restarts} restart{'s' * (seen.restarts > 1)}"
        if seen.restarts
        else why_not or "a restart is not allowed"
    )
    hint = f"`tpuctl reset {name} --mode recreate` deletes it and makes it anew (its boot disk is lost)"
    return GiveUp(BrokenNodeError(f"`{name}`: {reason}, {tried}", hint=hint))


def _slow(policy: Policy, seen: Seen, node: Node) -> Decision:
    reason = f"it has been {node.state} for {format_duration(seen.in_state)}"
    may_restart = policy.repair.allows(Repair.RESTART) and seen.restarts < policy.max_restarts
    if not may_restart or node.why_not_restartable() or seen.refused_stop:
        return _wait(seen, reason)
    return Restart(reason)


def _wait(seen: Seen, reason: str) -> Wait:
    return Wait(interval(seen.in_state), reason)


def _slow_after(policy: Policy, node: Node) -> timedelta:
    return policy.slow_after + policy.slow_per_worker * (node.workers - 1)


def _is_silent(seen: Seen) -> bool:
    return any(answer is Answer.UNREACHABLE for answer in seen.answers)
