"""Find the defect of a node, and plan its repair. Pure.

The plan is the least disruptive of reboot, restart and recreate that is allowed and possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration
from tpuctl.errors import BrokenNodeError
from tpuctl.models.node import Health, Node, NodeState
from tpuctl.names import last_segment
from tpuctl.nodes.conditions import (
    Condition,
    Delete,
    Fail,
    NextStep,
    Reboot,
    Repair,
    Requeue,
    Restart,
    SshAnswer,
    Verb,
    all_answer,
    describe_answers,
    describe_health,
    explain_short_workers,
    first_missing_condition,
    is_alive,
    is_idle,
    promised_chips,
    worker_meets,
)
from tpuctl.nodes.polling import poll_delay

if TYPE_CHECKING:
    from tpuctl.nodes.conditions import Now, ObservedState, Policy


@dataclass(frozen=True, slots=True)
class Defect:
    """A fault of a node that does not pass by itself."""

    reason: str
    # How long the fault may last before it is repaired.
    threshold: timedelta
    is_missing_devices: bool = False
    # No worker answers ssh.
    is_silence: bool = False


def plan_repair(policy: Policy, seen: ObservedState, node: Node, defect: Defect) -> Reboot | Restart | Delete | Fail:
    """Return the least disruptive repair of the defect, or the error that says why there is none."""
    name, reason = seen.name.node_id, defect.reason
    if policy.repair is Repair.NONE:
        return Fail(BrokenNodeError(f"`{name}`: {reason}", hint=_reset_hint(node)))
    if (user := tpu_holder(seen)) and not policy.ignores_use:
        hint = f"end that process, or repair the node despite it with `tpuctl up {name} --yes`"
        return Fail(BrokenNodeError(f"`{name}`: {reason}; not repaired: {user}", hint=hint))
    is_entrusted = seen.is_ours or policy.ignores_use or (policy.watches and is_idle(seen))
    if is_alive(seen) and not is_entrusted:
        hint = f"not repaired, because it may be in use; {_reset_hint(node)}, `tpuctl up {name} --yes` repairs it"
        return Fail(BrokenNodeError(f"`{name}`: {reason}", hint=hint))
    rejected: list[str] = []
    for plan in (_plan_reboot, _plan_restart, _plan_recreate):  # least disruptive first
        if action := plan(policy, seen, node, defect, rejected):
            return action
    counts = (
        (seen.attempts.reboots, "reboot"),
        (seen.attempts.restarts, "restart"),
        (seen.attempts.recreates, "recreation"),
    )
    done = [f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count]
    tried = [f"unchanged after {' and '.join(filter(None, (', '.join(done[:-1]), done[-1])))}"] if done else []
    if seen.failure and seen.failure.verb is Verb.DELETE:
        tried.append(f"its deletion failed: {seen.failure.error.message}")
    hint = f"`tpuctl reset {name} --mode recreate` deletes and recreates it (its boot disk is lost)"
    if node.queued_resource:
        hint = f"`tpuctl down {name}` deletes it with its queued resource `{last_segment(node.queued_resource)}`"
    why = "; ".join(tried + rejected) or "a restart is not allowed"
    return Fail(BrokenNodeError(f"`{name}`: {reason}, {why}", hint=hint))


def _reset_hint(node: Node) -> str:
    """Return what `tpuctl reset` does with this node: slices and spot nodes cannot be restarted."""
    does = "reboots its workers" if node.why_not_restartable() else "restarts it"
    return f"`tpuctl reset {node.name.node_id}` {does}"


def plan_slow_state_repair(
    policy: Policy, seen: ObservedState, node: Node, threshold: timedelta, now: Now
) -> Requeue | Restart | Delete:
    """Decide about a state that lasts too long: restart, else recreate if that is allowed, else wait."""
    lasted = seen.in_state(now)
    if lasted < threshold:
        planned = _restart_or_recreate(policy, seen, node, "", now)
        then = None if planned is None else NextStep(describe_repair(planned), threshold - lasted)
        return Requeue(poll_delay(seen, now), f"it is {node.state}", then)
    reason = f"it has been {node.state} for {format_duration(lasted)}"
    return _restart_or_recreate(policy, seen, node, reason, now) or Requeue(poll_delay(seen, now), reason)


def describe_repair(act: Reboot | Restart | Delete | Fail) -> str:
    """Describe the next action for the user."""
    match act:
        case Reboot():
            return "reboot every worker"
        case Restart():
            return "restart it"
        case Delete():
            return "delete and recreate it"
        case Fail():
            return "give up"


def tpu_holder(seen: ObservedState) -> str | None:
    """Return which process holds the TPU, or None."""
    for index, worker in enumerate(seen.workers):
        if worker.holders:
            return f"process {worker.holders[0]} holds the TPU of worker {index}"
    return None


def is_under_maintenance(node: Node, now: Now) -> bool:
    """Return whether maintenance is ongoing or due: it ends by itself [API field text of upcomingMaintenance]."""
    announced = node.upcoming_maintenance
    if announced is None:
        return False
    is_open = announced.start is not None and announced.end is not None and announced.start <= now.utc < announced.end
    return announced.status == "ONGOING" or is_open


def _plan_reboot(policy: Policy, seen: ObservedState, node: Node, defect: Defect, rejected: list[str]) -> Reboot | None:
    if not policy.repair.allows(Repair.REBOOT) or seen.attempts.reboots >= policy.max_reboots:
        return None
    if defect.is_missing_devices and seen.attempts.restarts:
        return None
    if all_answer(seen, node):
        return Reboot(defect.reason)
    if seen.workers and not defect.is_silence:
        rejected.append(describe_answers([worker.answer for worker in seen.workers]))
    return None


def _plan_restart(
    policy: Policy, seen: ObservedState, node: Node, defect: Defect, rejected: list[str]
) -> Restart | None:
    if not policy.repair.allows(Repair.RESTART) or seen.attempts.restarts >= policy.max_restarts:
        return None
    if defect.is_missing_devices and seen.attempts.restarts:
        # After a stop and a start devices may be missing for good [observed: jax#13260, xla#4211].
        return None
    if why_not := node.why_not_restartable() or seen.refused_stop:
        rejected.append(why_not)
        return None
    return Restart(defect.reason, tuple(rejected))


def _plan_recreate(
    policy: Policy, seen: ObservedState, node: Node, defect: Defect, rejected: list[str]
) -> Delete | None:
    if not _may_recreate(policy, seen, node):
        return None
    if _accepts_ssh(seen) and not policy.ignores_use and not (policy.watches and is_idle(seen)):
        rejected.append("not recreated: a worker still accepts ssh (`--yes` overrides)")
        return None
    return Delete(_with(defect.reason, rejected), node.id, is_repair=True)


def _accepts_ssh(seen: ObservedState) -> bool:
    """Return whether a worker accepts ssh: it may hold data that a user wants to keep."""
    return any(worker.answer is SshAnswer.YES for worker in seen.workers)


def _may_recreate(policy: Policy, seen: ObservedState, node: Node) -> bool:
    is_allowed = policy.repair.allows(Repair.RECREATE) and policy.may_create and not node.queued_resource
    return is_allowed and seen.attempts.recreates < policy.max_recreates


def _restart_or_recreate(
    policy: Policy, seen: ObservedState, node: Node, reason: str, now: Now
) -> Restart | Delete | None:
    if not policy.ignores_use and (is_under_maintenance(node, now) or tpu_holder(seen)):
        return None
    why_not = node.why_not_restartable() or seen.refused_stop
    may_restart = policy.repair.allows(Repair.RESTART) and seen.attempts.restarts < policy.max_restarts
    if may_restart and not why_not:
        return Restart(reason)
    if _may_recreate(policy, seen, node) and (policy.ignores_use or not _accepts_ssh(seen)):
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
    return scale_threshold(policy, node, getattr(policy.thresholds, name)) if name else None


def scale_threshold(policy: Policy, node: Node, threshold: timedelta) -> timedelta:
    """Return a threshold, extended for the number of workers."""
    return threshold + policy.thresholds.per_worker * (node.workers - 1)


# UNHEALTHY_MAINTENANCE is not among them: the service reschedules it by itself [API field text].
DEFECTIVE_HEALTH = frozenset({Health.TIMEOUT, Health.UNHEALTHY_TENSORFLOW})


def find_defect(policy: Policy, seen: ObservedState, node: Node, now: Now) -> Defect | None:
    """Return the evidence that a READY node will not become usable by itself; None without evidence.

    None too if the service is repairing the node.
    """
    if node.health is Health.UNHEALTHY_MAINTENANCE or not node.health.is_known or is_under_maintenance(node, now):
        return None
    if node.health in DEFECTIVE_HEALTH:
        return Defect(f"it is READY but {describe_health(node)}", _defect_threshold(policy, seen, node, "unhealthy"))
    answers = [worker.answer for worker in seen.workers]
    if SshAnswer.UNREACHABLE in answers:
        # A firewall that blocks ssh looks the same: it is evidence only on a node that tpuctl created or started.
        if not seen.is_ours and not policy.ignores_use:
            return None
        reason = f"it is READY but {describe_answers(answers)}"
        return Defect(reason, _defect_threshold(policy, seen, node, "unanswered"), is_silence=True)
    # A worker that could not count its chips is no evidence.
    promised = promised_chips(node)
    is_short = any(worker_meets(policy, worker, Condition.DEVICES, promised) is False for worker in seen.workers)
    if (
        policy.goal is Condition.DEVICES
        and first_missing_condition(policy, seen, node) is Condition.DEVICES
        and is_short
    ):
        reason = f"it is READY but {explain_short_workers(policy, seen, node, Condition.DEVICES)}"
        return Defect(reason, _defect_threshold(policy, seen, node, "devices"), is_missing_devices=True)
    return None


def defect_age(seen: ObservedState, now: Now) -> timedelta:
    """Return how long a defect has lasted, for comparison with its threshold.

    For a health reported by the service, an answer of a worker in between does not restart the count.
    """
    is_reported = seen.node is not None and seen.node.health in DEFECTIVE_HEALTH
    since = min(seen.unchanged_since, seen.reported_since) if is_reported else seen.unchanged_since
    return now.at - (since if seen.repaired_at is None else max(since, seen.repaired_at))


def _defect_threshold(policy: Policy, seen: ObservedState, node: Node, first: str) -> timedelta:
    """Return the threshold of a defect; after a repair, the time that the repair has to take effect."""
    thresholds = policy.thresholds
    return scale_threshold(policy, node, getattr(thresholds, first) if seen.repaired_at is None else thresholds.recheck)
