"""Delete nodes and queued resources: the one way, for `down`, `gc`, time limits, and what lost a race.

Each group is looked at and judged, its leases are ended or taken, the journal gets its specs, it is judged again, and right
before each request `TpuClient` reads once more what the request deletes. What the API did not show is never called deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from tpuctl.clock import CLOUD_CALL_TIMEOUT
from tpuctl.durations import format_duration
from tpuctl.errors import (
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
    TpuctlError,
)
from tpuctl.models.events import EventKind
from tpuctl.models.node import QueuedState
from tpuctl.models.operation import Operation
from tpuctl.nodes.actuator import LeaseLostError, NoLongerMeantError, NotSentError, RequestedChange, require_same
from tpuctl.nodes.conditions import Condition, Policy, Verb
from tpuctl.nodes.controller import reconcile_nodes
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.lease_guard import end_lease
from tpuctl.nodes.poll import Wait, poll_all
from tpuctl.nodes.request_steps import (
    DeletionRefusedError,
    ObservedRequest,
    RequestChangedError,
    RequestGone,
    SendRequestDelete,
    decide_removal,
)
from tpuctl.nodes.resource_group import ResourceGroup, belongs_to, group_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.resource_group import StillMeant

# Refusals in a row for a state that does not change. The service may refuse what its own state allows for a moment.
_MAX_REFUSALS: Final = 3


class LeaseUse(Enum):
    """What a deletion does with the leases of its nodes."""

    # End that of any holder for good, after a change in flight.
    END = auto()
    # Take it if no other process has it.
    TAKE = auto()
    # Nothing: the caller holds them all. Each must still be its own right before a request.
    HELD = auto()


class Ended(Enum):
    """How the deletion of a group ended well."""

    DELETED = auto()
    # It was gone, or another client was deleting it, before anything was done.
    GONE = auto()


@dataclass(frozen=True, slots=True)
class Deletion:
    """A group to delete, and what keeps it."""

    group: ResourceGroup
    # As the journal stores it. A later `up` creates the node again unless it is one of `FINAL_REASONS`.
    reason: str
    # For the user; empty if the user asked for it.
    why: str = ""
    # Gets what was just read, at the first look and right before each request; raises `NoLongerMeantError` if it must stay.
    meant: StillMeant = lambda _: None
    # Reads what takes longer and `meant` needs, such as the use of the workers: before the first look, and after the journal.
    ask: Callable[[], None] = lambda: None
    # More names whose leases end with those of its nodes, of a run that would request the node there.
    also_ends: Sequence[NodeName] = ()
    # The queued resource was sent and not seen: it may show within this time. `meant` decides whether it is that.
    shows_within: timedelta | None = None
    # What stays bills: no refusal ends the tries before the timeout.
    ignores_refusals: bool = False
    # More for the entry of the journal; a spec in the place of that of the node or request.
    entry: Mapping[str, Any] = field(default_factory=dict)
    # Leaves a mark in a lease that was taken, so that no watcher creates the nodes again.
    is_final: bool = True

    def report(self, context: ActionContext, name: NodeName, what: str) -> None:
        """Report that a request is about to be sent."""
        text = f"deleting {what}" + (f" ({self.why})" if self.why else "")
        context.report(EventKind.ACTION, name, text, verb=str(Verb.DELETE))


def delete(
    context: ActionContext,
    deletions: Sequence[Deletion],
    *,
    leases: LeaseUse,
    by: str,
    timeout: timedelta | None,
    wait: bool = True,
) -> list[Ended | TpuctlError]:
    """Delete groups in parallel, and wait until they are gone. Return the results in order.

    The failure of one group does not stop the others. What must stay has a `NoLongerMeantError`. What the service does not
    accept for now is judged and sent again until the timeout, which without `wait` is that of a call; then the requests are
    only sent. Call `check_whole_request` before. `by` is the command that other holders of a lease read.
    """
    lock = RLock()

    def emit_alone(event: NodeEvent) -> None:
        with lock:
            context.emit(event)

    started = context.clock.monotonic()
    limit = timeout if wait else CLOUD_CALL_TIMEOUT
    until = None if limit is None else started + limit
    # Leases, the journal and the progress are used by one thread at a time.
    alone = replace(context, emit=emit_alone)
    runs = [_GroupDeletion(alone, lock, one, leases, by) for one in deletions]
    results: dict[_GroupDeletion, Ended | TpuctlError] = {}

    def take(steps: dict[_GroupDeletion, Callable[[], Ended | Wait]]) -> None:
        late, name_of = _GroupDeletion.late, attrgetter("group.name")
        results.update(poll_all(alone, steps, until=until, late=late, name_of=name_of))

    def accepted(*, has_nodes: bool) -> list[_GroupDeletion]:
        return [run for run in runs if results[run] is Ended.DELETED and bool(run.group.nodes) is has_nodes]

    take({run: partial(run.send, wait=wait) for run in runs})
    for run, result in results.items():
        if isinstance(result, TpuctlError):
            _add_what_is_left(result, next(iter(run.group.nodes), None))
    if wait:
        take({run: run.follow for run in accepted(has_nodes=False)})
        policy = Policy(goal=Condition.GONE, timeout=timeout)
        changes = [(run, name) for run in accepted(has_nodes=True) for name in run.changes]
        tasks = [Goal(name=name, policy=policy, pending=run.changes[name], since=started) for run, name in changes]
        for (run, _), end in zip(changes, reconcile_nodes(context, tasks), strict=True):
            if isinstance(end, TpuctlError):
                results[run] = end
        # A queued resource uses quota for longer than its nodes.
        take({run: run.follow for run in accepted(has_nodes=True)})
    return [results[run] for run in runs]


class ReplacedRequestError(NoLongerMeantError):
    """Another client has deleted the queued resource, and requested the node again."""


class _GroupDeletion:
    """The deletion of one group, as far as it has come."""

    def __init__(self, context: ActionContext, lock: RLock, deletion: Deletion, leases: LeaseUse, by: str) -> None:
        self.group, self._deletion = deletion.group, deletion
        # The accepted deletion of each node.
        self.changes: dict[NodeName, RequestedChange] = {}
        self._context, self._lock, self._leases, self._by = context, lock, leases, by
        self._removals = [
            _RequestRemoval(context, deletion, request, self._judge, self._with_own_leases)
            for request in self.group.requests
        ]
        self._is_announced = self._may_be_gone = self._has_waited = False
        self._refusal: TpuctlError | None = None

    def send(self, *, wait: bool) -> Ended | Wait:
        """Send what the group still needs. Raises what keeps it, and without `wait` what passes, too."""
        self._refusal = None
        try:
            return self._send(wait=wait)
        except (ServiceUnavailableError, QuotaError) as error:
            if not wait:
                raise
            self._refusal = error
            return Wait(f"not deleted yet, the next try follows: {error.lines[0]}", error.retry_after)

    def follow(self) -> Ended | Wait:
        """Wait until its queued resources are gone; one that stays is deleted again."""
        for removal in self._removals:
            try:
                waits = removal.advance(removal.look())
            except (ServiceUnavailableError, QuotaError) as error:
                return Wait("the API does not answer", error.retry_after)
            if waits is not None:
                self._has_waited = True
                return waits
            if not self.group.nodes or self._has_waited:
                text = f"its queued resource `{removal.request.queued_resource_id}` is gone"
                self._context.report(EventKind.REACHED, self.group.name, text)
        return Ended.DELETED

    def late(self, waited: timedelta, reason: str) -> TpuctlError:
        """Return the error of a group that was not deleted in time."""
        if self._refusal is not None:
            return self._refusal
        return next(removal for removal in self._removals if not removal.is_gone).late(waited, reason)

    @property
    def _was_sent(self) -> bool:
        return bool(self.changes) or any(removal.operation for removal in self._removals)

    def _send(self, *, wait: bool) -> Ended | Wait:
        deletion, group = self._deletion, self.group
        with self._claimed() as check:
            now = fetch_group(self._context.cloud, group)
            if now is None and any(removal.may_show for removal in self._removals):
                return Wait("its queued resource does not show yet")
            is_over = now is None or (self._leases is LeaseUse.TAKE and now.is_being_deleted)
            # What a user ends is also ended for its holder, who may be about to create it again.
            if is_over and self._leases is not LeaseUse.END and not self._was_sent:
                return Ended.GONE
            deletion.ask()
            if now is not None:
                self._judge(now)
            there = {request.name: request for request in now.requests} if now else {}
            seen = [removal.observe(there.get(removal.request.name)) for removal in self._removals]
            if not self._is_announced:
                with self._lock:
                    self._announce()
                deletion.ask()
            try:
                with self._lock:
                    check()
                for removal, observed in zip(self._removals, seen, strict=True):
                    waits = removal.advance(observed, wait=wait)
                    if waits is not None and not removal.is_accepted:
                        return waits
                self._delete_nodes()
            except ServiceUnavailableError:
                # The answer may be lost.
                self._may_be_gone = True
                raise
            except NotSentError:
                self._withdraw()
                raise
        return Ended.DELETED

    @contextmanager
    def _claimed(self) -> Iterator[Callable[[], None]]:
        """Take the leases if `LeaseUse` says that. The yielded function checks them right before the request."""
        if self._leases is not LeaseUse.TAKE:
            yield lambda: None
            return
        leases, names, verb = self._context.leases, self.group.names, str(Verb.DELETE)
        ended: set[NodeName] = set()
        taken: list[NodeName] = []

        def check() -> None:
            if not all(leases.begin(name, verb) for name in names):
                raise NoLongerMeantError("another process has just taken its lease")

        try:
            with self._lock:
                for name in names:
                    before = leases.holder(name)
                    if before is not None and before.record.ended:
                        ended.add(name)
                    other = leases.acquire(name, self._by)
                    if other is not None:
                        raise NoLongerMeantError(f"it is in use: {other}")
                    taken.append(name)
            yield check
        finally:
            with self._lock:
                for name in taken:
                    # Also if the answer to the request was lost. For a dead record a watcher may create the node again.
                    if name in ended or (self._deletion.is_final and (self._may_be_gone or self._was_sent)):
                        end_lease(self._context, name, self._by)
                    else:
                        leases.release(name)

    @contextmanager
    def _with_own_leases(self) -> Iterator[None]:
        """Announce one request in the leases that the caller holds. Raises `LeaseLostError` if one is not its own any more."""
        names = self.group.names if self._leases is LeaseUse.HELD else ()
        try:
            for name in names:
                if not self._context.leases.begin(name, str(Verb.DELETE)):
                    raise LeaseLostError(name)
            yield
        finally:
            for name in names:
                self._context.leases.done(name)

    def _announce(self) -> None:
        """End the leases if that is wanted, and write the specs to the journal. Raises `JournalError`: nothing is deleted."""
        context, group, reason = self._context, self.group, self._deletion.reason
        if self._leases is LeaseUse.END:
            for name in dict.fromkeys((*group.names, *self._deletion.also_ends)):
                end_lease(context, name, self._by)
        for node in group.nodes:
            spec = context.journal.past(node.name).spec_as_it_is(node)
            entry = {"spec": spec.to_json(), "id": node.id, **self._deletion.entry}
            context.record(node.name, "delete", reason=reason, **entry)
        if not group.nodes:
            request, entry = group.request, {**self._deletion.entry}
            if request and len(request.node_ids) == 1 and context.journal.past(group.name).spec is None:
                entry = {"spec": request.spec(group.project).to_json(), **entry}
            context.record(group.name, "delete", reason=reason, **entry)
        self._is_announced = True

    def _withdraw(self) -> None:
        """Let the journal say that no deletion was sent."""
        if self._was_sent or self._may_be_gone:
            return
        context, group = self._context, self.group
        with self._lock:
            for name in [node.name for node in group.nodes] or [group.name]:
                context.journal.withdraw(name, "delete", context.clock.now())

    def _judge(self, current: ResourceGroup) -> None:
        """Raise `NoLongerMeantError` if what was just read must stay."""
        self._deletion.meant(current)
        before = {node.name: node for node in self.group.nodes}
        for node in current.nodes:
            if node.name in before:
                require_same(before[node.name], node)

    def _delete_nodes(self) -> None:
        """Delete the nodes that the deletion of no request includes."""
        group, done = self.group, Operation(None, done=True)
        operation = next((removal.operation for removal in reversed(self._removals) if removal.operation), done)
        for node in group.nodes:
            if node.name in self.changes:
                continue
            owner = group.owner_of(node)
            forced = [removal.request for removal in self._removals if removal.has_forced]
            is_included = owner in forced if owner else group.is_request_named
            change = operation if is_included else self._delete_node(node)
            self.changes[node.name] = RequestedChange(Verb.DELETE, change, node.id)

    def _delete_node(self, node: Node) -> Operation:
        is_reported = False

        def judge(current: Node) -> None:
            nonlocal is_reported
            self._judge(group_of(self.group.project, None, [current]))
            if not is_reported:
                is_reported = True
                self._deletion.report(self._context, node.name, "it")

        with self._with_own_leases():
            return self._context.cloud.delete_node(node.name, judge)


class _RequestRemoval:
    """The deletion of one queued resource, and of no other of its name."""

    def __init__(
        self,
        context: ActionContext,
        deletion: Deletion,
        request: QueuedResource,
        judge: StillMeant,
        announced: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.request = request
        # The last delete that the service accepted; None before it.
        self.operation: Operation | None = None
        self.has_forced = self.is_accepted = self.is_gone = False
        self._context, self._deletion, self._judge, self._announced = context, deletion, judge, announced
        within = deletion.shows_within
        # Until when a request that was not seen may show; None for one that was seen.
        self._may_show_until = None if within is None else context.clock.monotonic() + within
        self._ended_at: timedelta | None = None
        # Refused deletes in a row, and the state in which they were refused.
        self._refusals = 0
        self._refused_in: QueuedState | None = None

    @property
    def may_show(self) -> bool:
        """Whether it was sent, and no answer had it yet."""
        return self._may_show_until is not None and self._context.clock.monotonic() < self._may_show_until

    def advance(self, seen: ObservedRequest, *, wait: bool = True) -> Wait | None:
        """Delete it if its state allows that; return why it must be looked at again, None if it is gone.

        Raises `DeletionRefusedError` if its state does not allow that, without `wait`.
        """
        request, step = seen.request, decide_removal(seen)
        self.is_gone = isinstance(step, RequestGone)
        if request is None or isinstance(step, RequestGone):
            return None
        if isinstance(step, SendRequestDelete):
            self._delete(request, force=step.force)
            self.is_accepted = self.operation is not None
            refused = f"the service refuses the deletion of its queued resource, which is {request.state}"
            return Wait("its queued resource is being deleted" if self.is_accepted else refused)
        self.is_accepted = self.operation is not None or request.state is QueuedState.DELETING
        if not wait and not self.is_accepted:
            raise DeletionRefusedError(
                f"`{request.queued_resource_id}` cannot be deleted now: {step.reason}",
                hint=f"`tpuctl queue cancel {request.short_name}` waits for that and deletes it",
            )
        return Wait(step.reason)

    def look(self) -> ObservedRequest:
        """Fetch the request, and the operation of the delete while the request does not show it."""
        return self.observe(_fetch_request(self._context.cloud, self.request.name))

    def observe(self, current: QueuedResource | None) -> ObservedRequest:
        """Return what counts of a request that was just read. Raises `NoLongerMeantError` if another has its name."""
        cloud, clock = self._context.cloud, self._context.clock
        if current is None:
            return ObservedRequest(request=None)
        if self._may_show_until is not None:
            self.request, self._may_show_until = current, None
        if current.created != self.request.created:
            if self.operation is None:
                raise ReplacedRequestError(
                    f"the queued resource `{self.request.queued_resource_id}` changed meanwhile: another client requested "
                    "the node again",
                    hint=f"see the new one with `tpuctl queue status {self.request.short_name}`",
                )
            return ObservedRequest(request=None)
        if self.operation is None:
            return ObservedRequest(request=current)
        if self.operation.name is not None and not self.operation.done and current.state is not QueuedState.DELETING:
            try:
                self.operation = cloud.get_operation(self.operation.name)
            except NotFoundError:
                # The service forgets operations after a while: this one has ended.
                self.operation = Operation(None, done=True)
        if self.operation.error is not None:
            error = cloud.operation_error(self.operation.error)
            if not isinstance(error, ServiceUnavailableError):
                raise error
            # It counts as ended: a request that stays is deleted again.
            self.operation = Operation(None, done=True)
        is_pending = self.operation.name is not None and not self.operation.done
        now = clock.monotonic()
        self._ended_at = None if is_pending else self._ended_at or now
        since = None if self._ended_at is None else now - self._ended_at
        return ObservedRequest(request=current, is_delete_pending=is_pending, since_delete=since)

    def _delete(self, seen: QueuedResource, *, force: bool) -> None:
        """Send the delete, unless the request has changed since it was seen. A refusal is no error at first."""

        def judge(current: QueuedResource, nodes: tuple[Node, ...]) -> None:
            if (current.created, current.state) != (seen.created, seen.state):
                raise RequestChangedError
            self._judge(group_of(self._deletion.group.project, current, nodes))
            again = " again: it is still there" if self.operation else ""
            what = f"its queued resource `{self.request.queued_resource_id}`{again}"
            self._deletion.report(self._context, self._deletion.group.name, what)

        try:
            with self._announced():
                self.operation = self._context.cloud.delete_queued_resource(self.request.name, judge, force=force)
        except RequestChangedError:
            return
        except (NotSentError, NotFoundError):
            raise
        except ConflictError:
            # Its state may have changed since it was fetched.
            self._refusals = self._refusals + 1 if seen.state == self._refused_in else 1
            self._refused_in = seen.state
            if self._refusals >= _MAX_REFUSALS and not self._deletion.ignores_refusals:
                raise
            return
        self._refusals, self._ended_at, self.has_forced = 0, None, self.has_forced or force

    def late(self, waited: timedelta, reason: str) -> TimedOutError:
        """Return the error of a request that is still there at the deadline."""
        request_id, lasted = self.request.queued_resource_id, format_duration(waited)
        if self.operation is None:
            return TimedOutError(
                f"the queued resource `{request_id}` was not deleted within {lasted}: {reason}",
                hint=f"it counts against the quota; continue with `tpuctl queue cancel {self.request.short_name}`",
            )
        return TimedOutError(
            f"the queued resource `{request_id}` is still being deleted after {lasted}",
            hint="no change was undone; the deletion continues in the cloud",
        )


def _add_what_is_left(error: TpuctlError, node: Node | None) -> None:
    """Say in the hint of a failed deletion that its node still exists, if that is certain."""
    is_passing = isinstance(error, ServiceUnavailableError | QuotaError) and not isinstance(error, OutcomeUnknownError)
    if node is None or not is_passing:
        return
    name = node.name
    bills = "" if node.state.is_dead else " and bills while it runs"
    left = f"`{name.node_id}` was left {node.state}{bills}; delete it with `tpuctl down {name.zone}/{name.node_id}`"
    error.hint = f"{error.hint}\n{left}" if error.hint else left


def fetch_group(cloud: TpuClient, group: ResourceGroup) -> ResourceGroup | None:
    """Return the group as it is now, with the nodes that it has got; None if the API answered that it is gone."""
    owner = group.request.name if group.request else group.nodes[0].queued_resource
    version = group.request.api_version if group.request else "v2"
    request = _fetch_request(cloud, owner, version=version) if owner else None
    other = _fetch_request(cloud, group.next_request.name) if group.next_request else None
    names, before = group.names, {node.name for node in group.nodes}
    nodes = tuple(
        node for node in cloud.find_nodes(names) if node.name in before or (request and belongs_to(node, request))
    )
    if not (nodes or request or other):
        return None
    return replace(group, nodes=nodes, request=request or other, next_request=other if request else None)


def _fetch_request(cloud: TpuClient, name: str, *, version: str = "v2") -> QueuedResource | None:
    try:
        return cloud.get_queued_resource(name, version=version)
    except NotFoundError:
        return None
