"""Several nodes on their way at once: one look serves them all, and their workers are asked side by side."""

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

# Nodes whose workers are asked at the same time.
_SURVEYS = 16
# Nodes that are due within this time, or within their slack, are looked at together: it saves a list call for each.
_TOGETHER = timedelta(seconds=1)
_RELEASE = timedelta(seconds=5)


class Fleet:
    """The nodes that a run looks after, until each has come to its end."""

    def __init__(self, context: Context, tasks: Sequence[Task]) -> None:
        self._context = context
        self._open = {task.name: Pursuit(context, task) for task in tasks}

    def __iter__(self) -> Iterator[Pursuit]:
        return iter(tuple(self._open.values()))

    def __bool__(self) -> bool:
        return bool(self._open)

    def end(self, pursuit: Pursuit) -> None:
        """Let go of a node."""
        self._open.pop(pursuit.name).leave()

    def close(self) -> None:
        """Let go of all nodes. It must not take long: the run may have been interrupted, and leases expire."""
        with limit_calls(SystemClock(), _RELEASE):
            for pursuit in self:
                self.end(pursuit)

    def looked_at(self, *, ask: bool = True) -> Iterator[tuple[Pursuit, TpuctlError | None]]:
        """Look, and yield the nodes that are to be decided about; with the error that no further look can mend, if any.

        Without `ask` the workers are not asked.
        """
        now = self._context.clock.monotonic()
        if not any(pursuit.due <= now + _TOGETHER for pursuit in self):
            return
        due = [pursuit for pursuit in self if pursuit.due <= now + max(_TOGETHER, pursuit.slack)]
        requested = [pursuit for pursuit in due if pursuit.wants_request]
        # They are looked at together: in practice all have the same deadline.
        with due[0].in_time():
            failed = self._look(due, requested)
            # One that is found to go may have been preempted: its queued resource tells, before anything is concluded.
            late = [pursuit for pursuit in due if pursuit.wants_request and pursuit not in {*requested, *failed}]
            if late:
                failed |= self._look(late, late)
            if ask:
                failed |= self._survey([pursuit for pursuit in due if pursuit not in failed])
        for pursuit in due:
            yield pursuit, failed.get(pursuit)

    def rest(self, *, until: timedelta | None = None) -> None:
        """Sleep until a node is due, or `until` by the monotonic clock; not at all where no node is left."""
        if not self:
            return
        now = self._context.clock.monotonic()
        moments = [pursuit.due for pursuit in self] + ([until] if until is not None else [])
        self._context.clock.sleep(min(moments) - now)

    def _look(self, pursuits: Sequence[Pursuit], requested: Sequence[Pursuit]) -> dict[Pursuit, TpuctlError]:
        """Look at nodes, and at the queued resources of some; returns the errors that no further look can mend."""
        sights = look(
            self._context.cloud,
            [pursuit.name for pursuit in pursuits],
            present=[pursuit.name for pursuit in pursuits if pursuit.seen.node],
            requested=[pursuit.name for pursuit in requested],
        )
        failed: dict[Pursuit, TpuctlError] = {}
        for pursuit in pursuits:
            try:
                pursuit.look(sights[pursuit.name])
            except TpuctlError as error:
                failed[pursuit] = error
        return failed

    def _survey(self, pursuits: Sequence[Pursuit]) -> dict[Pursuit, TpuctlError]:
        failed: dict[Pursuit, TpuctlError] = {}

        def ask(pursuit: Pursuit) -> None:
            try:
                pursuit.survey()
            except TpuctlError as error:
                failed[pursuit] = error

        slow = [pursuit for pursuit in pursuits if pursuit.is_to_be_asked]
        if len(slow) > 1:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # only for several nodes

            with ThreadPoolExecutor(min(_SURVEYS, len(slow))) as pool:
                list(pool.map(with_limits(ask), slow))
        asked = set(slow) if len(slow) > 1 else set()
        for pursuit in pursuits:
            if pursuit not in asked:
                ask(pursuit)
        return failed
