"""Reconcile several nodes at once: one list call serves all of them, and their workers are probed in parallel."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.actions.pursuit import Pursuit
from tpuctl.actions.sighting import look
from tpuctl.clock import SystemClock, limit_calls, with_limits
from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuctl.actions.cloud import Context
    from tpuctl.actions.observation import Task

# Nodes whose workers are probed at the same time.
_SURVEYS = 16
# Nodes that are due within this time, or within their slack, are fetched together: one list call serves them all.
_TOGETHER = timedelta(seconds=1)
_RELEASE = timedelta(seconds=5)


class Fleet:
    """The nodes of a run that are not finished."""

    def __init__(self, context: Context, tasks: Sequence[Task]) -> None:
        self._context = context
        self._open = {task.name: Pursuit(context, task) for task in tasks}

    def __iter__(self) -> Iterator[Pursuit]:
        return iter(tuple(self._open.values()))

    def __bool__(self) -> bool:
        return bool(self._open)

    def remove(self, node: Pursuit) -> None:
        """Release a node and drop it from the run."""
        self._open.pop(node.name).release()

    def close(self) -> None:
        """Release all nodes within 5 seconds: the run may have been interrupted, and leases expire by themselves."""
        with limit_calls(SystemClock(), _RELEASE):
            for node in self:
                self.remove(node)

    def observe_due(self, *, survey: bool = True) -> Iterator[tuple[Pursuit, TpuctlError | None]]:
        """Fetch the nodes that are due and yield them, each with the error that a later snapshot cannot resolve, or None.

        Without `survey` no worker is probed.
        """
        now = self._context.clock.monotonic()
        if not any(node.due <= now + _TOGETHER for node in self):
            return
        due = [node for node in self if node.due <= now + max(_TOGETHER, node.slack)]
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

    def _observe(self, nodes: Sequence[Pursuit], with_requests: Sequence[Pursuit]) -> dict[Pursuit, TpuctlError]:
        """Fetch nodes, and the queued resources of some. Return the errors that a later snapshot cannot resolve."""
        snapshots = look(
            self._context.cloud,
            [node.name for node in nodes],
            present=[node.name for node in nodes if node.seen.node],
            requested=[node.name for node in with_requests],
        )
        failed: dict[Pursuit, TpuctlError] = {}
        for node in nodes:
            try:
                node.observe(snapshots[node.name])
            except TpuctlError as error:
                failed[node] = error
        return failed

    def _survey(self, nodes: Sequence[Pursuit]) -> dict[Pursuit, TpuctlError]:
        failed: dict[Pursuit, TpuctlError] = {}

        def survey(node: Pursuit) -> None:
            try:
                node.survey_workers()
            except TpuctlError as error:
                failed[node] = error

        slow = {node for node in nodes if node.needs_survey}
        if len(slow) > 1:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # only for several nodes

            with ThreadPoolExecutor(min(_SURVEYS, len(slow))) as pool:
                list(pool.map(with_limits(survey), [node for node in nodes if node in slow]))
        for node in nodes:
            if len(slow) == 1 or node not in slow:
                survey(node)
        return failed
