"""One node during a run: observe it, decide the next step, send it.

A failed HTTP call is never evidence about a node: it is recorded as an API outage.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeGuard, assert_never

from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import (
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
from tpuctl.models.events import EventKind
from tpuctl.models.node import Health, Node, NodeState, QueuedState
from tpuctl.models.spec import SpecDifference
from tpuctl.models.spec_fields import V2
from tpuctl.nodes.actuator import PATCHABLE_STATES, REBOOT_PAUSE, Actuator, ChangedError, LeaseLostError
from tpuctl.nodes.conditions import (
    ApiOutage,
    Condition,
    Create,
    Delete,
    DeleteRequest,
    Done,
    Fail,
    FailedChange,
    Now,
    ObservedState,
    Reboot,
    Repair,
    RepairAttempts,
    Requeue,
    Restart,
    SentEnd,
    SshAnswer,
    Start,
    Verb,
    describe_failed_scripts,
    failed_scripts,
    worker_matrix,
)
from tpuctl.nodes.decide import decide, unfinished_error
from tpuctl.nodes.endings import decide_end, decide_idle_end, has_expired, idle_warning
from tpuctl.nodes.expiry import NodeEnd, inherit_expiry, is_expired, later_end, move_expiry, set_expiry
from tpuctl.nodes.idle_limit import IdleAction, IdleChange
from tpuctl.nodes.journal import NodeHistory
from tpuctl.nodes.lease_guard import LeaseGuard
from tpuctl.nodes.node_guard import remove_node_guard, start_node_guard
from tpuctl.nodes.pending import PendingOperation
from tpuctl.nodes.polling import WATCH_INTERVAL
from tpuctl.nodes.queueing import queue_window, request_failure
from tpuctl.nodes.repair import DEFECTIVE_HEALTH, defect_age
from tpuctl.nodes.request_steps import DeletionRefusedError
from tpuctl.nodes.setup import NodeSetup
from tpuctl.nodes.snapshots import NodeSnapshot, compared_fields, node_events
from tpuctl.ssh.keys import add_metadata_key, with_metadata_key
from tpuctl.ssh.routes import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from datetime import datetime

    from tpuctl.models.node_changes import NodeChange
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext, RequestedChange
    from tpuctl.nodes.conditions import Change, Decision, End
    from tpuctl.nodes.goal import Goal
    from tpuctl.nodes.idle_limit import IdleLimit

    # Ends a node for good, or with None its queued resource; returns False, and does nothing, if it is no longer meant.
    EndNode = Callable[[NodeName, Node | None, End], bool]

# The limit for one round of ssh, and how often the workers of a usable node are probed.
_SURVEY_TIMEOUT = timedelta(seconds=15)
_SURVEY_INTERVAL_WHEN_USABLE = timedelta(minutes=1)
# A handshake needs at least this long: a shorter silence would prove nothing.
_SHORTEST_SURVEY = timedelta(seconds=5)
# The user's probe may load a framework.
_PROBE_TIMEOUT = timedelta(minutes=2)
# Two examinations with more time between them say nothing about that time.
_LONGEST_BLINDNESS = timedelta(minutes=5)
# How long the loop waits for an update of labels or metadata: meanwhile no other node is looked at.
_UPDATE_PATIENCE = timedelta(seconds=30)
# The part of a delay by which a node may be fetched early, together with others.
_SLACK_SHARE = 0.4
# A request in these states is about to end, or has ended.
_ENDED = frozenset({QueuedState.DELETING, QueuedState.FAILED, QueuedState.SUSPENDING, QueuedState.SUSPENDED})
# CANCELLED and ABORTED: another change interrupted it.
_INTERRUPTED_CODES = frozenset({1, 10})


class NodeReconciler:
    """What a run has observed of one node, and the steps that it can take.

    `due` is the monotonic time at which the next decision about the node is made.
    """

    def __init__(self, context: ActionContext, goal: Goal, end_node: EndNode | None = None) -> None:
        self.goal, self.name, self.policy = goal, goal.name, goal.policy
        # What the node is compared with and created from.
        self.spec = goal.spec
        self._context, self._end_node = context, end_node
        self._actuator = Actuator(context, goal.name)
        self.lease = goal.lease or LeaseGuard(context, goal.name, goal.purpose, force_lease=goal.force_lease)
        self.requested = PendingOperation(context.cloud, goal.pending)
        self.history = NodeHistory(context.journal, goal.name, context.clock, writes=not goal.only_looks)
        if goal.purpose or goal.only_looks:
            self.history.read()
        attempts = RepairAttempts()
        if self.policy.watches:
            attempts = self._continue_watch()
        # What the node is requested from through the queue; None for a node that is created directly.
        is_spec_queued = self.spec is not None and self.spec.is_queued
        self._queued_spec = self.spec if is_spec_queued else self.history.past.queued_spec
        self.due = context.clock.monotonic()
        # A list call made for other nodes also serves this node, up to this long before it is due.
        self.slack = timedelta()
        started = self._answered_at = self.due if goal.since is None else goal.since
        self.seen = ObservedState(
            name=goal.name,
            node=None,
            is_ours=goal.pending is not None and goal.pending.verb in {Verb.CREATE, Verb.START, Verb.STOP},
            attempts=attempts,
            is_queued=self._queued_spec is not None or goal.is_queued,
            started=started,
            unchanged_since=started,
            reported_since=started,
            request_since=started,
        )
        self.setup = NodeSetup(context, self.seen, self.history, self.lease, goal.setup)
        # The end that the user named, until the node has it.
        self._wanted_end = goal.limits.end
        # The end of the node that was seen last; None if it has none, or is kept.
        self.last_end: datetime | None = None
        # What was seen last of the node with its workers, of the node alone, and of its queued resource.
        self._fingerprint: object = ()
        self._reported: object = ()
        self._request_fingerprint: object = None
        # A restart takes effect once the node is READY again.
        self._awaits_effect = False
        self._reported_scripts: tuple[int, ...] = ()  # that failed
        self._probed_at: timedelta | None = None
        self._was_alive = False
        self._created_id: str | None = None  # the node that our unfinished creation has produced
        self._queued_resource: str | None = None
        # The queued resource that this run has seen alive.
        self._living_request: object = None
        # The reconciler of the first slice, if the node is another slice of one queued resource.
        self.leader: NodeReconciler | None = None
        # Whether this run has deleted the queued resource of the node, to request it again.
        self.has_deleted_request = False
        # The id of the node that the spec of a watch is that of.
        self._based_on = ""
        self._not_compared: set[str] = set()  # reported
        # Since when the node is idle, and when its workers were examined last.
        self._idle_since: timedelta | None = None
        self._examined_at: timedelta | None = None
        self._has_warned_of_idleness = self._has_warned_of_idle_chips = False
        self._usable_since: timedelta | None = None
        # When a node that was usable during this run was last seen not to be.
        self._lost_at: timedelta | None = None
        self._key_sent_to: str | None = None
        # The failure after which the node was last requested again: its verb and count.
        self._failure_tried_after: object = None
        # The node was repaired, or, in a watch, was not usable: that it is usable again is a recovery.
        self.has_degraded = False

    def _continue_watch(self) -> RepairAttempts:
        """Return the repairs that earlier runs have used, and take over the spec of a node that they were recreating."""
        past = self._context.journal.past(self.name)
        if self.spec is not None and past.former_spec is not None:
            self.spec = self.spec.over(past.former_spec)
        elif past.is_being_recreated:
            self.spec = past.former_spec
        return past.attempts(refill=self.policy.refill, now=self._context.clock.now())

    # What the run knows now.

    @property
    def now(self) -> Now:
        """The present moment."""
        return Now(self._context.clock.monotonic(), self._context.server_now())

    @property
    def left(self) -> timedelta | None:
        """The time until the deadline, negative after it; None without one."""
        return self.seen.time_left(self.policy, self.now)

    @property
    def is_usable(self) -> bool:
        """Return whether the node was usable at the last decision."""
        return self._usable_since is not None

    @property
    def has_expired(self) -> bool:
        """Return whether the node exists and its time has ended."""
        return has_expired(self.seen, self.now)

    @property
    def idle_limit(self) -> IdleLimit | None:
        """The limit of idleness of the node that was observed last; None without one, or if it is not for this node."""
        node, limits = self.seen.node, self.goal.limits
        return limits.idle.limit if node is not None and limits.apply_to(node) else None

    @property
    def versions(self) -> tuple[str, str]:
        """The versions of the API that show what is compared of the node, and of its queued resource."""
        return (self.spec.version_to_read, self.spec.version_to_read_request) if self.spec else (V2, V2)

    @property
    def needs_queued_resource(self) -> bool:
        """Return whether the queued resource can say why the node is not READY: preempted, or deleted."""
        node = self.seen.node
        is_odd = node is None or node.state is not NodeState.READY or self.policy.goal is Condition.PREEMPTED
        return is_odd and (self._queued_resource is not None or self.seen.is_queued)

    @property
    def may_move(self) -> bool:
        """Return whether a change has failed, no request was sent since, and this run still holds the lease.

        Not if the node is being ended. Raises `TakenOverError` or `DeletedByOtherError` if the lease was ours and is lost.
        """
        seen = self.seen
        is_new = seen.failure is not None and self._identify_failure() != self._failure_tried_after
        is_unknown = seen.outage is not None or self.requested.invisible(seen.node, seen.request) is not None
        if not is_new or is_unknown or self._decide_end() is not None:
            return False
        return not self.lease.find_other_holder()

    def within_deadline(self) -> AbstractContextManager[None]:
        """Limit the calls of a block to the time left, plus a grace period after the deadline."""
        left = self.left
        limit = None if left is None else max(left, timedelta())
        return limit_cloud_calls(self._context.clock, limit, grace=DEADLINE_GRACE)

    # Observe.

    def fetch(self) -> None:
        """Fetch this node alone, or the queued resource that it waits for. Raises what the cloud raises."""
        cloud = self._context.cloud
        self.observe(NodeSnapshot(cloud.find_node(self.name, version=self.versions[0])))
        if self.seen.node is None and self.needs_queued_resource:
            spec = self.spec or self._queued_spec
            name = spec.request_name(self.name) if spec else self.name
            request = cloud.find_queued_resource(name, version=self.versions[1])
            self.observe(NodeSnapshot(None, request, has_request=True))

    def fetch_after(self, decision: Decision) -> None:
        """Fetch the node after the only step of a run that does not wait.

        Raises the failure of that step, and `TimedOutError` if only a later run can send what is to follow.
        """
        if self.seen.failure is not None:
            raise self.seen.failure.error
        if self.seen.outage is not None and not isinstance(decision, Requeue):
            raise self.seen.outage.error
        self.seen.held_by = self.lease.held_by
        was_sent = self.requested.pending is not None
        error = None if self.goal.pending else unfinished_error(self.policy, self.seen, decision, was_sent=was_sent)
        self.fetch()
        if error is not None:
            raise error

    def observe(self, snapshot: NodeSnapshot) -> None:  # one story: what changed since the last snapshot
        """Record a snapshot. Raises an error that a later snapshot cannot resolve."""
        now, seen = self._context.clock.monotonic(), self.seen
        if snapshot.error is not None:
            self.record_outage(snapshot.error)
            return
        before, known, node = seen.node, seen.request, self._without_successor(snapshot.node)
        # A node that tpuctl requested through the queue is followed with its request, also when that is gone.
        is_known_now = snapshot.has_request or seen.is_queued
        request = snapshot.request if is_known_now else snapshot.request or known
        try:
            request = request or self._fetch_request_again(known)
            failed = self.requested.settle(node, request, now)
        except (ServiceUnavailableError, QuotaError) as error:
            self.record_outage(error)
            return
        if seen.outage:
            self._leave_out_outage(now)
        self._answered_at = now
        seen.poll_state = replace(seen.poll_state, throttled=max(0, seen.poll_state.throttled - 1))
        if before and node and before.id != node.id and self.requested.verb is None:
            self.report(EventKind.NOTE, "another client recreated the node; following the new node", id=node.id)
            seen.is_ours, seen.attempts, seen.refused_stop = False, RepairAttempts(), None
        if node and self.requested.verb is Verb.CREATE and self._created_id is None:
            self._created_id = node.id
        self._observe_group(request)
        has_vanished = self._record_failures(node, request, failed)
        if self.seen.slices and request is not None and request.state not in _ENDED:
            has_vanished = False  # the service creates a slice that it lost again
        if node:
            self._update_ownership(node)
        self._report_changes(node, request)
        self._keep_as_it_is(node)
        if node is None or before is None or node.raw != before.raw:
            seen.workers = ()
            seen.differences = self._compare(node) if self.spec and node else ()
        if seen.is_queued:
            self._observe_request(request, now)
        self._inherit_expiry(node, request)
        exists = node is not None and node.state is not NodeState.DELETING
        seen.node, seen.request, seen.outage = node, request, None
        seen.has_time_ended = node is None and self._has_time_ended(request)
        seen.was_there = seen.was_there or node is not None
        seen.has_vanished = has_vanished or (seen.has_vanished and not exists)
        if exists and self._was_alive:
            seen.last_alive = self._context.server_now()

    def _record_failures(
        self, node: Node | None, request: QueuedResource | None, failed: RequestedChange | None
    ) -> bool:
        """Record a change that failed. Return whether the node disappears without a request of this run."""
        before, seen = self.seen.node, self.seen
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
            and not (seen.outage or seen.is_queued)
        )
        cause = failed.operation.error if failed else None
        # If a deletion interrupted our creation, the node's end says more than the error of the operation.
        if failed and cause and not (has_vanished and cause.code in _INTERRUPTED_CODES):
            # A node with another id was created by another client meanwhile: our failure does not concern it.
            node_id = node.id if node and node.id == self._created_id else ""
            self.record_failure(failed.verb, self._context.cloud.operation_error(cause), node_id=node_id)
            return False
        if is_creation_lost and before is not None:
            self.report(EventKind.NOTE, "the creation that another run requested failed")
            self.spec = self.spec or self.history.past.spec_as_it_is(before)
            return False
        return has_vanished

    def _observe_group(self, request: QueuedResource | None) -> None:
        """Note which slices the queued resource is for. With it a slice disappears that another one requests again."""
        spec = self.spec or self._queued_spec
        self.seen.slices = spec.queued_slices(self.name) if spec else ()
        if self.leader is None:
            return
        if request is not None and self.history.past.created is None:
            self.history.read()  # the first slice has written its creation
        if self.leader.has_deleted_request:
            self.seen.has_vanished = self._was_alive = False

    def _report_changes(self, node: Node | None, request: QueuedResource | None) -> None:
        known = self.seen.request
        at = self._context.clock.now()
        for event in node_events(self.name, at, (self.seen.node, known), (node, request or known)):
            # Written before it is reported: a process that kills us on the event finds it in the journal.
            if event.kind is EventKind.PREEMPTED:
                self.history.write(str(EventKind.STATE), **event.data)
            self.history.write(str(event.kind), **event.data)
            self._context.emit(event)

    def _without_successor(self, node: Node | None) -> Node | None:
        """Return the node. Return None for one that another client created after the node whose deletion is the goal."""
        before, pending = self.seen.node, self.requested.pending
        target = pending.node_id if pending and pending.node_id else before.id if before else None
        if node is None or self.policy.goal is not Condition.GONE or target in {None, node.id}:
            return node
        self.report(EventKind.NOTE, "another client recreated the node; leaving the new node untouched", id=node.id)
        return None

    def _update_ownership(self, node: Node) -> None:
        """Set `is_ours` if this run creates or starts the node, or an earlier run did and ended before it was usable."""
        deleting = self.requested.verb is Verb.DELETE or node.state is NodeState.DELETING
        self._was_alive = self._was_alive or not deleting
        self._queued_resource = node.queued_resource or self._queued_resource
        is_new = node.state is NodeState.CREATING and self.policy.may_create
        if self.seen.is_ours or is_new or self.history.past.is_left(node, self.history.read_at):
            self.seen.is_ours = True
            if self.goal.purpose:
                self.history.begin(node.id)
        if node.state is NodeState.DELETING and self.policy.may_create and self.spec is None:
            # `up` creates it again after the deletion.
            self.spec = self._queued_spec or self.history.past.spec_as_it_is(node)

    def _inherit_expiry(self, node: Node | None, request: QueuedResource | None) -> None:
        """Let a node that is created after this one keep its end.

        The label of a node counts also after the node is gone: `extend` cannot change that of its request.
        """
        if node is None and self.seen.was_there:
            return
        found = node or (request.requested_node(self.name.project) if request else None)
        if found is None:
            return
        self.last_end = None if found.is_kept else found.expires
        if self.spec is not None:
            self.spec = inherit_expiry(self.spec, found, watches=self.policy.watches)

    def _keep_as_it_is(self, node: Node | None) -> None:
        """Let a watch recreate a node as it is: only flags change that, and files if the journal does not know the node."""
        wanted = self.goal.spec
        if node is None or wanted is None or not self.policy.watches or node.id == self._based_on:
            return
        named = () if self.history.past.made_as(node) else wanted.named
        self.spec, self._based_on = wanted.over(self.history.past.spec_as_it_is(node), named), node.id

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
        if self.leader is not None and self.leader.has_deleted_request:
            return False
        if known is None or known.state in _ENDED or self.requested.verb is Verb.DELETE or self.seen.was_there:
            return False
        return request is None or (request.created == known.created and request.state is QueuedState.DELETING)

    def _has_time_ended(self, request: QueuedResource | None) -> bool:
        """Return whether the time of a node that does not exist has ended, by its own label and by that of its request."""
        now = self._context.server_now()
        if self._wanted_end is not None or self.last_end is None or self.last_end > now:
            return False
        requested = request.requested_node(self.name.project) if request else None
        return requested is None or (is_expired(requested, now) and not requested.is_kept)

    def _observe_request(self, request: QueuedResource | None, now: timedelta) -> None:
        """Record the state of the queued resource. One that this run saw alive and that FAILED is a failed creation."""
        seen = self.seen
        identity = None if request is None else (request.name, request.raw.get("createTime"))
        fingerprint = None if request is None else (identity, request.state, request.initiator)
        if fingerprint != self._request_fingerprint:
            is_first, self._request_fingerprint = self._request_fingerprint is None, fingerprint
            seen.request_since = now
            if request is not None and is_first and request.created and request.state is not QueuedState.ACTIVE:
                seen.request_since -= max(timedelta(), self._context.server_now() - request.created)
            if request is not None:
                self.history.write("request", state=str(request.state), text=request.initiator)
                self.report(EventKind.STATE, f"queued resource {request.state}", request=str(request.state))
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
        seen.request_differences = ()
        if request is not None and self.spec is not None:
            requested = request.requested_node(self.name.project)
            seen.request_differences = self._compare(requested, created=request.created)
            if seen.slices and len(seen.slices) != len(request.node_ids):
                found = len(request.node_ids)
                seen.request_differences += (SpecDifference("slices", len(seen.slices), found),)

    def _compare(self, node: Node, *, created: datetime | None = None) -> tuple[SpecDifference, ...]:
        """Return the fields in which a node, existing or requested, differs from the spec. Say once what is not compared."""
        if self.spec is None:
            return ()
        made = self.history.past.made_as(node, created=created)
        unknown = self.spec.not_compared(node, made_as=made)
        if new := set(unknown) - self._not_compared:
            self._not_compared |= new
            text = f"not compared, because neither the API nor the journal shows it: {', '.join(sorted(new))}"
            self.report(EventKind.NOTE, text)
        return self.spec.differences(node, made_as=made)

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

    def needs_survey(self) -> bool:
        """Return whether to probe the workers now, which takes seconds; less often while the node is usable.

        Forgets what they answered if that cannot change the decision.
        """
        workers = self.seen.workers
        if not self._workers_matter():
            self.seen.workers = ()
            return False
        all_answered = bool(workers) and all(worker.answer is SshAnswer.YES for worker in workers)
        since = None if self._probed_at is None else self._context.clock.monotonic() - self._probed_at
        is_recent = since is not None and since < _SURVEY_INTERVAL_WHEN_USABLE
        return not ((self.is_usable or self.setup.is_running) and all_answered and is_recent)

    def survey_workers(self) -> None:
        """Probe the workers within the time left."""
        try:
            self._probe_workers()
        except UnreachableError as error:
            if not self.policy.accepts_healthy or self.policy.goal is not Condition.SSH:
                raise
            self.policy = replace(self.policy, goal=Condition.HEALTHY)
            self.seen.workers = ()
            self.report(EventKind.NOTE, f"waiting until it is healthy, not until ssh answers: {error.message}")
        if self.idle_limit is not None and self.is_usable:
            self._examine_activity()

    def _probe_workers(self) -> None:
        node, policy, left = self._observed_node(), self.policy, self.left
        inspect = policy.goal.includes(Condition.STARTUP) or (
            node.health in DEFECTIVE_HEALTH and policy.repair is not Repair.NONE
        )
        patience = _PROBE_TIMEOUT if inspect and policy.probe else _SURVEY_TIMEOUT
        # A timeout of zero allows one probe, with the time that a probe takes.
        limit = patience if left is None or left <= timedelta() else max(_SHORTEST_SURVEY, min(patience, left))
        try:
            workers = self._context.workers.survey(node, inspect=inspect, probe=policy.probe, timeout=limit)
        except (ServiceUnavailableError, QuotaError) as error:
            self.record_outage(error)
        else:
            self.seen.workers, self._probed_at = workers, self._context.clock.monotonic()

    def _examine_activity(self) -> None:
        """Examine the workers of a usable node. A longer pause between two examinations hides what happened meanwhile."""
        node, now = self.seen.node, self._context.clock.monotonic()
        since = None if self._examined_at is None else now - self._examined_at
        if node is None or (since is not None and since > _LONGEST_BLINDNESS):
            self._forget_idleness()
        self._examined_at, workers, has_probe = now, self._context.workers, self.policy.probe is not None
        try:
            is_idle = node is not None and not workers.find_activity(node, since=since, has_probe=has_probe)
        except TpuctlError:
            is_idle = False
        if not is_idle:
            self._forget_idleness()
            if node is not None:
                self._warn_of_idle_chips(node)
        elif self._idle_since is None:
            self._idle_since = now

    def _warn_of_idle_chips(self, node: Node) -> None:
        """Warn once if a program holds the chips and has computed nothing for the time of the limit. The node is not idle."""
        idle = None
        with suppress(TpuctlError):  # nothing is known
            idle = self._context.workers.chips_idle_for(node)
        limit = self.idle_limit
        is_unused = idle is not None and limit is not None and idle >= limit.after
        if idle is not None and is_unused and not self._has_warned_of_idle_chips:
            what = f"its chips have computed nothing for {format_duration(idle)}, although a program holds them"
            text = f"{what}: `tpuctl stacks {self.name.node_id} --device`"
            self.report(EventKind.NOTE, text, chips_idle=idle.total_seconds())
        self._has_warned_of_idle_chips = is_unused

    def _forget_idleness(self) -> None:
        """Count the time without use from the next examination on."""
        self._idle_since, self._has_warned_of_idleness = None, False

    def _leave_out_outage(self, now: timedelta) -> None:
        """Leave the time without answers out of the ages: the state may have been different meanwhile."""
        seen, unseen = self.seen, now - self._answered_at
        seen.unchanged_since = min(now, seen.unchanged_since + unseen)
        seen.reported_since = min(now, seen.reported_since + unseen)
        seen.repaired_at = None if seen.repaired_at is None else min(now, seen.repaired_at + unseen)

    def record_outage(self, error: TpuctlError) -> None:
        """Record that the API did not answer. Raises an error that a later snapshot cannot resolve."""
        if not isinstance(error, ServiceUnavailableError | QuotaError):
            raise error
        seen = self.seen
        if isinstance(error, QuotaError):
            # Reads have only one quota, requests per minute, and that passes.
            seen.poll_state = replace(seen.poll_state, throttled=seen.poll_state.throttled + 1)
        seen.outage = ApiOutage(self._answered_at, seen.outage.times + 1 if seen.outage else 1, error)

    def record_failure(self, verb: Verb, error: TpuctlError, *, node_id: str = "") -> None:
        """Record a change that was not carried out. `node_id` is the node that the failed creation left behind."""
        if verb is Verb.STOP and self.policy.goal.is_usable:
            self.seen.refused_stop = error.message
            return
        before = self.seen.failure
        times = before.times + 1 if before and before.verb is verb else 1
        self.history.write("note", text=f"{verb} failed: {error.message}", error=error.kind)
        self.seen.failure = FailedChange(verb, error, self._context.clock.monotonic(), times, node_id)

    # Decide.

    def decide(self) -> Decision | End:
        """Return the next action. Raises `TakenOverError` if another client took the node over."""
        self.setup.forget_lost()
        if (end := self._decide_end()) is not None:
            return end
        self.lease.check()
        decision = self._decide()
        if self.setup.is_running and _interrupts_setup(decision):
            return Requeue(WATCH_INTERVAL, f"not repaired while its set-up runs: {decision.reason}")
        is_planned = isinstance(decision, Requeue) and decision.next is not None
        if (isinstance(decision, Fail) or is_planned) and self.lease.find_other_holder():
            # Another client repairs the node: it may be allowed to do what this run is not.
            decision = self._decide()
        if isinstance(decision, Done):
            return self._decide_idle_end() or decision
        if not self.seen.outage:
            if self.policy.watches and (self.is_usable or self.seen.is_ours):
                self.has_degraded = True
            if self.is_usable:
                self._usable_since, self._lost_at = None, self._context.clock.monotonic()
            self._forget_idleness()
        return self._restrict(decision) if self.policy.watches else decision

    def _decide(self) -> Decision:
        self._note_state()
        return decide(self.policy, self.seen, self.now)

    def _decide_end(self) -> End | Requeue | Done | None:
        if self._end_node is None:
            return None
        self.seen.pending = self.requested.invisible(self.seen.node, self.seen.request)
        return decide_end(self.seen, self.last_end, self.now)

    def _decide_idle_end(self) -> End | None:
        """Return how a node ends that was idle for the time of its limit. Warn the user before."""
        node, limit = self.seen.node, self.idle_limit
        if self._end_node is None or node is None or limit is None:
            return None
        if self._idle_since is None or self._examined_at is None:
            return None
        idle = self._examined_at - self._idle_since
        if not self._has_warned_of_idleness and (warning := idle_warning(limit, node, idle)):
            self._has_warned_of_idleness = True
            self.report(EventKind.NOTE, warning)
        return decide_idle_end(limit, node, idle)

    def _restrict(self, decision: Decision) -> Decision:
        """Return the decision of a watch, which starts only what tpuctl stopped, and creates only what was there."""
        node, name = self.seen.node, self.name
        if isinstance(decision, Start) and (node is None or self.history.past.stopped != node.id):
            return Requeue(WATCH_INTERVAL, f"it is {NodeState.STOPPED}, and tpuctl did not stop it: not started")
        may_create = (
            self.seen.was_there
            or self.policy.recreate_deleted
            # An earlier run deleted it to create it again.
            or self._context.journal.past(name).is_being_recreated
        )
        if isinstance(decision, Create) and not may_create:
            absent = NodeNotFoundError(name.node_id, name.zone)
            absent.hint = (
                f"`tpuctl up {name.node_id}` creates it; with `--recreate-deleted`, watch creates it from the spec in the "
                "journal or in tpuctl.yaml"
            )
            return Fail(absent)
        return decision

    def _note_state(self) -> None:
        """Note since when the state is as it is. A node first seen in CREATING counts from its creation."""
        seen, now = self.seen, self.now
        node, workers = seen.node, seen.workers
        if (failed := failed_scripts(workers)) and failed != self._reported_scripts:
            self._reported_scripts = failed
            self.report(EventKind.NOTE, describe_failed_scripts(workers), startup="failed", failed_workers=[*failed])
        reported = compared_fields(node)
        if reported != self._reported:
            self._reported, seen.reported_since = reported, now.at
        answers = tuple(
            (worker.answer, worker.startup, worker.chips, worker.failed is None, worker.misidentified)
            for worker in workers
        )
        fingerprint = node and (reported, answers, len(node.endpoints))
        if fingerprint != self._fingerprint:
            is_first, self._fingerprint, seen.unchanged_since = self._fingerprint == (), fingerprint, now.at
            if node and is_first and node.state is NodeState.CREATING and node.created:
                seen.unchanged_since -= max(timedelta(), now.utc - node.created)
            if node and node.state is NodeState.READY and self._awaits_effect:
                seen.repaired_at, self._awaits_effect = now.at, False
        seen.pending = self.requested.invisible(node, seen.request)
        seen.is_request_pending = self.requested.is_of_request
        seen.held_by = self.lease.held_by
        seen.poll_state = replace(seen.poll_state, usual=self._usual_creation(), jitter=self._context.random.random())

    def _usual_creation(self) -> timedelta | None:
        """Return how long similar nodes were CREATING, if this one is, or is about to be."""
        node, spec = self.seen.node, self.spec
        accelerator_type = node.accelerator_type if node else spec.accelerator_type if spec else None
        is_waiting = node is None and self.seen.request is not None
        if not accelerator_type or is_waiting or (node is not None and node.state is not NodeState.CREATING):
            return None
        return self._context.journal.usual(self.name.project, accelerator_type, self.name.zone)

    def decide_in_outage(self, error: ServiceUnavailableError) -> Requeue | Fail:
        """Return whether to wait for a service that a step needs and that does not answer, or to give up."""
        self.record_outage(error)
        decision = self._decide()
        assert isinstance(decision, Requeue | Fail)  # noqa: S101  # guides mypy: an outage allows nothing else
        return decision

    # Act.

    def requeue(self, decision: Requeue) -> None:
        """Become due again after the delay, and report why."""
        self.due, self.slack = self._context.clock.monotonic() + decision.delay, decision.delay * _SLACK_SHARE
        seen, left, now = self.seen, self.left, self.now
        usual, node, follows = seen.poll_state.usual, seen.node, decision.next
        self.report(
            EventKind.SILENT if seen.outage else EventKind.WAIT,
            decision.reason,
            state=str(node.state) if node else None,
            health=str(node.health) if node else None,
            request=str(seen.request.state) if seen.is_queued and seen.request and not node else None,
            in_state=seen.in_state(now).total_seconds(),
            usual=usual.total_seconds() if usual else None,
            next=follows.what if follows else None,
            next_in=follows.after.total_seconds() if follows else None,
            next_look=decision.delay.total_seconds(),
            deadline_in=None if left is None else left.total_seconds(),
            workers=worker_matrix(self.policy, seen),
            **({"setup": "running"} if self.setup.is_running and not seen.outage else {}),
        )

    def pause(self, duration: timedelta) -> None:
        """Become due again after that time, with a jitter of a fifth."""
        pause = duration * (0.8 + 0.4 * self._context.random.random())
        self.due, self.slack = self._context.clock.monotonic() + pause, pause * _SLACK_SHARE

    def execute(self, decision: Change) -> None:
        """Send one change. A refusal shows in the next snapshot; it is raised if no later snapshot can resolve it."""
        if not self.lease.take():
            return
        self.has_degraded = self.has_degraded or self.policy.watches
        try:
            self._send(decision)
        except LeaseLostError:
            self.lease.raise_lost()
        except ChangedError:
            self.report(EventKind.NOTE, "it changed right before the request, which was not sent")
        except ServiceUnavailableError as error:
            # The next snapshot shows whether the change was carried out.
            self.record_outage(error)
        except (NoCapacityError, QuotaError) as error:
            if isinstance(decision, Create | Start):
                self.record_failure(Verb.START if isinstance(decision, Start) else Verb.CREATE, error)
            else:
                # A change that frees capacity needs none. This is the limit on requests per minute, which passes.
                self.record_outage(error)
        except RemoteCommandError as error:
            # The reboot from inside failed. The next step of the repair ladder may work.
            self.report(EventKind.NOTE, error.message)
        self.due = self._context.clock.monotonic()
        self.slack = timedelta()
        self.seen.poll_state = replace(self.seen.poll_state, acted_at=self.due)
        if isinstance(decision, Reboot):
            left = self.left
            pause = REBOOT_PAUSE if left is None else min(REBOOT_PAUSE, left)
            self.due += max(timedelta(), pause)

    def _send(self, decision: Change) -> None:
        seen, tried = self.seen, self.seen.attempts
        match decision:
            case Create(reason):
                self._create(reason)
            case Start(reason):
                node, seen.is_ours = self._observed_node(), True
                self.history.begin(node.id)
                self.requested.begin(self._actuator.start(node, reason))
            case Restart():
                seen.attempts, seen.is_ours = replace(tried, restarts=tried.restarts + 1), True
                self._restart(self._observed_node(), decision)
            case Reboot(reason):
                seen.attempts, seen.is_ours = replace(tried, reboots=tried.reboots + 1), True
                self.has_degraded = True
                self._actuator.reboot(self._observed_node(), reason, defect_age(seen, self.now))
                # All ages begin again.
                self._fingerprint, self._reported = (), ()
                seen.repaired_at, seen.workers = self._context.clock.monotonic(), ()
            case Delete(reason, _, is_repair):
                seen.attempts = replace(tried, recreates=tried.recreates + is_repair)
                node = self._observed_node()
                self.spec = spec = self.spec or self.history.past.spec_as_it_is(node)
                change = self._actuator.delete(node, spec, reason, is_repair=is_repair)
                self.has_degraded = self.has_degraded or is_repair
                self._begin_deletion(change)
            case DeleteRequest(is_repair=is_repair):
                seen.attempts = replace(tried, recreates=tried.recreates + is_repair)
                self.spec = self.spec or self._queued_spec
                if self.spec is None or seen.request is None:
                    raise AssertionError("only the request of a queued spec is deleted")
                if not (self.policy.leaves_no_record or (self.left or WATCH_INTERVAL) <= timedelta()):
                    # A request that could not be made again is better kept.
                    requested = seen.request.requested_node(self.name.project)
                    self._context.check(self.name, self.spec, replaces=requested)
                self._begin_deletion(self._actuator.delete_request(seen.request, seen.node, self.spec, decision))
                # Its node went with it: that was not another client.
                seen.has_vanished, self.has_deleted_request = False, True
            case _:
                assert_never(decision)

    def _create(self, reason: str) -> None:
        context, spec = self._context, self.spec
        if spec is None:
            spec = self.spec = context.journal.past(self.name).spec
        if spec is None:
            raise NotFoundError(f"`{self.name.node_id}` is gone, and its spec is unknown")
        if (wanted := self._wanted_end) is not None:
            spec = replace(spec, expires=wanted.at, ttl=spec.ttl if wanted.at else None)
        spec = context.stamped(spec)
        context.check(self.name, spec)
        self._failure_tried_after = self._identify_failure()
        window = queue_window(self.policy, self.left, context.server_now()).ended_by(spec.expires)
        change = self._actuator.create(spec, window, reason, says_why=self.seen.has_vanished)
        if change is None:
            return
        self._wanted_end = None
        self._begin_deletion(change)  # facts about an earlier node of that name do not count any more
        self._created_id = None
        made = self.spec.to_json() if self.spec else None
        self.history.remember("create", at=context.server_now().isoformat(), spec=made)
        self.seen.is_ours, self.seen.has_vanished, self.seen.refused_stop = True, False, None

    def _restart(self, node: Node, decision: Restart) -> None:
        """Stop the node. The next decision is to start it."""
        self.has_degraded = self._awaits_effect = True
        self.history.record_stop(node.id)
        try:
            self.requested.begin(self._actuator.stop(node, decision, defect_age(self.seen, self.now)))
        except LeaseLostError:
            raise
        except ChangedError:
            # Another client may be stopping it: this run does not start it then.
            self.history.record_stop(None)
            raise
        except ConflictError as error:
            self.seen.refused_stop = error.message
            self.history.write("note", text=f"the stop was refused: {error.message}", refused="stop")

    def _begin_deletion(self, change: RequestedChange) -> None:
        """Follow a change after which the node that was seen is expected to be gone."""
        self.requested.begin(change)
        self._was_alive = self._awaits_effect = False

    def end(self, decision: End) -> bool:
        """End the node for good. Return whether its watch is over: a deletion is over when the node is gone."""
        node, now = self.seen.node, self._context.clock.monotonic()
        if self._end_node is None:
            raise AssertionError("without `end_node` nothing is ended")
        self.lease.check()
        self._forget_idleness()
        self.pause(WATCH_INTERVAL)
        try:
            was_sent = self._end_node(self.name, node, decision)
        except (ServiceUnavailableError, QuotaError) as error:
            self.record_outage(error)
        except DeletionRefusedError as error:
            # Its queued resource is in a state that forbids it, which passes.
            self.requeue(Requeue(WATCH_INTERVAL, f"its time has ended: {error.message}"))
        else:
            self.seen.end_sent = SentEnd(node.id if node else "", now) if was_sent else None
            return was_sent and decision.action is IdleAction.STOP
        return False

    def ensure_ssh_key(self) -> None:
        """Add our ssh key to the metadata of a node whose workers refuse it: once, and only if changes are allowed."""
        node, may_change = self.seen.node, self.goal.purpose is not None and not self.seen.differences
        is_refused = any(worker.answer is SshAnswer.KEY_REFUSED for worker in self.seen.workers)
        if node is None or node.id == self._key_sent_to or not may_change or not is_refused:
            return
        entry, present = self._context.workers.key_entry(node), node.metadata.get("ssh-keys", "")
        if entry and add_metadata_key(present, entry) != present:
            self.report(EventKind.ACTION, "adding our ssh key to its metadata", verb=str(Verb.UPDATE))
            self._change_node(node, partial(with_metadata_key, entry=entry))
        self._key_sent_to = node.id

    def _change_node(self, node: Node, change: NodeChange) -> Node | None:
        """Change fields of the node; return None if its operation takes longer than the other nodes can wait."""
        left = self.left
        timeout = _UPDATE_PATIENCE if left is None else max(timedelta(), min(left, _UPDATE_PATIENCE))
        try:
            return self._context.cloud.change_node(self.name, change, expected_id=node.id, timeout=timeout)
        except TimedOutError as error:
            self.report(EventKind.NOTE, error.message)
            return None

    def ensure_expiry(self) -> None:
        """Give a node that exists the end that the user named once its labels can be changed, or move its end on."""
        node, wanted, limits = self.seen.node, self._wanted_end, self.goal.limits
        if node is None or node.state not in PATCHABLE_STATES:
            return
        if self.seen.differences or self.requested.pending:
            return  # it may be deleted, and the next one is created with that end
        if wanted is None:
            if limits.moves_end is not None and node.expires is not None and limits.apply_to(node):
                later = later_end(node.expires, limits.moves_end, self._context.server_now())
                if later is not None:
                    self._set_end(node, NodeEnd(later), partial(move_expiry, end=later))
            return
        self._wanted_end = None
        if not limits.apply_to(node):
            why = "its time limit is not changed, because this run did not create the node"
            self.report(EventKind.NOTE, f"{why}: {self._extend_command(wanted)}")
        elif node.expires != wanted.at:
            self._set_end(node, wanted, partial(set_expiry, end=wanted.at))

    def _set_end(self, node: Node, end: NodeEnd, change: NodeChange) -> None:
        self.report(EventKind.ACTION, str(end), verb=str(Verb.UPDATE))
        changed = self._change_node(node, change)
        if end.at is None:
            self.history.write("extend", reason="expires never", id=node.id)
        if changed is not None:
            self.seen.node = Node(node.name, {**node.raw, "labels": changed.labels})

    def start_guard(self, level: Condition) -> None:
        """Start the guard on worker 0 of a node that has a time limit. Report what remains if it cannot do its work."""
        node, limits = self.seen.node, self.goal.limits
        if node is None or self.goal.purpose is None or not level.is_usable:
            return
        idle = limits.idle if limits.apply_to(node) else IdleChange()
        if idle.limit is None and limits.idle.limit is not None:
            command = f"`tpuctl up {self.name.node_id} --idle {format_duration(limits.idle.limit.after)}`"
            self.report(
                EventKind.NOTE, f"no idle limit is applied, because this run did not create the node: {command}"
            )
        has_ssh = level.includes(Condition.SSH)
        if node.expires is None and idle.limit is None:
            if idle.removes and (text := remove_node_guard(self._context, node, has_ssh=has_ssh)):
                self.report(EventKind.NOTE, text)
                self.history.write("guard", text=text, ok=False, id=node.id)
            return
        started = start_node_guard(self._context, node, idle, has_ssh=has_ssh)
        self.report(EventKind.NOTE, started.text)
        until = {"until": format_timestamp(node.expires)} if node.expires and started.works else {}
        self.history.write("guard", text=started.text, ok=started.works, id=node.id, **until)

    def time_to_usable(self) -> timedelta:
        """Return how long the node was on its way to usable, set-ups included.

        It counts from the loss of a node that was usable during this run; otherwise from the first creation request, or start,
        of any run, or from the beginning of this run if that was earlier.
        """
        if self._lost_at is not None:
            return self.now.at - self._lost_at
        begun, waited = self.history.past.way_begun, self.now.at - self.seen.started
        return waited if begun is None else max(waited, self._context.clock.now() - begun)

    def record_usable(self, level: Condition, took: timedelta | None = None) -> None:
        """Record that the node is usable, after `time_to_usable` by default: earlier failures do not count any more.

        After `policy.refill` in this state the repair budgets are full again.
        """
        now, seen, node = self.now, self.seen, self.seen.node
        if node is None or not level.is_usable:
            return
        seen.is_ours, seen.failure, seen.refused_stop, seen.repaired_at = False, None, None, None
        if self._usable_since is None:
            self._usable_since = now.at
            took = self.time_to_usable() if took is None else took
            self.history.finish(node.id, level=str(level), took=took.total_seconds())
        if now.at - self._usable_since >= self.policy.refill:
            seen.attempts = RepairAttempts()

    def release(self) -> None:
        """Release the lease. Report the record that a failed creation left [observed: terraform-provider-google#16147]."""
        if self.seen.failure and self.seen.node and self.seen.node.state is NodeState.CREATING:
            self.report(EventKind.NOTE, f"its record still exists: `tpuctl down {self.name.node_id}` deletes it")
        elif (node := self.seen.node) and not node.state.is_dead and (wanted := self._wanted_end) is not None:
            done = "set" if wanted.at is not None else "removed"
            text = f"its time limit was not {done} while it is {node.state}: {self._extend_command(wanted)}"
            if (wanted.at, node.expires) != (None, None):
                self.report(EventKind.NOTE, text)
        if self.goal.lease is None:
            self.lease.release()

    def report(self, kind: EventKind, text: str, **data: object) -> None:
        """Report an event."""
        self._context.report(kind, self.name, text, **data)

    def report_and_journal(self, kind: EventKind, text: str, **data: object) -> None:
        """Report an event, and write it to the journal."""
        if node := self.seen.node:
            data |= {"id": node.id, "state": str(node.state), "health": str(node.health)}
        self.report(kind, text, **data)
        self.history.write(str(kind), text=text, **data)

    def _extend_command(self, end: NodeEnd) -> str:
        return f"`tpuctl extend {self.name.zone}/{self.name.node_id} {end.option}`"

    def _observed_node(self) -> Node:
        if self.seen.node is None:
            raise AssertionError("this change needs a node that was observed")
        return self.seen.node

    def _identify_failure(self) -> object:
        return self.seen.failure and (self.seen.failure.verb, self.seen.failure.times)


def _interrupts_setup(decision: Decision) -> TypeGuard[Reboot | Restart | Delete]:
    """Return whether a decision is a repair, which would end the set-up of a node that lives."""
    return isinstance(decision, Reboot | Restart) or (isinstance(decision, Delete) and decision.is_repair)
