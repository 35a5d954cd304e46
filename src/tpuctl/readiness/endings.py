"""The errors that end a wait: what the node is, and how to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.clock import format_duration, format_timestamp
from tpuctl.errors import BrokenNodeError, ConflictError, NotFoundError, TimedOutError
from tpuctl.model import Node, NodeState
from tpuctl.names import short
from tpuctl.readiness.decisions import Wait
from tpuctl.readiness.values import Goal
from tpuctl.readiness.words import advice, why_not_usable

if TYPE_CHECKING:
    from tpuctl.readiness.decisions import Create, Delete, Reboot, Restart, Start
    from tpuctl.readiness.values import Policy, Seen, Silence

_WANTED = {
    Goal.SSH: "usable by ssh",
    Goal.STARTUP: "usable with its startup ended",
    Goal.DEVICES: "usable with all its chips",
}


def timed_out(policy: Policy, seen: Seen, left: Wait | Create | Start | Restart | Reboot | Delete) -> TimedOutError:
    """Return the error of a deadline: what the node is now, what was `left` to do, and how to go on or to end it."""
    name = seen.name.node_id
    after = f" after {format_duration(seen.waited)}" if policy.timeout else ""
    if seen.node is None:
        return _absent_still(policy, seen, left)
    state = str(seen.node.state)
    if seen.node.state is NodeState.READY and policy.goal.is_usable:
        why = why_not_usable(policy, seen, seen.node)
        state = "READY, but " + why.removeprefix("it is READY, ").removeprefix("it is READY but ")
    elif isinstance(left, Wait) and (seen.failure or seen.held_by):
        state += f"; {left.reason}"
    owner = seen.node.queued_resource
    queued = f" (it belongs to the queued resource `{short(owner)}`)" if owner else ""
    again = f"`tpuctl wait {name} --for {policy.goal}`" if isinstance(left, Wait) else f"`tpuctl up {name}`"
    again = "the same command" if policy.has_probe else again
    hint = f"nothing was undone; go on waiting with {again}, or end it with `tpuctl down {name}`"
    if policy.goal.is_usable and (more := advice(seen)):
        hint = f"{more}\n{hint}"
    return TimedOutError(f"`{name}` is not {_wanted(policy)}{after}: it is {state}{queued}", hint=hint)


def _absent_still(policy: Policy, seen: Seen, left: object) -> TimedOutError:
    name = seen.name.node_id
    within = f" within {format_duration(seen.waited)}" if policy.timeout else ""
    if isinstance(left, Wait) and not seen.was_there and not seen.failure:
        return TimedOutError(f"`{name}` did not appear{within}", hint=f"look again: `tpuctl status {name}`")
    why = f": {left.reason}" if isinstance(left, Wait) else ""
    return TimedOutError(
        f"`{name}` is not there and was not made{within}{why}", hint=f"nothing bills; `tpuctl up {name}` makes it"
    )


def unanswered(policy: Policy, seen: Seen, silence: Silence) -> TimedOutError:
    """Return the error of a deadline that passed while the API gave no answers."""
    name = seen.name.node_id
    known = f"when it last did, it was {seen.node.state}" if seen.node else "what is there is not known"
    return TimedOutError(
        f"the API has not answered for {format_duration(silence.lasts)} ({silence.error.message}), so whether `{name}` "
        f"is {_wanted(policy)} is not known; {known}",
        hint=f"nothing was undone; look again with `tpuctl status {name}`",
    )


def vanished(seen: Seen) -> NotFoundError:
    """Return the error for a node that went while we waited for it, without evidence that the service took it back."""
    name = seen.name.node_id
    when = f" at {format_timestamp(seen.last_alive)}" if seen.last_alive and not seen.node else ""
    return NotFoundError(
        f"`{name}` in {seen.name.zone} {'is being' if seen.node else 'was'} deleted (by someone else){when}",
        hint=f"nothing was created in its place; run `tpuctl up {name}` again if you still want it",
    )


def taken_back(seen: Seen) -> ConflictError:
    """Return the error for a node that the service took back together with its queued resource."""
    name = seen.name.node_id
    owner = f"`{seen.request.queued_resource_id}` is {seen.request.state}" if seen.request else "is gone"
    return ConflictError(
        f"`{name}` was preempted: its queued resource {owner}, and it cannot be made anew on its own",
        hint=f"`tpuctl down {name}` deletes the request; then `tpuctl up {name}` makes a node",
    )


def beyond_repair(node: Node) -> BrokenNodeError:
    """Return the error for a node that the service has given up."""
    what = {
        NodeState.HIDDEN: "is HIDDEN: the service has withdrawn it",
        NodeState.UNKNOWN: "is in the state UNKNOWN, which follows a failed repair",
    }[node.state]
    return BrokenNodeError(
        f"`{node.name.node_id}` {what}",
        hint=f"delete it with `tpuctl delete {node.name.node_id}`, then create it again",
    )


def belongs_to_a_request(node: Node) -> ConflictError:
    """Return the error for a node that would have to be deleted and made anew, but that a queued resource owns."""
    name, owner = node.name.node_id, short(node.queued_resource or "")
    return ConflictError(
        f"`{name}` is {node.state} and belongs to the queued resource `{owner}`: it cannot be made anew on its own",
        hint=f"`tpuctl down {name}` deletes both; then `tpuctl up {name} --type {node.accelerator_type}` makes a node",
    )


def _wanted(policy: Policy) -> str:
    return _WANTED.get(policy.goal, str(policy.goal))
