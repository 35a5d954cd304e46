"""Describe conditions: why a node is not usable, remarks about a usable node, and the levels of each worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.model import Health, Node, NodeState
from tpuctl.readiness.levels import failed_startups, missing_level, promised_chips, short_workers, worker_holds
from tpuctl.readiness.values import LEVELS, Answer, Goal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.readiness.values import Policy, Seen, WorkerSeen

# Messages name at most this many workers and count the others.
_NAMED = 8


def describe_answers(answers: Sequence[Answer]) -> str:
    """Describe which workers do not answer ssh; at most eight are named."""
    missing = [(index, answer) for index, answer in enumerate(answers) if answer is not Answer.YES]
    if not missing:
        return "every worker answers ssh"
    if len(answers) == 1:
        return f"its worker {answers[0]}" if answers[0] is not Answer.UNREACHABLE else "its worker does not answer ssh"
    named = named_workers([index for index, _ in missing])
    kinds = {answer for _, answer in missing}
    word = str(missing[0][1]) if len(kinds) == 1 else "cannot be used by ssh"
    plural = {"does not answer": "do not answer ssh", "refuses the key": "refuse the key"}
    word = plural.get(word, word.replace("has ", "have "))
    return f"{len(missing)} of {len(answers)} workers {word} ({named})"


def why_not_usable(policy: Policy, seen: Seen, node: Node) -> str:
    """Return why a READY node has not reached the goal."""
    if node.health is Health.HEALTHY and len(node.endpoints) < node.workers:
        return f"{len(node.endpoints)} of {node.workers} workers have an address"
    if node.health not in {Health.HEALTHY, Health.HEALTH_UNSPECIFIED}:
        return f"it is READY but {described_health(node)}"
    level = missing_level(policy, seen, node)
    if level in {Goal.STARTUP, Goal.DEVICES}:
        return _why_short(policy, seen, node, level)
    if seen.workers:
        return describe_answers([worker.answer for worker in seen.workers])
    if node.health is Health.HEALTHY:
        return "it is READY, its workers have not been probed yet"
    return "it is READY, its health is not reported yet"


def why_devices_short(policy: Policy, seen: Seen, node: Node) -> str:
    """Return which worker sees fewer chips than its type promises, or fails the user's probe."""
    return _why_short(policy, seen, node, Goal.DEVICES)


def described_health(node: Node) -> str:
    """Return the health of a node, with the description of the service."""
    return f"{node.health} ({node.health_description})" if node.health_description else str(node.health)


def usable_note(policy: Policy, seen: Seen, node: Node) -> str | None:
    """Return a remark about a usable node, or None."""
    notes = [health_note(node)]
    if policy.goal.includes(Goal.STARTUP) and (failed := failed_startups(seen)):
        which = "" if len(seen.workers) == 1 else f" on worker{'s' * (len(failed) > 1)} {named_workers(failed)}"
        notes.append(f"its startup script has failed{which}")
    if policy.goal is Goal.DEVICES and not policy.has_probe and promised_chips(node) is None:
        notes.append(f"the number of chips of `{node.accelerator_type}` is unknown, so it was not compared")
    return "; ".join(note for note in notes if note) or None


def health_note(node: Node) -> str | None:
    """Return a remark about the health of a usable node, or None."""
    if node.health is Health.HEALTHY:
        return None
    if node.health is Health.HEALTH_UNSPECIFIED:
        return "its health is not reported yet"
    return f"the service reports {described_health(node)}"


def named_workers(indices: Sequence[int]) -> str:
    """Return the numbers of the first eight workers, and the count of the others."""
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return ", ".join(map(str, indices[:_NAMED])) + more


def advice(seen: Seen) -> str | None:
    """Return a hint for workers that answer but refuse the login, or None."""
    name, answers = seen.name.node_id, {worker.answer for worker in seen.workers}
    if Answer.HOST_KEY_CHANGED in answers:
        return (
            f"the host key has changed: if `{name}` was not reinstalled, the connection may be intercepted; "
            f"`tpuctl ssh {name}` shows the message of ssh"
        )
    if Answer.KEY_REFUSED in answers:
        return f"`tpuctl up {name}` adds your key to a node of yours; `tpuctl ssh {name}` shows the message of ssh"
    return None


def matrix(policy: Policy, seen: Seen) -> list[dict[str, Any]]:
    """Return a row for each worker: its number, whether each level is reached (None: unknown), and why the first is not."""
    node = seen.node
    if node is None or node.state is not NodeState.READY:
        return []
    promised = promised_chips(node)
    rows: list[dict[str, Any]] = []
    for index, worker in enumerate(seen.workers):
        is_healthy = node.health is Health.HEALTHY and index < len(node.endpoints)
        is_known = node.health is not Health.HEALTH_UNSPECIFIED
        row: dict[str, Any] = {"worker": index, "ready": True, "healthy": is_healthy if is_known else None}
        row |= {str(level): worker_holds(policy, worker, level, promised) for level in LEVELS[2:]}
        if policy.goal is not Goal.DEVICES and worker.chips is None and not worker.failed:
            row[Goal.DEVICES] = None
        short = next((level for level in LEVELS[2:] if policy.goal.includes(level) and row[level] is not True), None)
        rows.append(row | {"why": _shortfall(policy, worker, short, promised) if short else None})
    return rows


def _why_short(policy: Policy, seen: Seen, node: Node, level: Goal) -> str:
    """Describe which workers have not reached a level, each with its reason if there are few."""
    short, promised = short_workers(policy, seen, node, level), promised_chips(node)
    reasons = {index: _shortfall(policy, seen.workers[index], level, promised) for index in short}
    if not reasons:
        return f"{len(seen.workers)} of {node.workers} workers have been probed"
    if len(seen.workers) == 1:
        return f"its worker {reasons[0]}"
    if len(set(reasons.values())) == 1 and len(reasons) > 1:
        each = "each " if level is Goal.DEVICES and not policy.has_probe else ""
        return f"{len(short)} of {len(seen.workers)} workers: {each}{reasons[short[0]]} ({named_workers(short)})"
    named = ", ".join(f"worker {index} {reasons[index]}" for index in short[:_NAMED])
    return named + (f" and {len(short) - _NAMED} more" if len(short) > _NAMED else "")


def _shortfall(policy: Policy, worker: WorkerSeen, level: Goal, promised: int | None) -> str:
    if worker.answer is not Answer.YES:
        return str(worker.answer)
    if level is Goal.STARTUP:
        return "has not ended its startup" if worker.startup is not None else "has not reported its startup"
    if policy.has_probe:
        return f"fails the probe ({worker.failed})" if worker.failed else "has not been probed yet"
    return f"sees {worker.chips} of {promised} chips" if worker.chips is not None else "has not reported its chips"
