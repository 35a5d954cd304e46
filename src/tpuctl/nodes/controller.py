"""Reconcile nodes until each has reached its goal: fetch, decide, send one change, report, sleep.

`Controller` fetches all nodes that are due together; `reconcile` takes the next step for one node; `watch_nodes` is the same
loop without an end. `decide` makes the decisions. A failed HTTP call is never evidence about a node: the loop waits until the
deadline for the API to answer. Only an authentication or permission error ends the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.clock import SystemClock, limit_cloud_calls
from tpuctl.durations import format_duration
from tpuctl.errors import AccessError, NotFoundError, ServiceUnavailableError, TpuctlError
from tpuctl.fan_out import fan_out
from tpuctl.models.events import EventKind
from tpuctl.models.node import NodeState
from tpuctl.nodes.conditions import (
    Condition,
    Create,
    Delete,
    DeleteRequest,
    Done,
    End,
    Fail,
    Reboot,
    Requeue,
    Restart,
    Start,
    failed_scripts,
)
from tpuctl.nodes.expiry import expiry_note
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.journal import JournalError
from tpuctl.nodes.lease import RELEASE_TIMEOUT, LeaseError
from tpuctl.nodes.lease_guard import DeletedByOtherError, TakenOverError
from tpuctl.nodes.polling import WATCH_INTERVAL
from tpuctl.nodes.reconciler import NodeReconciler
from tpuctl.nodes.snapshots import fetch_snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext, RequestedChange
    from tpuctl.nodes.conditions import Policy
    from tpuctl.nodes.reconciler import EndNode

_CONDITION_PHRASES = {
    Condition.READY: "ready",
    Condition.HEALTHY: "healthy",
    Condition.SSH: "usable (ssh)",
    Condition.STARTUP: "usable (startup)",
    Condition.DEVICES: "usable (devices)",
    Condition.STOPPED: "stopped",
    Condition.GONE: "gone",
    Condition.PREEMPTED: "preempted",
}


@dataclass(frozen=True, slots=True)
class NodeResult:
    """The result for one node: its last observed state, None if it is gone."""

    node: Node | None
    # The queued resource that waits for the node, if this run does not.
    request: QueuedResource | None = None
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
    wait: bool = True,
) -> NodeResult:
    """Bring one node to the goal of the policy and return the result; see `reconcile_nodes`.

    Raises the error that `decide` fails with, and those of the cloud.
    """
    goal = Goal(name=name, policy=policy, spec=spec, pending=pending, purpose=purpose)
    (result,) = reconcile_nodes(context, [goal], wait=wait)
    if isinstance(result, TpuctlError):
        raise result
    return result


# Returns the goal that follows that of a failed node, and the pause before it; else the error to end with.
MoveNode = Callable[[Goal, TpuctlError], tuple[Goal, timedelta] | TpuctlError]


def reconcile_nodes(
    context: ActionContext,
    goals: Sequence[Goal],
    *,
    wait: bool = True,
    together: bool = False,
    move: MoveNode = lambda _, error: error,
) -> list[NodeResult | TpuctlError]:
    """Bring nodes to their goals in parallel, and return the results in the order of the goals.

    Without `wait` at most one change is sent for each node, and nothing is waited for. If the nodes are worth nothing alone,
    `together`, the first failure ends the run, and is the only result. With `wait`, `move` may go on with a failed node
    elsewhere.
    """
    controller = Controller(context, goals)
    results: dict[NodeName, NodeResult | TpuctlError] = {}
    places = {goal.name: goal.name for goal in goals}
    try:
        while controller:
            for node, error in controller.observe_due(survey=wait):
                result = error or reconcile(node, wait=wait)
                if isinstance(result, TpuctlError) and wait:
                    following = move(node.goal, result)
                    if not isinstance(following, TpuctlError):
                        places[following[0].name] = places.pop(node.name)
                        controller.replace(node, *following)
                        continue
                    result = following
                if isinstance(result, TpuctlError):
                    report_failure(node, result)
                if isinstance(result, TpuctlError) and together:
                    result.node = node.name.node_id
                    return [result]
                if result is not None:
                    results[places[node.name]] = result
                    controller.remove(node)
            controller.sleep()
    finally:
        controller.close()
    if len(goals) > 1:
        for name, result in results.items():
            if isinstance(result, TpuctlError):
                result.node = name.node_id
    return [results[goal.name] for goal in goals]


def reconcile(node: NodeReconciler, *, wait: bool = True) -> NodeResult | TpuctlError | None:  # noqa: PLR0912  # one case for each decision
    """Take the next step for one node. Return its result when finished, None to be called again.

    Without `wait` nothing is waited for, and the result is the node after the step.
    """
    try:
        with node.within_deadline():
            node.ensure_expiry()
            if wait:
                node.ensure_ssh_key()
            match decision := node.decide():
                case Done():
                    pass  # a set-up may take longer than the time left
                case Requeue():
                    if wait:
                        node.requeue(decision)
                case Fail(error):
                    return error
                case End():
                    return NodeResult(node.seen.node) if node.end(decision) else None
                case Create() | Start() | Restart() | Reboot() | Delete() | DeleteRequest():
                    node.execute(decision)
                case _:
                    assert_never(decision)
        if isinstance(decision, Done):
            return _reach(node, decision.level, decision.note, wait=wait)
        if not wait:
            node.fetch_after(decision)
            return NodeResult(node.seen.node, node.seen.request)
    except ServiceUnavailableError as error:
        # The lease store does not answer, so nothing may be changed until it does.
        match node.decide_in_outage(error) if wait else error:
            case Requeue() as requeue:
                node.requeue(requeue)
                return None
            case Fail(reason):
                return reason
            case TpuctlError():
                return error
    except TpuctlError as error:
        return error
    return None


def _reach(node: NodeReconciler, level: Condition, note: str | None, *, wait: bool) -> NodeResult | None:
    """Run the set-up of a usable node, then report the node. A watch of a usable node goes on."""
    if level.is_usable and node.goal.only_looks:
        node.setup.require_done()
    elif level.is_usable and (requeue := node.setup.advance(node.left, blocks=not wait)) is not None:
        node.requeue(requeue)
        return None
    if not (node.policy.watches and level.is_usable):
        return _finish(node, level, note)
    was_usable = node.is_usable
    if not was_usable:
        node.start_guard(level)
    node.record_usable(level)
    if not was_usable:
        text = _describe_reached(node.policy, level) + (f"; {note}" if note else "")
        if node.has_degraded:
            node.report_and_journal(EventKind.RECOVERED, text)
        else:
            node.report(EventKind.REACHED, text, goal=str(level))
        node.has_degraded = False
    node.pause(WATCH_INTERVAL)
    return None


def _finish(node: NodeReconciler, level: Condition, note: str | None) -> NodeResult:
    """Report that the node reached its goal, and return the result."""
    if node.policy.watches:  # the node is gone for good
        if note:
            node.report(EventKind.EXPIRED, note)
        return NodeResult(None)
    took = node.time_to_usable() if level.is_usable else node.seen.waited(node.now)
    node.ensure_expiry()
    node.start_guard(level)
    node.record_usable(level, took)
    found, now = node.seen.node, node.now.utc
    if level is Condition.GONE and node.goal.pending is not None and not node.seen.was_there:
        node.history.write(str(EventKind.STATE), state=None)  # it was gone at the first look
    notes = [note, expiry_note(found, now)] if found is not None and level.is_usable else [note]
    text = "; ".join(filter(None, (f"{_describe_reached(node.policy, level)} after {format_duration(took)}", *notes)))
    if node.has_degraded:
        node.report_and_journal(EventKind.RECOVERED, text, goal=str(level), took=took.total_seconds())
    else:
        node.report(EventKind.REACHED, text, goal=str(level), took=took.total_seconds())
    if found is not None and level.is_usable and node.has_expired:
        ended = f"its time has ended, it {expiry_note(found, now)}"
        text = f"{ended}: any clean-up may delete it; `tpuctl extend {node.name.node_id} 2h`"
        node.report(EventKind.NOTE, text)
    return NodeResult(
        found, failed_scripts=failed_scripts(node.seen.workers) if level.includes(Condition.STARTUP) else None
    )


def _describe_reached(policy: Policy, level: Condition) -> str:
    """Return in words which condition was reached."""
    return "usable (probe)" if level is Condition.DEVICES and policy.probe else _CONDITION_PHRASES[level]


# Errors that say nothing about the node: what is left of it is said with them.
_ENDS_A_RUN = (AccessError, LeaseError, JournalError)


def report_failure(node: NodeReconciler, error: TpuctlError) -> None:
    """Report that the run stops working on a node, and say in the error what is left of it."""
    seen, left = node.seen, ""
    if isinstance(error, _ENDS_A_RUN) and seen.node is not None and not seen.node.state.is_dead:
        left = f"`{node.name.node_id}` was left {seen.node.state}: {_BILLING.get(seen.node.state, _BILLS_LATER)}"
    elif isinstance(error, _ENDS_A_RUN) and seen.is_queued and seen.request is not None:
        left = (
            f"its queued resource was left {seen.request.state} and counts against the quota: "
            f"`tpuctl queue cancel {node.name.node_id}` cancels it"
        )
    if left:
        error.hint = f"{error.hint}\n{left}" if error.hint else left
    # The event has the name of the node in a field of its own.
    text, *details = error.lines
    text = " ".join(filter(None, (text, "; ".join(map(str.strip, details))))).removeprefix(f"`{node.name.node_id}`: ")
    node.report_and_journal(EventKind.GAVE_UP, text, error=error.kind, hint=error.hint)


_BILLS_LATER = "it bills as soon as it runs"
_BILLING = {
    NodeState.READY: "it bills",
    NodeState.STOPPING: "it does not bill once it is stopped",
    NodeState.STOPPED: "it does not bill while it is stopped",
    NodeState.DELETING: "it does not bill once it is gone",
}


# Nodes whose workers are probed at the same time.
_MAX_SURVEYS = 16
# Nodes that are due within this time, or within their slack, are fetched together: one list call serves them all.
_BATCH_WINDOW = timedelta(seconds=1)
# No decision is made on what was seen longer ago, while changes of other nodes were sent.
_FRESH = timedelta(seconds=30)


class Controller:
    """The nodes of a run that are not finished. One list call serves all of them; their workers are probed in parallel."""

    def __init__(self, context: ActionContext, goals: Sequence[Goal], end_node: EndNode | None = None) -> None:
        self._context, self._end_node = context, end_node
        self._open = {goal.name: NodeReconciler(context, goal, end_node) for goal in goals}
        for node in self._open.values():
            spec = node.spec or node.history.past.queued_spec
            first = next(iter(spec.queued_slices(node.name)), node.name) if spec else node.name
            node.leader = self._open.get(first) if first != node.name else None

    def __iter__(self) -> Iterator[NodeReconciler]:
        return iter(tuple(self._open.values()))

    def __bool__(self) -> bool:
        return bool(self._open)

    def followers(self, node: NodeReconciler) -> list[NodeReconciler]:
        """Return the slices that are requested with this one."""
        return [other for other in self if other.leader is node]

    def remove(self, node: NodeReconciler) -> None:
        """Release a node and drop it from the run."""
        self._open.pop(node.name).release()

    def replace(self, node: NodeReconciler, goal: Goal, pause: timedelta) -> None:
        """Drop a node, and reconcile another in its place after the pause.

        Its lease is taken before the pause: `down` must find who would create the node.
        """
        successor = NodeReconciler(self._context, goal, self._end_node)
        if goal.lease is None:
            with suppress(ServiceUnavailableError):  # the successor takes it before its first change
                self._context.leases.acquire(goal.name, "move")
                successor.lease.take()
        self.remove(node)
        self._open[goal.name] = successor
        successor.has_degraded = goal.policy.watches
        successor.last_end = node.last_end
        successor.due += pause

    def close(self) -> None:
        """Release all nodes within 5 seconds: the run may have been interrupted, and leases expire by themselves."""
        with limit_cloud_calls(SystemClock(), RELEASE_TIMEOUT):
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
        looked_at = self._context.clock.monotonic()
        for node in due:
            if node not in self:
                continue  # it was dropped with another one
            if self._context.clock.monotonic() - looked_at > _FRESH and node not in failed:
                continue  # the changes of the others took long: it is still due, and is looked at again first
            yield node, failed.get(node)

    def sleep(self, *, until: timedelta | None = None) -> None:
        """Sleep until a node is due, or `until` by the monotonic clock. Return at once if no node is left.

        A node is also due when its set-up ends, which takes real time, also where the clock does not: each look at it
        waits a moment.
        """
        if not self:
            return
        clock = self._context.clock
        moment = min([node.due for node in self] + ([until] if until is not None else []))
        with_setup = [node for node in self if node.setup.is_running]
        while with_setup and (left := moment - clock.monotonic()) > timedelta():
            ended = [node for node in with_setup if node.setup.has_ended()]
            for node in ended:
                node.due = clock.monotonic()
            if ended:
                return
            clock.sleep(min(left, _BATCH_WINDOW))
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
                max(node.versions[0] for node in nodes),
                max(node.versions[1] for node in nodes),
            ),
        )
        failed: dict[NodeReconciler, TpuctlError] = {}
        for node in nodes:
            try:
                node.observe(snapshots[node.name])
            except TpuctlError as error:
                failed[node] = error
        return failed

    def _survey(self, nodes: Sequence[NodeReconciler]) -> dict[NodeReconciler, TpuctlError]:
        due = [node for node in nodes if node.needs_survey()]
        outcomes = fan_out(NodeReconciler.survey_workers, due, limit=_MAX_SURVEYS)
        return {outcome.item: outcome.error for outcome in outcomes if outcome.error}


# Also if no node is due: hooks wait for a round, and lines of the journal.
_LONGEST_ROUND = timedelta(seconds=40)


def watch_nodes(
    context: ActionContext,
    goals: Sequence[Goal],
    *,
    until: timedelta | None,
    each_round: Callable[[frozenset[NodeName]], None],
    move: Callable[[NodeReconciler], tuple[Goal, timedelta] | None] = lambda _: None,
    end_node: EndNode | None = None,
) -> list[TpuctlError]:
    """Keep nodes usable until `until` has passed, or nothing more can be done for any of them. Return their errors.

    The journal is the only memory: the next run continues from the journal and from what the API reports. A failed node is
    still fetched while others are watched: it may be fixed by hand. `each_round` is called after each round with the usable
    nodes. `move` may return the same node in another zone, which is watched from then on, and a pause before it. `end_node`
    ends a node or a request whose time has ended, and an idle node; without it none is ended for that. Raises `AccessError`
    as soon as the credentials stop working, and the errors of `_begin_watch`; but if another command ended one of several
    nodes, only its watch ends.
    """
    started = context.clock.monotonic()
    end = None if until is None else started + until
    controller = Controller(context, goals, end_node)
    errors: dict[NodeName, TpuctlError] = {}
    try:
        for node in controller:
            try:
                _begin_watch(node, ends_expired=end_node is not None)
            except (TakenOverError, DeletedByOtherError) as ended:
                if len(goals) == 1:
                    raise
                # Not in the journal: this run has done nothing with the node.
                node.report(EventKind.GAVE_UP, ended.message, error=ended.kind, hint=ended.hint)
                errors[node.name] = ended
                controller.remove(node)
        while any(node.name not in errors for node in controller) and (end is None or context.clock.monotonic() < end):
            for node, failure in controller.observe_due():
                result: NodeResult | TpuctlError | None
                try:
                    # Before the step, which would ask again in the same zone.
                    if failure is None and node.may_move and (successor := move(node)):
                        errors.pop(node.name, None)
                        controller.replace(node, *successor)
                        continue
                    result = failure or reconcile(node)
                except TpuctlError as unmovable:
                    result = unmovable
                known = errors.pop(node.name, None)
                if isinstance(result, TpuctlError):
                    if known is None:
                        report_failure(node, result)
                    if isinstance(result, AccessError):
                        raise result
                    errors[node.name] = result
                    node.has_degraded = True
                    node.pause(WATCH_INTERVAL)
                if isinstance(result, NodeResult | NotFoundError | TakenOverError):
                    _end_watch(controller, node, result, errors)
            each_round(frozenset(node.name for node in controller if node.is_usable))
            soon = context.clock.monotonic() + _LONGEST_ROUND
            controller.sleep(until=soon if end is None else min(end, soon))
    finally:
        controller.close()
    return list(errors.values())


def _end_watch(
    controller: Controller, node: NodeReconciler, result: NodeResult | TpuctlError, errors: dict[NodeName, TpuctlError]
) -> None:
    """Drop a node, with the slices that only it would request again."""
    for follower in controller.followers(node):
        if isinstance(result, TpuctlError):
            errors[follower.name] = result
        controller.remove(follower)
    controller.remove(node)


def _begin_watch(node: NodeReconciler, *, ends_expired: bool) -> None:
    """Take the lease of a node. An expired node that another command ended, and that still exists, is watched without it.

    A run that was killed between the end of the lease and its delete request leaves such a node. Raises `ConflictError` if
    another client holds the lease, `TakenOverError` or `DeletedByOtherError` if another command ended the node.
    """
    try:
        node.lease.require()
    except (TakenOverError, DeletedByOtherError):
        if not ends_expired:
            raise
        with suppress(TpuctlError):
            node.fetch()
        if not node.has_expired:
            raise
