"""Decide the next action for a node. Pure: the observed state goes in, one decision comes out.

The rules are level-based: they depend only on the current state, so that the next run can continue one that was killed.
A failed HTTP call is never evidence about a node.
"""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.command_text import fill_text
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import (
    AccessError,
    BrokenNodeError,
    ConflictError,
    FailedStartupError,
    InvalidInputError,
    InvalidRequestError,
    NoCapacityError,
    NodeNotFoundError,
    NotFoundError,
    QuotaError,
    TimedOutError,
)
from tpuctl.models.node import Health, Node, NodeState, QueuedState
from tpuctl.models.spec import SHORTEST_QUEUE
from tpuctl.names import last_segment
from tpuctl.nodes.conditions import (
    Change,
    Condition,
    Create,
    Decision,
    Delete,
    DeleteRequest,
    Done,
    Fail,
    FailedChange,
    NextStep,
    ObservedState,
    Policy,
    Repair,
    Requeue,
    Restart,
    Start,
    Verb,
    describe_failed_scripts,
    explain_not_usable,
    failed_scripts,
    first_missing_condition,
    ssh_advice,
    usable_note,
)
from tpuctl.nodes.polling import poll_delay
from tpuctl.nodes.queueing import RequestExpiredError, decide_request, may_clean_up
from tpuctl.nodes.repair import (
    defect_age,
    describe_repair,
    find_defect,
    plan_repair,
    plan_slow_state_repair,
    slow_after,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.models.spec import SpecDifference
    from tpuctl.names import NodeName
    from tpuctl.nodes.conditions import ApiOutage, Now


def decide(policy: Policy, seen: ObservedState, now: Now) -> Decision:
    """Return the next action. The first rule that matches wins.

    After the deadline the rules neither wait nor begin a change.
    """
    left = seen.time_left(policy, now)
    is_over = left is not None and left <= timedelta()
    if seen.outage:
        if is_over:
            return Fail(outage_error(policy, seen, seen.outage, now))
        pause = poll_delay(seen, now) if left is None else min(poll_delay(seen, now), left)
        return Requeue(pause, f"API not answering for {format_duration(now.at - seen.outage.since)}")
    decision = _decide_by_state(policy, seen, now)
    if isinstance(decision, Done | Fail):
        return decision
    if left is not None and is_over:
        if isinstance(decision, Requeue | DeleteRequest) and may_clean_up(policy, seen, left, now):
            return decision
        return Fail(timeout_error(policy, seen, decision, now))
    if seen.held_by and not isinstance(decision, Requeue):
        decision = _wait_for_holder(seen, now)
    elif seen.held_by and isinstance(decision, Requeue) and decision.next is not None:
        # The next step is that of the holder.
        decision = Requeue(decision.delay, f"{decision.reason}; {seen.held_by} may repair it")
    if isinstance(decision, Requeue) and left is not None:
        return Requeue(min(decision.delay, left), decision.reason, decision.next)
    return decision


def _decide_by_state(policy: Policy, seen: ObservedState, now: Now) -> Decision:
    if seen.pending and seen.is_request_pending:
        return _wait(seen, now, f"{seen.pending} of its queued resource requested")
    # The record of a dead request is deleted before its failure ends the run.
    asks = seen.is_queued and policy.goal.is_usable
    if asks and seen.request is not None and (decision := decide_request(policy, seen, seen.request, now)):
        return decision
    if seen.failure and (decision := decide_after_failure(policy, seen, seen.failure, now)):
        return decision
    if seen.pending and not change_is_visible(seen.pending, seen.node):
        return _wait(seen, now, f"{seen.pending} requested")
    if not policy.goal.is_usable:
        return _decide_unusable_goal(policy, seen, now)
    if seen.node is None or seen.node.state is NodeState.DELETING:
        return _decide_gone(policy, seen, now)
    return _decide_present(policy, seen, seen.node, now)


def change_is_visible(verb: Verb, node: Node | None) -> bool:
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


def _decide_unusable_goal(policy: Policy, seen: ObservedState, now: Now) -> Decision:
    """Decide for the goals STOPPED, GONE and PREEMPTED: this run only waits until a change shows."""
    node, goal = seen.node, policy.goal
    if node is None:
        if goal is Condition.GONE or (goal is Condition.PREEMPTED and _is_suspended_by_service(seen)):
            return Done(goal)
        return Fail(vanished_error(seen) if seen.has_vanished else NodeNotFoundError(seen.name.node_id, seen.name.zone))
    if goal is Condition.STOPPED and node.state is NodeState.STOPPED:
        return Done(goal)
    if goal is Condition.STOPPED and seen.has_vanished:
        return Fail(vanished_error(seen))
    if goal is Condition.PREEMPTED and (node.is_preempted or _is_suspended_by_service(seen)):
        return Done(goal)
    cannot = {
        Condition.STOPPED: node.state.is_dead or node.state is NodeState.DELETING,
        Condition.PREEMPTED: node.state is NodeState.TERMINATED,
    }
    if cannot.get(goal):
        return Fail(ConflictError(f"`{seen.name.node_id}` is {node.state} and will not be {goal.upper()}"))
    return _wait(seen, now, f"it is {node.state}")


def _decide_gone(policy: Policy, seen: ObservedState, now: Now) -> Decision:
    """Decide about a node that does not exist or is being deleted."""
    if _is_suspended_by_service(seen) and not (seen.is_queued and policy.may_create):
        return Fail(preempted_error(seen))
    if seen.held_by:
        # A holder that recreates the node deletes it first.
        return _wait_for_holder(seen, now)
    if seen.has_vanished and not (policy.may_create and policy.recreate_deleted):
        return Fail(vanished_error(seen))
    if seen.node is None and seen.is_follower and policy.may_create:
        return _wait(seen, now, f"it is requested with `{seen.slices[0].node_id}`")
    if seen.node is not None:
        if policy.may_create:
            return _wait(seen, now, "it is being deleted")
        return Fail(ConflictError(f"`{seen.name.node_id}` is being deleted"))
    if seen.has_vanished:
        return Create("another client deleted it")
    if policy.may_create:
        return Create("the old one is gone" if seen.was_there or seen.attempts.recreates else "there is none yet")
    return Fail(NodeNotFoundError(seen.name.node_id, seen.name.zone))


def _is_suspended_by_service(seen: ObservedState) -> bool:
    return seen.request is not None and seen.request.was_suspended_by_service


def _decide_present(policy: Policy, seen: ObservedState, node: Node, now: Now) -> Decision:
    """Decide about a node that exists, by its state."""
    if node.state.is_dead:
        return _decide_dead(policy, seen, node, now)
    if not node.state.is_known:
        return _wait(seen, now, f"state {node.state} is new to this version of tpuctl")
    if seen.differences and (policy.may_create or policy.replace):
        return _decide_different(policy, seen, node, now)
    if node.state in {NodeState.HIDDEN, NodeState.UNKNOWN}:
        return Fail(broken_node_error(node))
    if node.state is NodeState.STOPPED:
        return _decide_stopped(policy, seen, node)
    if node.state is NodeState.READY:
        return _decide_ready(policy, seen, node, now)
    threshold = slow_after(policy, node)
    if threshold is None:
        return _wait(seen, now, f"it is {node.state}")
    return plan_slow_state_repair(policy, seen, node, threshold, now)


def _decide_dead(policy: Policy, seen: ObservedState, node: Node, now: Now) -> Decision:
    if policy.may_create:
        if node.queued_resource and seen.is_queued:
            return _wait(seen, now, f"it is {node.state}, its queued resource does not show it yet")
        if node.queued_resource:
            return Fail(queued_resource_error(node))
        word = "was preempted" if node.is_preempted else f"is {node.state}"
        return Delete(f"it {word}: only its record is left", node.id)
    return Fail(
        ConflictError(
            f"`{seen.name.node_id}` is {node.state} and cannot be used again",
            hint=f"`tpuctl up {seen.name.node_id}` deletes the record and creates it again",
        )
    )


def _decide_different(policy: Policy, seen: ObservedState, node: Node, now: Now) -> Decision:
    if policy.replace and not seen.attempts.recreates:
        if node.queued_resource:
            return Fail(queued_resource_error(node))
        if node.state in {NodeState.CREATING, NodeState.STATE_UNSPECIFIED}:
            return _wait(seen, now, f"it is {node.state} and will be replaced when that has ended")
        # Counts as a repair, so that a node that differs again is not replaced forever.
        return Delete("it differs: " + "; ".join(map(str, seen.differences)), node.id, is_repair=True)
    return Fail(different_node_error(seen.name, seen.differences))


def different_node_error(name: NodeName, differences: Sequence[SpecDifference]) -> ConflictError:
    """Return the error for a node that exists and is not as it was requested."""
    return ConflictError(
        f"`{name.node_id}` exists and differs from the requested spec:",
        details=[f"  {difference}" for difference in differences],
        hint="to use it unchanged, leave out the options that differ; to delete and recreate it, add `--replace`",
    )


def _decide_stopped(policy: Policy, seen: ObservedState, node: Node) -> Decision:
    name, why_not = seen.name.node_id, node.why_not_startable()
    if not policy.may_start:
        hint = f"start it with `tpuctl start {name}`"
        return Fail(ConflictError(f"`{name}` is STOPPED and does not start by itself", hint=hint))
    if why_not:
        hint = f"recreate it with `tpuctl reset {name} --mode recreate` (its boot disk is lost)"
        return Fail(ConflictError(f"`{name}` is STOPPED, and {why_not}", hint=hint))
    return Start("it is STOPPED")


def _decide_ready(policy: Policy, seen: ObservedState, node: Node, now: Now) -> Decision:
    if first_missing_condition(policy, seen, node) is None:
        if policy.refuses_failed_startup and policy.goal.includes(Condition.STARTUP) and failed_scripts(seen.workers):
            return Fail(failed_startup_error(seen))
        return Done(policy.goal, usable_note(policy, seen, node))
    found = None if policy.goal is Condition.READY or policy.is_read_only else find_defect(policy, seen, node, now)
    why = explain_not_usable(policy, seen, node)
    if found is None and policy.repair is Repair.RECREATE and _is_in_maintenance(node):
        return _wait(seen, now, f"{why}; {_maintenance_advice(node)}")
    if found is None:
        return _wait(seen, now, why)
    act = plan_repair(policy, seen, node, found)
    left = found.threshold - defect_age(seen, now)
    if left > timedelta():
        return Requeue(poll_delay(seen, now), why, NextStep(describe_repair(act), left))
    if seen.held_by and isinstance(act, Fail):
        return _wait_for_holder(seen, now)
    return act


def _is_in_maintenance(node: Node) -> bool:
    """Return whether the service works on a READY node."""
    announced = node.upcoming_maintenance
    is_ongoing = node.health is Health.UNHEALTHY_MAINTENANCE or (
        announced is not None and announced.status == "ONGOING"
    )
    return node.state is NodeState.READY and is_ongoing


def _maintenance_advice(node: Node) -> str:
    again = f"`tpuctl reset {node.name.node_id} --mode recreate`"
    return f"the service ends maintenance, repair does not: {again} recreates it now, its boot disk is lost"


def _wait(seen: ObservedState, now: Now, reason: str) -> Requeue:
    return Requeue(poll_delay(seen, now), reason)


def _wait_for_holder(seen: ObservedState, now: Now) -> Requeue:
    return _wait(seen, now, f"it is being repaired by {seen.held_by}")


# A retry cannot succeed.
_FINAL_FAILURES = (AccessError, InvalidRequestError, InvalidInputError, ConflictError, NotFoundError)
_CAPACITY_FAILURES = (NoCapacityError, QuotaError, RequestExpiredError)
_RETRY_PAUSE = {Verb.CREATE: "create it", Verb.START: "start it", Verb.DELETE: "delete it"}


def decide_after_failure(policy: Policy, seen: ObservedState, failure: FailedChange, now: Now) -> Decision | None:
    """Return the action after a change that the service accepted and did not carry out; None if the current state decides."""
    node = seen.node
    if failure.verb is Verb.DELETE:
        is_overtaken = node is None
    else:
        # One that still shows STARTING may become READY: until it is STOPPED again, its state decides.
        goes_on = (NodeState.READY, NodeState.STARTING) if failure.verb is Verb.START else (NodeState.READY,)
        is_ready = node is not None and node.state in goes_on
        is_overtaken = is_ready or (isinstance(failure.error, NotFoundError) and seen.has_vanished)
    if is_overtaken:
        return None
    error, is_scarce = failure.error, isinstance(failure.error, _CAPACITY_FAILURES)
    may_repeat = policy.may_start if failure.verb is Verb.START else policy.may_create
    may_repeat = may_repeat and policy.goal.is_usable and failure.verb in _RETRY_PAUSE
    # The record of a failed creation stays and holds the name [observed: terraform-provider-google#16147].
    is_record_left = (
        failure.verb is Verb.CREATE
        and node is not None
        and node.state is NodeState.CREATING
        and node.id == failure.node_id != ""
    )
    if node and is_record_left and policy.leaves_no_record:
        return Delete(f"its creation failed: {error.message}", node.id)
    if may_repeat and isinstance(error, RequestExpiredError) and _outlasts_its_request(policy, seen, now):
        return None
    retries = policy.retries_without_capacity and not error.is_lasting
    if isinstance(error, _FINAL_FAILURES) or not may_repeat or (is_scarce and not retries):
        return Fail(error)
    if not is_scarce and failure.times > policy.internal_retries:
        # The hint names the usual cause of an internal error [observed: code 13 without capacity].
        tried = f"tried {failure.times} times; " if failure.times > 1 else ""
        advice = (
            f"{tried}the service often reports this when it has no capacity for that size: try other zones (`--zone any`), "
            "other tiers (`--tier spot,on-demand`) or a smaller size"
        )
        advised = copy.copy(error)
        advised.hint = f"{error.hint}\n{advice}" if error.hint else advice
        return Fail(advised)
    if node and is_record_left:
        return Delete(f"its creation failed: {error.message}", node.id)
    pause = min(policy.backoff if is_scarce else policy.backoff / 2, policy.longest_backoff)
    for _ in range(failure.times - 1):
        if not timedelta() < pause < policy.longest_backoff:
            break
        pause = min(policy.longest_backoff, pause * 2)
    left = pause - (now.at - failure.at)
    if left <= timedelta():
        return None
    return Requeue(
        min(left, poll_delay(seen, now)),
        f"{failure.verb} failed: {error.message}",
        NextStep(_RETRY_PAUSE[failure.verb], left),
    )


def _outlasts_its_request(policy: Policy, seen: ObservedState, now: Now) -> bool:
    """Return whether an expired request was one of an earlier run with an earlier deadline: this run asks again.

    Not if it ended because the time of its node did.
    """
    if seen.has_time_ended:
        return False
    left = seen.time_left(policy, now)
    return policy.queue_for is None and not policy.leaves_no_record and (left is None or left > SHORTEST_QUEUE)


_CONDITION_WORDS = {
    Condition.SSH: "usable by ssh",
    Condition.STARTUP: "usable with its startup ended",
    Condition.DEVICES: "usable with all its chips",
}


def timeout_error(policy: Policy, seen: ObservedState, left: Requeue | Change, now: Now) -> TimedOutError:
    """Return the timeout error: the state of the node, the next action (`left`), and how to continue or to delete the node."""
    name = seen.name.node_id
    after = f" after {format_duration(seen.waited(now))}" if policy.timeout else ""
    if seen.node is None and seen.request is not None and seen.is_queued:
        request = seen.request
        verb = "wait" if policy.is_read_only else "up"
        hint = (
            "no change was undone: the request counts against the quota, and its node bills as soon as it runs; "
            f"continue with `tpuctl {verb} {name}`, or cancel it with `tpuctl queue cancel {name}`"
        )
        what = f"its queued resource `{request.queued_resource_id}` is {request.state}"
        if seen.request_differences:
            what += "; it differs: " + "; ".join(map(str, seen.request_differences))
        return TimedOutError(f"`{name}` is not {_wanted(policy)}{after}: {what}", hint=hint)
    if seen.node is None:
        within = f" within {format_duration(seen.waited(now))}" if policy.timeout else ""
        if isinstance(left, Requeue) and not seen.was_there and not seen.failure:
            return TimedOutError(f"`{name}` did not appear{within}", hint=f"check it with `tpuctl status {name}`")
        why = f": {left.reason}" if isinstance(left, Requeue) else ""
        return TimedOutError(
            f"`{name}` does not exist and was not created{within}{why}",
            hint=f"nothing is billed; `tpuctl up {name}` creates it",
        )
    state = str(seen.node.state)
    if seen.differences:
        state += "; it differs: " + "; ".join(map(str, seen.differences))
    elif seen.node.state is NodeState.READY and policy.goal.is_usable:
        why = explain_not_usable(policy, seen, seen.node)
        state = "READY, but " + why.removeprefix("it is READY, ").removeprefix("it is READY but ")
    elif isinstance(left, Requeue) and (seen.failure or seen.held_by):
        state += f"; {left.reason}"
    owner = seen.node.queued_resource
    queued = f" (it belongs to the queued resource `{last_segment(owner)}`)" if owner else ""
    again = f"`tpuctl wait {name} --for {policy.goal}`" if isinstance(left, Requeue) else f"`tpuctl up {name}`"
    again = "the same command" if policy.probe else again
    hint = f"no change was undone; continue with {again}"
    if seen.node.state is not NodeState.DELETING:
        hint += f", or delete it with `tpuctl down {name}`"
    if policy.goal.is_usable and (more := ssh_advice(seen)):
        hint = f"{more}\n{hint}"
    if policy.goal.is_usable and _is_in_maintenance(seen.node):
        hint = f"{_maintenance_advice(seen.node)}\n{hint}"
    return TimedOutError(f"`{name}` is not {_wanted(policy)}{after}: it is {state}{queued}", hint=hint)


def unfinished_error(
    policy: Policy, seen: ObservedState, decision: Decision, *, was_sent: bool
) -> TimedOutError | None:
    """Return the error of a run that does not wait if only a later run can send what is to follow; None if nothing is.

    `was_sent`: the run has requested the change of the decision.
    """
    follows = _what_follows(policy, seen, decision)
    if not was_sent and isinstance(decision, Create | Start):
        follows = (_CREATION if isinstance(decision, Create) else _START) if seen.held_by else None
    if follows is None or not policy.goal.is_usable:
        return None
    match decision:
        case Requeue(reason=reason):
            done = f"nothing was sent ({reason})"
        case Delete(reason) | Restart(reason) if was_sent:
            done = f"its {'deletion' if isinstance(decision, Delete) else 'stop'} was requested ({reason})"
        case DeleteRequest(reason) if was_sent:
            done = f"the deletion of its queued resource was requested ({reason})"
        case _:
            done = f"nothing was sent ({f'in use by {seen.held_by}' if seen.held_by else 'it has just changed'})"
    return TimedOutError(
        f"`{seen.name.node_id}` is not {_wanted(policy)}: {done}; {follows} is to follow, and was not requested",
        hint=f"`tpuctl up {seen.name.node_id}` waits until that is possible, and requests it",
    )


_CREATION, _START = "its creation", "its start"


def _what_follows(policy: Policy, seen: ObservedState, decision: Decision) -> str | None:
    """Return which request is to follow a step when that has ended; None if none is, or if it is unknown."""
    node, request = seen.node, seen.request
    match decision:
        case Delete() | DeleteRequest():
            return _CREATION
        case Restart():
            return _START
        case Requeue() if policy.replace and seen.differences:
            return "its replacement"
        case Requeue() if node is not None and node.state is NodeState.STOPPING and policy.may_start:
            return _START
        case Requeue() if node is not None and node.state is NodeState.DELETING and policy.may_create:
            return _CREATION
        case Requeue() if request is not None and request.state in _ENDING_REQUESTS and policy.may_create:
            return _CREATION
    return None


_ENDING_REQUESTS = frozenset({QueuedState.DELETING, QueuedState.SUSPENDING})


def outage_error(policy: Policy, seen: ObservedState, outage: ApiOutage, now: Now) -> TimedOutError:
    """Return the error of a deadline that passed while the API did not answer."""
    name = seen.name.node_id
    known = f"its last known state is {seen.node.state}" if seen.node else "its state is unknown"
    return TimedOutError(
        f"the API has not answered for {format_duration(now.at - outage.since)} ({outage.error.message}); it is unknown "
        f"whether `{name}` is {_wanted(policy)}; {known}",
        hint=f"no change was undone; check it with `tpuctl status {name}`",
    )


def failed_startup_error(seen: ObservedState) -> FailedStartupError:
    """Return the error for a node whose startup script failed."""
    name, worker = seen.name.node_id, failed_scripts(seen.workers)[0]
    read = f"tpuctl ssh {name} --worker {worker} -- sudo journalctl -u google-startup-scripts.service -b --no-pager"
    return FailedStartupError(
        f"`{name}` is READY, but {describe_failed_scripts(seen.workers)}",
        hint=f"read its log: `{read}`\n`--allow-failed-startup` accepts the node",
    )


def vanished_error(seen: ObservedState) -> NotFoundError:
    """Return the error for a node that another client deleted during the run; there is no evidence of a preemption."""
    name = seen.name.node_id
    if not seen.was_there and seen.is_queued:
        return NotFoundError(
            f"the queued resource `{name}` in {seen.name.zone} was deleted by another client; not requested again",
            hint=f"`tpuctl up {name}` asks again",
        )
    when = f" at {format_timestamp(seen.last_alive)}" if seen.last_alive and not seen.node else ""
    return NotFoundError(
        f"`{name}` in {seen.name.zone} {'is being' if seen.node else 'was'} deleted by another client{when}",
        hint=f"it was not created again; `tpuctl up {name}` creates it",
    )


def preempted_error(seen: ObservedState) -> ConflictError:
    """Return the error for a node that the service preempted together with its queued resource."""
    name = seen.name.node_id
    owner = f"`{seen.request.queued_resource_id}` is {seen.request.state}" if seen.request else "is gone"
    return ConflictError(
        f"`{name}` was preempted: its queued resource {owner}, and it cannot be recreated on its own",
        hint=f"`tpuctl down {name}` deletes the queued resource; then `tpuctl up {name}` creates a node",
    )


def broken_node_error(node: Node) -> BrokenNodeError:
    """Return the error for a node that the service cannot repair."""
    what = {
        NodeState.HIDDEN: "is HIDDEN: the service has withdrawn it",
        NodeState.UNKNOWN: "is in the state UNKNOWN, which follows a failed repair",
    }[node.state]
    return BrokenNodeError(
        f"`{node.name.node_id}` {what}",
        hint=f"delete it with `tpuctl delete {node.name.node_id}`, then create it again",
    )


def queued_resource_error(node: Node) -> ConflictError:
    """Return the error for a node that must be recreated, but that a queued resource owns."""
    name, owner = node.name.node_id, last_segment(node.queued_resource or "")
    return ConflictError(
        f"`{name}` is {node.state} and belongs to the queued resource `{owner}`: it cannot be recreated on its own",
        hint=fill_text(
            "`tpuctl down {node}` deletes both; then `tpuctl up {node} --type {type}` creates a node",
            {"node": name, "type": node.accelerator_type},
        ),
    )


def _wanted(policy: Policy) -> str:
    return _CONDITION_WORDS.get(policy.goal, str(policy.goal))
