"""Measure how long a node has been in its observed state. Times are the clock's monotonic ones."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.model import NodeState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tpuctl.model import Node
    from tpuctl.readiness import WorkerSeen


class Ages:
    """How long state, health and worker answers have been unchanged, and how long ago the last repair had its effect."""

    def __init__(self, now: timedelta) -> None:
        self._picture: object = ()
        self._since = now
        self._reported: object = ()
        self._reported_since = now
        self._repaired: timedelta | None = None
        self._awaits_effect = False

    def note(self, node: Node | None, workers: Sequence[WorkerSeen], now: timedelta, server_now: datetime) -> None:
        """Record the observed state. A node first seen in CREATING counts from its creation, by the service's clock."""
        reported = node and (node.id, node.state, node.health)
        if reported != self._reported:
            self._reported, self._reported_since = reported, now
        answers = tuple((worker.answer, worker.startup, worker.chips, worker.failed is None) for worker in workers)
        picture = node and (reported, answers, len(node.endpoints))
        if picture == self._picture:
            return
        is_first, self._picture, self._since = self._picture == (), picture, now
        if node and is_first and node.state is NodeState.CREATING and node.created:
            self._since = now - max(timedelta(), server_now - node.created)
        if node and node.state is NodeState.READY and self._awaits_effect:
            self._repaired, self._awaits_effect = now, False

    def in_state(self, now: timedelta) -> timedelta:
        """Return how long state, health and worker answers have been unchanged."""
        return now - self._since

    def in_health(self, now: timedelta) -> timedelta:
        """Return how long state and health have been unchanged."""
        return now - self._reported_since

    def since_repair(self, now: timedelta) -> timedelta | None:
        """Return how long ago the last reboot or restart took effect; None if there was none."""
        return None if self._repaired is None else now - self._repaired

    def leave_out(self, unseen: timedelta) -> None:
        """Subtract the duration of an API outage: the state may have been different meanwhile."""
        self._since, self._reported_since = self._since + unseen, self._reported_since + unseen
        self._repaired = None if self._repaired is None else self._repaired + unseen

    def stopping(self) -> None:
        """Record a restart. It takes effect once the node is READY again."""
        self._awaits_effect = True

    def rebooted(self, now: timedelta) -> None:
        """Reset all durations: every worker is rebooting."""
        self._picture, self._reported, self._repaired = (), (), now

    def replaced(self) -> None:
        """Record that the node is deleted or created: an earlier restart has no effect any more."""
        self._awaits_effect = False

    def recovered(self) -> None:
        """Forget the last repair: the node is usable."""
        self._repaired = None
