"""How readiness is put into words: why a node is not usable, and the errors that end a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.clock import format_duration
from tpuctl.errors import BrokenNodeError, ConflictError, NotFoundError, TimedOutError
from tpuctl.model import Health, Node, NodeState
from tpuctl.names import short
from tpuctl.readiness.values import Answer, Goal

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.errors import TpuctlError
    from tpuctl.readiness.values import Policy, Seen


def describe_answers(answers: tuple[Answer, ...]) -> str:
    """Return in words which workers do not answer ssh, naming eight at most."""
    missing = [(index, answer) for index, answer in enumerate(answers) if answer is not Answer.YES]
    if not missing:
        return "every worker answers ssh"
    if len(answers) == 1:
        return f"its worker {answers[0]}" if answers[0] is not Answer.UNREACHABLE else "its worker does not answer ssh"
    named = ", ".join(str(index) for index, _ in missing[:8])
    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    kinds = {answer for _, answer in missing}
    word = str(missing[0][1]) if len(kinds) == 1 else "cannot be used by ssh"
    word = {"does not answer": "do not answer ssh", "refuses the key": "refuse the key"}.get(word, word)
    return f"{len(missing)} of {len(answers)} workers {word} ({named}{more})"


def why_not_usable(seen: Seen, node: Node) -> str:
    """Return why a READY node is not usable yet."""
    if node.health is Health.HEALTHY and len(node.endpoints) < node.workers:
        return f"{len(node.endpoints)} of {node.workers} workers have an address"
    if node.health is not Health.HEALTHY and node.health is not Health.HEALTH_UNSPECIFIED:
        return f"it is READY but {described_health(node)}"
    if seen.answers:
        return describe_answers(seen.answers)
    if node.health is Health.HEALTHY:
        return "it is READY, its workers have not been asked yet"
    return "it is READY, its health is not known yet"


def described_health(node: Node) -> str:
    """Return its health, with the service's own words for it."""
    return f"{node.health} ({node.health_description})" if node.health_description else str(node.health)


def health_note(node: Node) -> str | None:
    """Return what should be known about the health of a node that is called usable, or nothing."""
    if node.health is Health.HEALTHY:
        return None
    if node.health is Health.HEALTH_UNSPECIFIED:
        return "its health is not reported yet"
    return f"the service reports {described_health(node)}"


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


def timed_out(policy: Policy, seen: Seen) -> TimedOutError:
    """Return the error of a deadline: what the node is now, and how to go on or to end it."""
    name = seen.name.node_id
    waited = format_duration(seen.waited)
    if seen.node is None:
        return TimedOutError(f"`{name}` did not appear within {waited}", hint=f"look again: `tpuctl status {name}`")
    state = str(seen.node.state)
    if seen.node.state is NodeState.READY and policy.goal.is_usable:
        why = why_not_usable(seen, seen.node)
        state = "READY, but " + why.removeprefix("it is READY, ").removeprefix("it is READY but ")
    owner = seen.node.queued_resource
    queued = f" (it belongs to the queued resource `{short(owner)}`)" if owner else ""
    return TimedOutError(
        f"`{name}` is not {_wanted(policy)} after {waited}: it is {state}{queued}",
        hint=f"nothing was undone; go on waiting with `tpuctl wait {name} --for {policy.goal}`, or end it with "
        f"`tpuctl down {name}`",
    )


def _wanted(policy: Policy) -> str:
    return "usable by ssh" if policy.goal is Goal.SSH else str(policy.goal)


def unanswered(policy: Policy, seen: Seen, silent: timedelta, last: TpuctlError) -> TimedOutError:
    """Return the error of a deadline that passed while the API gave no answers."""
    name = seen.name.node_id
    known = f"when it last did, it was {seen.node.state}" if seen.node else "what is there is not known"
    return TimedOutError(
        f"the API has not answered for {format_duration(silent)} ({last.message}), so whether `{name}` is {_wanted(policy)} "
        f"is not known; {known}",
        hint=f"nothing was undone; look again with `tpuctl status {name}`",
    )


def vanished(seen: Seen) -> NotFoundError:
    """Return the error for a node that went while we waited for it."""
    name = seen.name.node_id
    return NotFoundError(
        f"`{name}` {'is being deleted' if seen.node else 'is gone'} from {seen.name.zone}: by somebody else, "
        "or because a request to create it failed",
        hint=f"nothing was created in its place; run `tpuctl up {name}` again if you still want it",
    )
