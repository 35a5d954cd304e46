"""The loop that brings a node where it is wanted: look, decide, do one step, tell, sleep.

`readiness.decide` decides. The failure of an HTTP call is never evidence about a node: it is waited out until the deadline,
except that of authentication and permission, which ends the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from tpuctl.actions.pursuit import Pending, Pursuit
from tpuctl.clock import format_duration
from tpuctl.errors import QuotaError, ServiceUnavailableError
from tpuctl.events import EventKind
from tpuctl.readiness import Create, Delete, GiveUp, Goal, Policy, Reached, Reboot, Restart, Start, Wait, decide

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.actions.cloud import Context
    from tpuctl.model import Node, NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.readiness import Seen


_ARRIVED = {
    Goal.READY: "ready",
    Goal.HEALTHY: "healthy",
    Goal.SSH: "usable, ssh answers,",
    Goal.STOPPED: "stopped",
    Goal.GONE: "gone",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended: the node as last seen (nothing when it is gone), how long it took, how often it was restarted."""

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
    once: bool = False,
) -> Outcome:
    """Bring a node where the policy wants it, and return how that went.

    `spec` is what to create, and what a node that exists is compared with; `pending` is a change that the caller has
    requested already; with `once` it returns after the first step, or at once where there is only to wait. Raises the
    error that `readiness.decide` gives up with, and those of the cloud.
    """
    pursuit = Pursuit(context, name, policy, spec=spec, pending=pending)
    while True:
        seen = _look(pursuit, once=once)
        if seen is None:
            continue
        decision = decide(policy, seen)
        match decision:
            case Reached(note):
                return _reached(pursuit, policy, note)
            case Wait(delay, reason):
                if once:
                    return Outcome(seen.node, pursuit.took, 0)
                pursuit.wait(delay, reason)
            case GiveUp(reason_to_stop):
                pursuit.leave()
                raise reason_to_stop
            case Create() | Start() | Restart() | Reboot() | Delete():
                _act(pursuit, decision)
                if once:
                    return Outcome(pursuit.look().node, pursuit.took, pursuit.seen.restarts)
            case _:
                assert_never(decision)


def _look(pursuit: Pursuit, *, once: bool) -> Seen | None:
    """Return what is there; nothing where the API did not answer, after a pause."""
    try:
        seen = pursuit.look()
        if not once:
            pursuit.let_in()
    # A read has no quota but that of requests in a minute, which passes.
    except (ServiceUnavailableError, QuotaError) as error:
        pursuit.ride_out(error)
        return None
    return seen


def _act(pursuit: Pursuit, decision: Create | Start | Restart | Reboot | Delete) -> None:
    try:
        pursuit.act(decision)
    except ServiceUnavailableError as error:
        # Whether it was carried out is seen at the next look.
        pursuit.ride_out(error)


def _reached(pursuit: Pursuit, policy: Policy, note: str | None) -> Outcome:
    took = pursuit.took
    pursuit.arrive()
    # An unset health that counts because every worker answers is not called healthy.
    goal = Goal.SSH if policy.goal is Goal.HEALTHY and note else policy.goal
    text = f"{_ARRIVED[goal]} after {format_duration(took)}" + (f"; {note}" if note else "")
    pursuit.tell(EventKind.REACHED, text, goal=str(policy.goal), took=took.total_seconds())
    return Outcome(pursuit.seen.node, took, pursuit.seen.restarts, note)
