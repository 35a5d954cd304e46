"""Delete what `tpuctl gc` has decided on. A lease of another process is never taken.

Nothing is deleted that changed since the decision: each look of the deletion is judged by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError
from tpuctl.names import NodeName
from tpuctl.nodes.actuator import NoLongerMeantError
from tpuctl.nodes.deletion import Deletion, Ended, LeaseUse, delete
from tpuctl.nodes.garbage import GarbageFacts, GarbageItem, GarbageReason, GarbageRules, Idleness, judge_group
from tpuctl.nodes.idle_limit import require_recent_use
from tpuctl.nodes.resource_group import ResourceGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.nodes.actuator import ActionContext

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


def remove_garbage(
    context: ActionContext,
    items: Sequence[GarbageItem],
    rules: GarbageRules,
    *,
    examine: ExamineWorkers,
    find_lost: FindLost = dict,
    timeout: timedelta | None,
) -> list[RemovalResult]:
    """Delete the items, wait until they are gone, and return the outcomes in their order.

    `examine` asks the workers of a group whether they are idle, `find_lost` returns what has lost its race now.
    """
    deletions = []
    for item in items:
        judge = _Judge(context, item, rules, examine, find_lost)
        is_final = item.reason is not GarbageReason.DEAD
        deletions.append(
            Deletion(item.group, reason=item.entry, why=item.why, meant=judge, ask=judge.ask, is_final=is_final)
        )
    ends = delete(context, deletions, leases=LeaseUse.TAKE, by="gc", timeout=timeout)
    return [_result(item, end) for item, end in zip(items, ends, strict=True)]


def _result(item: GarbageItem, end: Ended | TpuctlError) -> RemovalResult:
    match end:
        case Ended.DELETED:
            return RemovalResult(item, RemovalOutcome.DELETED)
        case Ended.GONE:
            return RemovalResult(item, RemovalOutcome.GONE, "another client deleted it, or is deleting it")
        case NoLongerMeantError():
            return RemovalResult(item, RemovalOutcome.LEFT, end.message)
    end.node = item.group.id
    return RemovalResult(item, RemovalOutcome.FAILED, end.message, end)


class _Judge:
    """Decides whether the rule of an item applies to what was just read."""

    def __init__(
        self,
        context: ActionContext,
        item: GarbageItem,
        rules: GarbageRules,
        examine: ExamineWorkers,
        find_lost: FindLost,
    ) -> None:
        self._context, self._item, self._rules = context, item, rules
        self._examine, self._find_lost = examine, find_lost
        self._facts = GarbageFacts(project=item.group.project, nodes=(), requests=())
        self._asked_at = timedelta()

    def ask(self) -> None:
        """Read what the rule needs besides the group itself: the use of its workers, the end of its race."""
        self._asked_at = self._context.clock.monotonic()
        reason = self._item.reason
        if reason is GarbageReason.IDLE or self._rules.if_idle:
            self._facts = replace(self._facts, idleness=self._examine(self._item.group))
        if reason is GarbageReason.LOST:
            self._facts = replace(self._facts, lost=self._find_lost())

    def __call__(self, current: ResourceGroup) -> None:
        """Raise `NoLongerMeantError` unless the group is as it was, and the same rule applies to it."""
        if current.is_being_deleted:
            return  # its deletion has begun with that of its request
        item = self._item
        (request, nodes), (request_before, nodes_before) = current.identity, item.group.identity
        # The nodes of a request that was deleted first are read without it.
        is_same = nodes == nodes_before if request else nodes <= nodes_before
        if request not in {None, request_before} or not is_same:
            raise NoLongerMeantError(f"it changed meanwhile and is {current.state} now")
        if self._facts.idleness:
            require_recent_use(item.group.id, self._context.clock.monotonic() - self._asked_at)
        again = judge_group(current, self._facts, self._rules, self._context.server_now())
        # The reason of a request with several nodes is that of one of them.
        is_part = item.group.request is not None and current.request is None
        if again is None or not (again.reason is item.reason or is_part):
            raise NoLongerMeantError(f"this is no longer so: {item.why}")
        if again.left_because:
            raise NoLongerMeantError(again.left_because)
