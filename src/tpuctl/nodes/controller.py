"""Reconcile nodes until each has reached its goal: fetch, decide, send one change, report, sleep.

`Controller` fetches all nodes that are due together; `NodeReconciler` takes the next step for one node; `watch_nodes` is the
same loop without an end. `decide` makes the decisions. A failed HTTP call is never evidence about a node: the loop waits until
the deadline for the API to answer. Only an authentication or permission error ends the loop.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard, assert_never

from tpuctl.clock import DEADLINE_GRACE, SystemClock, limit_cloud_calls
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    NoCapacityError,
    NodeNotFoundError,
    NotFoundError,
    QuotaError,
    RemoteCommandError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.fan_out import fan_out
from tpuctl.models.events import EventKind
from tpuctl.models.node import Node, NodeState, QueuedState
from tpuctl.models.spec import RACE_LABEL
from tpuctl.nodes.actuator import (
    PATCHABLE_STATES,
    REBOOT_PAUSE,
    LeaseLostError,
    RequestedChange,
    announced_change,
    describe_file_choices,
    describe_spec,
)
from tpuctl.nodes.conditions import (
    Condition,
    Create,
    Decision,
    Delete,
    DeleteRequest,
    Done,
    Fail,
    ObservedState,
    Policy,
    Reboot,
    RepairAttempts,
    Requeue,
    Restart,
    SshAnswer,
    Start,
    Verb,
    failed_scripts,
    worker_matrix,
)
from tpuctl.nodes.decide import decide
from tpuctl.nodes.expiry import expiry_note, is_expired, later_end, move_expiry, set_expiry
from tpuctl.nodes.idleness import IDLE_WARNING, IdleAction
from tpuctl.nodes.journal import JournalError, former_spec, is_being_recreated
from tpuctl.nodes.journal_entries import used_repairs
from tpuctl.nodes.lease import DeletedByOtherError, LeaseError, LeaseGuard, TakenOverError
from tpuctl.nodes.node_guard import remove_node_guard, start_node_guard
from tpuctl.nodes.queueing import queue_window
from tpuctl.nodes.request_steps import DeletionRefusedError
from tpuctl.nodes.tracker import NodeSnapshot, NodeTracker, ReconcileRequest, fetch_snapshots
from tpuctl.ssh.keys import add_metadata_key, with_metadata_key
from tpuctl.ssh.routes import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from tpuctl.models.node_changes import NodeChange
    from tpuctl.models.operation import Operation
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.conditions import Change
    from tpuctl.nodes.idleness import IdleLimit
    from tpuctl.nodes.ssh_workers import SetupResult

_CONDITION_PHRASES = {
    Condition.READY: "ready",
    Condition.HEALTHY: "healthy",
    Condition.SSH: "usable, ssh answers,",
    Condition.STARTUP: "usable, its startup has ended,",
    Condition.DEVICES: "usable, every chip is there,",
    Condition.STOPPED: "stopped",
    Condition.GONE: "gone",
    Condition.PREEMPTED: "preempted",
}


@dataclass(frozen=True, slots=True)
class NodeResult:
    """The result for one node: its last observed state, None if it is gone."""

    node: Node | None
    # The workers on which its startup script failed; None if the run did not wait for the startup.
    failed_scripts: tuple[int, ...] | None = None


def reconcile_node(
    context: ActionContext,
    name: NodeName,
    policy: Policy,
    *,
    spec: NodeSpec | None = None,
    pending: RequestedChange | None = None,
    purpose: str | None = None,
    once: bool = False,
) -> NodeResult:
    """Bring one node to the goal of the policy and return the result; see `reconcile_nodes`.

    Raises the error that `decide` fails with, and those of the cloud.
    """
    task = ReconcileRequest(name=name, policy=policy, spec=spec, pending=pending, purpose=purpose)
    (result,) = reconcile_nodes(context, [task], once=once)
    if isinstance(result, TpuctlError):
        raise result
    return result


def reconcile_nodes(
    context: ActionContext, tasks: Sequence[ReconcileRequest], *, once: bool = False
) -> list[NodeResult | TpuctlError]:
    """Bring nodes to their goals in parallel, and return the results in the order of the tasks.

    With `once` at most one change is sent for each node, and nothing is waited for.
    """
    controller = Controller(context, tasks)
    results: dict[NodeName, NodeResult | TpuctlError] = {}
    try:
        while controller:
            for node, error in controller.observe_due(survey=not once):
                result = take_step(node, once=once) if error is None else report_failure(node, error)
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


def take_step(node: NodeReconciler, *, once: bool = False) -> NodeResult | TpuctlError | None:  # noqa: PLR0912  # one case for each decision
    """Take the next step for one node. Return its result when finished, None to be called again."""
    try:
        with node.within_deadline():
            node.ensure_expiry()
            if not once:
                node.ensure_ssh_key()
            decision = node.decide()
            match decision:
                case Done():
                    pass
                case Requeue() if once:
                    pass
                case Requeue():
                    node.requeue(decision)
                case Fail(error):
                    return report_failure(node, error)
                case Create() | Start() | Restart() | Reboot() | Delete() | DeleteRequest():
                    node.execute(decision)
                case _:
                    assert_never(decision)
    except TpuctlError as error:
        if once or not isinstance(error, ServiceUnavailableError):
            return report_failure(node, error)
        # The lease store does not answer, so nothing may be changed until it does.
        match node.record_outage(error):
            case Requeue() as wait:
                node.requeue(wait)
                return None
            case Fail(reason):
                return report_failure(node, reason)
    try:
        if isinstance(decision, Done):
            if (setup := node.advance_setup(blocks=once)) is not None:
                node.requeue(setup)
                return None
            return _succeed(node, decision.level, decision.note)
        if not once:
            return None
        node.fetch()
    except TpuctlError as error:
        return report_failure(node, error)
    return NodeResult(node.seen.node)


def _succeed(node: NodeReconciler, level: Condition, note: str | None) -> NodeResult:
    """Report that the node reached its goal, and return the result."""
    took = node.tracker.elapsed
    node.ensure_expiry()
    node.start_guard(level)
    node.record_usable(level)
    notes = [note, expiry_note(node.tracker.node, node.server_now())] if level.is_usable else [note]
    text = "; ".join(filter(None, (f"{_describe_reached(node.policy, level)} after {format_duration(took)}", *notes)))
    if node.was_repaired:
        node.report_and_journal(EventKind.RECOVERED, text, goal=str(level), took=took.total_seconds())
    else:
        node.report(EventKind.REACHED, text, goal=str(level), took=took.total_seconds())
    if level.is_usable and node.has_expired:
        ended = expiry_note(node.tracker.node, node.server_now())
        text = f"its time has ended, it {ended}: any clean-up may delete it; `tpuctl extend {node.name.node_id} 2h`"
        node.report(EventKind.NOTE, text)
    return NodeResult(node.seen.node, failed_scripts(node.seen.workers) if level.includes(Condition.STARTUP) else None)


def _describe_reached(policy: Policy, level: Condition) -> str:
    """Return in words which condition was reached."""
    return "usable, the probe passed," if level is Condition.DEVICES and policy.has_probe else _CONDITION_PHRASES[level]


# Errors that say nothing about the node: what is left of it is said with them.
_ENDS_A_RUN = (AccessError, LeaseError, JournalError)


def report_failure(node: NodeReconciler, error: TpuctlError) -> TpuctlError:
    """Report that the run stops working on a node, and return the error."""
    if isinstance(error, _ENDS_A_RUN) and node.seen.node is not None and not node.seen.node.state.is_dead:
        left = (
            f"`{node.name.node_id}` was left {node.seen.node.state}: it keeps running, and billing starts when it runs"
        )
        error.hint = f"{error.hint}\n{left}" if error.hint else left
    elif isinstance(error, _ENDS_A_RUN) and node.seen.is_queued and node.seen.request is not None:
        left = (
            f"its queued resource was left {node.seen.request.state} and counts against the quota: "
            f"`tpuctl queue cancel {node.name.node_id}` cancels it"
        )
        error.hint = f"{error.hint}\n{left}" if error.hint else left
    # The event has the name of the node in a field of its own.
    text, *details = error.lines
    text = " ".join(filter(None, (text, "; ".join(map(str.strip, details))))).removeprefix(f"`{node.name.node_id}`: ")
    node.report_and_journal(EventKind.GAVE_UP, text, error=error.kind, hint=error.hint)
    return error


# Nodes whose workers are probed at the same time.
_MAX_SURVEYS = 16
# Nodes that are due within this time, or within their slack, are fetched together: one list call serves them all.
_BATCH_WINDOW = timedelta(seconds=1)
_RELEASE_TIMEOUT = timedelta(seconds=5)


class Controller:
    """The nodes of a run that are not finished. One list call serves all of them; their workers are probed in parallel."""

    def __init__(self, context: ActionContext, tasks: Sequence[ReconcileRequest]) -> None:
        self._context = context
        self._open = {task.name: NodeReconciler(context, task) for task in tasks}

    def __iter__(self) -> Iterator[NodeReconciler]:
        return iter(tuple(self._open.values()))

    def __bool__(self) -> bool:
        return bool(self._open)

    def remove(self, node: NodeReconciler) -> None:
        """Release a node and drop it from the run."""
        self._open.pop(node.name).release()

    def replace(self, node: NodeReconciler, task: ReconcileRequest, pause: timedelta) -> None:
        """Drop a node, and reconcile another in its place after the pause.

        Its lease is taken before the pause: `down` must find who would create the node.
        """
        successor = NodeReconciler(self._context, task)
        with suppress(ServiceUnavailableError):  # the successor takes it before its first change
            self._context.leases.acquire(task.name, "move")
            successor.lease.take()
        self.remove(node)
        self._open[task.name] = successor
        successor.has_degraded = True
        successor.tracker.last_end = node.tracker.last_end
        successor.due += pause

    def close(self) -> None:
        """Release all nodes within 5 seconds: the run may have been interrupted, and leases expire by themselves."""
        with limit_cloud_calls(SystemClock(), _RELEASE_TIMEOUT):
            for node in self:
                self.remove(node)

    def observe_due(self, *, survey: bool = True) -> Iterator[tuple[NodeReconciler, TpuctlError | None]]:
        """Fetch the nodes that are due and yield them, each with the error that a later snapshot cannot resolve, or None.

        Without `survey` no worker is probed.
        """
        now = self._context.clock.monotonic()
        if not any(node.due <= now + _BATCH_WINDOW for node in self):
            return
        due = [node for node in self if node.due <= now + max(_BATCH_WINDOW, node.slack)]
        with_requests = [node for node in due if node.tracker.needs_queued_resource]
        # The limit of the first serves all: in practice all nodes have the same deadline.
        with due[0].within_deadline():
            failed = self._observe(due, with_requests)
            # A node that disappears may have been preempted: its queued resource says so, before any decision is made.
            late = [
                node for node in due if node.tracker.needs_queued_resource and node not in {*with_requests, *failed}
            ]
            if late:
                failed |= self._observe(late, late)
            if survey:
                failed |= self._survey([node for node in due if node not in failed])
        for node in due:
            yield node, failed.get(node)

    def sleep(self, *, until: timedelta | None = None) -> None:
        """Sleep until a node or its lease is due, or `until` by the monotonic clock. Return at once if no node is left."""
        if not self:
            return
        now, leases = self._context.clock.monotonic(), self._context.leases
        moments = [node.due for node in self] + ([until] if until is not None else [])
        if min(moments) - now > leases.policy.renews_every:
            moments = [now + leases.policy.renews_every]
            for node in self:
                with suppress(TpuctlError):  # a lost lease shows when the node is due
                    leases.renew(node.name)
        self._sleep_until(min(moments))

    def _sleep_until(self, moment: timedelta) -> None:
        """Sleep until a moment of the clock, or until a set-up ends: its node is due then.

        A set-up takes real time. A clock that only sleeping moves stands still for a moment of it.
        """
        clock, patience = self._context.clock, _SETUP_PATIENCE
        while (now := clock.monotonic()) < moment and patience > timedelta() and any(node.setup for node in self):
            ended = [node for node in self if node.setup is not None and node.setup.has_ended]
            for node in ended:
                node.due = now
            if ended:
                return
            SystemClock().sleep(_SETUP_GLANCE)
            patience = patience - _SETUP_GLANCE if clock.monotonic() == now else _SETUP_PATIENCE
        clock.sleep(moment - clock.monotonic())

    def _observe(
        self, nodes: Sequence[NodeReconciler], with_requests: Sequence[NodeReconciler]
    ) -> dict[NodeReconciler, TpuctlError]:
        """Fetch nodes, and the queued resources of some. Return the errors that a later snapshot cannot resolve."""
        snapshots = fetch_snapshots(
            self._context.cloud,
            [node.name for node in nodes],
            present=[node.name for node in nodes if node.seen.node],
            requested=[node.name for node in with_requests],
            # The newest of each that any node needs: it shows all that the other does.
            versions=(
                max(node.tracker.versions[0] for node in nodes),
                max(node.tracker.versions[1] for node in nodes),
            ),
        )
        failed: dict[NodeReconciler, TpuctlError] = {}
        for node in nodes:
            try:
                node.tracker.observe(snapshots[node.name])
            except TpuctlError as error:
                failed[node] = error
        return failed

    def _survey(self, nodes: Sequence[NodeReconciler]) -> dict[NodeReconciler, TpuctlError]:
        for node in nodes:
            node.tracker.drop_irrelevant_answers()
        due = [node for node in nodes if node.tracker.needs_survey(is_usable=node.is_usable or node.setup is not None)]
        outcomes = fan_out(NodeReconciler.survey_workers, due, limit=_MAX_SURVEYS)
        return {outcome.item: outcome.error for outcome in outcomes if outcome.error}


# How often a usable node is fetched: one list call serves all nodes of a zone.
_WATCH_INTERVAL = timedelta(seconds=15)


def watch_nodes(
    context: ActionContext,
    tasks: Sequence[ReconcileRequest],
    *,
    until: timedelta | None,
    each_round: Callable[[], None],
    move: Callable[[NodeReconciler], tuple[ReconcileRequest, timedelta] | None] = lambda _: None,
    delete_expired: Callable[[NodeName, Node | None], bool] | None = None,
    end_idle: Callable[[Node, IdleLimit], bool] | None = None,
) -> list[TpuctlError]:
    """Keep nodes usable until `until` has passed, or nothing more can be done for any of them. Return their errors.

    The journal is the only memory: the next run continues from the journal and from what the API reports. A failed node is
    still fetched while others are watched: it may be fixed by hand. `each_round` is called after each round. `move` may return
    the same node in another zone, which is watched from then on, and a pause before it. `delete_expired` requests the
    deletion of a node whose time has ended, or with None that of its request, unless it has more time now; without it no
    node is deleted for that. `end_idle` stops or deletes a node that was idle for the time of its limit, and returns whether
    it did. Raises `AccessError` as soon as the credentials stop working, and the errors of `_begin_watch`.
    """
    started = context.clock.monotonic()
    end = None if until is None else started + until
    controller = Controller(context, [_with_used_repairs(context, task) for task in tasks])
    errors: dict[NodeName, TpuctlError] = {}
    try:
        for node in controller:
            _begin_watch(node, ends_expired=delete_expired is not None)
        while any(node.name not in errors for node in controller) and (end is None or context.clock.monotonic() < end):
            for node, failure in controller.observe_due():
                try:
                    # Before the step, which would ask again in the same zone.
                    is_ending = node.ending is not None or node.is_over or node.has_expired_request
                    if failure is None and not is_ending and node.may_move and (successor := move(node)):
                        errors.pop(node.name, None)
                        controller.replace(node, *successor)
                        continue
                    error = failure or _watch_step(context, node, delete_expired, end_idle)
                except TpuctlError as unmovable:
                    error = unmovable
                if error is None:
                    errors.pop(node.name, None)
                else:
                    if node.name not in errors:
                        report_failure(node, error)
                    if isinstance(error, AccessError):
                        raise error
                    errors[node.name] = error
                    node.has_degraded = True
                    node.pause(_WATCH_INTERVAL)
                if node.has_ended or isinstance(error, NotFoundError | TakenOverError):
                    controller.remove(node)
            each_round()
            controller.sleep(until=end)
    finally:
        controller.close()
    return list(errors.values())


def _begin_watch(node: NodeReconciler, *, ends_expired: bool) -> None:
    """Take the lease of a node. An expired node that another command ended, and that still exists, is watched without it.

    A run that was killed between the end of the lease and its delete request leaves such a node. Raises `ConflictError` if
    another client holds the lease, `TakenOverError` or `DeletedByOtherError` if another command ended the node.
    """
    try:
        is_ours = node.lease.take()
    except (TakenOverError, DeletedByOtherError):
        if not ends_expired or not node.is_found_expired():
            raise
        return
    if not is_ours:
        raise ConflictError(
            f"`{node.name.node_id}` is in use by {node.lease.held_by}",
            hint="only one process may repair a node; stop the other, or take the lease with `--force-lease`",
        )


def _with_used_repairs(context: ActionContext, task: ReconcileRequest) -> ReconcileRequest:
    """Return the task with the repairs that earlier runs have used, and with the spec of a node that they were recreating."""
    entries = context.journal.entries(task.name)
    spec = task.spec
    former = former_spec(context.journal, task.name)
    if spec is not None and former is not None:
        spec = spec.over(former)
    elif is_being_recreated(context.journal, task.name):
        spec = former
    tried = used_repairs(entries, refill=task.policy.refill, now=context.clock.now())
    return replace(task, attempts=tried, spec=spec)


def _watch_step(
    context: ActionContext,
    node: NodeReconciler,
    delete_expired: Callable[[NodeName, Node | None], bool] | None,
    end_idle: Callable[[Node, IdleLimit], bool] | None,
) -> TpuctlError | None:
    """Take the next step for one node. Return the error if nothing more can be done for it, else None."""
    try:
        if delete_expired is not None and _end_what_is_over(context, node, delete_expired):
            return None
        node.ensure_ssh_key()
        was_usable = node.is_usable
        decision = node.decide()
        match decision:
            case Done(level, note):
                if not was_usable and (setup := node.advance_setup()) is not None:
                    node.requeue(setup)
                    return None
                _keep_usable(node, level, note, was_usable=was_usable)
                if end_idle is not None:
                    _end_if_idle(context, node, end_idle)
            case Requeue():
                # A node that an earlier run created and did not finish is also reported once it is usable.
                if (was_usable or node.seen.is_ours) and not node.seen.outage:
                    node.has_degraded = True
                node.requeue(decision)
            case Fail(error):
                return error
            case Start() if not node.was_stopped_by_us:
                node.requeue(
                    Requeue(_WATCH_INTERVAL, f"it is {NodeState.STOPPED}, and tpuctl did not stop it: not started")
                )
            case Create() if not (
                node.seen.was_there
                or node.policy.recreate_deleted
                # An earlier run deleted it to create it again.
                or is_being_recreated(context.journal, node.name)
            ):
                absent = NodeNotFoundError(node.name.node_id, node.name.zone)
                absent.hint = (
                    f"`tpuctl up {node.name.node_id}` creates it; with `--recreate-deleted`, watch creates it from the "
                    "spec in the journal or in tpuctl.yaml"
                )
                return absent
            case Create() | Start() | Restart() | Reboot() | Delete() | DeleteRequest():
                node.has_degraded = True
                node.execute(decision)
            case _:
                assert_never(decision)
    except TpuctlError as error:
        return error
    return None


def _end_if_idle(context: ActionContext, node: NodeReconciler, end_idle: Callable[[Node, IdleLimit], bool]) -> None:
    """Stop or delete a node that was idle for the time of its limit, and end its watch."""
    found, limit, idle = node.seen.node, node.idle_limit, node.idle_time
    if found is None or limit is None or idle is None:
        return
    left = limit.after - idle
    if left > timedelta():
        action = limit.action_for(found)
        if left <= IDLE_WARNING and action is not None and not node.has_warned_of_idleness:
            node.has_warned_of_idleness = True
            text = f"idle for {format_duration(idle)}: it is {action.past} in {format_duration(left)} unless it is used"
            node.report(EventKind.NOTE, text)
        return
    node.lease.keep()
    if end_idle(found, limit):
        if limit.action_for(found) is IdleAction.DELETE:
            node.ending = NodeEnding(found.id, context.clock.monotonic())
        else:
            node.has_ended = True
    node.forget_idleness()


# A deletion that the service accepted and that does not show for this long is sent again.
_DELETION_LAG = timedelta(minutes=5)


def _end_what_is_over(
    context: ActionContext, node: NodeReconciler, delete: Callable[[NodeName, Node | None], bool]
) -> bool:
    """Take the next step to end a node or request whose time has ended. Return False if it has time left."""
    if node.has_expired:
        _end_expired(context, node, delete)
    elif node.has_expired_request:
        _end_expired_request(context, node, delete)
    elif node.is_over:
        node.report(EventKind.EXPIRED, "its time has ended, and it does not exist: it is not created again")
        node.has_ended = True
    else:
        return False
    return True


def _end_expired(context: ActionContext, node: NodeReconciler, delete: Callable[[NodeName, Node | None], bool]) -> None:
    """Delete a node whose time has ended, once, and end its watch when the API shows that it is gone."""
    found, ending, now = node.seen.node, node.ending, context.clock.monotonic()
    if ending is not None and (found is None or found.id != ending.node_id):
        node.has_ended = True
        return
    if found is None or node.seen.outage:
        node.requeue(Requeue(_WATCH_INTERVAL, "the API does not answer"))
        return
    is_sent = ending is not None and now - ending.since < _DELETION_LAG
    if is_sent or found.state is NodeState.DELETING:
        node.ending = ending or NodeEnding(found.id, now)
    elif found.state is NodeState.CREATING:
        node.requeue(Requeue(_WATCH_INTERVAL, "its time has ended: it is deleted when it is no longer CREATING"))
        return
    else:
        node.lease.keep()
        try:
            node.ending = NodeEnding(found.id, now) if delete(node.name, found) else None
        except (ServiceUnavailableError, QuotaError) as error:
            node.tracker.record_outage(error)
        except DeletionRefusedError as error:
            # Its queued resource is in a state that forbids it, which passes.
            node.requeue(Requeue(_WATCH_INTERVAL, f"its time has ended: {error.message}"))
            return
    node.pause(_WATCH_INTERVAL)


# The service changes a request in these states: it is deleted afterwards, or with the node that comes of it.
_PASSING_STATES = frozenset({QueuedState.PROVISIONING, QueuedState.SUSPENDING, QueuedState.DELETING})


def _end_expired_request(
    context: ActionContext, node: NodeReconciler, delete: Callable[[NodeName, Node | None], bool]
) -> None:
    """Delete the request of a node that did not come within its time, once. When it is gone, the node is over."""
    request, sent, now = node.seen.request, node.request_deleted_at, context.clock.monotonic()
    if request is not None and request.state in _PASSING_STATES:
        node.requeue(Requeue(_WATCH_INTERVAL, f"its time has ended: its queued resource is {request.state}"))
        return
    if sent is None or now - sent >= _DELETION_LAG:
        node.lease.keep()
        try:
            if delete(node.name, None):
                node.request_deleted_at = now
        except (ServiceUnavailableError, QuotaError) as error:
            node.tracker.record_outage(error)
        except DeletionRefusedError as error:
            node.requeue(Requeue(_WATCH_INTERVAL, f"its time has ended: {error.message}"))
            return
    node.pause(_WATCH_INTERVAL)


@dataclass(frozen=True, slots=True)
class NodeEnding:
    """The deletion of a node whose time has ended; `since` is monotonic."""

    node_id: str
    since: timedelta


def _keep_usable(node: NodeReconciler, level: Condition, note: str | None, *, was_usable: bool) -> None:
    """Leave a usable node alone. Report it first if it has just become usable."""
    if not was_usable:
        node.start_guard(level)
    node.record_usable(level)
    if not was_usable:
        text = _describe_reached(node.policy, level).rstrip(",") + (f"; {note}" if note else "")
        if node.has_degraded:
            node.report_and_journal(EventKind.RECOVERED, text)
        else:
            node.report(EventKind.REACHED, text, goal=str(level))
        node.has_degraded = node.was_repaired = False
    node.pause(_WATCH_INTERVAL)


# Two examinations with more time between them say nothing about that time.
_LONGEST_BLINDNESS = timedelta(minutes=5)
# A set-up installs packages. The limit ends one that hangs.
_SETUP_TIMEOUT = timedelta(hours=1)
# How long the loop waits for an update of labels or metadata: meanwhile no other node is looked at, and no lease renewed.
_UPDATE_PATIENCE = timedelta(seconds=30)
_SETUP_GLANCE, _SETUP_PATIENCE = timedelta(seconds=0.05), timedelta(seconds=0.2)
# The part of a delay by which a node may be fetched early, together with others.
_SLACK_SHARE = 0.4


class RunningSetup:
    """A set-up that runs on the workers of a node, beside the loop."""

    def __init__(self, node: Node, run: Callable[[], Sequence[SetupResult]]) -> None:
        self.node = node
        self._run = run
        self._results: Sequence[SetupResult] = ()
        self._error: BaseException | None = None
        # A daemon thread does not keep an interrupted process alive.
        self._thread = threading.Thread(target=self._work, name="set-up", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._results = self._run()
        except BaseException as error:  # noqa: BLE001  # raised by `results`
            self._error = error

    @property
    def has_ended(self) -> bool:
        """Whether it has ended on all workers, or cannot run."""
        return not self._thread.is_alive()

    def results(self) -> Sequence[SetupResult]:
        """Return the result of each worker; wait for them. Raises what prevented it from running."""
        while not self.has_ended:
            self._thread.join(_SETUP_GLANCE.total_seconds())
        if self._error is not None:
            raise self._error
        return self._results


class NodeReconciler:
    """The state of one node during a run, and the changes that can be made to it.

    `due` is the monotonic time at which the next decision about the node is made.
    """

    def __init__(self, context: ActionContext, task: ReconcileRequest) -> None:
        self.task, self.name = task, task.name
        self._context = context
        self.lease = task.lease or LeaseGuard(context, task.name, task.purpose, force_lease=task.force_lease)
        self.tracker = NodeTracker(context, task)
        self._acted_at: timedelta | None = None
        # Since when the node is idle, and when its workers were examined last; monotonic.
        self._idle_since: timedelta | None = None
        self._examined_at: timedelta | None = None
        self.has_warned_of_idleness = False
        self._usable_since: timedelta | None = None
        # When a node that was usable during this run was last seen not to be; monotonic.
        self._lost_at: timedelta | None = None
        self._key_sent_to: str | None = None
        # The set-up that runs on the node now.
        self.setup: RunningSetup | None = None
        # The id of a node whose set-up failed in this run, and how.
        self._failed_setup: tuple[str, RemoteCommandError] | None = None
        # The failure after which the node was last requested again: its verb and count.
        self._failure_tried_after: object = None
        self.was_repaired = self.has_degraded = False
        # The deletion of a node whose time has ended, and whether that is complete.
        self.ending: NodeEnding | None = None
        # When the deletion of a request whose time has ended was sent; monotonic.
        self.request_deleted_at: timedelta | None = None
        self.has_ended = False
        self.due = context.clock.monotonic()
        # A list call made for other nodes also serves this node, up to this long before it is due.
        self.slack = timedelta()

    @property
    def policy(self) -> Policy:
        """The goal, and what may be done to reach it."""
        return self.tracker.policy

    @property
    def seen(self) -> ObservedState:
        """The last observed state."""
        return self.tracker.seen

    def within_deadline(self) -> AbstractContextManager[None]:
        """Limit the calls of a block to the time left, plus a grace period after the deadline."""
        left = self.tracker.left
        limit = None if left is None else max(left, timedelta())
        return limit_cloud_calls(self._context.clock, limit, grace=DEADLINE_GRACE)

    @property
    def is_usable(self) -> bool:
        """Return whether the node was usable at the last decision."""
        return self._usable_since is not None

    @property
    def has_expired(self) -> bool:
        """Return whether the time of the node has ended, or the node is being deleted for that."""
        node = self.seen.node
        is_over = node is not None and not self.seen.outage and not node.is_kept and is_expired(node, self.server_now())
        return self.ending is not None or is_over

    @property
    def is_over(self) -> bool:
        """Return whether the node is gone, nothing is under way that creates it, and its time has ended meanwhile."""
        seen, end = self.seen, self.tracker.last_end
        is_gone = seen.node is None and seen.request is None and not seen.outage and not self.tracker.requested.pending
        return self.ending is None and is_gone and end is not None and end <= self.server_now()

    @property
    def has_expired_request(self) -> bool:
        """Return whether a request that has no node is left, and its time has ended."""
        return self.seen.request is not None and self.seen.has_time_ended and not self.seen.outage

    @property
    def was_stopped_by_us(self) -> bool:
        """Return whether the node is STOPPED because tpuctl is restarting it."""
        return self.seen.node is not None and self.tracker.history.stopped == self.seen.node.id

    @property
    def may_move(self) -> bool:
        """Return whether a change has failed, no request was sent since, and this run still holds the lease.

        Raises `TakenOverError` or `DeletedByOtherError` if the lease was ours and is lost.
        """
        is_new = self.seen.failure is not None and self._identify_failure() != self._failure_tried_after
        seen, requested = self.seen, self.tracker.requested
        is_unknown = seen.outage is not None or requested.invisible(seen.node, seen.request) is not None
        return is_new and not is_unknown and not self.lease.find_other_holder()

    def _identify_failure(self) -> object:
        return self.seen.failure and (self.seen.failure.verb, self.seen.failure.times)

    def fetch(self) -> None:
        """Fetch this node alone. Raises what the cloud raises."""
        version = self.tracker.versions[0]
        self.tracker.observe(NodeSnapshot(self._context.cloud.find_node(self.name, version=version)))

    def is_found_expired(self) -> bool:
        """Fetch this node alone, and return whether its time has ended; False if the API does not answer."""
        try:
            self.fetch()
        except TpuctlError:
            return False
        return self.has_expired

    def survey_workers(self) -> None:
        """Probe the workers, whose answers can change the decision."""
        try:
            self.tracker.survey_workers()
        except UnreachableError as error:
            if not self.task.accepts_healthy or self.policy.goal is not Condition.SSH:
                raise
            self.tracker.policy = replace(self.policy, goal=Condition.HEALTHY)
            self.tracker.workers = ()
            self.report(EventKind.NOTE, f"waiting until it is healthy, not until ssh answers: {error.message}")
        if self.idle_limit is not None and self.is_usable:
            self._examine_activity()

    @property
    def idle_limit(self) -> IdleLimit | None:
        """The limit of idleness of the node that was observed last; None without one, or if it is not for this node."""
        node = self.seen.node
        return self.task.idle if node is not None and self.task.may_limit(node) else None

    @property
    def idle_time(self) -> timedelta | None:
        """How long all workers were idle at the last examination; None if one was in use, or could not be examined."""
        if self._idle_since is None or self._examined_at is None:
            return None
        return self._examined_at - self._idle_since

    def forget_idleness(self) -> None:
        """Count the time without use from the next examination on."""
        self._idle_since, self.has_warned_of_idleness = None, False

    def _examine_activity(self) -> None:
        """Examine the workers of a usable node. A longer pause between two examinations hides what happened meanwhile."""
        node, now = self.seen.node, self._context.clock.monotonic()
        since = None if self._examined_at is None else now - self._examined_at
        if node is None or (since is not None and since > _LONGEST_BLINDNESS):
            self.forget_idleness()
        self._examined_at, workers, has_probe = now, self._context.workers, self.policy.has_probe
        try:
            is_idle = node is not None and not workers.find_activity(node, since=since, has_probe=has_probe)
        except TpuctlError:
            is_idle = False
        if not is_idle:
            self.forget_idleness()
        elif self._idle_since is None:
            self._idle_since = now

    def decide(self) -> Decision:
        """Return the next action. Raises `TakenOverError` if another client took the node over."""
        self.lease.keep()
        since_action = None if self._acted_at is None else self._context.clock.monotonic() - self._acted_at
        self._forget_setup_of_lost_node()
        decision = self._decide(since_action)
        if self.setup is not None and _interrupts_setup(decision):
            return Requeue(_WATCH_INTERVAL, f"not repaired while its set-up runs: {decision.reason}")
        if isinstance(decision, Fail) and self.lease.find_other_holder():
            # Another client repairs the node: it may be allowed to do what this run is not.
            decision = self._decide(since_action)
        if not isinstance(decision, Done) and not self.seen.outage:
            if self.is_usable:
                self._usable_since, self._lost_at = None, self._context.clock.monotonic()
            self.forget_idleness()
        return decision

    def _decide(self, since_action: timedelta | None) -> Decision:
        state = self.tracker.update(held_by=self.lease.held_by, since_action=since_action)
        return decide(self.policy, state, self._context.server_now())

    def record_outage(self, error: ServiceUnavailableError) -> Requeue | Fail:
        """Record that a service needed for a step does not answer. Return whether to wait for it or to give up."""
        self.tracker.record_outage(error)
        decision = self._decide(None)
        assert isinstance(decision, Requeue | Fail)  # noqa: S101  # guides mypy: an outage allows nothing else
        return decision

    def execute(  # noqa: PLR0912  # one case for each decision and each error
        self, decision: Change
    ) -> None:
        """Send one change. A refusal shows in the next snapshot; it is raised if no later snapshot can resolve it."""
        if not self.lease.take():
            return
        tracker, tried = self.tracker, self.seen.attempts
        try:
            match decision:
                case Create(reason):
                    self._create(reason)
                case Start(reason):
                    tracker.note(is_ours=True)
                    self._start(tracker.node, reason)
                case Restart(reason):
                    tracker.note(attempts=replace(tried, restarts=tried.restarts + 1), is_ours=True)
                    self._restart(tracker.node, reason)
                case Reboot(reason):
                    tracker.note(attempts=replace(tried, reboots=tried.reboots + 1), is_ours=True)
                    self._reboot(tracker.node, reason)
                case Delete(reason, _, is_repair):
                    tracker.note(attempts=replace(tried, recreates=tried.recreates + is_repair))
                    self._delete(tracker.node, reason, is_repair=is_repair)
                case DeleteRequest(reason, _, _, is_repair):
                    tracker.note(attempts=replace(tried, recreates=tried.recreates + is_repair))
                    self._delete_request(decision)
                case _:
                    assert_never(decision)
        except LeaseLostError:
            self.lease.raise_lost()
        except _ChangedError:
            self.report(EventKind.NOTE, "it changed right before the request, which was not sent")
        except ServiceUnavailableError as error:
            # The next snapshot shows whether the change was carried out.
            tracker.record_outage(error)
        except (NoCapacityError, QuotaError) as error:
            if isinstance(decision, Create | Start):
                tracker.record_failure(Verb.START if isinstance(decision, Start) else Verb.CREATE, error)
            else:
                # A change that frees capacity needs none. This is the limit on requests per minute, which passes.
                tracker.record_outage(error)
        except RemoteCommandError as error:
            # The reboot from inside failed. The next step of the repair ladder may work.
            self.report(EventKind.NOTE, error.message)
        self._acted_at = self.due = self._context.clock.monotonic()
        self.slack = timedelta()
        if isinstance(decision, Reboot):
            left = tracker.left
            pause = REBOOT_PAUSE if left is None else min(REBOOT_PAUSE, left)
            self.due += max(timedelta(), pause)

    def requeue(self, decision: Requeue) -> None:
        """Become due again after the delay, and report why."""
        self.due, self.slack = self._context.clock.monotonic() + decision.delay, decision.delay * _SLACK_SHARE
        seen, timeout = self.seen, self.policy.timeout
        usual, node, follows = seen.poll_state.usual, seen.node, decision.next
        self.report(
            EventKind.SILENT if seen.outage else EventKind.WAIT,
            decision.reason,
            state=str(node.state) if node else None,
            health=str(node.health) if node else None,
            request=str(seen.request.state) if seen.is_queued and seen.request and not node else None,
            in_state=seen.in_state.total_seconds(),
            usual=usual[len(usual) // 2].total_seconds() if usual else None,
            next=follows.what if follows else None,
            next_in=follows.after.total_seconds() if follows else None,
            next_look=decision.delay.total_seconds(),
            deadline_in=None if timeout is None else (timeout - seen.waited).total_seconds(),
            workers=worker_matrix(self.policy, seen),
        )

    def ensure_ssh_key(self) -> None:
        """Add our ssh key to the metadata of a node whose workers refuse it: once, and only if changes are allowed."""
        node, may_change = self.seen.node, self.task.purpose is not None and not self.seen.differences
        is_refused = any(worker.answer is SshAnswer.KEY_REFUSED for worker in self.tracker.workers)
        if node is None or node.id == self._key_sent_to or not may_change or not is_refused:
            return
        entry, present = self._context.workers.key_entry(node), node.metadata.get("ssh-keys", "")
        if entry and add_metadata_key(present, entry) != present:
            self.report(EventKind.ACTION, "adding our ssh key to its metadata", verb=str(Verb.UPDATE))
            self._change_node(node, partial(with_metadata_key, entry=entry))
        self._key_sent_to = node.id

    def _change_node(self, node: Node, change: NodeChange) -> Node | None:
        """Change fields of the node; return None if its operation takes longer than the other nodes and leases can wait."""
        left = self.tracker.left
        timeout = _UPDATE_PATIENCE if left is None else max(timedelta(), min(left, _UPDATE_PATIENCE))
        try:
            return self._context.cloud.change_node(self.name, change, expected_id=node.id, timeout=timeout)
        except TimedOutError as error:
            self.report(EventKind.NOTE, error.message)
            return None

    def ensure_expiry(self) -> None:
        """Give a node that exists the end that the user named, or none, once its labels can be changed, or move its end on."""
        node, end, removes_end = self.seen.node, self.tracker.ends, self.tracker.removes_end
        if node is None or node.state not in PATCHABLE_STATES:
            return
        if self.seen.differences or self.tracker.requested.pending:
            return  # it may be deleted, and the next one is created with that end
        change_end: Callable[[Node], dict[str, Any]] = partial(set_expiry, end=end)
        if end is None and not removes_end:
            end = self._end_to_move_to(node)
            if end is None:
                return
            change_end = partial(move_expiry, end=end)
        elif not self.task.may_limit(node):
            change = f"--until {format_timestamp(end)}" if end else "--no-expiry"
            command = f"`tpuctl extend {self.name.zone}/{self.name.node_id} {change}`"
            self.report(
                EventKind.NOTE, f"its time limit is not changed, because this run did not create the node: {command}"
            )
            end = node.expires
        if node.expires != end:
            text = f"setting the end of its time: {format_timestamp(end)}" if end else "removing its time limit"
            self.report(EventKind.ACTION, text, verb=str(Verb.UPDATE))
            changed = self._change_node(node, change_end)
            if end is None:
                self.tracker.history.write("extend", reason="expires never", id=node.id)
            if changed is not None:
                self.tracker.note(node=Node(node.name, {**node.raw, "labels": changed.labels}))
        self.tracker.ends, self.tracker.removes_end = None, False

    def _end_to_move_to(self, node: Node) -> datetime | None:
        """Return the later end of a node of this run, None if it has enough time left."""
        ttl = self.task.moves_end
        if ttl is None or node.expires is None or not self.task.may_limit(node):
            return None
        return later_end(node.expires, ttl, self.server_now())

    def record_usable(self, level: Condition) -> None:
        """Record that the node is usable. After `policy.refill` in this state the repair budgets are full again."""
        now, node = self._context.clock.monotonic(), self.seen.node
        if node is None or not level.is_usable:
            return
        self.tracker.record_recovery()
        if self._usable_since is None:
            self._usable_since = now
            took = self.tracker.elapsed if self._lost_at is None else now - self._lost_at
            self.tracker.history.finish(node.id, level=str(level), took=took.total_seconds())
        if now - self._usable_since >= self.policy.refill:
            self.tracker.note(attempts=RepairAttempts())

    def advance_setup(self, *, blocks: bool = False) -> Requeue | None:
        """Start the set-up of a usable node that tpuctl created, once. Return how to wait for it, None if there is none to run.

        With `blocks` it has ended on return, unless another run is about it. Raises `RemoteCommandError` if it failed, and
        `TimedOutError` if another run has not ended it in time.
        """
        node, history, tracker = self.seen.node, self.tracker.history, self.tracker
        if node is None:
            return None
        if self._failed_setup is not None and self._failed_setup[0] == node.id:
            raise self._failed_setup[1]
        if self.setup is None:
            if history.setup_to_do(node) is None:
                return None
            if not self.lease.take():
                who = self.lease.held_by
                if tracker.left is not None and tracker.left <= timedelta():
                    hint = f"run `tpuctl up {self.name.node_id}` when it has ended"
                    raise TimedOutError(f"{who} has not ended, and may be setting `{self.name.node_id}` up", hint=hint)
                return None if blocks else Requeue(_WATCH_INTERVAL, f"{who} may be setting it up")
            history.read_setups()
            if (script := history.setup_to_do(node)) is None:
                return None
            # After a failure the user may have given another one.
            script = (tracker.spec and tracker.spec.flagged.get("setup")) or script
            text = f"running its set-up on {node.workers} worker{'s' * (node.workers > 1)}"
            self.report(EventKind.ACTION, text, verb=str(Verb.UPDATE))
            workers = self._context.workers
            tracker.begin_setup()
            self.setup = RunningSetup(node, lambda: workers.set_up(node, script, timeout=_SETUP_TIMEOUT))
        if not (blocks or self.setup.has_ended):
            return Requeue(_WATCH_INTERVAL, "its set-up runs")
        is_done = False
        try:
            if failed := [result for result in self.setup.results() if result.code != 0]:
                error = _setup_error(self.name.node_id, failed)
                # A watch does not repeat it without end.
                self._failed_setup = (node.id, error)
                raise error
            is_done = True
        finally:
            self._forget_setup()
            history.record_setup(node, ok=is_done)
        return None

    def _forget_setup_of_lost_node(self) -> None:
        """Forget the set-up of a node that is gone or dead: the next one has its own."""
        node = self.seen.node
        if self.setup is not None and (node is None or node.id != self.setup.node.id or node.state.is_dead):
            self._forget_setup()

    def _forget_setup(self) -> None:
        self.setup = None
        self.tracker.end_setup()

    def start_guard(self, level: Condition) -> None:
        """Start the guard on worker 0 of a node that has a time limit. Report what remains if it cannot do its work."""
        node, limit, task = self.seen.node, self.idle_limit, self.task
        if node is None or task.purpose is None or not level.is_usable:
            return
        removes_idle = task.removes_idle and task.may_limit(node)
        if limit is None and task.idle is not None:
            command = f"`tpuctl up {self.name.node_id} --idle {format_duration(task.idle.after)}`"
            self.report(
                EventKind.NOTE, f"no idle limit is applied, because this run did not create the node: {command}"
            )
        has_ssh = level.includes(Condition.SSH)
        if node.expires is None and limit is None:
            if removes_idle and (text := remove_node_guard(self._context, node, has_ssh=has_ssh)):
                self.report(EventKind.NOTE, text)
                self.tracker.history.write("guard", text=text, ok=False, id=node.id)
            return
        started = start_node_guard(self._context, node, limit, ends_idle=removes_idle, has_ssh=has_ssh)
        self.report(EventKind.NOTE, started.text)
        until = {"until": format_timestamp(node.expires)} if node.expires and started.works else {}
        self.tracker.history.write("guard", text=started.text, ok=started.works, id=node.id, **until)

    def server_now(self) -> datetime:
        """Return the time of the service's clock."""
        return self._context.server_now()

    def pause(self, duration: timedelta) -> None:
        """Become due again after that time, with a jitter of a fifth."""
        pause = duration * (0.8 + 0.4 * self._context.random.random())
        self.due, self.slack = self._context.clock.monotonic() + pause, pause * _SLACK_SHARE

    def release(self) -> None:
        """Release the lease. Report the record that a failed creation left [observed: terraform-provider-google#16147]."""
        if self.seen.failure and self.seen.node and self.seen.node.state is NodeState.CREATING:
            self.report(EventKind.NOTE, f"its record still exists: `tpuctl down {self.name.node_id}` deletes it")
        elif (node := self.seen.node) and not node.state.is_dead:
            end, extend = self.tracker.ends, f"tpuctl extend {self.name.zone}/{self.name.node_id}"
            if end is not None:
                command = f"`{extend} --until {format_timestamp(end)}`"
                self.report(EventKind.NOTE, f"its time limit was not set while it is {node.state}: {command}")
            elif self.tracker.removes_end and node.expires is not None:
                command = f"`{extend} --no-expiry`"
                self.report(EventKind.NOTE, f"its time limit was not removed while it is {node.state}: {command}")
        if self.task.lease is None:
            self.lease.release()

    def report(self, kind: EventKind, text: str, **data: object) -> None:
        """Report an event."""
        self._context.report(kind, self.name, text, **data)

    def report_and_journal(self, kind: EventKind, text: str, **data: object) -> None:
        """Report an event, and write it to the journal."""
        if node := self.seen.node:
            data |= {"id": node.id, "state": str(node.state), "health": str(node.health)}
        self.report(kind, text, **data)
        self.tracker.history.write(str(kind), text=text, **data)

    def _create(self, reason: str) -> None:
        context, spec = self._context, self.tracker.spec
        if spec is None and (remembered := context.journal.last_spec(self.name)):
            spec = self.tracker.spec = remembered.spec
        if spec is None:
            raise NotFoundError(f"`{self.name.node_id}` is gone, and its spec is unknown")
        if self.tracker.removes_end:
            spec = replace(spec, expires=None, ttl=None)
        spec = context.stamped(replace(spec, expires=self.tracker.ends or spec.expires))
        context.check(self.name, spec)
        self._failure_tried_after = self._identify_failure()
        race = {"race": spec.labels[RACE_LABEL]} if RACE_LABEL in spec.labels else {}
        with self._changing(Verb.CREATE, "create", reason=reason, spec=spec.to_json(), **race) as ready:
            chosen = describe_file_choices(context, self.name, spec)
            verb = "requesting" if spec.is_queued else "creating"
            ready(f"{verb} {describe_spec(context, spec, self.name.zone)}{chosen}: {reason}")
            try:
                operation = self._enqueue(spec) if spec.is_queued else context.cloud.create_node(self.name, spec)
            except AlreadyExistsError:
                # The next snapshot shows theirs: it is adopted, or the difference is reported.
                self.report(EventKind.NOTE, "another client has just created it", exists=True)
                return
        self.tracker.ends, self.tracker.removes_end = None, False
        self.tracker.requested.begin(RequestedChange(Verb.CREATE, operation, is_of_request=spec.is_queued))
        self.tracker.record_creation()
        if not spec.is_queued:  # it waits, and bills nothing yet
            context.look_again(self.name, spec)

    def _enqueue(self, spec: NodeSpec) -> Operation:
        """Request the node through the queue."""
        window = queue_window(self.policy, self.tracker.left, self._context.server_now()).ended_by(spec.expires)
        if spec.expires is not None:
            text = f"its time ends {format_timestamp(spec.expires)}: the limit counts from the request, not from the creation"
            self.report(EventKind.NOTE, text)
        if window.valid_until is None:
            self.report(EventKind.NOTE, "the request has no end: limit it with `--queue-for 6h` or `--timeout 6h`")
        return self._context.cloud.create_queued_resource(self.name, spec, window)

    def _start(self, node: Node, reason: str) -> None:
        self.tracker.history.begin(node.id)
        with self._changing(Verb.START, "start", reason=reason, id=node.id) as ready:
            ready(f"starting it: {reason}")
            operation = self._context.cloud.start_node(self.name)
        self.tracker.requested.begin(RequestedChange(Verb.START, operation, node.id))

    def _restart(self, node: Node, reason: str) -> None:
        """Stop the node. The next decision is to start it."""
        self.was_repaired = self.tracker.ages.awaits_effect = True
        self.tracker.history.stopped = node.id
        try:
            with self._changing(Verb.STOP, "restart", reason=reason, id=node.id) as ready:
                ready(f"restarting it: {reason}")
                operation = self._context.cloud.stop_node(self.name, partial(_require_unchanged, node))
                _require_sent(operation)
        except LeaseLostError:
            raise
        except _ChangedError:
            # Another client may be stopping it: this run does not start it then.
            self.tracker.history.record_refused_stop("it changed right before the stop, which was not sent")
            raise
        except ConflictError as error:
            self.tracker.note(refused_stop=error.message)
            text = f"the stop was refused: {error.message}"
            self.tracker.history.record_refused_stop(text)
        else:
            self.tracker.requested.begin(RequestedChange(Verb.STOP, operation, node.id))

    def _reboot(self, node: Node, reason: str) -> None:
        self.was_repaired = True
        with self._changing(Verb.REBOOT, "reboot", reason=reason, id=node.id) as ready:
            ready(f"rebooting every worker: {reason}")
            self._context.workers.reboot(node)
        self.tracker.record_reboot()

    def _delete(self, node: Node, reason: str, *, is_repair: bool) -> None:
        """Delete the node that was observed, and no other: its id is compared again right before."""
        context, tracker = self._context, self.tracker
        spec = tracker.spec = tracker.spec or tracker.history.spec_as_it_is(node)
        # Checked before the deletion: a node that could not be created again is better kept.
        context.check(self.name, spec, replaces=node)
        entry = {"reason": reason, "id": node.id, "spec": spec.to_json(), "repair": is_repair}
        with self._changing(Verb.DELETE, "delete", **entry) as ready:
            ready(f"deleting it: {reason}", id=node.id)
            operation = context.cloud.delete_node(self.name, partial(_require_unchanged, node))
            _require_sent(operation)
        self.was_repaired = self.was_repaired or is_repair
        tracker.requested.begin(RequestedChange(Verb.DELETE, operation, node.id))
        tracker.record_deletion()

    def _delete_request(self, decision: DeleteRequest) -> None:
        """Delete the queued resource that was observed, and no other: its state is looked at again right before."""
        context, tracker, seen = self._context, self.tracker, self.seen.request
        spec = tracker.spec = tracker.spec or tracker.queued_spec
        if spec is None or seen is None:
            raise AssertionError("only the request of a queued spec is deleted")
        entry = {"reason": decision.reason, "spec": spec.to_json(), "repair": decision.is_repair}

        def judge(current: QueuedResource, nodes: tuple[Node, ...]) -> None:
            if (current.state, current.created) != (seen.state, seen.created):
                raise _ChangedError
            for node in nodes:
                if self.seen.node is not None and node.name == self.name:
                    _require_unchanged(self.seen.node, node)

        with self._changing(Verb.DELETE, "delete", **entry) as ready:
            ready(f"deleting its queued resource `{seen.queued_resource_id}`: {decision.reason}")
            operation = context.cloud.delete_queued_resource(decision.request_name, judge, force=decision.force)
            _require_sent(operation)
        tracker.requested.begin(RequestedChange(Verb.DELETE, operation, is_of_request=True))
        tracker.record_deletion()
        # Its node went with it: that was not another client.
        tracker.note(has_vanished=False)

    def _changing(self, verb: Verb, event: str, **entry: Any) -> AbstractContextManager[Callable[..., None]]:
        return announced_change(self._context, self.name, verb, event, **entry)


