"""Observe nodes: fetch snapshots, probe workers, and track the observed state of one node as input for `decide`.

Durations are measured with the monotonic clock. A failed HTTP call is never evidence about a node: it is recorded as an API
outage.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_timestamp
from tpuctl.errors import NotFoundError, QuotaError, ServiceUnavailableError, TpuctlError
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import Health, Node, NodeState, QueuedState
from tpuctl.models.operation import Operation
from tpuctl.models.spec import V2, NodeSpec
from tpuctl.nodes.conditions import (
    ApiOutage,
    Condition,
    FailedChange,
    ObservedState,
    Policy,
    PollState,
    Repair,
    RepairAttempts,
    SshAnswer,
    Verb,
    WorkerSnapshot,
    describe_failed_scripts,
    failed_scripts,
)
from tpuctl.nodes.decide import change_is_visible
from tpuctl.nodes.expiry import inherit_expiry, is_expired
from tpuctl.nodes.journal import NodeHistory
from tpuctl.nodes.queueing import request_failure
from tpuctl.nodes.repair import DEFECTIVE_HEALTH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from datetime import datetime

    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import SpecDifference
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext, RequestedChange
    from tpuctl.nodes.idleness import IdleLimit
    from tpuctl.nodes.lease import LeaseGuard


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRequest:
    """The goal for one node, and what may be done to reach it."""

    name: NodeName
    policy: Policy
    # Used to create the node; an existing node is compared with it.
    spec: NodeSpec | None = None
    # A change that was requested before the run.
    pending: RequestedChange | None = None
    # The user's command that decides whether devices work.
    probe: str | None = None
    # The purpose recorded in the lease. None: the run never changes the node.
    purpose: str | None = None
    # Take the lease from another holder.
    force_lease: bool = False
    # A lease that the caller holds for longer than this run. None: the run takes its own.
    lease: LeaseGuard | None = None
    # Repairs of earlier runs that count against the budgets.
    attempts: RepairAttempts = field(default_factory=RepairAttempts)
    # A queued resource requests, or requested, the node: its state is shown while there is no node.
    is_queued: bool = False
    # The user named no goal: HEALTHY is enough if the workers cannot be reached from this machine.
    accepts_healthy: bool = False
    # When the timeout began to count, by the monotonic clock. None: now.
    since: timedelta | None = None
    # The end that the user named for the node's time. A node that exists gets it too.
    ends: datetime | None = None
    # The user wants no end: a node that exists loses its own.
    removes_end: bool = False
    # How long the node may be idle.
    idle: IdleLimit | None = None
    # The user wants no limit of idleness: that of an earlier guard ends.
    removes_idle: bool = False
    # Whether these limits are for a node that the run finds: it may be that of another owner, or one that has more time.
    may_limit: Callable[[Node], bool] = lambda _: True
    # The end of a node that `may_limit` accepts is moved on, so that at least three quarters of this time are left.
    moves_end: timedelta | None = None


# The limit for one round of ssh, and how often the workers of a usable node are probed.
_SURVEY_TIMEOUT = timedelta(seconds=15)
_SURVEY_INTERVAL_WHEN_USABLE = timedelta(minutes=1)
# A handshake needs at least this long: a shorter silence would prove nothing.
_SHORTEST_SURVEY = timedelta(seconds=5)
# The user's probe may load a framework.
_PROBE_TIMEOUT = timedelta(minutes=2)


# A request in these states is about to end, or has ended.
_ENDED = frozenset({QueuedState.DELETING, QueuedState.FAILED, QueuedState.SUSPENDING, QueuedState.SUSPENDED})


class NodeTracker:
    """The facts about one node."""

    def __init__(self, context: ActionContext, task: ReconcileRequest) -> None:
        self._context, self._task = context, task
        self.policy = task.policy
        # What the node is compared with and created from.
        self.spec = task.spec
        # The end that the user named, until the node has it.
        self.ends = task.ends
        # Whether the user wants none, until the node has none.
        self.removes_end = task.removes_end
        # The end of the node that was seen last; None if it has none, or is kept.
        self.last_end: datetime | None = None
        self.requested = PendingOperation(context.cloud, task.pending)
        self.history = NodeHistory(context.journal, task.name, context.clock)
        if task.purpose:
            self.history.read()
        self._started = self._answered_at = context.clock.monotonic() if task.since is None else task.since
        self.ages = StateAges(self._started)
        # How long set-ups ran, and since when one runs; monotonic.
        self._set_up_for = timedelta()
        self._set_up_since: timedelta | None = None
        # The last answers of the workers, and when they were probed.
        self.workers: tuple[WorkerSnapshot, ...] = ()
        self._failed_scripts: tuple[int, ...] = ()  # that were reported
        self._probed_at: timedelta | None = None
        self._failed_at: timedelta | None = None
        self._was_alive = False
        self._created_id: str | None = None  # the node that our unfinished creation has produced
        self._queued_resource: str | None = None
        # What the node is requested from through the queue; None for a node that is created directly.
        self.queued_spec = self._find_queued_spec()
        # The queued resource that this run has seen alive, and since when it is in its state.
        self._living_request: object = None
        self._request_state: object = None
        self._request_since = self._started
        self._throttled = 0
        # The id of the node that the spec of a keeper is that of.
        self._based_on = ""
        # What was said not to be compared.
        self._not_compared: set[str] = set()
        is_ours = task.pending is not None and task.pending.verb in {Verb.CREATE, Verb.START, Verb.STOP}
        self.seen = ObservedState(
            name=task.name,
            node=None,
            is_ours=is_ours,
            attempts=task.attempts,
            is_queued=self.queued_spec is not None or task.is_queued,
        )

    def _find_queued_spec(self) -> NodeSpec | None:
        """Return the given spec if it asks for the queue, else that of the last creation if it did."""
        if self.spec is not None and self.spec.is_queued:
            return self.spec
        return self.history.queued_spec()

    @property
    def elapsed(self) -> timedelta:
        """The time since the run began to work on the node, without that of its set-up."""
        return self._context.clock.monotonic() - self._started - self._time_of_setups

    @property
    def _time_of_setups(self) -> timedelta:
        running = timedelta() if self._set_up_since is None else self._context.clock.monotonic() - self._set_up_since
        return self._set_up_for + running

    def begin_setup(self) -> None:
        """Begin to leave out the time of the set-up, which has a limit of its own."""
        self._set_up_since = self._context.clock.monotonic()

    def end_setup(self) -> None:
        """Count the time again."""
        self._set_up_for, self._set_up_since = self._time_of_setups, None

    @property
    def left(self) -> timedelta | None:
        """The time until the deadline, negative after it; None without one."""
        return None if self.policy.timeout is None else self.policy.timeout - self.elapsed

    @property
    def needs_queued_resource(self) -> bool:
        """Return whether the queued resource can say why the node is not READY: preempted, or deleted."""
        node = self.seen.node
        is_odd = node is None or node.state is not NodeState.READY or self.policy.goal is Condition.PREEMPTED
        return is_odd and (self._queued_resource is not None or self.seen.is_queued)

    @property
    def node(self) -> Node:
        """The last observed node, for changes that need one."""
        if self.seen.node is None:
            raise AssertionError("this change needs a node that was observed")
        return self.seen.node

    def note(self, **facts: Any) -> None:  # the fields of ObservedState
        """Replace fields of the observed state."""
        self.seen = replace(self.seen, **facts)

    def observe(self, snapshot: NodeSnapshot) -> None:  # one story: what changed since the last snapshot
        """Record a snapshot. Raises an error that a later snapshot cannot resolve."""
        now = self._context.clock.monotonic()
        if snapshot.error is not None:
            self.record_outage(snapshot.error)
            return
        before, node = self.seen.node, self._without_successor(snapshot.node)
        known = self.seen.request
        # A node that tpuctl requested through the queue is followed with its request, also when that is gone.
        is_known_now = snapshot.has_request or self.seen.is_queued
        request = snapshot.request if is_known_now else snapshot.request or known
        try:
            request = request or self._fetch_request_again(known)
            failed = self.requested.settle(node, request, now)
        except (ServiceUnavailableError, QuotaError) as error:
            self.record_outage(error)
            return
        if self.seen.outage:
            self.ages.leave_out(now - self._answered_at)
        self._answered_at, self._throttled = now, max(0, self._throttled - 1)
        if before and node and before.id != node.id and self.requested.verb is None:
            self._context.report(
                EventKind.NOTE, self._task.name, "another client recreated the node; following the new node", id=node.id
            )
            self.note(is_ours=False, attempts=RepairAttempts(), refused_stop=None)
        if node and self.requested.verb is Verb.CREATE and self._created_id is None:
            self._created_id = node.id
        # A node that this run saw alive is being deleted, or is gone, without a request of this run.
        is_request_gone = node is None and self._has_lost_request(request)
        has_vanished = is_request_gone or (
            (node is None or node.state is NodeState.DELETING)
            and self._was_alive
            and before is not None
            and not before.state.is_dead
            and self.requested.verb is not Verb.DELETE
        )
        # It was not DELETING before, so no client deleted it: the creation that another run requested has failed.
        is_creation_lost = (
            has_vanished
            and node is None
            and before is not None
            and before.state is NodeState.CREATING
            and self.requested.verb is None
            and self.policy.may_create
            and not (self.seen.outage or self.seen.is_queued)
        )
        cause = failed.operation.error if failed else None
        # If a deletion interrupted our creation, the node's end says more than the error of the operation.
        if failed and cause and not (has_vanished and cause.code in _INTERRUPTED_CODES):
            # A node with another id was created by another client meanwhile: our failure does not concern it.
            node_id = node.id if node and node.id == self._created_id else ""
            self.record_failure(failed.verb, self._context.cloud.operation_error(cause), node_id=node_id)
            has_vanished = False
        elif is_creation_lost and before is not None:
            self._context.report(EventKind.NOTE, self._task.name, "the creation that another run requested failed")
            self.spec = self.spec or self.history.spec_as_it_is(before)
            has_vanished = False
        if node:
            self._update_ownership(node)
        at = self._context.clock.now()
        for event in node_events(self._task.name, at, (before, known), (node, request or known)):
            # Written before it is reported: a process that kills us on the event finds it in the journal.
            if event.kind is EventKind.PREEMPTED:
                self.history.write(str(EventKind.STATE), **event.data)
            self.history.write(str(event.kind), **event.data)
            self._context.emit(event)
        differences = self.seen.differences
        self._keep_as_it_is(node)
        if node is None or before is None or node.raw != before.raw:
            self.workers = ()
            differences = self._compare(node) if self.spec and node else ()
        if self.seen.is_queued:
            self._observe_request(request, now)
        self._inherit_expiry(node, request)
        exists = node is not None and node.state is not NodeState.DELETING
        self.note(
            node=node,
            request=request,
            has_time_ended=node is None and self._has_time_ended(request),
            differences=differences,
            was_there=self.seen.was_there or node is not None,
            has_vanished=has_vanished or (self.seen.has_vanished and not exists),
            last_alive=self._context.server_now() if exists and self._was_alive else self.seen.last_alive,
            outage=None,
        )

    def _inherit_expiry(self, node: Node | None, request: QueuedResource | None) -> None:
        """Let a node that is created after this one keep its end.

        The label of a node counts also after the node is gone: `extend` cannot change that of its request.
        """
        if node is None and self.seen.was_there:
            return
        seen = node or (request.requested_node(self._task.name.project) if request else None)
        if seen is None:
            return
        self.last_end = None if seen.is_kept else seen.expires
        if self.spec is not None:
            self.spec = inherit_expiry(self.spec, seen, is_keeper=self.policy.is_keeper)

    def _keep_as_it_is(self, node: Node | None) -> None:
        """Let a keeper recreate a node as it is: only flags change that, and files if the journal does not know the node."""
        wanted = self._task.spec
        if node is None or wanted is None or not self.policy.is_keeper or node.id == self._based_on:
            return
        named = () if self.history.made_as(node) else wanted.named
        self.spec, self._based_on = wanted.over(self.history.spec_as_it_is(node), named), node.id

    def _fetch_request_again(self, known: QueuedResource | None) -> QueuedResource | None:
        """Return the known queued resource, which a list lacks; None only after a 404 from the API."""
        if known is None or self.requested.verb is Verb.DELETE:
            return None
        try:
            return self._context.cloud.get_queued_resource(known.name, version=self.versions[1])
        except NotFoundError:
            return None

    def _has_lost_request(self, request: QueuedResource | None) -> bool:
        """Return whether another client has deleted the queued resource that this run saw waiting for a node that never was."""
        known = self.seen.request
        if known is None or known.state in _ENDED or self.requested.verb is Verb.DELETE or self.seen.was_there:
            return False
        return request is None or (request.created == known.created and request.state is QueuedState.DELETING)

    def _has_time_ended(self, request: QueuedResource | None) -> bool:
        """Return whether the time of a node that does not exist has ended, by its own label and by that of its request."""
        now = self._context.server_now()
        if self.ends is not None or self.removes_end or self.last_end is None or self.last_end > now:
            return False
        requested = request.requested_node(self._task.name.project) if request else None
        return requested is None or (is_expired(requested, now) and not requested.is_kept)

    def _observe_request(self, request: QueuedResource | None, now: timedelta) -> None:
        """Record the state of the queued resource. One that this run saw alive and that FAILED is a failed creation."""
        identity = None if request is None else (request.name, request.raw.get("createTime"))
        picture = None if request is None else (identity, request.state, request.initiator)
        if picture != self._request_state:
            is_first, self._request_state, self._request_since = self._request_state is None, picture, now
            if request is not None and is_first and request.created and request.state is not QueuedState.ACTIVE:
                self._request_since = now - max(timedelta(), self._context.server_now() - request.created)
            if request is not None:
                self.history.write("request", state=str(request.state), text=request.initiator)
                text = f"queued resource {request.state}"
                self._context.report(EventKind.STATE, self._task.name, text, request=str(request.state))
        # A run that only waits follows the request of any client.
        is_asked_by_us = (
            identity == self._living_request or self.requested.verb is Verb.CREATE or self.policy.is_read_only
        )
        if request is None or not request.state.is_dead:
            self._living_request = identity
        elif request.state is QueuedState.FAILED and is_asked_by_us:
            self._living_request = None
            cause = self._context.cloud.operation_error(request.error) if request.error else None
            self.requested.begin(None)
            self.record_failure(Verb.CREATE, request_failure(request, cause, is_left=self.policy.is_read_only))
        differences: tuple[SpecDifference, ...] = ()
        if request is not None and self.spec is not None:
            requested = request.requested_node(self._task.name.project)
            differences = self._compare(requested, created=request.created)
        self.note(request_differences=differences)

    def _compare(self, node: Node, *, created: datetime | None = None) -> tuple[SpecDifference, ...]:
        """Return the fields in which a node, existing or requested, differs from the spec. Say once what is not compared."""
        if self.spec is None:
            return ()
        made = self.history.made_as(node, created=created)
        unknown = self.spec.not_compared(node, made_as=made)
        if new := set(unknown) - self._not_compared:
            self._not_compared |= new
            text = f"not compared, because neither the API nor the journal shows it: {', '.join(sorted(new))}"
            self._context.report(EventKind.NOTE, self._task.name, text)
        return self.spec.differences(node, made_as=made)

    @property
    def versions(self) -> tuple[str, str]:
        """The versions of the API that show what is compared of the node, and of its queued resource."""
        return (self.spec.version_to_read, self.spec.version_to_read_request) if self.spec else (V2, V2)

    def _workers_matter(self) -> bool:
        """Return whether answers of the workers can change the decision."""
        node, goal = self.seen.node, self.policy.goal
        is_settled = node is not None and not self.seen.outage and not self.requested.pending
        if node is None or not is_settled or node.state is not NodeState.READY or len(node.endpoints) < node.workers:
            return False
        if goal.includes(Condition.SSH):
            # A run that waits for ssh reports why it can never answer.
            return self._context.workers.obstacle() is None
        is_evidence = node.health is Health.HEALTH_UNSPECIFIED or self.policy.repair is not Repair.NONE
        # For other goals, unreachable workers prove nothing.
        return goal is Condition.HEALTHY and is_evidence and self._context.workers.obstacle(node) is None

    def needs_survey(self, *, is_usable: bool) -> bool:
        """Return whether to probe the workers now, which takes seconds; less often while the node is usable."""
        all_answered = bool(self.workers) and all(worker.answer is SshAnswer.YES for worker in self.workers)
        since = None if self._probed_at is None else self._context.clock.monotonic() - self._probed_at
        is_recent = since is not None and since < _SURVEY_INTERVAL_WHEN_USABLE
        return self._workers_matter() and not (is_usable and all_answered and is_recent)

    def drop_irrelevant_answers(self) -> None:
        """Forget what the workers answered if it cannot change the decision now."""
        if not self._workers_matter():
            self.workers = ()

    def survey_workers(self) -> None:
        """Probe the workers within the time left."""
        probe, left, is_defective = self._task.probe, self.left, self.node.health in DEFECTIVE_HEALTH
        inspect = self.policy.goal.includes(Condition.STARTUP) or (
            is_defective and self.policy.repair is not Repair.NONE
        )
        patience = _PROBE_TIMEOUT if inspect and probe else _SURVEY_TIMEOUT
        # A timeout of zero allows one probe, with the time that a probe takes.
        limit = patience if left is None or left <= timedelta() else max(_SHORTEST_SURVEY, min(patience, left))
        try:
            self.workers = self._context.workers.survey(self.node, inspect=inspect, probe=probe, timeout=limit)
            self._probed_at = self._context.clock.monotonic()
        except (ServiceUnavailableError, QuotaError) as error:
            self.record_outage(error)

    def update(self, *, held_by: str | None, since_action: timedelta | None) -> ObservedState:
        """Return the observed state with all durations as of now."""
        now, node = self._context.clock.monotonic(), self.seen.node
        self.ages.update(node, self.workers, now, self._context.server_now())
        if (failed := failed_scripts(self.workers)) and failed != self._failed_scripts:
            self._failed_scripts, text = failed, describe_failed_scripts(self.workers)
            self._context.report(EventKind.NOTE, self._task.name, text, startup="failed", failed_workers=[*failed])
        failure = self.seen.failure
        usual: tuple[timedelta, ...] = ()
        if accelerator_type := node.accelerator_type if node else self.spec.accelerator_type if self.spec else None:
            name = self._task.name
            by_state = self._context.journal.usual(name.project, accelerator_type, name.zone)
            waiting = str(self.seen.request.state) if self.seen.is_queued and self.seen.request else "CREATING"
            usual = by_state.get(str(node.state) if node else waiting, ())
        self.note(
            workers=self.workers,
            in_state=now - self.ages.since,
            in_health=now - self.ages.reported_since,
            in_request_state=now - self._request_since,
            server_now=self._context.server_now(),
            waited=self.elapsed,
            since_repair=None if self.ages.repaired_at is None else now - self.ages.repaired_at,
            pending=self.requested.invisible(node, self.seen.request),
            is_request_pending=self.requested.is_of_request,
            failure=replace(failure, ago=now - self._failed_at) if failure and self._failed_at is not None else failure,
            held_by=held_by,
            poll_state=PollState(
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
        self.note(outage=ApiOutage(self._context.clock.monotonic() - self._answered_at, times, error))

    def record_creation(self) -> None:
        """Record that the node was requested. Facts about an earlier node of that name do not count any more."""
        self.record_deletion()
        self._created_id = None
        self.history.record_creation(self._context.server_now(), self.spec)
        self.note(is_ours=True, has_vanished=False, refused_stop=None)

    def record_deletion(self) -> None:
        """Record that the deletion was requested, so that the node is expected to disappear."""
        self._was_alive = False
        self.ages.awaits_effect = False

    def record_reboot(self) -> None:
        """Record that every worker is rebooting: all durations begin again."""
        self.ages.rebooted(self._context.clock.monotonic())
        self.workers = ()

    def record_recovery(self) -> None:
        """Record that the node is usable. Earlier failures do not count any more."""
        self._failed_at = None
        self.ages.repaired_at = None
        self.note(is_ours=False, failure=None, refused_stop=None)

    def record_failure(self, verb: Verb, error: TpuctlError, *, node_id: str = "") -> None:
        """Record a change that was not carried out. `node_id` is the node that the failed creation left behind."""
        if verb is Verb.STOP and self.policy.goal.is_usable:
            self.note(refused_stop=error.message)
            return
        before, self._failed_at = self.seen.failure, self._context.clock.monotonic()
        times = before.times + 1 if before and before.verb is verb else 1
        self.history.write("note", text=f"{verb} failed: {error.message}", error=error.kind)
        self.note(failure=FailedChange(verb, error, times=times, node_id=node_id))

    def _without_successor(self, node: Node | None) -> Node | None:
        """Return the node. Return None for one that another client created after the node whose deletion is the goal."""
        before, pending = self.seen.node, self.requested.pending
        target = pending.node_id if pending and pending.node_id else before.id if before else None
        if node is None or self.policy.goal is not Condition.GONE or target in {None, node.id}:
            return node
        self._context.report(
            EventKind.NOTE,
            self._task.name,
            "another client recreated the node; leaving the new node untouched",
            id=node.id,
        )
        return None

    def _update_ownership(self, node: Node) -> None:
        """Set `is_ours` if this run creates or starts the node, or an earlier run did and ended before it was usable."""
        deleting = self.requested.verb is Verb.DELETE or node.state is NodeState.DELETING
        self._was_alive = self._was_alive or not deleting
        self._queued_resource = node.queued_resource or self._queued_resource
        is_new = node.state is NodeState.CREATING and self.policy.may_create
        if self.seen.is_ours or is_new or self.history.is_left(node):
            self.note(is_ours=True)
            if self._task.purpose:
                self.history.begin(node.id)
        if node.state is NodeState.DELETING and self.policy.may_create and self.spec is None:
            # `up` creates it again after the deletion.
            self.spec = self.queued_spec or self.history.spec_as_it_is(node)


class StateAges:
    """Since when state, health and worker answers have been unchanged, and when the last repair had its effect."""

    def __init__(self, now: timedelta) -> None:
        self._picture: object = ()
        # Since when state, health and worker answers, or only state and health, have been unchanged.
        self.since = now
        self._reported: object = ()
        self.reported_since = now
        # When the last reboot or restart took effect; None if there was none since the node was usable.
        self.repaired_at: timedelta | None = None
        # A restart takes effect once the node is READY again.
        self.awaits_effect = False

    def update(
        self, node: Node | None, workers: Sequence[WorkerSnapshot], now: timedelta, server_now: datetime
    ) -> None:
        """Record the observed state. A node first seen in CREATING counts from its creation, by the service's clock."""
        reported = _compared_fields(node)
        if reported != self._reported:
            self._reported, self.reported_since = reported, now
        answers = tuple(
            (worker.answer, worker.startup, worker.chips, worker.failed is None, worker.misidentified)
            for worker in workers
        )
        picture = node and (reported, answers, len(node.endpoints))
        if picture == self._picture:
            return
        is_first, self._picture, self.since = self._picture == (), picture, now
        if node and is_first and node.state is NodeState.CREATING and node.created:
            self.since = now - max(timedelta(), server_now - node.created)
        if node and node.state is NodeState.READY and self.awaits_effect:
            self.repaired_at, self.awaits_effect = now, False

    def leave_out(self, unseen: timedelta) -> None:
        """Subtract the duration of an API outage: the state may have been different meanwhile."""
        self.since, self.reported_since = self.since + unseen, self.reported_since + unseen
        self.repaired_at = None if self.repaired_at is None else self.repaired_at + unseen

    def rebooted(self, now: timedelta) -> None:
        """Begin all durations again: every worker is rebooting."""
        self._picture, self._reported, self.repaired_at = (), (), now


