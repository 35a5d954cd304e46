"""Wait for a queued resource. `request_steps` decides."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration
from tpuctl.errors import AccessError, NotFoundError, TimedOutError
from tpuctl.models.events import EventKind
from tpuctl.nodes.conditions import Fail
from tpuctl.nodes.poll import Wait, poll
from tpuctl.nodes.request_steps import AwaitRequest, decide_awaited

if TYPE_CHECKING:
    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.node import QueuedState
    from tpuctl.models.operation import Operation
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.request_steps import RequestGoal


def await_request(
    context: ActionContext, name: NodeName, request: QueuedResource, goal: RequestGoal, *, timeout: timedelta | None
) -> QueuedResource | None:
    """Wait until a queued resource is ACTIVE or gone. Return it as last seen, None if it is gone.

    Raises the error of a request that FAILED, `ConflictError` for one that was suspended, `TimedOutError` after the timeout.
    """
    clock, cloud, request_id = context.clock, context.cloud, request.queued_resource_id
    started = clock.monotonic()
    states: list[QueuedState] = []

    def step() -> QueuedResource | Wait | None:
        current = _look_again(cloud, request) if states else request
        cause = cloud.operation_error(current.error) if current is not None and current.error else None
        if current is not None and current.state not in states[-1:]:
            states.append(current.state)
            context.report(EventKind.STATE, name, f"queued resource {current.state}", request=str(current.state))
        match decide_awaited(goal, request_id, current, cause):
            case AwaitRequest(reason):
                return Wait(reason, data={"request": str(states[-1])})
            case Fail(error):
                raise error
        text = f"its queued resource is {goal} after {format_duration(clock.monotonic() - started)}"
        context.report(EventKind.REACHED, name, text)
        return current

    def late(waited: timedelta, reason: str) -> TimedOutError:
        return TimedOutError(
            f"the queued resource `{request_id}` is not {goal} after {format_duration(waited)}: {reason}",
            hint=f"it still waits and counts against the quota; continue with `tpuctl queue wait {request.short_name}`, or "
            f"cancel it with `tpuctl queue cancel {request.short_name}`",
        )

    return poll(context, name, step, until=None if timeout is None else started + timeout, late=late)


def _look_again(cloud: TpuClient, request: QueuedResource) -> QueuedResource | None:
    """Return a request as it is now; None if it is gone, or another one has its name."""
    try:
        found = cloud.get_queued_resource(request.name, version=request.api_version)
    except NotFoundError:
        return None
    except AccessError as error:
        left = (
            f"the queued resource {request.short_name} is left, and counts against the quota: "
            f"`tpuctl queue cancel {request.short_name}` cancels it"
        )
        error.hint = f"{error.hint}\n{left}" if error.hint else left
        raise
    return found if found.created == request.created else None


def accepted_request(
    context: ActionContext, request_name: str, operation: Operation, *, version: str, timeout: timedelta | None
) -> QueuedResource:
    """Wait until the service has accepted a request, and return the queued resource as this version of the API shows it."""
    request_id = request_name.rpartition("/")[2]

    def late(waited: timedelta) -> TimedOutError:
        return TimedOutError(
            f"the queued resource `{request_id}` was not accepted within {format_duration(waited)}",
            hint="the request was sent and counts against the quota; `tpuctl queue list` shows it",
        )

    context.cloud.await_operation(operation, timeout=timeout, late=late)
    return context.cloud.get_queued_resource(request_name, version=version)
