"""Ask the workers of a node, where their answers can change a decision, and not more often than that needs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.model import Health, Node, NodeState
from tpuctl.readiness import Answer, Goal, Policy, Repair, WorkerSeen

if TYPE_CHECKING:
    from tpuctl.actions.cloud import Context

# How long one round of ssh may take, and how often the workers of a node that is usable are asked again.
_ROUND = timedelta(seconds=15)
_AT_REST = timedelta(minutes=1)
# Less than this is no time for a handshake: silence would prove nothing.
_LEAST = timedelta(seconds=5)
# What a user runs on the workers may load a framework.
_PROBE = timedelta(minutes=2)
_DEFECTIVE = frozenset({Health.TIMEOUT, Health.UNHEALTHY_TENSORFLOW})


class Survey:
    """What the workers of one node said last. `probe` is a command of the user's that decides about devices."""

    def __init__(self, context: Context, policy: Policy, probe: str | None) -> None:
        self._context, self._policy, self._probe = context, policy, probe
        self._asked: timedelta | None = None
        self.workers: tuple[WorkerSeen, ...] = ()

    def forget(self) -> None:
        """Forget what was said: the node is another, or is not as it was."""
        self.workers = ()

    def take(self, node: Node, *, at_rest: bool, left: timedelta | None) -> None:
        """Ask the workers, within the time that is left of the deadline. Raises what the cloud raises."""
        if not self._matters(node):
            self.forget()
        if not self.is_due(node, at_rest=at_rest):
            return
        inspect = self._policy.goal.includes(Goal.STARTUP) or (
            node.health in _DEFECTIVE and self._policy.repair is not Repair.NONE
        )
        patience = _PROBE if inspect and self._probe else _ROUND
        # A deadline that is over was one of nothing: its one look has the time that a look takes.
        limit = patience if left is None or left <= timedelta() else max(_LEAST, min(patience, left))
        self.workers = self._context.workers.survey(node, inspect=inspect, probe=self._probe, timeout=limit)
        self._asked = self._context.clock.monotonic()

    def is_due(self, node: Node, *, at_rest: bool) -> bool:
        """Tell whether the workers are to be asked again; seldom where all is well."""
        if not self._matters(node):
            return False
        all_answered = bool(self.workers) and all(worker.answer is Answer.YES for worker in self.workers)
        is_recent = self._asked is not None and self._context.clock.monotonic() - self._asked < _AT_REST
        return not (at_rest and all_answered and is_recent)

    def _matters(self, node: Node) -> bool:
        goal = self._policy.goal
        is_of_use = goal.includes(Goal.SSH) or (
            goal is Goal.HEALTHY
            and (node.health is Health.HEALTH_UNSPECIFIED or self._policy.repair is not Repair.NONE)
        )
        is_addressed = node.state is NodeState.READY and len(node.endpoints) >= node.workers
        # Who waits for ssh is told why it will never answer; for all else the silence of such workers says nothing.
        about = None if goal.includes(Goal.SSH) else node
        return is_of_use and is_addressed and self._context.workers.can_be_asked(about)
