"""How a node is mended: the lowest rung of reboot, restart, recreate that is allowed, possible and not used up. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import format_duration
from tpuctl.errors import BrokenNodeError
from tpuctl.model import Node, NodeState
from tpuctl.names import short
from tpuctl.readiness.decisions import Delete, GiveUp, Next, Reboot, Restart, Wait
from tpuctl.readiness.levels import all_answer, can_be_entered, is_alive, is_idle
from tpuctl.readiness.pacing import delay
from tpuctl.readiness.values import Repair, Verb
from tpuctl.readiness.words import describe_answers

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.readiness.values import Policy, Seen


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong with a node that ought to work, and how long it may last before it is mended.

    `is_missing_devices` and `is_silence` tell what it is, where that matters for the way to mend it.
    """

    reason: str
    threshold: timedelta
    is_missing_devices: bool = False
    is_silence: bool = False


def mend(policy: Policy, seen: Seen, node: Node, defect: Defect) -> Reboot | Restart | Delete | GiveUp:
    """Return the rung that mends the defect, or why there is none."""
    name, reason = seen.name.node_id, defect.reason
    if policy.repair is Repair.NONE:
        return GiveUp(BrokenNodeError(f"`{name}`: {reason}", hint=_reset_hint(node)))
    if (user := in_use(seen)) and not policy.forced:
        hint = f"end that process, or repair it all the same: `tpuctl up {name} --yes`"
        return GiveUp(BrokenNodeError(f"`{name}`: {reason}, and it was left alone: {user}", hint=hint))
    is_entrusted = seen.is_ours or policy.forced or (policy.is_keeper and is_idle(seen))
    if is_alive(seen) and not is_entrusted:
        hint = f"it may be in use and was left alone; {_reset_hint(node)}, `tpuctl up {name} --yes` repairs it"
        return GiveUp(BrokenNodeError(f"`{name}`: {reason}", hint=hint))
    skipped: list[str] = []
    rung: Reboot | Restart | Delete | None = _reboot(policy, seen, node, defect, skipped) or _restart(
        policy, seen, node, defect, skipped
    )
    rung = rung or _recreate(policy, seen, node, defect, skipped)
    if rung is not None:
        return rung
    hint = f"`tpuctl reset {name} --mode recreate` deletes it and makes it anew (its boot disk is lost)"
    if node.queued_resource:
        hint = f"`tpuctl down {name}` deletes it with its queued resource `{short(node.queued_resource)}`"
    return GiveUp(BrokenNodeError(f"`{name}`: {reason}, {_tried(seen, skipped)}", hint=hint))


def _reset_hint(node: Node) -> str:
    """Return what `tpuctl reset` does with this node: a slice cannot be restarted, nor a spot node."""
    does = "reboots its workers" if node.why_not_restartable() else "restarts it"
    return f"`tpuctl reset {node.name.node_id}` {does}"


def mend_slow(policy: Policy, seen: Seen, node: Node, threshold: timedelta, now: datetime) -> Wait | Restart | Delete:
    """Return what to do about a state that lasts too long: restart, else make anew, where that is allowed, else wait on."""
    if seen.in_state < threshold:
        planned = _unstick(policy, seen, node, "", now)
        then = None if planned is None else Next(describe_act(planned), threshold - seen.in_state)
        return Wait(delay(seen), f"it is {node.state}", then)
    reason = f"it has been {node.state} for {format_duration(seen.in_state)}"
    return _unstick(policy, seen, node, reason, now) or Wait(delay(seen), reason)


def describe_act(act: Reboot | Restart | Delete | GiveUp) -> str:
    """Return what will be done, for a person who waits."""
    match act:
        case Reboot():
            return "reboot every worker"
        case Restart():
            return "restart it"
        case Delete():
            return "delete it and make it anew"
        case GiveUp():
            return "give up"


def in_use(seen: Seen) -> str | None:
    """Return which process holds the TPU, or nothing."""
    for index, worker in enumerate(seen.workers):
        if worker.holders:
            return f"process {worker.holders[0]} holds the TPU of worker {index}"
    return None


