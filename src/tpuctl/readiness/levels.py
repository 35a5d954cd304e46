"""Evaluate the levels of usability of a READY node and of its workers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.model import Health, Node
from tpuctl.readiness.values import LEVELS, Answer, Goal, Startup

if TYPE_CHECKING:
    from tpuctl.readiness.values import Policy, Seen, WorkerSeen


def missing_level(policy: Policy, seen: Seen, node: Node) -> Goal | None:
    """Return the first level up to the goal that the node has not reached, or None."""
    wanted = LEVELS[: LEVELS.index(policy.goal) + 1]
    return next((level for level in wanted if not _holds(policy, seen, node, level)), None)


def short_workers(policy: Policy, seen: Seen, node: Node, level: Goal) -> tuple[int, ...]:
    """Return the workers that have not reached a level beyond `healthy`, or did not say."""
    promised = promised_chips(node)
    return tuple(
        index for index, worker in enumerate(seen.workers) if worker_holds(policy, worker, level, promised) is not True
    )


def worker_holds(policy: Policy, worker: WorkerSeen, level: Goal, promised: int | None) -> bool | None:
    """Return whether a worker has reached a level beyond `healthy`; None if that is unknown."""
    if level is Goal.SSH:
        return worker.answer is Answer.YES
    if worker.answer is not Answer.YES:
        return None
    if level is Goal.STARTUP:
        return worker.startup.has_ended if worker.startup is not None else None
    if policy.has_probe:
        # The probe runs after the script that reports the startup: without that report it did not run.
        return worker.failed is None if worker.failed or worker.startup is not None else None
    if promised is None:
        return True
    return worker.chips == promised if worker.chips is not None else None


def promised_chips(node: Node) -> int | None:
    """Return the number of chips of each worker by the accelerator type; None for an unknown type."""
    return node.accelerator.chips_per_worker if node.accelerator else None


def all_answer(seen: Seen, node: Node) -> bool:
    """Return whether every worker answers ssh."""
    return len(seen.workers) >= node.workers and all(worker.answer is Answer.YES for worker in seen.workers)


def is_alive(seen: Seen) -> bool:
    """Return whether the node may be in use: a worker answers or refuses our key, or none was probed."""
    return not seen.workers or any(worker.answer is not Answer.UNREACHABLE for worker in seen.workers)


def is_idle(seen: Seen) -> bool:
    """Return whether every worker that answers was inspected and has no process that holds its TPU."""
    return bool(seen.workers) and all(
        worker.answer is Answer.UNREACHABLE
        or (worker.answer is Answer.YES and worker.startup is not None and not worker.holders)
        for worker in seen.workers
    )


def can_be_entered(seen: Seen) -> bool:
    """Return whether a worker accepts ssh, and so may hold data that a user wants to keep."""
    return any(worker.answer is Answer.YES for worker in seen.workers)


def failed_startups(seen: Seen) -> tuple[int, ...]:
    """Return the workers whose startup has ended and failed."""
    return tuple(index for index, worker in enumerate(seen.workers) if worker.startup is Startup.FAILED)


def _holds(policy: Policy, seen: Seen, node: Node, level: Goal) -> bool:
    match level:
        case Goal.READY:
            return True
        case Goal.HEALTHY:
            # The health is unset for a while after the creation. It counts as healthy once every worker answers.
            is_healthy = node.health is Health.HEALTHY and len(node.endpoints) >= node.workers
            return is_healthy or (node.health is Health.HEALTH_UNSPECIFIED and all_answer(seen, node))
        case _:
            return len(seen.workers) >= node.workers and not short_workers(policy, seen, node, level)