def node_events(
    name: NodeName,
    at: datetime,
    before: tuple[Node | None, QueuedResource | None],
    now: tuple[Node | None, QueuedResource | None],
) -> Iterator[NodeEvent]:
    """Yield an event for each change between two snapshots of a node and of the queued resource that owns it."""
    (old, known), (node, request) = before, now
    is_preemption = was_preempted(node, request) and not was_preempted(old, known)
    if is_preemption and (old is not None or node is not None):
        state = _state_event(name, at, node)
        identity = {"id": old.id} if node is None and old else {}
        yield replace(
            state,
            kind=EventKind.PREEMPTED,
            text=f"{state.text}: the service took it back",
            data={**state.data, **identity},
        )
    elif _compared_fields(old) != _compared_fields(node):
        yield _state_event(name, at, node)
    announced = node.upcoming_maintenance if node else None
    if node and announced and announced != (old.upcoming_maintenance if old else None):
        when = f" from {format_timestamp(announced.start)}" if announced.start else ""
        until = f" to {format_timestamp(announced.end)}" if announced.end else ""
        text = f"maintenance is {announced.status}{when}{until}"
        yield NodeEvent(
            EventKind.MAINTENANCE, at, name, text, {**_state_event(name, at, node).data, "status": announced.status}
        )


