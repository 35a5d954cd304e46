"""Probe the workers of a node if their answers can change a decision, and no more often than that needs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.model import Health, Node, NodeState
from tpuctl.readiness import Answer, Goal, Policy, Repair, WorkerSeen

if TYPE_CHECKING:
    from tpuctl.actions.cloud import Context

# The limit for one round of ssh, and how often the workers of a usable node are probed.
_ROUND = timedelta(seconds=15)
_AT_REST = timedelta(minutes=1)
# A handshake needs at least this long: a shorter silence would prove nothing.
_LEAST = timedelta(seconds=5)
# The user's probe may load a framework.
_PROBE = timedelta(minutes=2)
_DEFECTIVE = frozenset({Health.TIMEOUT, Health.UNHEALTHY_TENSORFLOW})


class Survey:
    """The last answers of a node's workers. `probe` is the user's command that decides whether devices work."""

    def __init__(self, context: Context, policy: Policy, probe: str | None) -> None:
        self._context, self._policy, self._probe = context, policy, probe
        self._probed_at: timedelta | None = None
        self.workers: tuple[WorkerSeen, ...] = ()

    def forget(self) -> None:
        """Drop the answers: the node is another one, or has changed."""
        self.workers = ()

    def run(self, node: Node, *, is_usable: bool, left: timedelta | None) -> None:
        """Probe the workers if that is due, within the time left until the deadline. Raises what the cloud raises."""
        if not self._matters(node):
            self.forget()
        if not self.is_due(node, is_usable=is_usable):
            return
        inspect = self._policy.goal.includes(Goal.STARTUP) or (
            node.health in _DEFECTIVE and self._policy.repair is not Repair.NONE
        )
        patience = _PROBE if inspect and self._probe else _ROUND
        # A timeout of zero allows one probe, with the time that a probe takes.
        limit = patience if left is None or left <= timedelta() else max(_LEAST, min(patience, left))
        self.workers = self._context.workers.survey(node, inspect=inspect, probe=self._probe, timeout=limit)
        self._probed_at = self._context.clock.monotonic()

    def is_due(self, node: Node, *, is_usable: bool) -> bool:
        """Return whether to probe the workers now; less often while the node is usable."""
        if not self._matters(node):
            return False
        all_answered = bool(self.workers) and all(worker.answer is Answer.YES for worker in self.workers)
        is_recent = self._probed_at is not None and self._context.clock.monotonic() - self._probed_at < _AT_REST
        return not (is_usable and all_answered and is_recent)

    def _matters(self, node: Node) -> bool:
        goal = self._policy.goal
        is_relevant = goal.includes(Goal.SSH) or (
            goal is Goal.HEALTHY
            and (node.health is Health.HEALTH_UNSPECIFIED or self._policy.repair is not Repair.NONE)
        )
        has_addresses = node.state is NodeState.READY and len(node.endpoints) >= node.workers
        # A run that waits for ssh reports why it can never answer. For other goals, unreachable workers prove nothing.
        about = None if goal.includes(Goal.SSH) else node
        return is_relevant and has_addresses and self._context.workers.can_be_asked(about)
