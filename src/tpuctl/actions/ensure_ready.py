"""Reconcile nodes until each has reached its goal: fetch, decide, send one change, report, sleep.

`decide` makes the decisions. A failed HTTP call is never evidence about a node: the loop waits until the deadline for the
API to answer. Only an authentication or permission error ends the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from tpuctl.actions.fleet import Fleet
from tpuctl.actions.observation import Task
from tpuctl.clock import format_duration
from tpuctl.errors import AccessError, ServiceUnavailableError, TpuctlError
from tpuctl.events import EventKind
from tpuctl.readiness import Create, Delete, GiveUp, Goal, Policy, Reached, Reboot, Restart, Start, Wait

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from tpuctl.actions.cloud import Context
    from tpuctl.actions.pursuit import Pursuit
    from tpuctl.actions.steps import Pending
    from tpuctl.model import Node, NodeSpec
    from tpuctl.names import NodeName


_ARRIVED = {
    Goal.READY: "ready",
    Goal.HEALTHY: "healthy",
    Goal.SSH: "usable, ssh answers,",
    Goal.STARTUP: "usable, its startup has ended,",
    Goal.DEVICES: "usable, every chip is there,",
    Goal.STOPPED: "stopped",
    Goal.GONE: "gone",
    Goal.PREEMPTED: "preempted",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one node. `node` is its last observed state, None if it is gone; `took` is the time needed."""

    node: Node | None
    took: timedelta
    restarts: int
    note: str | None = None


def ensure(
    context: Context,
    name: NodeName,
    policy: Policy,
    *,
    spec: NodeSpec | None = None,
    pending: Pending | None = None,
    purpose: str | None = None,
    once: bool = False,
) -> Outcome:
    """Bring one node to the goal of the policy and return the result; see `ensure_all`.

    Raises the error that `decide` fails with, and those of the cloud.
    """
    task = Task(name=name, policy=policy, spec=spec, pending=pending, purpose=purpose)
    (result,) = ensure_all(context, [task], once=once)
    if isinstance(result, TpuctlError):
        raise result
    return result


def ensure_all(context: Context, tasks: Sequence[Task], *, once: bool = False) -> list[Outcome | TpuctlError]:
    """Bring nodes to their goals in parallel, and return the results in the order of the tasks.

    With `once` at most one change is sent for each node, and nothing is waited for.
    """
    controller = Fleet(context, tasks)
    results: dict[NodeName, Outcome | TpuctlError] = {}
    try:
        while controller:
            for node, error in controller.observe_due(survey=not once):
                result = _step(node, once=once) if error is None else given_up(node, error)
                if result is not None:
                    results[node.name] = result
                    controller.remove(node)
            controller.sleep()
    finally:
        controller.close()
    if len(tasks) > 1:
        for name, result in results.items():
            if isinstance(result, TpuctlError):
                result.node = name.node_id
    return [results[task.name] for task in tasks]


def _step(node: Pursuit, *, once: bool) -> Outcome | TpuctlError | None:  # noqa: PLR0912  # one case for each decision
    """Take the next step for one node. Return its result when finished, None to be called again."""
    try:
        with node.within_deadline():
            if not once:
                node.ensure_ssh_key()
            decision = node.decide()
            match decision:
                case Reached():
                    pass
                case Wait() if once:
                    pass
                case Wait():
                    node.requeue(decision)
                case GiveUp(error):
                    return given_up(node, error)
                case Create() | Start() | Restart() | Reboot() | Delete():
                    node.execute(decision)
                case _:
                    assert_never(decision)
    except TpuctlError as error:
        if once or not isinstance(error, ServiceUnavailableError):
            return given_up(node, error)
        # The lease store does not answer, so nothing may be changed until it does.
        match node.record_outage(error):
            case Wait() as wait:
                node.requeue(wait)
                return None
            case GiveUp(reason):
                return given_up(node, reason)
    try:
        if isinstance(decision, Reached):
            return _reached(node, decision.level, decision.note)
        if not once:
            return None
        node.refresh()
    except TpuctlError as error:
        return given_up(node, error)
    return Outcome(node.seen.node, node.elapsed, node.seen.tried.restarts)


def _reached(node: Pursuit, level: Goal, note: str | None) -> Outcome:
    """Run the set-up, report that the node reached its goal, and return the result."""
    took = node.elapsed
    node.run_setup()
    node.record_usable(level)
    text = f"{arrived(node.policy, level)} after {format_duration(took)}" + (f"; {note}" if note else "")
    if node.was_repaired:
        node.report_and_journal(EventKind.RECOVERED, text, goal=str(level), took=took.total_seconds())
    else:
        node.report(EventKind.REACHED, text, goal=str(level), took=took.total_seconds())
    return Outcome(node.seen.node, took, node.seen.tried.restarts, note)


def arrived(policy: Policy, level: Goal) -> str:
    """Return in words which condition was reached."""
    return "usable, the probe passed," if level is Goal.DEVICES and policy.has_probe else _ARRIVED[level]


def given_up(node: Pursuit, error: TpuctlError) -> TpuctlError:
    """Report that the run stops working on a node, and return the error."""
    if isinstance(error, AccessError) and node.seen.node is not None:
        left = (
            f"`{node.name.node_id}` was left {node.seen.node.state}: it keeps running, and billing starts when it runs"
        )
        error.hint = f"{error.hint}\n{left}" if error.hint else left
    # The event has the name of the node in a field of its own.
    text, *details = error.lines
    text = " ".join(filter(None, (text, "; ".join(map(str.strip, details))))).removeprefix(f"`{node.name.node_id}`: ")
    node.report_and_journal(EventKind.GAVE_UP, text, error=error.kind, hint=error.hint)
    return error