def was_preempted(node: Node | None, request: QueuedResource | None) -> bool:
    """Return whether there is evidence that the service preempted the node [API field text: states of nodes and requests]."""
    if node is not None and node.state is not NodeState.DELETING:
        return node.is_preempted
    return request is not None and request.was_suspended_by_service


def _state_event(name: NodeName, at: datetime, node: Node | None) -> NodeEvent:
    if node is None:
        return NodeEvent(EventKind.STATE, at, name, "gone", {"state": None})
    health = "" if node.health is Health.HEALTH_UNSPECIFIED else str(node.health)
    text = f"{node.state} {health}".strip() if node.state is NodeState.READY else str(node.state)
    return NodeEvent(
        EventKind.STATE, at, name, text, {"state": str(node.state), "health": health or None, "id": node.id}
    )


def _compared_fields(node: Node | None) -> object:
    """Return the fields whose change is reported."""
    return node and (node.id, node.state, node.health)


# The node itself shows a change. Only a failure shows in the operation alone, which is fetched less often.
_OPERATION_INTERVAL = timedelta(seconds=20)
# A node may show a change some time after its operation has ended [unverified]. Without this pause, a change that the
# service reports as done but that is not visible would be sent again dozens of times per second.
_VISIBILITY_LAG = timedelta(seconds=20)
_FINAL_STATES = {Verb.CREATE: NodeState.READY, Verb.START: NodeState.READY, Verb.STOP: NodeState.STOPPED}

