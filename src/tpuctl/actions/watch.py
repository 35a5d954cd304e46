"""`tpuctl watch`: keep nodes usable until interrupted.

The journal is its only memory: the next run continues from the journal and from what the API reports.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.actions.ensure_ready import arrived, given_up
from tpuctl.actions.fleet import Fleet
from tpuctl.actions.history import is_being_made_anew
from tpuctl.actions.holding import EndedError
from tpuctl.errors import AccessError, ConflictError, NodeNotFoundError, NotFoundError, TpuctlError
from tpuctl.events import EventKind
from tpuctl.model import NodeState
from tpuctl.readiness import Create, Delete, GiveUp, Goal, Reached, Reboot, Restart, Start, Wait
from tpuctl.timing import budget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.actions.cloud import Context
    from tpuctl.actions.observation import Task
    from tpuctl.actions.pursuit import Pursuit
    from tpuctl.names import NodeName

# How often a usable node is fetched: one list call serves all nodes of a zone.
_AT_REST = timedelta(seconds=15)


def watch(
    context: Context, tasks: Sequence[Task], *, until: timedelta | None, each_round: Callable[[], None]
) -> list[TpuctlError]:
    """Keep nodes usable until `until` has passed, or nothing more can be done for any of them. Return their errors.

    A failed node is still fetched while others are watched: it may be fixed by hand. `each_round` is called after each
    round. Raises `AccessError` as soon as the credentials stop working, and `ConflictError` if another client already
    holds the lease of a node.
    """
    started = context.clock.monotonic()
    end = None if until is None else started + until
    controller = Fleet(context, [_continued(context, task) for task in tasks])
    errors: dict[NodeName, TpuctlError] = {}
    try:
        for node in controller:
            if holder := node.take_lease():
                raise ConflictError(
                    f"`{node.name.node_id}` is in use by {holder}",
                    hint="only one process may repair a node; stop the other, or take the lease with `--force-lease`",
                )
        while any(node.name not in errors for node in controller) and (end is None or context.clock.monotonic() < end):
            for node, failure in controller.observe_due():
                error = failure or _step(context, node)
                if error is None:
                    errors.pop(node.name, None)
                else:
                    if node.name not in errors:
                        given_up(node, error)
                    if isinstance(error, AccessError):
                        raise error
                    errors[node.name] = error
                    node.mark_degraded()
                    node.pause(_AT_REST)
                if isinstance(error, NotFoundError | EndedError):
                    controller.remove(node)
            each_round()
            controller.sleep(until=end)
    finally:
        controller.close()
    return list(errors.values())


def _continued(context: Context, task: Task) -> Task:
    """Return the task with the repairs that earlier runs have used, and with the spec of a node that they were recreating."""
    entries = context.journal.entries(task.name)
    spec = task.spec
    if spec is None and is_being_made_anew(context.journal, task.name):
        remembered = context.journal.last_spec(task.name)
        spec = remembered.spec if remembered else None
    tried = budget(entries, refill=task.policy.refill, now=context.clock.now())
    return replace(task, tried=tried, spec=spec)


def _step(context: Context, node: Pursuit) -> TpuctlError | None:
    """Take the next step for one node. Return the error if nothing more can be done for it, else None."""
    try:
        node.ensure_ssh_key()
        was_usable = node.is_usable
        decision = node.decide()
        match decision:
            case Reached(level, note):
                _keep_usable(node, level, note, was_usable=was_usable)
            case Wait():
                # A node that an earlier run created and did not finish is also reported once it is usable.
                if (was_usable or node.seen.is_ours) and not node.seen.outage:
                    node.mark_degraded()
                node.requeue(decision)
            case GiveUp(error):
                return error
            case Start() if not node.was_stopped_by_us:
                node.requeue(Wait(_AT_REST, f"it is {NodeState.STOPPED}, and tpuctl did not stop it: not started"))
            case Create() if not (
                node.seen.was_there
                or node.policy.recreate_deleted
                # An earlier run deleted it to create it again.
                or is_being_made_anew(context.journal, node.name)
            ):
                absent = NodeNotFoundError(node.name.node_id, node.name.zone)
                absent.hint = (
                    f"`tpuctl up {node.name.node_id}` creates it; with `--recreate-deleted`, watch creates it from the "
                    "spec in the journal or in tpuctl.yaml"
                )
                return absent
            case Create() | Start() | Restart() | Reboot() | Delete():
                node.mark_degraded()
                node.execute(decision)
            case _:
                assert_never(decision)
    except TpuctlError as error:
        return error
    return None


def _keep_usable(node: Pursuit, level: Goal, note: str | None, *, was_usable: bool) -> None:
    """Leave a usable node alone. Run its set-up and report it first if it has just become usable."""
    if not was_usable:
        node.run_setup()
    node.record_usable(level)
    if not was_usable:
        text = arrived(node.policy, level).rstrip(",") + (f"; {note}" if note else "")
        if node.has_degraded:
            node.report_and_journal(EventKind.RECOVERED, text)
        else:
            node.report(EventKind.REACHED, text, goal=str(level))
        node.mark_recovered()
    node.pause(_AT_REST)
