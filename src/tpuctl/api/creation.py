"""Create a node at most once. Its id is unique in the zone, and a label identifies the request that created it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tpuctl.api.errors import translate
from tpuctl.api.failures import RefusedError, TransportError
from tpuctl.api.outcome import is_uncertain, unknown
from tpuctl.api.retry import backoff
from tpuctl.clock import GRACE, SystemClock, is_late, limit_calls
from tpuctl.errors import AlreadyExistsError, TpuctlError
from tpuctl.model import REQUEST_LABEL, Node, Operation

if TYPE_CHECKING:
    from tpuctl.api.calls import Caller
    from tpuctl.names import NodeName

# A node may show up in nodes.get some time after its create was accepted [unverified].
_LOOKS = 4


def create_once(
    caller: Caller, name: NodeName, label: str, *, send: Callable[[], Operation], find: Callable[[], Node | None]
) -> Operation:
    """Return the operation that creates the node; `Operation.unnamed()` if its answer was lost and the node is ours.

    After a lost answer or a 5xx the node is fetched. Only if it stays absent is the request sent a second and last
    time. The time limit of one call covers everything. Raises `AlreadyExistsError`, `OutcomeUnknownError`, or the
    service's refusal.
    """
    with limit_calls(SystemClock(), caller.policy.deadline, grace=GRACE):
        failure: TransportError | RefusedError
        try:
            return send()
        except (TransportError, RefusedError) as error:
            if not is_uncertain(error):
                raise _refused(name, error) from error
            failure = error
        if node := _look(caller, name, find, failure, looks=_LOOKS):
            return _ours(name, node, label)
        if is_late():
            raise unknown("create", name.node_id, failure) from failure
        try:
            return send()
        except (TransportError, RefusedError) as error:
            looks = _LOOKS if is_uncertain(error) else 1
            if node := _look(caller, name, find, error, looks=looks):
                return _ours(name, node, label)
            # The name is taken. Only the first sending can have taken it, so the node will become visible.
            is_taken = isinstance(error, RefusedError) and error.refusal.code == 409
            if is_uncertain(error) or is_taken:
                raise unknown("create", name.node_id, error) from error
            raise _refused(name, error) from error


def _look(
    caller: Caller, name: NodeName, find: Callable[[], Node | None], failure: Exception, *, looks: int
) -> Node | None:
    for attempt in range(1, looks + 1):
        try:
            node = find()
        except (TransportError, RefusedError, TpuctlError) as error:
            raise unknown("create", name.node_id, failure) from error
        if node is not None:
            return node
        if attempt < looks:
            caller.clock.sleep(
                caller.policy.first * 2 ** (attempt - 1) + backoff(caller.policy, attempt, caller.random)
            )
    return None


def _ours(name: NodeName, node: Node, label: str) -> Operation:
    if node.labels.get(REQUEST_LABEL) == label:
        return Operation.unnamed()
    raise _taken(name)


def _refused(name: NodeName, failure: TransportError | RefusedError) -> TpuctlError:
    error = translate(failure)
    is_conflict = isinstance(failure, RefusedError) and failure.refusal.code == 409
    return _taken(name) if is_conflict and not isinstance(error, AlreadyExistsError) else error


def _taken(name: NodeName) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"`{name.node_id}` already exists in {name.zone}", hint=f"see `tpuctl status {name.node_id}`"
    )