def _interrupts_setup(decision: Decision) -> TypeGuard[Reboot | Restart | Delete]:
    """Return whether a decision is a repair, which would end the set-up of a node that lives."""
    return isinstance(decision, Reboot | Restart) or (isinstance(decision, Delete) and decision.is_repair)


class _ChangedError(Exception):
    """What was observed changed right before the request, which is not sent: look again before the next decision."""


def _require_unchanged(node: Node, current: Node) -> None:
    """Raise `_ChangedError` unless a node that was just read is the one that was observed, as it was."""
    if (current.id, current.state, current.health) != (node.id, node.state, node.health):
        raise _ChangedError


def _require_sent(operation: Operation) -> None:
    """Raise `_ChangedError` if another client was already ending what this run would end."""
    if not operation.was_sent:
        raise _ChangedError


def _setup_error(node_id: str, failed: Sequence[SetupResult]) -> RemoteCommandError:
    named = ", ".join(f"{result.worker} (exit {result.code})" for result in failed[:8])
    more = f" and {len(failed) - 8} more" if len(failed) > 8 else ""
    return RemoteCommandError(
        f"the set-up of `{node_id}` failed on worker {named}{more}",
        details=[f"  {line}" for line in failed[0].tail.splitlines()[-5:]],
        hint=f"the node is usable; fix the set-up, then run `tpuctl up {node_id}` to run it again",
    )
