"""The change that was requested of a node, until it has ended: does it show yet, and did it fail."""

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

# A change is seen in the node itself; only whether it failed must be asked of its operation, and that less often.
_ASK_AGAIN = timedelta(seconds=20)
# A node may show a change some time after its operation has ended [unverified]. Requested again at every look, a change that
# the service says is done, and that is not, would be sent dozens of times in a second.
_LAG = timedelta(seconds=20)
_FINAL = {Verb.CREATE: NodeState.READY, Verb.START: NodeState.READY, Verb.STOP: NodeState.STOPPED}


# CANCELLED and ABORTED: another change came in between.
_CUT_SHORT = frozenset({1, 10})


@dataclass(frozen=True, slots=True)
class Unmade:
    """A change that was not carried out; `was_cut_short` tells that another one ended it."""

    verb: Verb
    error: TpuctlError
    was_cut_short: bool


class Requested:
    """At most one change of one node that has not ended."""

    def __init__(self, cloud: Cloud, pending: Pending | None) -> None:
        self._cloud = cloud
        self._asked: timedelta | None = None
        self._ended: timedelta | None = None
        self.pending = pending

    def request(self, pending: Pending | None) -> None:
        """Take note of a change that was requested."""
        self.pending, self._asked, self._ended = pending, None, None

    @property
    def verb(self) -> Verb | None:
        """What was requested and has not ended."""
        return self.pending.verb if self.pending else None

    def unseen(self, node: Node | None) -> Verb | None:
        """Return what was requested and cannot be seen in the node yet, so that its state must not be trusted."""
        return self.pending.verb if self.pending and not _shows(self.pending, node) else None

    def settle(self, node: Node | None, now: timedelta) -> Unmade | None:
        """Return what was requested and has failed, and why. Raises what the cloud raises."""
        pending = self.pending
        if pending is None:
            return None
        is_final = node is not None and node.state is _FINAL.get(pending.verb)
        if is_final or _is_another(pending, node):
            self.request(None)
            return None
        if pending.operation.name is None:
            self._end(pending, node, now)
            return None
        if _shows(pending, node) and self._asked is not None and now - self._asked < _ASK_AGAIN:
            return None
        try:
            operation = self._cloud.get_operation(pending.operation.name)
        except NotFoundError:
            # Operations are forgotten after a while; the node itself tells the rest.
            operation = Operation(pending.operation.name, done=True)
        self._asked = now
        if not operation.done:
            return None
        if operation.error is None:
            self._end(pending, node, now)
            return None
        self.request(None)
        return Unmade(pending.verb, self._cloud.operation_error(operation.error), operation.error.code in _CUT_SHORT)

    def _end(self, pending: Pending, node: Node | None, now: timedelta) -> None:
        """Forget a change that has ended without an error, once it shows or has had the time to."""
        self._ended = now if self._ended is None else self._ended
        if _shows(pending, node) or now - self._ended >= _LAG:
            self.request(None)


def _shows(pending: Pending, node: Node | None) -> bool:
    return shows(pending.verb, node) or _is_another(pending, node)


def _is_another(pending: Pending, node: Node | None) -> bool:
    """Tell whether the node that was to be deleted is gone, and another has its name."""
    return pending.verb is Verb.DELETE and node is not None and pending.node_id not in {None, node.id}
