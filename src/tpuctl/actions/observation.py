"""Track the observed state of one node during a run, as input for `readiness.decide`.

Times are the clock's monotonic ones. A failed HTTP call is never evidence about a node: it is recorded as an API outage.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.actions.ages import Ages
from tpuctl.actions.changes import news
from tpuctl.actions.history import History
from tpuctl.actions.requested import Requested
from tpuctl.actions.survey import Survey
from tpuctl.errors import QuotaError, ServiceUnavailableError, TpuctlError
from tpuctl.events import Event, EventKind
from tpuctl.model import Node, NodeSpec, NodeState
from tpuctl.readiness import Answer, Failure, Goal, Pace, Policy, Seen, Silence, Tried, Verb

if TYPE_CHECKING:
    from tpuctl.actions.cloud import Context
    from tpuctl.actions.sighting import Sight
    from tpuctl.actions.steps import Pending
    from tpuctl.names import NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The goal for one node, and what may be done to reach it."""

    name: NodeName
    policy: Policy
    # Used to create the node; an existing node is compared with it.
    spec: NodeSpec | None = None
    # A change that was requested before the run.
    pending: Pending | None = None
    # The user's command that decides whether devices work.
    probe: str | None = None
    # The purpose recorded in the lease. None: the run never changes the node.
    purpose: str | None = None
    # Take the lease from another holder.
    steal: bool = False
    # Repairs of earlier runs that count against the budgets.
    tried: Tried = field(default_factory=Tried)
    # The user named no goal: HEALTHY is enough if the workers cannot be reached from this machine.
    takes_less: bool = False
    # When the timeout began to count, by the monotonic clock. None: now.
    since: timedelta | None = None


