"""Reconcile one node: record its state, decide, and send one change at a time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.errors import (
    ConflictError,
    NoCapacityError,
    NotFoundError,
    QuotaError,
    RemoteCommandError,
    ServiceUnavailableError,
)
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import NodeState
from tpuctl.nodes.actuator import REBOOT_PAUSE, Actuator, LeaseLostError
from tpuctl.nodes.conditions import (
    Condition,
    Create,
    Decision,
    Delete,
    Done,
    Fail,
    ObservedState,
    Reboot,
    RepairAttempts,
    Requeue,
    Restart,
    Start,
    Verb,
    worker_matrix,
)
from tpuctl.nodes.decide import decide
from tpuctl.nodes.lease import LeaseGuard
from tpuctl.nodes.tracker import NodeSnapshot, NodeTracker, ReconcileRequest
from tpuctl.ssh.routes import UnreachableError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tpuctl.nodes.context import ActionContext

_SLACK_SHARE = 0.4


class NodeReconciler:
    """The state of one node during a run, and the changes that can be made to it.

    `due` is the monotonic time at which the next decision about the node is made.
    """

    def __init__(self, context: ActionContext, task: ReconcileRequest) -> None:
        self.task, self.name, self.policy = task, task.name, task.policy
        self._context = context
        self._steps = Actuator(context, task.name)
        self._lease = LeaseGuard(context, task.name, task.purpose, steal=task.steal)
        self._tracker = NodeTracker(context, task)
        self._acted_at: timedelta | None = None
        self._usable_since: timedelta | None = None
        self._key_sent_to: str | None = None
        self.was_repaired = self.has_degraded = False
        self.due = context.clock.monotonic()
        # A list call made for other nodes also serves this node, up to this long before it is due.
        self.slack = timedelta()

    @property
    def seen(self) -> ObservedState:
        """The last observed state."""
        return self._tracker.seen

    @property
    def elapsed(self) -> timedelta:
        """The time since the run began to work on the node."""
        return self._tracker.elapsed

    def within_deadline(self) -> AbstractContextManager[None]:
        """Limit the calls of a block to the time left, plus a grace period after the deadline."""
        timeout = self.policy.timeout
        left = None if timeout is None else max(timeout - self.elapsed, timedelta())
        return limit_cloud_calls(self._context.clock, left, grace=DEADLINE_GRACE)

    @property
    def needs_queued_resource(self) -> bool:
        """Return whether the queued resource of the node can say more than the node itself."""
        return self._tracker.needs_queued_resource

    @property
    def needs_survey(self) -> bool:
        """Return whether the workers need to be probed now, which takes seconds."""
        return self._tracker.needs_survey(is_usable=self.is_usable)

    @property
    def is_usable(self) -> bool:
        """Return whether the node was usable at the last decision."""
        return self._usable_since is not None

    @property
    def was_stopped_by_us(self) -> bool:
        """Return whether the node is STOPPED because tpuctl is restarting it."""
        return self.seen.node is not None and self._tracker.history.was_stopped(self.seen.node.id)

    def observe(self, snapshot: NodeSnapshot) -> None:
        """Record a snapshot. Raises an error that a later snapshot cannot resolve."""
        self._tracker.observe(snapshot)

    def refresh(self) -> None:
        """Fetch this node alone. Raises what the cloud raises."""
        self.observe(NodeSnapshot(self._context.cloud.find_node(self.name)))

    def survey_workers(self) -> None:
        """Probe the workers if their answers can change the decision."""
        try:
            self._tracker.survey_workers(is_usable=self.is_usable)
        except UnreachableError as error:
            if not self.task.takes_less or self.policy.goal is not Condition.SSH:
                raise
            self.policy = replace(self.policy, goal=Condition.HEALTHY)
            self._tracker.change_policy(self.policy)
            self.report(EventKind.NOTE, f"waiting until it is healthy, not until ssh answers: {error.message}")

    def decide(self) -> Decision:
        """Return the next action. Raises `EndedError` if another client took the node over."""
        self._lease.keep()
        since_action = None if self._acted_at is None else self._context.clock.monotonic() - self._acted_at
        decision = self._decide(since_action)
        if isinstance(decision, Fail) and self._lease.find_other_holder():
            # Another client repairs the node: it may be allowed to do what this run is not.
            decision = self._decide(since_action)
        if not isinstance(decision, Done) and not self.seen.outage:
            self._usable_since = None
        return decision

    def _decide(self, since_action: timedelta | None) -> Decision:
        state = self._tracker.update(held_by=self._lease.held_by, since_action=since_action)
        return decide(self.policy, state, self._context.server_now())

    def record_outage(self, error: ServiceUnavailableError) -> Requeue | Fail:
        """Record that a service needed for a step does not answer. Return whether to wait for it or to give up."""
        self._tracker.record_outage(error)
        decision = self._decide(None)
        assert isinstance(decision, Requeue | Fail)  # noqa: S101  # guides mypy: an outage allows nothing else
        return decision

    def execute(  # noqa: PLR0912  # one case for each decision and each error
        self, decision: Create | Start | Restart | Reboot | Delete
    ) -> None:
        """Send one change. A refusal shows in the next snapshot; it is raised if no later snapshot can resolve it."""
        if not self._lease.take():
            return
        tracker, tried = self._tracker, self.seen.tried
        try:
            match decision:
                case Create(reason):
                    self._create(reason)
                case Start(reason):
                    tracker.history.begin(tracker.node.id, self._context.clock.now())
                    tracker.note(is_ours=True)
                    tracker.requested.begin(self._steps.start(tracker.node, reason))
                case Restart(reason):
                    tracker.note(tried=replace(tried, restarts=tried.restarts + 1), is_ours=True)
                    self._restart(reason)
                case Reboot(reason):
                    tracker.note(tried=replace(tried, reboots=tried.reboots + 1), is_ours=True)
                    self.was_repaired = True
                    self._steps.reboot(tracker.node, reason)
                    tracker.record_reboot()
                case Delete(reason, _, is_repair):
                    tracker.note(tried=replace(tried, recreates=tried.recreates + is_repair))
                    self._delete(reason, is_repair=is_repair)
                case _:
                    assert_never(decision)
        except LeaseLostError:
            self._lease.raise_lost()
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
            timeout = self.policy.timeout
            pause = REBOOT_PAUSE if timeout is None else min(REBOOT_PAUSE, timeout - self.elapsed)
            self.due += max(timedelta(), pause)

    def requeue(self, decision: Requeue) -> None:
        """Become due again after the delay, and report why."""
        self.due, self.slack = self._context.clock.monotonic() + decision.delay, decision.delay * _SLACK_SHARE
        seen, timeout = self.seen, self.policy.timeout
        usual, node, follows = seen.pace.usual, seen.node, decision.next
        self.report(
            EventKind.SILENT if seen.outage else EventKind.WAIT,
            decision.reason,
            state=str(node.state) if node else None,
            health=str(node.health) if node else None,
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
        if node is None or node.id == self._key_sent_to or not may_change or not self._tracker.is_key_refused():
            return
        if entry := self._context.workers.key_entry(node):
            self._steps.add_key(node, entry)
        self._key_sent_to = node.id

    def take_lease(self) -> str | None:
        """Take the lease before it is needed. Return its other holder; None if it is ours."""
        self._lease.take()
        return self._lease.held_by

    def record_usable(self, level: Condition) -> None:
        """Record that the node is usable. After `policy.refill` in this state the repair budgets are full again."""
        now, node = self._context.clock.monotonic(), self.seen.node
        if node is None or not level.is_usable:
            return
        self._tracker.record_recovery()
        if self._usable_since is None:
            self._usable_since = now
            took = self.elapsed.total_seconds()
            self._tracker.history.finish(node.id, self._context.clock.now(), level=str(level), took=took)
        if now - self._usable_since >= self.policy.refill:
            self._tracker.note(tried=RepairAttempts())

    def run_setup(self) -> None:
        """Run the set-up once on the workers of a node that tpuctl created. Raises `RemoteCommandError` if it fails."""
        node = self.seen.node
        script = self._tracker.history.setup_to_do(node) if node else None
        if node is None or script is None:
            return
        try:
            self._steps.set_up(node, script)
        except BaseException:
            self._tracker.history.record_setup(node, self._context.clock.now(), ok=False)
            raise
        self._tracker.history.record_setup(node, self._context.clock.now(), ok=True)

    def pause(self, duration: timedelta) -> None:
        """Become due again after that time, with a jitter of a fifth."""
        pause = duration * (0.8 + 0.4 * self._context.random.random())
        self.due, self.slack = self._context.clock.monotonic() + pause, pause * _SLACK_SHARE

    def mark_degraded(self) -> None:
        """Record that the node is no longer usable, or needs a change to become usable."""
        self.has_degraded = True

    def mark_recovered(self) -> None:
        """Clear what `mark_degraded` and repairs recorded."""
        self.has_degraded = self.was_repaired = False

    def release(self) -> None:
        """Release the lease. Report the record that a failed creation left [observed: terraform-provider-google#16147]."""
        if self.seen.failure and self.seen.node and self.seen.node.state is NodeState.CREATING:
            self.report(EventKind.NOTE, f"its record still exists: `tpuctl down {self.name.node_id}` deletes it")
        self._lease.release()

    def report(self, kind: EventKind, text: str, **data: object) -> None:
        """Report an event."""
        self._context.tell(NodeEvent(kind, self._context.clock.now(), self.name, text, data))

    def report_and_journal(self, kind: EventKind, text: str, **data: object) -> None:
        """Report an event, and write it to the journal."""
        if node := self.seen.node:
            data |= {"id": node.id, "state": str(node.state), "health": str(node.health)}
        self.report(kind, text, **data)
        self._tracker.history.write(str(kind), self._context.clock.now(), text=text, **data)

    def _create(self, reason: str) -> None:
        spec = self._tracker.spec
        if spec is None:
            raise NotFoundError(f"`{self.name.node_id}` is gone, and its spec is unknown")
        self._context.check(self.name, spec)
        pending = self._steps.create(spec, reason)
        if pending is not None:
            self._tracker.requested.begin(pending)
            self._tracker.record_creation()

    def _restart(self, reason: str) -> None:
        self.was_repaired = True
        self._tracker.record_restart()
        self._tracker.history.record_stop(self._tracker.node.id)
        try:
            self._tracker.requested.begin(self._steps.restart(self._tracker.node, reason))
        except LeaseLostError:
            raise
        except ConflictError as error:
            self._tracker.note(refused_stop=error.message)
            self._tracker.history.record_refused_stop(
                f"the stop was refused: {error.message}", self._context.clock.now()
            )

    def _delete(self, reason: str, *, is_repair: bool) -> None:
        tracker = self._tracker
        node = tracker.node
        spec = tracker.spec = tracker.spec or tracker.history.spec_as_it_is(node)
        # Checked before the deletion: a node that could not be created again is better kept.
        self._context.check(self.name, spec, replaces=node)
        pending = self._steps.delete(node, spec, reason, is_repair=is_repair)
        if pending is None:
            return  # Another node has the name now: fetch it before the next decision.
        self.was_repaired = self.was_repaired or is_repair
        tracker.requested.begin(pending)
        tracker.record_deletion()
