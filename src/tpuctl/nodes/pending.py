"""Follow an unfinished change of one node until the node shows it, or until its operation has failed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import NotFoundError
from tpuctl.models.node import Node, NodeState
from tpuctl.models.operation import Operation
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.decide import change_is_visible

if TYPE_CHECKING:
    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.actuator import RequestedChange

# The node itself shows a change. Only a failure shows in the operation alone, which is fetched less often.
_OPERATION_INTERVAL = timedelta(seconds=20)
# A node may show a change some time after its operation has ended [unverified]. Without this pause, a change that the
# service reports as done but that is not visible would be sent again dozens of times per second.
_VISIBILITY_LAG = timedelta(seconds=20)
_FINAL_STATES = {Verb.CREATE: NodeState.READY, Verb.START: NodeState.READY, Verb.STOP: NodeState.STOPPED}


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