class Observation:
    """The facts about one node. `spec` is what the node is compared with and created from."""

    def __init__(self, context: Context, task: Task) -> None:
        self._context, self._task, self.spec = context, task, task.spec
        self.requested = Requested(context.cloud, task.pending)
        self._survey = Survey(context, task.policy, task.probe)
        self.history = History(context.journal, task.name)
        if task.purpose:
            self.history.read(context.clock.now())
        self._started = self._answered_at = context.clock.monotonic() if task.since is None else task.since
        self._ages = Ages(self._started)
        self._failed_at: timedelta | None = None
        self._was_alive = False
        self._created_id: str | None = None  # the node that our unfinished creation has produced
        self._queued_resource: str | None = None
        self._throttled = 0
        is_ours = task.pending is not None and task.pending.verb in {Verb.CREATE, Verb.START, Verb.STOP}
        self.seen = Seen(name=task.name, node=None, is_ours=is_ours, tried=task.tried)

    @property
    def elapsed(self) -> timedelta:
        """The time since the run began to work on the node."""
        return self._context.clock.monotonic() - self._started

    @property
    def needs_queued_resource(self) -> bool:
        """Return whether the queued resource can say why the node is not READY: preempted, or deleted."""
        node = self.seen.node
        is_odd = node is None or node.state is not NodeState.READY or self._task.policy.goal is Goal.PREEMPTED
        return is_odd and self._queued_resource is not None

    @property
    def node(self) -> Node:
        """The last observed node, for changes that need one."""
        if self.seen.node is None:
            raise AssertionError("this change needs a node that was observed")
        return self.seen.node

    def note(self, **facts: Any) -> None:  # the fields of Seen
        """Replace fields of the observed state."""
        self.seen = replace(self.seen, **facts)

    def observe(self, snapshot: Sight) -> None:
        """Record a snapshot. Raises an error that a later snapshot cannot resolve."""
        now = self._context.clock.monotonic()
        if snapshot.error is not None:
            self.record_outage(snapshot.error)
            return
        before, node = self.seen.node, self._without_successor(snapshot.node)
        try:
            failed = self.requested.settle(node, now)
        except (ServiceUnavailableError, QuotaError) as error:
            self.record_outage(error)
            return
        if self.seen.outage:
            self._ages.leave_out(now - self._answered_at)
        self._answered_at, self._throttled = now, max(0, self._throttled - 1)
        if before and node and before.id != node.id and self.requested.verb is None:
            self._report(EventKind.NOTE, "another client recreated the node; following the new node", id=node.id)
            self.note(is_ours=False, tried=Tried(), refused_stop=None)
        if node and self.requested.verb is Verb.CREATE and self._created_id is None:
            self._created_id = node.id
        has_vanished = self._vanished(before, node)
        if failed and not (has_vanished and failed.was_cut_short):
            # If a deletion interrupted our creation, the node's end says more than the error of the operation.
            # A node with another id was created by another client meanwhile: our failure does not concern it.
            self.record_failure(
                failed.verb, failed.error, node_id=node.id if node and node.id == self._created_id else ""
            )
            has_vanished = False
        if node:
            self._recognise(node)
        self._report_changes(before, node, snapshot)
        differences = self.seen.differences
        if node is None or before is None or node.raw != before.raw:
            self._survey.forget()
            differences = self.spec.differences(node) if self.spec and node else ()
        exists = node is not None and node.state is not NodeState.DELETING
        self.note(
            node=node,
            request=snapshot.request or self.seen.request,
            differences=differences,
            was_there=self.seen.was_there or node is not None,
            has_vanished=has_vanished or (self.seen.has_vanished and not exists),
            last_alive=self._context.server_now() if exists and self._was_alive else self.seen.last_alive,
            outage=None,
        )

    def needs_survey(self, *, is_usable: bool) -> bool:
        """Return whether the workers need to be probed now, which takes seconds."""
        node = self.seen.node
        is_clear = node is not None and not self.seen.outage and not self.requested.pending
        return is_clear and node is not None and self._survey.is_due(node, is_usable=is_usable)

    def change_policy(self, policy: Policy) -> None:
        """Follow another policy from now on."""
        self._task = replace(self._task, policy=policy)
        self._survey = Survey(self._context, policy, self._task.probe)

    def survey_workers(self, *, is_usable: bool) -> None:
        """Probe the workers if their answers can change the decision; less often while the node is usable."""
        node, timeout = self.seen.node, self._task.policy.timeout
        if node is None or self.seen.outage or self.requested.pending:
            self._survey.forget()
            return
        try:
            self._survey.run(node, is_usable=is_usable, left=None if timeout is None else timeout - self.elapsed)
        except (ServiceUnavailableError, QuotaError) as error:
            self.record_outage(error)

    def update(self, *, held_by: str | None, since_action: timedelta | None) -> Seen:
        """Return the observed state with all durations as of now."""
        now, node = self._context.clock.monotonic(), self.seen.node
        self._ages.note(node, self._survey.workers, now, self._context.server_now())
        failure = self.seen.failure
        usual: tuple[timedelta, ...] = ()
        if accelerator_type := node.accelerator_type if node else self.spec.accelerator_type if self.spec else None:
            name = self._task.name
            by_state = self._context.journal.usual(name.project, accelerator_type, name.zone)
            usual = by_state.get(str(node.state) if node else "CREATING", ())
        self.note(
            workers=self._survey.workers,
            in_state=self._ages.in_state(now),
            in_health=self._ages.in_health(now),
            waited=now - self._started,
            since_repair=self._ages.since_repair(now),
            pending=self.requested.invisible(node),
            failure=replace(failure, ago=now - self._failed_at) if failure and self._failed_at is not None else failure,
            held_by=held_by,
            pace=Pace(
                usual=usual,
                since_action=since_action,
                throttled=self._throttled,
                jitter=self._context.random.random(),
            ),
        )
        return self.seen

    def record_outage(self, error: TpuctlError) -> None:
        """Record that the API did not answer. Raises an error that a later snapshot cannot resolve."""
        if not isinstance(error, ServiceUnavailableError | QuotaError):
            raise error
        # Reads have only one quota, requests per minute, and that passes.
        self._throttled += isinstance(error, QuotaError)
        times = self.seen.outage.times + 1 if self.seen.outage else 1
        self.note(outage=Silence(self._context.clock.monotonic() - self._answered_at, times, error))

    def is_key_refused(self) -> bool:
        """Return whether a worker does not accept our ssh key."""
        return any(worker.answer is Answer.KEY_REFUSED for worker in self._survey.workers)

    def record_creation(self) -> None:
        """Record that the node was requested. Facts about an earlier node of that name do not count any more."""
        self._was_alive = False
        self._ages.replaced()
        self._created_id = None
        self.history.created(self._context.server_now(), self.spec.setup if self.spec else None)
        self.note(is_ours=True, has_vanished=False, refused_stop=None)

    def record_deletion(self) -> None:
        """Record that the deletion was requested, so that the node is expected to disappear."""
        self._was_alive = False
        self._ages.replaced()

    def record_restart(self) -> None:
        """Record a restart. Its effect shows once the node is READY again."""
        self._ages.stopping()

    def record_reboot(self) -> None:
        """Record that every worker is rebooting."""
        self._ages.rebooted(self._context.clock.monotonic())
        self._survey.forget()

    def record_recovery(self) -> None:
        """Record that the node is usable. Earlier failures do not count any more."""
        self._failed_at = None
        self._ages.recovered()
        self.note(is_ours=False, failure=None, refused_stop=None)

    def record_failure(self, verb: Verb, error: TpuctlError, *, node_id: str = "") -> None:
        """Record a change that was not carried out. `node_id` is the node that the failed creation left behind."""
        if verb is Verb.STOP and self._task.policy.goal.is_usable:
            self.note(refused_stop=error.message)
            return
        before, self._failed_at = self.seen.failure, self._context.clock.monotonic()
        times = before.times + 1 if before and before.verb is verb else 1
        self.history.write("note", self._context.clock.now(), text=f"{verb} failed: {error.message}", error=error.kind)
        self.note(failure=Failure(verb, error, times=times, node_id=node_id))

    def _without_successor(self, node: Node | None) -> Node | None:
        """Return the node. Return None for one that another client created after the node whose deletion is the goal."""
        before, pending = self.seen.node, self.requested.pending
        target = pending.node_id if pending and pending.node_id else before.id if before else None
        if node is None or self._task.policy.goal is not Goal.GONE or target in {None, node.id}:
            return node
        self._report(EventKind.NOTE, "another client recreated the node; leaving the new node untouched", id=node.id)
        return None

    def _recognise(self, node: Node) -> None:
        """Set `is_ours` if this run creates or starts the node, or an earlier run did and ended before it was usable."""
        deleting = self.requested.verb is Verb.DELETE or node.state is NodeState.DELETING
        self._was_alive = self._was_alive or not deleting
        self._queued_resource = node.queued_resource or self._queued_resource
        is_new = node.state is NodeState.CREATING and self._task.policy.may_create
        is_left = self.history.is_unfinished(node.id) or self.history.was_asked_for(node)
        if self.seen.is_ours or is_new or is_left:
            self.note(is_ours=True)
            if self._task.purpose:
                self.history.begin(node.id, self._context.clock.now())
        if node.state is NodeState.DELETING and self._task.policy.may_create and self.spec is None:
            self.spec = self.history.spec_as_it_is(node)  # `up` creates it again after the deletion

    def _vanished(self, before: Node | None, node: Node | None) -> bool:
        """Return whether a node that this run saw alive is being deleted, or is gone, without a request of this run."""
        is_going = node is None or node.state is NodeState.DELETING
        if before is None or before.state.is_dead or self.requested.verb is Verb.DELETE:
            return False
        return is_going and self._was_alive

    def _report_changes(self, before: Node | None, node: Node | None, snapshot: Sight) -> None:
        known, now = self.seen.request, self._context.clock.now()
        for event in news(self._task.name, now, (before, known), (node, snapshot.request or known)):
            # Written before it is reported: a process that kills us on the event finds it in the journal.
            if event.kind is EventKind.PREEMPTED:
                self.history.write(str(EventKind.STATE), event.at, **event.data)
            self.history.write(str(event.kind), event.at, **event.data)
            self._context.tell(event)

    def _report(self, kind: EventKind, text: str, **data: object) -> None:
        self._context.tell(Event(kind, self._context.clock.now(), self._task.name, text, data))
