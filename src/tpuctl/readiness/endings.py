"""The errors that end a run: the state of the node, and how to continue."""

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
    """Return the timeout error: the state of the node, the next action (`left`), and how to continue or to delete the node."""
    name = seen.name.node_id
    after = f" after {format_duration(seen.waited)}" if policy.timeout else ""
    if seen.node is None:
        within = f" within {format_duration(seen.waited)}" if policy.timeout else ""
        if isinstance(left, Wait) and not seen.was_there and not seen.failure:
            return TimedOutError(f"`{name}` did not appear{within}", hint=f"check it with `tpuctl status {name}`")
        why = f": {left.reason}" if isinstance(left, Wait) else ""
        return TimedOutError(
            f"`{name}` does not exist and was not created{within}{why}",
            hint=f"nothing is billed; `tpuctl up {name}` creates it",
        )
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
    hint = f"no change was undone; continue with {again}, or delete it with `tpuctl down {name}`"
    if policy.goal.is_usable and (more := advice(seen)):
        hint = f"{more}\n{hint}"
    return TimedOutError(f"`{name}` is not {_wanted(policy)}{after}: it is {state}{queued}", hint=hint)


def unanswered(policy: Policy, seen: Seen, outage: Silence) -> TimedOutError:
    """Return the error of a deadline that passed while the API did not answer."""
    name = seen.name.node_id
    known = f"its last known state is {seen.node.state}" if seen.node else "its state is unknown"
    return TimedOutError(
        f"the API has not answered for {format_duration(outage.lasts)} ({outage.error.message}); it is unknown whether "
        f"`{name}` is {_wanted(policy)}; {known}",
        hint=f"no change was undone; check it with `tpuctl status {name}`",
    )


def vanished(seen: Seen) -> NotFoundError:
    """Return the error for a node that another client deleted during the run; there is no evidence of a preemption."""
    name = seen.name.node_id
    when = f" at {format_timestamp(seen.last_alive)}" if seen.last_alive and not seen.node else ""
    return NotFoundError(
        f"`{name}` in {seen.name.zone} {'is being' if seen.node else 'was'} deleted by another client{when}",
        hint=f"it was not created again; `tpuctl up {name}` creates it",
    )


def taken_back(seen: Seen) -> ConflictError:
    """Return the error for a node that the service preempted together with its queued resource."""
    name = seen.name.node_id
    owner = f"`{seen.request.queued_resource_id}` is {seen.request.state}" if seen.request else "is gone"
    return ConflictError(
        f"`{name}` was preempted: its queued resource {owner}, and it cannot be recreated on its own",
        hint=f"`tpuctl down {name}` deletes the queued resource; then `tpuctl up {name}` creates a node",
    )


def beyond_repair(node: Node) -> BrokenNodeError:
    """Return the error for a node that the service cannot repair."""
    what = {
        NodeState.HIDDEN: "is HIDDEN: the service has withdrawn it",
        NodeState.UNKNOWN: "is in the state UNKNOWN, which follows a failed repair",
    }[node.state]
    return BrokenNodeError(
        f"`{node.name.node_id}` {what}",
        hint=f"delete it with `tpuctl delete {node.name.node_id}`, then create it again",
    )


def belongs_to_a_request(node: Node) -> ConflictError:
    """Return the error for a node that must be recreated, but that a queued resource owns."""
    name, owner = node.name.node_id, short(node.queued_resource or "")
    return ConflictError(
        f"`{name}` is {node.state} and belongs to the queued resource `{owner}`: it cannot be recreated on its own",
        hint=f"`tpuctl down {name}` deletes both; then `tpuctl up {name} --type {node.accelerator_type}` creates a node",
    )


def _wanted(policy: Policy) -> str:
    return _WANTED.get(policy.goal, str(policy.goal))