# CANCELLED and ABORTED: another change interrupted it.
_INTERRUPTED_CODES = frozenset({1, 10})


class PendingOperation:
    """At most one unfinished change of one node: whether the node shows it yet, and whether it failed."""

    def __init__(self, cloud: TpuClient, pending: RequestedChange | None) -> None:
        self._cloud = cloud
        self._fetched_at: timedelta | None = None
        self._ended_at: timedelta | None = None
        self.pending = pending

    def begin(self, pending: RequestedChange | None) -> None:
        """Track a change that was requested; None to stop tracking."""
        self.pending, self._fetched_at, self._ended_at = pending, None, None

    @property
    def verb(self) -> Verb | None:
        """The verb of the unfinished change."""
        return self.pending.verb if self.pending else None

    @property
    def is_of_request(self) -> bool:
        """Return whether the unfinished change is one of the queued resource."""
        return self.pending is not None and self.pending.is_of_request

    def invisible(self, node: Node | None, request: QueuedResource | None) -> Verb | None:
        """Return the verb of a change that does not show yet, so that the state cannot be trusted."""
        return self.pending.verb if self.pending and not _is_visible(self.pending, node, request) else None

    def settle(self, node: Node | None, request: QueuedResource | None, now: timedelta) -> RequestedChange | None:
        """Return the change with its operation if it has failed, else None. Raises what the cloud raises."""
        pending = self.pending
        if pending is None:
            return None
        is_final = node is not None and node.state is _FINAL_STATES.get(pending.verb)
        if is_final or _is_other_node(pending, node):
            self.begin(None)
            return None
        operation, is_visible = pending.operation, _is_visible(pending, node, request)
        if operation.name is not None:
            if is_visible and self._fetched_at is not None and now - self._fetched_at < _OPERATION_INTERVAL:
                return None
            try:
                operation = self._cloud.get_operation(operation.name)
            except NotFoundError:
                # The service forgets operations after a while; the node itself shows the result.
                operation = Operation(operation.name, done=True)
            self._fetched_at = now
            if not operation.done:
                return None
        if operation.error is not None:
            self.begin(None)
            return replace(pending, operation=operation)
        # It has ended. It is tracked until it is visible, or had the time to become so.
        self._ended_at = now if self._ended_at is None else self._ended_at
        if is_visible or now - self._ended_at >= _VISIBILITY_LAG:
            self.begin(None)
        return None


