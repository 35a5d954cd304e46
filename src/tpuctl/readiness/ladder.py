"""Plan the repair of a node: the least disruptive of reboot, restart and recreate that is allowed and possible. Pure."""

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
    """A fault of a node that does not pass by itself."""

    reason: str
    # How long the fault may last before it is repaired.
    threshold: timedelta
    is_missing_devices: bool = False
    # No worker answers ssh.
    is_silence: bool = False


def mend(policy: Policy, seen: Seen, node: Node, defect: Defect) -> Reboot | Restart | Delete | GiveUp:
    """Return the least disruptive repair of the defect, or the error that says why there is none."""
    name, reason = seen.name.node_id, defect.reason
    if policy.repair is Repair.NONE:
        return GiveUp(BrokenNodeError(f"`{name}`: {reason}", hint=_reset_hint(node)))
    if (user := in_use(seen)) and not policy.forced:
        hint = f"end that process, or repair the node despite it with `tpuctl up {name} --yes`"
        return GiveUp(BrokenNodeError(f"`{name}`: {reason}; not repaired: {user}", hint=hint))
    is_entrusted = seen.is_ours or policy.forced or (policy.is_keeper and is_idle(seen))
    if is_alive(seen) and not is_entrusted:
        hint = f"not repaired, because it may be in use; {_reset_hint(node)}, `tpuctl up {name} --yes` repairs it"
        return GiveUp(BrokenNodeError(f"`{name}`: {reason}", hint=hint))
    rejected: list[str] = []
    for plan in (_reboot, _restart, _recreate):  # least disruptive first
        if action := plan(policy, seen, node, defect, rejected):
            return action
    counts = ((seen.tried.reboots, "reboot"), (seen.tried.restarts, "restart"), (seen.tried.recreates, "recreation"))
    done = [f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count]
    tried = [f"unchanged after {' and '.join(filter(None, (', '.join(done[:-1]), done[-1])))}"] if done else []
    if seen.failure and seen.failure.verb is Verb.DELETE:
        tried.append(f"its deletion failed: {seen.failure.error.message}")
    hint = f"`tpuctl reset {name} --mode recreate` deletes and recreates it (its boot disk is lost)"
    if node.queued_resource:
        hint = f"`tpuctl down {name}` deletes it with its queued resource `{short(node.queued_resource)}`"
    why = "; ".join(tried + rejected) or "a restart is not allowed"
    return GiveUp(BrokenNodeError(f"`{name}`: {reason}, {why}", hint=hint))


def _reset_hint(node: Node) -> str:
    """Return what `tpuctl reset` does with this node: slices and spot nodes cannot be restarted."""
    does = "reboots its workers" if node.why_not_restartable() else "restarts it"
    return f"`tpuctl reset {node.name.node_id}` {does}"


def mend_slow(policy: Policy, seen: Seen, node: Node, threshold: timedelta, now: datetime) -> Wait | Restart | Delete:
    """Decide about a state that lasts too long: restart, else recreate if that is allowed, else wait."""
    if seen.in_state < threshold:
        planned = _unstick(policy, seen, node, "", now)
        then = None if planned is None else Next(describe_act(planned), threshold - seen.in_state)
        return Wait(delay(seen), f"it is {node.state}", then)
    reason = f"it has been {node.state} for {format_duration(seen.in_state)}"
    return _unstick(policy, seen, node, reason, now) or Wait(delay(seen), reason)


def describe_act(act: Reboot | Restart | Delete | GiveUp) -> str:
    """Describe the next action for the user."""
    match act:
        case Reboot():
            return "reboot every worker"
        case Restart():
            return "restart it"
        case Delete():
            return "delete and recreate it"
        case GiveUp():
            return "give up"


def in_use(seen: Seen) -> str | None:
    """Return which process holds the TPU, or None."""
    for index, worker in enumerate(seen.workers):
        if worker.holders:
            return f"process {worker.holders[0]} holds the TPU of worker {index}"
    return None


def under_maintenance(node: Node, now: datetime) -> bool:
    """Return whether maintenance is ongoing or due: it ends by itself [API field text of upcomingMaintenance]."""
    announced = node.upcoming_maintenance
    if announced is None:
        return False
    is_open = announced.start is not None and announced.end is not None and announced.start <= now < announced.end
    return announced.status == "ONGOING" or is_open


def _reboot(policy: Policy, seen: Seen, node: Node, defect: Defect, rejected: list[str]) -> Reboot | None:
    if not policy.repair.allows(Repair.REBOOT) or seen.tried.reboots >= policy.max_reboots:
        return None
    if defect.is_missing_devices and seen.tried.restarts:
        return None
    if all_answer(seen, node):
        return Reboot(defect.reason)
    if seen.workers and not defect.is_silence:
        rejected.append(describe_answers([worker.answer for worker in seen.workers]))
    return None


def _restart(policy: Policy, seen: Seen, node: Node, defect: Defect, rejected: list[str]) -> Restart | None:
    if not policy.repair.allows(Repair.RESTART) or seen.tried.restarts >= policy.max_restarts:
        return None
    if defect.is_missing_devices and seen.tried.restarts:
        # After a stop and a start devices may be missing for good [observed: jax#13260, xla#4211].
        return None
    if why_not := node.why_not_restartable() or seen.refused_stop:
        rejected.append(why_not)
        return None
    return Restart(_with(defect.reason, rejected))


def _recreate(policy: Policy, seen: Seen, node: Node, defect: Defect, rejected: list[str]) -> Delete | None:
    if not _may_recreate(policy, seen, node):
        return None
    if can_be_entered(seen) and not policy.forced and not (policy.is_keeper and is_idle(seen)):
        rejected.append("not recreated: a worker still accepts ssh (`--yes` overrides)")
        return None
    return Delete(_with(defect.reason, rejected), node.id, is_repair=True)


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


def _with(reason: str, rejected: list[str]) -> str:
    return "; ".join((reason, *rejected))


_SLOW_STATES = {
    NodeState.STARTING: "starting",
    NodeState.RESTARTING: "restarting",
    NodeState.REPAIRING: "repairing",
}


def slow_after(policy: Policy, node: Node) -> timedelta | None:
    """Return how long the state may last before a restart is tried; None for a state in which tpuctl only waits."""
    name = _SLOW_STATES.get(node.state)
    return scaled(policy, node, getattr(policy.thresholds, name)) if name else None


def scaled(policy: Policy, node: Node, threshold: timedelta) -> timedelta:
    """Return a threshold, extended for the number of workers."""
    return threshold + policy.thresholds.per_worker * (node.workers - 1)
