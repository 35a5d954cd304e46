"""Track the change that was requested of a node until it has ended: whether it is visible yet, and whether it failed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.errors import NotFoundError
from tpuctl.model import NodeState, Operation
from tpuctl.readiness import Verb, shows

if TYPE_CHECKING:
    from tpuctl.actions.cloud import Cloud
    from tpuctl.actions.steps import Pending
    from tpuctl.errors import TpuctlError
    from tpuctl.model import Node

# The node itself shows a change. Only a failure shows in the operation alone, which is fetched less often.
_ASK_AGAIN = timedelta(seconds=20)
# A node may show a change some time after its operation has ended [unverified]. Without this pause, a change that the
# service reports as done but that is not visible would be sent again dozens of times per second.
_LAG = timedelta(seconds=20)
_FINAL = {Verb.CREATE: NodeState.READY, Verb.START: NodeState.READY, Verb.STOP: NodeState.STOPPED}

# CANCELLED and ABORTED: another change interrupted it.
_CUT_SHORT = frozenset({1, 10})


@dataclass(frozen=True, slots=True)
class Unmade:
    """A change that was not carried out."""

    verb: Verb
    error: TpuctlError
    # Another change interrupted it.
    was_cut_short: bool


class Requested:
    """At most one unfinished change of one node."""

    def __init__(self, cloud: Cloud, pending: Pending | None) -> None:
        self._cloud = cloud
        self._fetched_at: timedelta | None = None
        self._ended_at: timedelta | None = None
        self.pending = pending

    def begin(self, pending: Pending | None) -> None:
        """Track a change that was requested; None to stop tracking."""
        self.pending, self._fetched_at, self._ended_at = pending, None, None

    @property
    def verb(self) -> Verb | None:
        """The verb of the unfinished change."""
        return self.pending.verb if self.pending else None

    def invisible(self, node: Node | None) -> Verb | None:
        """Return the verb of a change that the node does not show yet, so that its state cannot be trusted."""
        return self.pending.verb if self.pending and not _shows(self.pending, node) else None

    def settle(self, node: Node | None, now: timedelta) -> Unmade | None:
        """Return the change if it has failed, else None. Raises what the cloud raises."""
        pending = self.pending
        if pending is None:
            return None
        is_final = node is not None and node.state is _FINAL.get(pending.verb)
        if is_final or _is_another(pending, node):
            self.begin(None)
            return None
        if pending.operation.name is None:
            self._end(pending, node, now)
            return None
        if _shows(pending, node) and self._fetched_at is not None and now - self._fetched_at < _ASK_AGAIN:
            return None
        try:
            operation = self._cloud.get_operation(pending.operation.name)
        except NotFoundError:
            # The service forgets operations after a while; the node itself shows the result.
            operation = Operation(pending.operation.name, done=True)
        self._fetched_at = now
        if not operation.done:
            return None
        if operation.error is None:
            self._end(pending, node, now)
            return None
        self.begin(None)
        return Unmade(pending.verb, self._cloud.operation_error(operation.error), operation.error.code in _CUT_SHORT)

    def _end(self, pending: Pending, node: Node | None, now: timedelta) -> None:
        """Stop tracking a change that has ended without an error, once it is visible or had the time to become so."""
        self._ended_at = now if self._ended_at is None else self._ended_at
        if _shows(pending, node) or now - self._ended_at >= _LAG:
            self.begin(None)


def _shows(pending: Pending, node: Node | None) -> bool:
    return shows(pending.verb, node) or _is_another(pending, node)


def _is_another(pending: Pending, node: Node | None) -> bool:
    """Return whether the deleted node is gone and another node has its name."""
    return pending.verb is Verb.DELETE and node is not None and pending.node_id not in {None, node.id}