def _is_visible(pending: RequestedChange, node: Node | None, request: QueuedResource | None) -> bool:
    if pending.is_of_request:
        return (request is None and node is None) if pending.verb is Verb.DELETE else bool(request or node)
    return change_is_visible(pending.verb, node) or _is_other_node(pending, node)


def _is_other_node(pending: RequestedChange, node: Node | None) -> bool:
    """Return whether the deleted node is gone and another node has its name."""
    return pending.verb is Verb.DELETE and node is not None and pending.node_id not in {None, node.id}


# Beyond this many zones one call for all of them is cheaper.
_ZONES_ONE_BY_ONE = 3


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node as fetched at one moment."""

    # None only if the API said that the node does not exist, or with an `error`.
    node: Node | None = None
    # Its queued resource, if that was requested. With `has_request`, None only if a list said that there is none.
    request: QueuedResource | None = None
    has_request: bool = False
    error: TpuctlError | None = None


def fetch_snapshots(
    cloud: TpuClient,
    names: Collection[NodeName],
    *,
    present: Collection[NodeName],
    requested: Collection[NodeName],
    versions: tuple[str, str] = (V2, V2),
) -> dict[NodeName, NodeSnapshot]:
    """Return a snapshot of each node, with one list call for each zone; `versions` are those of nodes and of requests.

    A `present` node that is missing in a list is fetched by name before it is called absent. The queued resources of the
    `requested` nodes are fetched too.
    """
    if len(names) == 1:
        (name,) = names
        snapshots = {name: _fetch_one(cloud, name, version=versions[0])}
    else:
        snapshots = _fetch_many(cloud, names, version=versions[0])
        for name in present:
            if snapshots[name].node is None and snapshots[name].error is None:
                snapshots[name] = _fetch_one(cloud, name, version=versions[0])
    awaited = [name for name in requested if snapshots[name].error is None]
    for name, request in _fetch_owners(cloud, awaited, version=versions[1]).items():
        snapshots[name] = request if request.error else replace(request, node=snapshots[name].node)
    return snapshots


def _fetch_one(cloud: TpuClient, name: NodeName, *, version: str) -> NodeSnapshot:
    try:
        return NodeSnapshot(cloud.find_node(name, version=version))
    except TpuctlError as error:
        return NodeSnapshot(error=error)


def _fetch_many(cloud: TpuClient, names: Collection[NodeName], *, version: str) -> dict[NodeName, NodeSnapshot]:
    zones: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        zones[name.project].add(name.zone)
    found: dict[NodeName, Node] = {}
    errors: dict[tuple[str, str], TpuctlError] = {}
    for project, wanted in zones.items():
        calls: list[tuple[str, ...]] = [(zone,) for zone in sorted(wanted)]
        for zones_asked in calls if len(wanted) <= _ZONES_ONE_BY_ONE else [()]:
            try:
                listing = cloud.list_nodes(project, zones_asked, version=version)
            except TpuctlError as error:
                errors |= {(project, zone): error for zone in zones_asked or wanted}
                continue
            found |= {node.name: node for node in listing.nodes}
            errors |= {(project, zone): _zone_unreachable_error(zone) for zone in listing.unreachable}
    return {name: NodeSnapshot(found.get(name), error=errors.get((name.project, name.zone))) for name in names}


def _fetch_owners(cloud: TpuClient, names: Collection[NodeName], *, version: str) -> dict[NodeName, NodeSnapshot]:
    """Return the queued resources that own, or owned, these nodes."""
    snapshots: dict[NodeName, NodeSnapshot] = {}
    zones = {(name.project, name.zone) for name in names}
    calls = {(project, zone if len(zones) <= _ZONES_ONE_BY_ONE else "") for project, zone in zones}
    for project, zone in calls:
        here = [name for name in names if name.project == project and zone in {name.zone, ""}]
        try:
            listing = cloud.list_queued_resources(project, (zone,) if zone else (), version=version)
        except TpuctlError as error:
            snapshots |= {name: NodeSnapshot(error=error) for name in here}
            continue
        for name in here:
            in_zone = (request for request in listing.queued_resources if request.zone == name.zone)
            owners = [request for request in in_zone if request.owns(name.node_id)]
            # One with the id of the node is tpuctl's own.
            owners.sort(key=lambda request: request.queued_resource_id != name.node_id)
            missing = _zone_unreachable_error(name.zone) if name.zone in listing.unreachable else None
            snapshots[name] = NodeSnapshot(request=next(iter(owners), None), has_request=True, error=missing)
    return snapshots


def _zone_unreachable_error(zone: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(f"no answer from {zone}")
