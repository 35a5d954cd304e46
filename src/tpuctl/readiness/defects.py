"""Find the defect of a READY node: evidence that it will not become usable by itself. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.model import Health, Node
from tpuctl.readiness.ladder import Defect, scaled, under_maintenance
from tpuctl.readiness.levels import missing_level, promised_chips, worker_holds
from tpuctl.readiness.values import Answer, Goal
from tpuctl.readiness.words import describe_answers, described_health, why_devices_short

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from tpuctl.readiness.values import Policy, Seen

# UNHEALTHY_MAINTENANCE is not among them: the service reschedules it by itself [API field text].
_DEFECTIVE = frozenset({Health.TIMEOUT, Health.UNHEALTHY_TENSORFLOW})


def defect(policy: Policy, seen: Seen, node: Node, now: datetime) -> Defect | None:
    """Return the defect. None if there is no evidence, or the service is repairing the node itself."""
    if node.health is Health.UNHEALTHY_MAINTENANCE or not node.health.is_known or under_maintenance(node, now):
        return None
    if node.health in _DEFECTIVE:
        return Defect(f"it is READY but {described_health(node)}", _patience(policy, seen, node, "unhealthy"))
    answers = [worker.answer for worker in seen.workers]
    if Answer.UNREACHABLE in answers:
        # A firewall that blocks ssh looks the same: it is evidence only on a node that tpuctl created or started.
        if not seen.is_ours and not policy.forced:
            return None
        reason = f"it is READY but {describe_answers(answers)}"
        return Defect(reason, _patience(policy, seen, node, "unanswered"), is_silence=True)
    # A worker that could not count its chips is no evidence.
    promised = promised_chips(node)
    is_short = any(worker_holds(policy, worker, Goal.DEVICES, promised) is False for worker in seen.workers)
    if policy.goal is Goal.DEVICES and missing_level(policy, seen, node) is Goal.DEVICES and is_short:
        reason = f"it is READY but {why_devices_short(policy, seen, node)}"
        return Defect(reason, _patience(policy, seen, node, "devices"), is_missing_devices=True)
    return None


def lasted(seen: Seen) -> timedelta:
    """Return how long a defect has lasted, for comparison with its threshold.

    For a health reported by the service, an answer of a worker in between does not restart the count.
    """
    is_reported = seen.node is not None and seen.node.health in _DEFECTIVE
    lasts = max(seen.in_state, seen.in_health) if is_reported else seen.in_state
    return lasts if seen.since_repair is None else min(lasts, seen.since_repair)


def _patience(policy: Policy, seen: Seen, node: Node, first: str) -> timedelta:
    """Return the threshold of a defect; after a repair, the time that the repair has to take effect."""
    thresholds = policy.thresholds
    return scaled(policy, node, getattr(thresholds, first) if seen.since_repair is None else thresholds.recheck)
