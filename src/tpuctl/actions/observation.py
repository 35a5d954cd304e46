"""What one run has seen of one node, gathered from looks that may fail, for `readiness.decide`.

Times are the clock's monotonic ones. The failure of an HTTP call is never evidence about a node: it is kept as silence.
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
    from tpuctl.model import Difference
    from tpuctl.names import NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is wanted of one node.

    `spec` is what to create, and what a node that exists is compared with; `pending` is a change that was requested already;
    `probe` is a command of the user's that decides about devices; `purpose` is what a lease is taken for, nothing where no
    change is ever made; `steal` takes one that is another's; `tried` are repairs of earlier runs that still count;
    `takes_less` is for a goal that the user did not name: healthy will do where the workers cannot be reached from here;
    `since` is when its time began to count, by the monotonic clock, where that was before now.
    """

    name: NodeName
    policy: Policy
    spec: NodeSpec | None = None
    pending: Pending | None = None
    probe: str | None = None
    purpose: str | None = None
    steal: bool = False
    tried: Tried = field(default_factory=Tried)
    takes_less: bool = False
    since: timedelta | None = None


class Observation:
    """The facts of one node. `spec` is what it is compared with, and what it is made from."""

    def __init__(self, context: Context, task: Task) -> None:
        self._context, self._task, self.spec = context, task, task.spec
        self.requested = Requested(context.cloud, task.pending)
        self._survey = Survey(context, task.policy, task.probe)
        self.history = History(context.journal, task.name)
        if task.purpose:
            self.history.read(context.clock.now())
        self._started = self._answered = context.clock.monotonic() if task.since is None else task.since
        self._ages = Ages(self._started)
        self._failed: timedelta | None = None
        self._was_alive = False
        self._made: str | None = None  # the node that came of our creation, while that goes on
        self._owner: str | None = None
        self._throttled = 0
        is_ours = task.pending is not None and task.pending.verb in {Verb.CREATE, Verb.START, Verb.STOP}
        self.seen = Seen(name=task.name, node=None, is_ours=is_ours, tried=task.tried)

    @property
    def took(self) -> timedelta:
        """How long it has been."""
        return self._context.clock.monotonic() - self._started

    @property
    def wants_request(self) -> bool:
        """Tell whether the queued resource of the node can tell more than the node: it was preempted, or deleted."""
        node = self.seen.node
        is_odd = node is None or node.state is not NodeState.READY or self._task.policy.goal is Goal.PREEMPTED
        return is_odd and self._owner is not None

    @property
    def node(self) -> Node:
        """The node as last seen, for steps that need one."""
        if self.seen.node is None:
            raise AssertionError("this step needs a node that was seen")
        return self.seen.node

    def note(self, **facts: Any) -> None:  # the fields of Seen
        """Take note of what was done."""
        self.seen = replace(self.seen, **facts)

    def look(self, sight: Sight) -> None:
        """Take in what a look has shown. Raises an error that no further look can mend."""
        now = self._context.clock.monotonic()
        if sight.error is not None:
            self.miss(sight.error)
            return
        before, node = self.seen.node, self._not_another(sight.node)
        try:
            failed = self.requested.settle(node, now)
        except (ServiceUnavailableError, QuotaError) as error:
            self.miss(error)
            return
        if self.seen.silence:
            self._ages.leave_out(now - self._answered)
        self._answered, self._throttled = now, max(0, self._throttled - 1)
        self._follow(before, node)
        if node and self.requested.verb is Verb.CREATE and self._made is None:
            self._made = node.id
        went = self._went_by_itself(before, node)
        if failed and not (went and failed.was_cut_short):
            # A creation that a deletion cut short: there the end of the node says more than that of the operation.
            # A node of another id was made by somebody else meanwhile: the failure is none of its.
            self.fail(failed.verb, failed.error, node_id=node.id if node and node.id == self._made else "")
            went = False
        if node:
            self._recognise(node)
        self._tell_news(before, node, sight)
        is_same = node is not None and before is not None and node.raw == before.raw
        if not is_same:
            self._survey.forget()
        is_back = node is not None and node.state is not NodeState.DELETING
        self.note(
            node=node,
            request=sight.request or self.seen.request,
            differences=self._differences(node, is_same=is_same),
            was_there=self.seen.was_there or node is not None,
            has_vanished=went or (self.seen.has_vanished and not is_back),
            last_alive=self._context.server_now() if is_back and self._was_alive else self.seen.last_alive,
            silence=None,
        )

    def _follow(self, before: Node | None, node: Node | None) -> None:
        """Go on with another node of that name as with one that is not ours."""
        if before and node and before.id != node.id and self.requested.verb is None:
            self._tell(EventKind.NOTE, "somebody has made it anew; following the new one", id=node.id)
            self.note(is_ours=False, tried=Tried(), refused_stop=None)

    def is_to_be_asked(self, *, at_rest: bool) -> bool:
        """Tell whether the workers are to be asked now, which takes a while."""
        node = self.seen.node
        is_clear = node is not None and not self.seen.silence and not self.requested.pending
        return is_clear and node is not None and self._survey.is_due(node, at_rest=at_rest)

    def aim_at(self, policy: Policy) -> None:
        """Go for what another policy says from now on."""
        self._task = replace(self._task, policy=policy)
        self._survey = Survey(self._context, policy, self._task.probe)

    def survey(self, *, at_rest: bool) -> None:
        """Ask the workers, where their answers can change the decision; less often where all is well."""
        node, timeout = self.seen.node, self._task.policy.timeout
        if node is None or self.seen.silence or self.requested.pending:
            self._survey.forget()
            return
        try:
            self._survey.take(node, at_rest=at_rest, left=None if timeout is None else timeout - self.took)
        except (ServiceUnavailableError, QuotaError) as error:
            self.miss(error)

    def present(self, *, held_by: str | None, since_action: timedelta | None) -> Seen:
        """Return all that is known now."""
        now = self._context.clock.monotonic()
        self._ages.note(self.seen.node, self._survey.workers, now, self._context.server_now())
        failure = self.seen.failure
        self.note(
            workers=self._survey.workers,
            in_state=self._ages.in_state(now),
            in_health=self._ages.in_health(now),
            waited=now - self._started,
            since_repair=self._ages.since_repair(now),
            pending=self.requested.unseen(self.seen.node),
            failure=replace(failure, ago=now - self._failed) if failure and self._failed is not None else failure,
            held_by=held_by,
            pace=Pace(
                usual=self._usual_durations(self.seen.node),
                since_action=since_action,
                throttled=self._throttled,
                jitter=self._context.random.random(),
            ),
        )
        return self.seen

    def miss(self, error: TpuctlError) -> None:
        """Take in that nothing was seen. Raises an error that no further look can mend."""
        if not isinstance(error, ServiceUnavailableError | QuotaError):
            raise error
        # A read has no quota but that of requests in a minute, which passes.
        self._throttled += isinstance(error, QuotaError)
        times = self.seen.silence.times + 1 if self.seen.silence else 1
        self.note(silence=Silence(self._context.clock.monotonic() - self._answered, times, error))

    def is_refused(self) -> bool:
        """Tell whether a worker does not know our key."""
        return any(worker.answer is Answer.KEY_REFUSED for worker in self._survey.workers)

    def created(self) -> None:
        """Take note that the node was asked for; what was there before is none of it."""
        self._was_alive = False
        self._ages.replaced()
        self._made = None
        self.history.created(self._context.server_now(), self.spec.setup if self.spec else None)
        self.note(is_ours=True, has_vanished=False, refused_stop=None)

    def deleted(self) -> None:
        """Take note that the node was asked to go: its going is no wonder."""
        self._was_alive = False
        self._ages.replaced()

    def stopping(self) -> None:
        """Take note of a restart, whose effect is awaited once the node is READY again."""
        self._ages.stopping()

    def rebooted(self) -> None:
        """Take note that every worker comes up afresh."""
        self._ages.rebooted(self._context.clock.monotonic())
        self._survey.forget()

    def recovered(self) -> None:
        """Take note that all is well: what failed before does not count any more."""
        self._failed = None
        self._ages.recovered()
        self.note(is_ours=False, failure=None, refused_stop=None)

    def _not_another(self, node: Node | None) -> Node | None:
        """Return the node, but for one that somebody made after that which is to be gone: it is none of ours."""
        before, pending = self.seen.node, self.requested.pending
        target = pending.node_id if pending and pending.node_id else before.id if before else None
        if node is None or self._task.policy.goal is not Goal.GONE or target in {None, node.id}:
            return node
        self._tell(EventKind.NOTE, "somebody has made it anew; that one is left alone", id=node.id)
        return None

    def fail(self, verb: Verb, error: TpuctlError, *, node_id: str = "") -> None:
        """Take note of a change that was not carried out, and of the node that it was made to, or has left behind."""
        if verb is Verb.STOP and self._task.policy.goal.is_usable:
            self.note(refused_stop=error.message)
            return
        before, self._failed = self.seen.failure, self._context.clock.monotonic()
        times = before.times + 1 if before and before.verb is verb else 1
        self.history.write("note", self._context.clock.now(), text=f"{verb} failed: {error.message}", error=error.kind)
        self.note(failure=Failure(verb, error, times=times, node_id=node_id))

    def _differences(self, node: Node | None, *, is_same: bool) -> tuple[Difference, ...]:
        if is_same:
            return self.seen.differences
        return self.spec.differences(node) if self.spec and node else ()

    def _recognise(self, node: Node) -> None:
        """See whether the node is on its way up by our doing, or by an earlier run's that did not see the end of it."""
        deleting = self.requested.verb is Verb.DELETE or node.state is NodeState.DELETING
        self._was_alive = self._was_alive or not deleting
        self._owner = node.queued_resource or self._owner
        is_new = node.state is NodeState.CREATING and self._task.policy.may_create
        is_left = self.history.is_unfinished(node.id) or self.history.was_asked_for(node)
        if self.seen.is_ours or is_new or is_left:
            self.note(is_ours=True)
            if self._task.purpose:
                self.history.begin(node.id, self._context.clock.now())
        if node.state is NodeState.DELETING and self._task.policy.may_create and self.spec is None:
            self.spec = self.history.spec_as_it_is(node)  # `up` goes on where the deletion ends

    def _went_by_itself(self, before: Node | None, node: Node | None) -> bool:
        """Tell whether a node that this run has seen alive goes, or is gone, without our doing: somebody deleted it."""
        is_going = node is None or node.state is NodeState.DELETING
        if before is None or before.state.is_dead or self.requested.verb is Verb.DELETE:
            return False
        return is_going and self._was_alive

    def _usual_durations(self, node: Node | None) -> tuple[timedelta, ...]:
        """Return how long nodes like it have been in its state."""
        accelerator_type = node.accelerator_type if node else self.spec.accelerator_type if self.spec else None
        if accelerator_type is None:
            return ()
        name = self._task.name
        usual = self._context.journal.usual(name.project, accelerator_type, name.zone)
        return usual.get(str(node.state) if node else "CREATING", ())

    def _tell_news(self, before: Node | None, node: Node | None, sight: Sight) -> None:
        known = self.seen.request
        now = self._context.clock.now()
        for event in news(self._task.name, now, (before, known), (node, sight.request or known)):
            # Written before it is told: who ends us at the sight of it finds it in the journal.
            if event.kind is EventKind.PREEMPTED:
                self.history.write(str(EventKind.STATE), event.at, **event.data)
            self.history.write(str(event.kind), event.at, **event.data)
            self._context.tell(event)

    def _tell(self, kind: EventKind, text: str, **data: object) -> None:
        self._context.tell(Event(kind, self._context.clock.now(), self._task.name, text, data))
