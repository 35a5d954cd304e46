"""Decide what to do about the queued resource of a node: wait, delete its record, or stop with an error. Pure.

The request is a stage in the life of a node. Rules [facts: axlearn's source, API field text of `force`]: a request that is
SUSPENDING is waited for and never deleted; one that is SUSPENDED or FAILED is deleted without `force` and followed until
the API answers 404; ACTIVE is not usable: from then on the node's own state decides.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import ConflictError, NoCapacityError, TimedOutError
from tpuctl.models.node import QueuedState
from tpuctl.models.spec import SHORTEST_QUEUE, QueueWindow
from tpuctl.names import group_of_slice, last_segment
from tpuctl.nodes.conditions import DeleteRequest, Fail, NextStep, Now, ObservedState, Policy, Requeue, Verb
from tpuctl.nodes.polling import poll_delay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpuctl.errors import TpuctlError
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import SpecDifference
    from tpuctl.nodes.conditions import Decision

# How long a request waits that no run waits for: the service ends it before it bills a forgotten node.
UNATTENDED_WAIT = timedelta(hours=24)
# The service has not decided: there is no node, and nothing bills.
UNDECIDED = frozenset({QueuedState.CREATING, QueuedState.ACCEPTED, QueuedState.WAITING_FOR_RESOURCES})
# After its deadline a run may still delete the record of its request, for this long.
CLEAN_UP_TIME = timedelta(minutes=3)
_LONGEST_DELAY = timedelta(minutes=1)
# A node may show up some time after its request became ACTIVE [unverified]. Later it counts as deleted.
_NODE_LAG = timedelta(minutes=5)


def decide_request(policy: Policy, seen: ObservedState, request: QueuedResource, now: Now) -> Decision | None:
    """Return the next action for a request; None if the state of its node decides."""
    if not request.state.is_known or request.state is QueuedState.STATE_UNSPECIFIED:
        return _wait(seen, now, f"its queued resource is {request.state}, a state that tpuctl does not know")
    match request.state:
        case QueuedState.SUSPENDING:
            return _wait(seen, now, f"its queued resource is SUSPENDING{_by(request)}")
        case QueuedState.DELETING:
            if seen.has_vanished and not (policy.may_create and policy.recreate_deleted):
                return None  # another client ended it: the same as for a node
            if policy.may_create:
                return _wait(seen, now, "its old queued resource is being deleted")
            return Fail(ConflictError(f"the queued resource `{request.queued_resource_id}` is being deleted"))
        case QueuedState.FAILED | QueuedState.SUSPENDED:
            return _decide_dead_request(policy, seen, request, now)
    if seen.request_differences:
        return _decide_different_request(policy, seen, request, now)
    if seen.node is not None:
        return None
    if request.state is QueuedState.ACTIVE:
        if seen.in_request_state(now) < _NODE_LAG and not seen.has_vanished:
            return _wait(seen, now, "its queued resource is ACTIVE, the node does not show yet")
        if _is_of_group(seen, request):
            # The service creates a lost slice again, and restarts the others [documentation of multislice].
            return _wait(seen, now, "its queued resource is ACTIVE: the service recreates a slice that it lost")
        return _decide_dead_request(policy, seen, request, now)
    if seen.has_time_ended and request.state in UNDECIDED:
        return Fail(expired_request_error(seen, request))
    return _wait_for_nodes(policy, seen, request, now)


def _decide_dead_request(policy: Policy, seen: ObservedState, request: QueuedResource, now: Now) -> Decision | None:
    """Decide about a request that will never have a node again: its record holds the name and quota."""
    name, request_id = seen.name.node_id, request.queued_resource_id
    if request.state is QueuedState.SUSPENDED and request.initiator == "USER":
        hint = f"`tpuctl down {name}` deletes it; then `tpuctl up {name}` asks again"
        return Fail(ConflictError(f"the queued resource `{request_id}` was suspended by a user: left alone", hint=hint))
    if not seen.is_queued or not policy.may_create:
        return None  # it was not tpuctl that asked
    if request.state is QueuedState.ACTIVE and seen.has_vanished and not policy.recreate_deleted:
        return None
    if _is_of_group(seen, request) and seen.is_follower:
        return _wait(seen, now, f"the queued resource of its group is {request.state}{_by(request)}")
    if len(request.node_ids) > 1 and not _is_of_group(seen, request):
        return Fail(several_nodes_error(seen, request))
    if seen.node is not None and not seen.node.state.is_dead:
        owner = last_segment(seen.node.queued_resource or "")
        if owner != request_id and (owner or request.state is QueuedState.FAILED):
            return None  # another client has created it: a request that FAILED has no node
        # The node of a suspended request disappears with it; its record would be deleted by `force` only.
        return _wait(seen, now, f"its queued resource is {request.state}{_by(request)}")
    what = f"it is {request.state}{_by(request)}" if request.state is not QueuedState.ACTIVE else "its node is gone"
    return DeleteRequest(f"{what}: only its record is left", request.name)


def _is_of_group(seen: ObservedState, request: QueuedResource) -> bool:
    """Return whether the request is for the slices of the node's group, more or fewer, and for nothing else."""
    return bool(seen.slices) and request.own_names == (group_of_slice(seen.name.node_id),)


