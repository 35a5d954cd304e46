"""Delete what `tpuctl gc` has decided on: take the lease, write the journal, ask the workers, look, send, wait.

Nothing is deleted that changed since the decision: as the last thing before its request, the group is fetched again and judged
by the same rules, while this process holds the lease of each of its nodes. A lease of another process is never taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from tpuctl.errors import NotFoundError, ServiceUnavailableError, TpuctlError
from tpuctl.fan_out import fan_out
from tpuctl.models.events import EventKind
from tpuctl.models.operation import Operation
from tpuctl.names import NodeName
from tpuctl.nodes.actuator import RequestedChange
from tpuctl.nodes.conditions import Condition, Policy, Verb
from tpuctl.nodes.controller import reconcile_nodes
from tpuctl.nodes.deletion_retry import RefusedDeletion, add_what_is_left, repeat_deletions
from tpuctl.nodes.garbage import (
    GarbageFacts,
    GarbageItem,
    GarbageReason,
    GarbageRules,
    Idleness,
    ResourceGroup,
    group_of,
    group_resources,
    judge_group,
)
from tpuctl.nodes.goal import Goal
from tpuctl.nodes.request_actions import RequestRemoval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.actuator import ActionContext

_PURPOSE: Final = "gc"
# Deletions that are requested at the same time.
_REQUESTS: Final = 8
# The use of workers was examined before the group is read; a slow answer makes that too old.
_FACTS_LAST: Final = timedelta(seconds=30)

ExamineWorkers = Callable[[ResourceGroup], Mapping[NodeName, Idleness]]
FindLost = Callable[[], Mapping[NodeName, str]]


class RemovalOutcome(StrEnum):
    """What became of an item."""

    DELETED = "deleted"
    # Another client has deleted it, or is about to.
    GONE = "gone"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """The outcome for one item; `text` says why it was left alone."""

    item: GarbageItem
    outcome: RemovalOutcome
    text: str = ""
    error: TpuctlError | None = None


@dataclass(frozen=True, slots=True)
class _SentDeletion:
    """The requests that the service has accepted for one item."""

    changes: tuple[tuple[NodeName, RequestedChange], ...] = ()
    removal: RequestRemoval | None = None


class _NotDeletedError(Exception):
    """The item is not deleted, which is no failure: it never leaves this module."""

    def __init__(self, outcome: RemovalOutcome, text: str) -> None:
        super().__init__(text)
        self.outcome, self.text = outcome, text


class GarbageRemover:
    """Deletes items, several at once.

    `examine` asks the workers of a group whether they are idle, `find_lost` returns what has lost its race now.
    """

    def __init__(
        self, context: ActionContext, rules: GarbageRules, examine: ExamineWorkers, find_lost: FindLost = dict
    ) -> None:
        # Leases, the journal and the progress are used by one thread at a time.
        self._lock = RLock()
        self._emit = context.emit
        self._context = replace(context, emit=self._emit_alone)
        self._rules, self._examine, self._find_lost = rules, examine, find_lost
        # The groups that are in the journal: one whose deletion is sent again is written once.
        self._recorded: set[object] = set()

    def remove(
        self, items: Sequence[GarbageItem], *, timeout: timedelta | None, wait: bool = True
    ) -> list[RemovalResult]:
        """Delete the items, wait until they are gone unless `wait` is False, and return the outcomes in their order."""
        context = self._context
        until = None if timeout is None else context.clock.monotonic() + timeout
        policy = Policy(goal=Condition.GONE, timeout=timeout)
        sent = [one.error or one.get() for one in fan_out(partial(self._request, until=until), items, limit=_REQUESTS)]
        if wait:
            self._repeat(items, sent, until=until)
        tasks = [
            Goal(name=name, policy=policy, pending=change)
            for one in sent
            if isinstance(one, _SentDeletion)
            for name, change in one.changes
        ]
        ends = dict(zip((task.name for task in tasks), reconcile_nodes(context, tasks), strict=True)) if wait else {}
        results = []
        for item, deletion in zip(items, sent, strict=True):
            try:
                if isinstance(deletion, TpuctlError):
                    add_what_is_left(deletion, next(iter(item.group.nodes), None))
                    raise deletion
                if isinstance(deletion, RemovalResult):
                    results.append(deletion)
                    continue
                for name, _ in deletion.changes:
                    if isinstance(end := ends.get(name), TpuctlError):
                        raise end
                if deletion.removal is not None and wait:
                    deletion.removal.follow()
                    if not deletion.changes:
                        deletion.removal.report_gone()
                results.append(RemovalResult(item, RemovalOutcome.DELETED))
            except TpuctlError as error:
                error.node = item.group.id
                results.append(RemovalResult(item, RemovalOutcome.FAILED, error.message, error))
        return results

    def _repeat(
        self,
        items: Sequence[GarbageItem],
        sent: list[_SentDeletion | RemovalResult | TpuctlError],
        *,
        until: timedelta | None,
    ) -> None:
        """Judge and send those again that the service did not accept for now, and replace their results in `sent`."""

        def send(number: int) -> None:
            sent[number] = self._request(items[number], until=until)

        failed = {
            number: RefusedDeletion(items[number].group.all_names[0], error, partial(send, number))
            for number, error in enumerate(sent)
            if isinstance(error, TpuctlError)
        }
        for number, error in zip(
            failed, repeat_deletions(self._context, tuple(failed.values()), until=until), strict=True
        ):
            sent[number] = error or sent[number]

    def _emit_alone(self, event: NodeEvent) -> None:
        with self._lock:
            self._emit(event)

    def _request(self, item: GarbageItem, *, until: timedelta | None) -> _SentDeletion | RemovalResult:
        """Look again and send the deletion, unless the item must stay."""
        try:
            with self._leases(item) as check:
                self._check_exists(item)
                with self._lock:
                    if item.group.identity not in self._recorded:
                        self._record(item)
                        self._recorded.add(item.group.identity)
                    check()
                return self._send(item, until=until)
        except _NotDeletedError as reason:
            return RemovalResult(item, reason.outcome, reason.text)

    @contextmanager
    def _leases(self, item: GarbageItem) -> Iterator[Callable[[], None]]:
        """Hold the leases of a group. The yielded function checks them right before the request.

        What was alive gets a tombstone, so that no watcher creates it again, also if the answer to the request was lost; for a
        dead record it may.
        """
        leases, names = self._context.leases, item.group.names
        ended: set[NodeName] = set()
        taken: list[NodeName] = []
        may_be_deleted = False

        def check() -> None:
            nonlocal may_be_deleted
            if not all(leases.begin(name, str(Verb.DELETE)) for name in names):
                raise _NotDeletedError(RemovalOutcome.LEFT, "another process has just taken its lease")
            may_be_deleted = True

        try:
            with self._lock:
                for name in names:
                    before = leases.holder(name)
                    if before is not None and before.record.ended:
                        ended.add(name)
                    other = leases.acquire(name, _PURPOSE)
                    if other is not None:
                        raise _NotDeletedError(RemovalOutcome.LEFT, f"it is in use: {other}")
                    taken.append(name)
            yield check
        except TpuctlError as error:
            # Any other answer of the API is a refusal.
            may_be_deleted = may_be_deleted and isinstance(error, ServiceUnavailableError)
            raise
        finally:
            with self._lock:
                for name in taken:
                    if name in ended or (may_be_deleted and item.reason is not GarbageReason.DEAD):
                        leases.end(name, _PURPOSE, notify=partial(self._context.report, EventKind.NOTE, name))
                    else:
                        leases.release(name)

    def _check_exists(self, item: GarbageItem) -> None:
        """Raise `_NotDeletedError` for a group that is gone or has changed: the journal gets no deletion of it."""
        group = fetch_group(self._context.cloud, item.group)
        if group is None:
            raise _NotDeletedError(RemovalOutcome.GONE, "another client deleted it")
        if group.is_being_deleted:
            raise _NotDeletedError(RemovalOutcome.GONE, "another client is deleting it")
        assumed = GarbageFacts(
            project=group.project,
            nodes=(),
            requests=(),
            idleness={name: Idleness(self._rules.idle or timedelta(), "") for name in group.names},
            lost=dict.fromkeys(group.names if item.reason is GarbageReason.LOST else (), ""),
        )
        self._judge(item, assumed, self._context.clock.monotonic(), group)

    def _gather(self, item: GarbageItem) -> GarbageFacts:
        """Return what the rule of an item needs besides the group itself: the use of its workers, the end of its race."""
        facts = GarbageFacts(project=item.group.project, nodes=(), requests=())
        if item.reason is GarbageReason.IDLE or self._rules.if_idle:
            facts = replace(facts, idleness=self._examine(item.group))
        if item.reason is GarbageReason.LOST:
            facts = replace(facts, lost=self._find_lost())
        return facts

    def _judge(self, item: GarbageItem, facts: GarbageFacts, gathered_at: timedelta, current: ResourceGroup) -> None:
        """Raise `_NotDeletedError` unless a group that was just read is as it was, and the same rule applies to it."""
        if current.is_being_deleted:
            return  # its deletion has begun with that of its request
        _check_unchanged(item, current)
        if facts.idleness and self._context.clock.monotonic() - gathered_at > _FACTS_LAST:
            raise ServiceUnavailableError(
                f"`{item.group.id}`: its use was examined too long before the service answered"
            )
        again = judge_group(current, facts, self._rules, self._context.server_now())
        # The reason of a request with several nodes is that of one of them.
        is_part = item.group.request is not None and current.request is None
        if again is None or not (again.reason is item.reason or is_part):
            raise _NotDeletedError(RemovalOutcome.LEFT, f"this is no longer so: {item.why}")
        if again.left_because:
            raise _NotDeletedError(RemovalOutcome.LEFT, again.left_because)

    def _record(self, item: GarbageItem) -> None:
        """Write the specs to the journal. Raises `JournalError`: nothing is deleted then."""
        context, request = self._context, item.group.request
        for node in item.group.nodes:
            spec = context.journal.past(node.name).spec_as_it_is(node)
            context.record(node.name, "delete", reason=item.entry, spec=spec.to_json(), id=node.id)
        if not item.group.nodes and request is not None:
            name = request.node_name(item.group.project)
            data: dict[str, Any] = {}
            if len(request.node_ids) == 1 and context.journal.past(name).spec is None:
                data["spec"] = request.spec(item.group.project).to_json()
            context.record(name, "delete", reason=item.entry, **data)

    def _send(self, item: GarbageItem, *, until: timedelta | None) -> _SentDeletion:
        """Send the deletion of the request, then of the nodes that it does not include."""
        context, group, removal = self._context, item.group, None
        judge = partial(self._judge, item, self._gather(item), context.clock.monotonic())
        if group.request is not None:
            name = group.request.node_name(group.project)
            removal = RequestRemoval(context, name, group.request, until=until, still_meant=judge)
            removal.send(wait=False)
        changes = []
        for node in group.nodes:
            operation = (removal.operation if removal else None) or Operation(None, done=True)
            if removal is None or not (removal.has_forced and node.queued_resource):
                # The deletion of a dead request may or may not include its nodes.
                context.report(EventKind.ACTION, node.name, f"deleting it ({item.why})", verb=str(Verb.DELETE))
                operation = context.cloud.delete_node(
                    node.name, lambda current: judge(group_of(group.project, None, [current]))
                )
            changes.append((node.name, RequestedChange(Verb.DELETE, operation, node.id)))
        return _SentDeletion(tuple(changes), removal)


def _check_unchanged(item: GarbageItem, current: ResourceGroup) -> None:
    """Raise `_NotDeletedError` unless the request and the nodes that were just read are those of the item, as they were.

    The nodes of a request that was deleted first are read without it.
    """
    (request, nodes), (request_before, nodes_before) = current.identity, item.group.identity
    is_same = nodes == nodes_before if request else nodes <= nodes_before
    if request not in {None, request_before} or not is_same:
        raise _NotDeletedError(RemovalOutcome.LEFT, f"it changed meanwhile and is {current.state} now")


def fetch_group(cloud: TpuClient, group: ResourceGroup) -> ResourceGroup | None:
    """Return the group as it is now; None if the API answered that it is gone."""
    request: QueuedResource | None = None
    owner = group.request.name if group.request else group.nodes[0].queued_resource
    if owner:
        try:
            version = group.request.api_version if group.request else "v2"
            request = cloud.get_queued_resource(owner, version=version)
        except NotFoundError:
            request = None
    nodes = cloud.find_nodes(group.names)
    found = GarbageFacts(project=group.project, nodes=nodes, requests=(request,) if request else ())
    groups = group_resources(found)
    return groups[0] if groups else None
