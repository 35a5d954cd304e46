"""Reconcile nodes until each has reached its goal: fetch, decide, send one change, report, sleep.

`decide` makes the decisions. A failed HTTP call is never evidence about a node: the loop waits until the deadline for the
API to answer. Only an authentication or permission error ends the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.clock import SystemClock, format_duration, limit_cloud_calls, with_current_deadlines
from tpuctl.errors import (
    AccessError,
    ConflictError,
    NodeNotFoundError,
    NotFoundError,
    ServiceUnavailableError,
    TpuctlError,
)
from tpuctl.models.events import EventKind
from tpuctl.models.node import NodeState
from tpuctl.nodes.conditions import Condition, Create, Delete, Done, Fail, Policy, Reboot, Requeue, Restart, Start
from tpuctl.nodes.journal import is_being_recreated
from tpuctl.nodes.journal_entries import used_repairs
from tpuctl.nodes.lease import TakenOverError
from tpuctl.nodes.reconciler import NodeReconciler
from tpuctl.nodes.tracker import ReconcileRequest, fetch_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpuctl.models.node import Node
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import RequestedChange
    from tpuctl.nodes.context import ActionContext

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
    """The result for one node. `node` is its last observed state, None if it is gone; `took` is the time needed."""

    node: Node | None
    took: timedelta
    restarts: int
    note: str | None = None


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
    """Bring one node to the goal of the policy and return the result; see `ensure_all`.

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
                result = _reconcile(node, once=once) if error is None else report_failure(node, error)
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


def _reconcile(node: NodeReconciler, *, once: bool) -> NodeResult | TpuctlError | None:  # noqa: PLR0912  # one case for each decision
    """Take the next step for one node. Return its result when finished, None to be called again."""
    try:
        with node.within_deadline():
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
                case Create() | Start() | Restart() | Reboot() | Delete():
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
            return _succeed(node, decision.level, decision.note)
        if not once:
            return None
        node.refresh()
    except TpuctlError as error:
        return report_failure(node, error)
    return NodeResult(node.seen.node, node.elapsed, node.seen.tried.restarts)


def _succeed(node: NodeReconciler, level: Condition, note: str | None) -> NodeResult:
    """Run the set-up, report that the node reached its goal, and return the result."""
    took = node.elapsed
    node.run_setup()
    node.record_usable(level)
    text = f"{describe_reached(node.policy, level)} after {format_duration(took)}" + (f"; {note}" if note else "")
    if node.was_repaired:
        node.report_and_journal(EventKind.RECOVERED, text, goal=str(level), took=took.total_seconds())
    else:
        node.report(EventKind.REACHED, text, goal=str(level), took=took.total_seconds())
    return NodeResult(node.seen.node, took, node.seen.tried.restarts, note)


def describe_reached(policy: Policy, level: Condition) -> str:
    """Return in words which condition was reached."""
    return "usable, the probe passed," if level is Condition.DEVICES and policy.has_probe else _CONDITION_PHRASES[level]


def report_failure(node: NodeReconciler, error: TpuctlError) -> TpuctlError:
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


# Reconcile several nodes at once: one list call serves all of them, and their workers are probed in parallel.


# Nodes whose workers are probed at the same time.
_MAX_SURVEYS = 16
# Nodes that are due within this time, or within their slack, are fetched together: one list call serves them all.
_BATCH_WINDOW = timedelta(seconds=1)
_RELEASE_TIMEOUT = timedelta(seconds=5)