def _decide_different_request(
    policy: Policy, seen: ObservedState, request: QueuedResource, now: Now
) -> Decision | None:
    if not (policy.may_create or policy.replace_request) or seen.node is not None:
        return None  # an existing node is compared itself
    if _is_of_group(seen, request) and seen.is_follower:
        return _wait(seen, now, "the queued resource of its group differs from the requested spec")
    if len(request.node_ids) > 1 and not _is_of_group(seen, request):
        return Fail(several_nodes_error(seen, request))
    if policy.replace_request and request.state in UNDECIDED and not seen.attempts.recreates:
        differences = "; ".join(map(str, seen.request_differences))
        return DeleteRequest(f"it differs: {differences}", request.name, force=True, is_repair=True)
    return Fail(different_request_error(seen, request, seen.request_differences))


def _wait_for_nodes(policy: Policy, seen: ObservedState, request: QueuedResource, now: Now) -> Requeue:
    age = seen.in_request_state(now)
    lasted = format_duration(age)
    if request.state is QueuedState.PROVISIONING:
        reason = f"its queued resource is PROVISIONING for {lasted}"
        if age > policy.thresholds.provisioning:
            reason += f", longer than {format_duration(policy.thresholds.provisioning)}; it is not cancelled"
        return _wait(seen, now, reason)
    # It may last for hours: the delay grows with it, beyond that of a state of a node.
    slow = min(_LONGEST_DELAY, age / 10) * (0.8 + 0.4 * seen.poll_state.jitter)
    delay = max(poll_delay(seen, now), slow)
    reason = f"its queued resource is {request.state} for {lasted}"
    end = request.valid_until
    left = None if end is None else end - now.utc
    if left is None or left <= timedelta():
        return Requeue(delay, reason)
    return Requeue(min(delay, left), reason, NextStep("give the request up", left))


def may_clean_up(policy: Policy, seen: ObservedState, left: timedelta, now: Now) -> bool:
    """Return whether the run may go on after its deadline, to delete the record of its own request.

    A run without time only looks.
    """
    if not (seen.is_queued and policy.may_create) or -left >= CLEAN_UP_TIME or not policy.timeout:
        return False
    if seen.is_request_pending and seen.pending is Verb.DELETE:
        return True
    request = seen.request
    if request is None or request.state in {QueuedState.FAILED, QueuedState.DELETING}:
        return request is not None
    # The service fails it at its own limit: a request that the user lets wait for longer is left.
    end = request.valid_until
    has_ended = end is not None and end <= now.utc + CLEAN_UP_TIME
    return request.state in UNDECIDED and has_ended