def under_maintenance(node: Node, now: datetime) -> bool:
    """Tell whether the service is at work on it, or should be: that ends by itself [API field text of upcomingMaintenance]."""
    announced = node.upcoming_maintenance
    if announced is None:
        return False
    is_open = announced.start is not None and announced.end is not None and announced.start <= now < announced.end
    return announced.status == "ONGOING" or is_open


def _reboot(policy: Policy, seen: Seen, node: Node, defect: Defect, skipped: list[str]) -> Reboot | None:
    if not policy.repair.allows(Repair.REBOOT) or seen.tried.reboots >= policy.max_reboots:
        return None
    if defect.is_missing_devices and seen.tried.restarts:
        return None
    if all_answer(seen, node):
        return Reboot(defect.reason)
    if seen.workers and not defect.is_silence:
        skipped.append(describe_answers([worker.answer for worker in seen.workers]))
    return None


def _restart(policy: Policy, seen: Seen, node: Node, defect: Defect, skipped: list[str]) -> Restart | None:
    if not policy.repair.allows(Repair.RESTART) or seen.tried.restarts >= policy.max_restarts:
        return None
    if defect.is_missing_devices and seen.tried.restarts:
        # After a stop and a start devices may be missing for good [observed: jax#13260, xla#4211].
        return None
    if why_not := node.why_not_restartable() or seen.refused_stop:
        skipped.append(why_not)
        return None
    return Restart(_with(defect.reason, skipped))


def _recreate(policy: Policy, seen: Seen, node: Node, defect: Defect, skipped: list[str]) -> Delete | None:
    if not _may_recreate(policy, seen, node):
        return None
    if can_be_entered(seen) and not policy.forced and not (policy.is_keeper and is_idle(seen)):
        skipped.append("it is not made anew unasked while a worker can be entered")
        return None
    return Delete(_with(defect.reason, skipped), node.id, is_repair=True)


def _may_recreate(policy: Policy, seen: Seen, node: Node) -> bool:
    is_allowed = policy.repair.allows(Repair.RECREATE) and policy.may_create and not node.queued_resource
    return is_allowed and seen.tried.recreates < policy.max_recreates


def _unstick(policy: Policy, seen: Seen, node: Node, reason: str, now: datetime) -> Restart | Delete | None:
    if not policy.forced and (under_maintenance(node, now) or in_use(seen)):
        return None
    why_not = node.why_not_restartable() or seen.refused_stop
    may_restart = policy.repair.allows(Repair.RESTART) and seen.tried.restarts < policy.max_restarts
    if may_restart and not why_not:
        return Restart(reason)
    if _may_recreate(policy, seen, node):
        return Delete(_with(reason, [why_not] if why_not else []), node.id, is_repair=True)
    return None


def _with(reason: str, skipped: list[str]) -> str:
    return "; ".join((reason, *skipped))


def _tried(seen: Seen, skipped: list[str]) -> str:
    """Return what was tried, and what could not be."""
    counts = (
        (seen.tried.reboots, "reboot"),
        (seen.tried.restarts, "restart"),
        (seen.tried.recreates, "new creation"),
    )
    done = [f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count]
    parts = (
        ["still so after " + " and ".join((", ".join(done[:-1]), done[-1]) if len(done) > 1 else done)] if done else []
    )
    if seen.failure and seen.failure.verb is Verb.DELETE:
        parts.append(f"its deletion failed: {seen.failure.error.message}")
    return "; ".join(parts + skipped) or "a restart is not allowed"


_SLOW_STATES = {
    NodeState.STARTING: "starting",
    NodeState.RESTARTING: "restarting",
    NodeState.REPAIRING: "repairing",
}


def slow_after(policy: Policy, node: Node) -> timedelta | None:
    """Return how long it may be in its state before a restart may be tried; nothing for states that are only waited for."""
    name = _SLOW_STATES.get(node.state)
    return scaled(policy, node, getattr(policy.thresholds, name)) if name else None


def scaled(policy: Policy, node: Node, threshold: timedelta) -> timedelta:
    """Return a threshold for a node with so many workers."""
    return threshold + policy.thresholds.per_worker * (node.workers - 1)