class Controller:
    """The nodes of a run that are not finished."""

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
        with_requests = [node for node in due if node.needs_queued_resource]
        # The limit of the first serves all: in practice all nodes have the same deadline.
        with due[0].within_deadline():
            failed = self._observe(due, with_requests)
            # A node that disappears may have been preempted: its queued resource says so, before any decision is made.
            late = [node for node in due if node.needs_queued_resource and node not in {*with_requests, *failed}]
            if late:
                failed |= self._observe(late, late)
            if survey:
                failed |= self._survey([node for node in due if node not in failed])
        for node in due:
            yield node, failed.get(node)

    def sleep(self, *, until: timedelta | None = None) -> None:
        """Sleep until a node is due, or `until` by the monotonic clock. Return at once if no node is left."""
        if not self:
            return
        now = self._context.clock.monotonic()
        moments = [node.due for node in self] + ([until] if until is not None else [])
        self._context.clock.sleep(min(moments) - now)

    def _observe(
        self, nodes: Sequence[NodeReconciler], with_requests: Sequence[NodeReconciler]
    ) -> dict[NodeReconciler, TpuctlError]:
        """Fetch nodes, and the queued resources of some. Return the errors that a later snapshot cannot resolve."""
        snapshots = fetch_snapshots(
            self._context.cloud,
            [node.name for node in nodes],
            present=[node.name for node in nodes if node.seen.node],
            requested=[node.name for node in with_requests],
        )
        failed: dict[NodeReconciler, TpuctlError] = {}
        for node in nodes:
            try:
                node.observe(snapshots[node.name])
            except TpuctlError as error:
                failed[node] = error
        return failed

    def _survey(self, nodes: Sequence[NodeReconciler]) -> dict[NodeReconciler, TpuctlError]:
        failed: dict[NodeReconciler, TpuctlError] = {}

        def survey(node: NodeReconciler) -> None:
            try:
                node.survey_workers()
            except TpuctlError as error:
                failed[node] = error

        slow = {node for node in nodes if node.needs_survey}
        if len(slow) > 1:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # only for several nodes

            with ThreadPoolExecutor(min(_MAX_SURVEYS, len(slow))) as pool:
                list(pool.map(with_current_deadlines(survey), [node for node in nodes if node in slow]))
        for node in nodes:
            if len(slow) == 1 or node not in slow:
                survey(node)
        return failed


# `tpuctl watch`: keep nodes usable until interrupted.
#
# The journal is its only memory: the next run continues from the journal and from what the API reports.


# How often a usable node is fetched: one list call serves all nodes of a zone.
_WATCH_INTERVAL = timedelta(seconds=15)


def watch_nodes(
    context: ActionContext,
    tasks: Sequence[ReconcileRequest],
    *,
    until: timedelta | None,
    each_round: Callable[[], None],
) -> list[TpuctlError]:
    """Keep nodes usable until `until` has passed, or nothing more can be done for any of them. Return their errors.

    A failed node is still fetched while others are watched: it may be fixed by hand. `each_round` is called after each
    round. Raises `AccessError` as soon as the credentials stop working, and `ConflictError` if another client already
    holds the lease of a node.
    """
    started = context.clock.monotonic()
    end = None if until is None else started + until
    controller = Controller(context, [_with_used_repairs(context, task) for task in tasks])
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
                error = failure or _watch_step(context, node)
                if error is None:
                    errors.pop(node.name, None)
                else:
                    if node.name not in errors:
                        report_failure(node, error)
                    if isinstance(error, AccessError):
                        raise error
                    errors[node.name] = error
                    node.mark_degraded()
                    node.pause(_WATCH_INTERVAL)
                if isinstance(error, NotFoundError | TakenOverError):
                    controller.remove(node)
            each_round()
            controller.sleep(until=end)
    finally:
        controller.close()
    return list(errors.values())


def _with_used_repairs(context: ActionContext, task: ReconcileRequest) -> ReconcileRequest:
    """Return the task with the repairs that earlier runs have used, and with the spec of a node that they were recreating."""
    entries = context.journal.entries(task.name)
    spec = task.spec
    if spec is None and is_being_recreated(context.journal, task.name):
        remembered = context.journal.last_spec(task.name)
        spec = remembered.spec if remembered else None
    tried = used_repairs(entries, refill=task.policy.refill, now=context.clock.now())
    return replace(task, tried=tried, spec=spec)


def _watch_step(context: ActionContext, node: NodeReconciler) -> TpuctlError | None:
    """Take the next step for one node. Return the error if nothing more can be done for it, else None."""
    try:
        node.ensure_ssh_key()
        was_usable = node.is_usable
        decision = node.decide()
        match decision:
            case Done(level, note):
                _keep_usable(node, level, note, was_usable=was_usable)
            case Requeue():
                # A node that an earlier run created and did not finish is also reported once it is usable.
                if (was_usable or node.seen.is_ours) and not node.seen.outage:
                    node.mark_degraded()
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
            case Create() | Start() | Restart() | Reboot() | Delete():
                node.mark_degraded()
                node.execute(decision)
            case _:
                assert_never(decision)
    except TpuctlError as error:
        return error
    return None


def _keep_usable(node: NodeReconciler, level: Condition, note: str | None, *, was_usable: bool) -> None:
    """Leave a usable node alone. Run its set-up and report it first if it has just become usable."""
    if not was_usable:
        node.run_setup()
    node.record_usable(level)
    if not was_usable:
        text = describe_reached(node.policy, level).rstrip(",") + (f"; {note}" if note else "")
        if node.has_degraded:
            node.report_and_journal(EventKind.RECOVERED, text)
        else:
            node.report(EventKind.REACHED, text, goal=str(level))
        node.mark_recovered()
    node.pause(_WATCH_INTERVAL)