def queue_window(policy: Policy, left: timedelta | None, now: datetime) -> QueueWindow:
    """Return when the request may be provisioned. It ends with the run, unless the user lets it wait for longer.

    `left` is the time until the deadline, None without one.
    """
    limit = policy.queue_for
    if left is not None and (limit is None or policy.queue_ends_with_run):
        limit = max(left if limit is None else min(limit, left), SHORTEST_QUEUE)
    return QueueWindow(now=now, valid_until=limit, valid_after=policy.start_after)


def request_failure(request: QueuedResource, error: TpuctlError | None, *, is_left: bool = False) -> TpuctlError:
    """Return why a FAILED request failed. `error` is what the service says; a passed limit is a timeout.

    `is_left`: its record stays, and can be asked again.
    """
    end = request.valid_until
    code = request.error.code if request.error else None
    if code == _DEADLINE_EXCEEDED or (error is None and end is not None):
        expires = request.requested_node("").expires
        if expires is not None and end is not None and expires <= end + SHORTEST_QUEUE:
            return RequestExpiredError(
                f"the time of `{request.queued_resource_id}` ended {format_timestamp(expires)}: no capacity in "
                f"{request.zone} until then",
                hint="ask again with a longer time limit: `tpuctl up NODE --queue --ttl 12h`",
            )
        until = f" until {format_timestamp(end)}" if end else " in time"
        again = f"queue retry {request.short_name}" if is_left else "up NODE --queue"
        return RequestExpiredError(
            f"no capacity for `{request.queued_resource_id}` in {request.zone}{until}",
            hint=f"wait longer with `tpuctl {again} --queue-for 12h`, or ask in more zones with `--zone any`",
        )
    if error is None:
        return NoCapacityError(
            f"the queued resource `{request.queued_resource_id}` FAILED; the service gives no reason",
            hint="ask in more zones with `--zone any`, also for other tiers with `--tier spot,on-demand`",
        )
    return error


class RequestExpiredError(TimedOutError):
    """The service failed a queued resource at its valid-until time: there was no capacity until then."""


# google.rpc.Code
_DEADLINE_EXCEEDED = 4


def several_nodes_error(seen: ObservedState, request: QueuedResource) -> ConflictError:
    """Return the error for a request that has other nodes too."""
    others = ", ".join(node_id for node_id in request.node_ids[:8] if node_id != seen.name.node_id)
    return ConflictError(
        f"the queued resource `{request.queued_resource_id}` of `{seen.name.node_id}` is {request.state} and has "
        f"{len(request.node_ids)} nodes, also {others}",
        hint=f"`tpuctl down {seen.name.node_id} --all-nodes` deletes it with all of them",
    )


def different_request_error(
    seen: ObservedState, request: QueuedResource, differences: Sequence[SpecDifference]
) -> ConflictError:
    """Return the error for a request of that name for another spec."""
    # With its zone the name is not the one that was typed: the command keeps none of the options that differ.
    unchanged = f"to wait for it unchanged, run `tpuctl up {seen.name.zone}/{seen.name.node_id}`"
    if request.state in UNDECIDED:
        other = "to cancel it and ask again, add `--replace`"
    else:
        other = f"to cancel it, run `tpuctl down {seen.name.node_id}`"
    return ConflictError(
        f"the queued resource `{request.queued_resource_id}` is {request.state} and differs from the requested spec:",
        details=[f"  {difference}" for difference in differences],
        hint=f"{unchanged}; {other}",
    )


def expired_request_error(seen: ObservedState, request: QueuedResource) -> TimedOutError:
    """Return the error for a request that still waits when the time of its node has ended."""
    end = request.requested_node(seen.name.project).expires
    ended = f" {format_timestamp(end)}" if end else ""
    where = f"{request.zone}/{request.queued_resource_id}"
    return TimedOutError(
        f"the time of `{seen.name.node_id}` ended{ended}, and its queued resource is still {request.state}",
        hint=f"cancel the request, which may still create a node, with `tpuctl queue cancel {where}`",
    )


def _by(request: QueuedResource) -> str:
    return {"USER": ", by a user", "SERVICE": ", by the service"}.get(request.initiator, "")


def _wait(seen: ObservedState, now: Now, reason: str) -> Requeue:
    return Requeue(poll_delay(seen, now), reason)
