"""The loop that brings nodes where they are wanted: look, decide, do one step, tell, sleep.

`readiness.decide` decides. The failure of an HTTP call is never evidence about a node: it is waited out until the deadline,
except that of authentication and permission, which ends the loop.
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
    purpose: str | None = None,
    once: bool = False,
) -> Outcome:
    """Bring one node where the policy wants it, and return how that went; see `ensure_all`.

    Raises the error that `readiness.decide` gives up with, and those of the cloud.
    """
    task = Task(name=name, policy=policy, spec=spec, pending=pending, purpose=purpose)
    (ending,) = ensure_all(context, [task], once=once)
    if isinstance(ending, TpuctlError):
        raise ending
    return ending


def ensure_all(context: Context, tasks: Sequence[Task], *, once: bool = False) -> list[Outcome | TpuctlError]:
    """Bring nodes where they are wanted, all at once, and return how each ended, in the order of the tasks.

    With `once` each takes one step, or none where there is only to wait.
    """
    fleet = Fleet(context, tasks)
    endings: dict[NodeName, Outcome | TpuctlError] = {}
    try:
        while fleet:
            for pursuit, error in fleet.looked_at(ask=not once):
                ending = _step(pursuit, once=once) if error is None else given_up(pursuit, error)
                if ending is not None:
                    endings[pursuit.name] = ending
                    fleet.end(pursuit)
            fleet.rest()
    finally:
        fleet.close()
    if len(tasks) > 1:
        for name, ending in endings.items():
            if isinstance(ending, TpuctlError):
                ending.node = name.node_id
    return [endings[task.name] for task in tasks]


def _step(pursuit: Pursuit, *, once: bool) -> Outcome | TpuctlError | None:
    """Do the next thing for one node; returns how it ended, or nothing where it has not."""
    try:
        with pursuit.in_time():
            if not once:
                pursuit.let_in()
            decision = pursuit.decide()
            match decision:
                case Reached():
                    pass
                case Wait() if once:
                    pass
                case Wait():
                    pursuit.wait(decision)
                case GiveUp(error):
                    return given_up(pursuit, error)
                case Create() | Start() | Restart() | Reboot() | Delete():
                    pursuit.act(decision)
                case _:
                    assert_never(decision)
    except TpuctlError as error:
        if once or not isinstance(error, ServiceUnavailableError):
            return given_up(pursuit, error)
        return _await_leases(pursuit, error)
    try:
        if isinstance(decision, Reached):
            return _reached(pursuit, decision.level, decision.note)
        if not once:
            return None
        pursuit.look_again()
    except TpuctlError as error:
        return given_up(pursuit, error)
    return Outcome(pursuit.seen.node, pursuit.took, pursuit.seen.tried.restarts)


def _await_leases(pursuit: Pursuit, error: ServiceUnavailableError) -> TpuctlError | None:
    """Wait for the store of leases: it does not answer, so that nothing may be changed. Returns why no longer."""
    match pursuit.miss(error):
        case Wait() as wait:
            pursuit.wait(wait)
            return None
        case GiveUp(reason):
            return given_up(pursuit, reason)


def _reached(pursuit: Pursuit, level: Goal, note: str | None) -> Outcome:
    took = pursuit.took
    pursuit.set_up()
    pursuit.arrive(level)
    text = f"{arrived(pursuit.policy, level)} after {format_duration(took)}" + (f"; {note}" if note else "")
    if pursuit.was_repaired:
        pursuit.note_down(EventKind.RECOVERED, text, goal=str(level), took=took.total_seconds())
    else:
        pursuit.tell(EventKind.REACHED, text, goal=str(level), took=took.total_seconds())
    return Outcome(pursuit.seen.node, took, pursuit.seen.tried.restarts, note)


def arrived(policy: Policy, level: Goal) -> str:
    """Return in words what was reached."""
    return "usable, the probe passed," if level is Goal.DEVICES and policy.has_probe else _ARRIVED[level]


def given_up(pursuit: Pursuit, error: TpuctlError) -> TpuctlError:
    """Report that nothing more is done for a node, and return why."""
    node = pursuit.seen.node
    if isinstance(error, AccessError) and node is not None:
        left = f"`{pursuit.name.node_id}` was left as it is, {node.state}: it goes on, and bills as soon as it runs"
        error.hint = f"{error.hint}\n{left}" if error.hint else left
    # The event names the node itself.
    text, *details = error.lines
    text = " ".join(filter(None, (text, "; ".join(map(str.strip, details))))).removeprefix(
        f"`{pursuit.name.node_id}`: "
    )
    pursuit.note_down(EventKind.GAVE_UP, text, error=error.kind, hint=error.hint)
    return error
