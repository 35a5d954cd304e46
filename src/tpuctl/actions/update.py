"""`tpuctl update`: change fields of a node, and see that the service has done it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from tpuctl.clock import format_duration
from tpuctl.errors import NotFoundError, TimedOutError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.clock import Clock
    from tpuctl.errors import TpuctlError
    from tpuctl.model import Operation, OperationError
    from tpuctl.names import NodeName

_INTERVAL = timedelta(seconds=2)


class Updater(Protocol):
    """The part of the cloud that changes fields of nodes."""

    def update_node(self, name: NodeName, changes: Mapping[str, Any]) -> Operation:
        """Change labels, tags, metadata or description, by the API's field names."""

    def get_operation(self, name: str) -> Operation:
        """Return the current state of an operation."""

    def operation_error(self, error: OperationError) -> TpuctlError:
        """Return the failure of an operation as an exception to raise."""


def update(
    cloud: Updater, clock: Clock, name: NodeName, changes: Mapping[str, Any], *, timeout: timedelta | None
) -> None:
    """Change fields, by the API's names, and wait until the operation has ended.

    Raises the error of the operation, and `TimedOutError` after the timeout.
    """
    operation = cloud.update_node(name, changes)
    started = clock.monotonic()
    while operation.name is not None and not operation.done:
        if timeout is not None and clock.monotonic() - started >= timeout:
            raise TimedOutError(
                f"the update of `{name.node_id}` has not finished after {format_duration(timeout)}",
                hint=f"it continues in the cloud; check it with `tpuctl status {name.zone}/{name.node_id}`",
            )
        clock.sleep(_INTERVAL)
        try:
            operation = cloud.get_operation(operation.name)
        except NotFoundError:
            # The service forgets operations after a while: this one has ended.
            return
    if operation.error is not None:
        raise cloud.operation_error(operation.error)
