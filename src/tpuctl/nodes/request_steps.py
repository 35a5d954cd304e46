"""Decide the next step for one queued resource: how to delete it, and what a wait for it has reached. Pure.

Rules [facts: axlearn's source, API field text of `force`]: a request that is SUSPENDING is waited for and never deleted with
`force`; one that is SUSPENDED or FAILED is deleted without `force`, followed until the API answers 404, and deleted again
when it is still there; a state that this version does not know is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.models.node import QueuedState
from tpuctl.nodes.conditions import Fail
from tpuctl.nodes.queueing import request_failure

if TYPE_CHECKING:
    from tpuctl.errors import TpuctlError
    from tpuctl.models.queued import QueuedResource

# A request that is still there for this long after its deletion ended is deleted again [facts: axlearn's source].
LINGER_TIME: Final = timedelta(seconds=30)


class DeletionRefusedError(ConflictError):
    """A queued resource cannot be deleted in its present state, which passes."""


class RequestChangedError(Exception):
    """The request is not as it was when its deletion was decided: it is looked at again. Commands never see this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRequest:
    """What a command has seen of the queued resource that it deletes."""

    # None only after a 404 from the API, or if another request has its name now.
    request: QueuedResource | None
    # The operation of the last delete has not ended.
    is_delete_pending: bool = False
    # The time since the last delete ended; None if none was sent.
    since_delete: timedelta | None = None


@dataclass(frozen=True, slots=True)
class RequestGone:
    """The queued resource does not exist any more."""


@dataclass(frozen=True, slots=True)
class AwaitRequest:
    """Look again later."""

    reason: str


@dataclass(frozen=True, slots=True)
class SendRequestDelete:
    """Delete the queued resource; with `force` its nodes too."""

    force: bool


RemovalStep = RequestGone | AwaitRequest | SendRequestDelete


def decide_removal(seen: ObservedRequest) -> RemovalStep:
    """Return the next step to delete a queued resource. The first rule that matches wins."""
    request = seen.request
    if request is None:
        return RequestGone()
    what = f"its queued resource is {request.state}"
    if not request.state.is_known or request.state is QueuedState.STATE_UNSPECIFIED:
        return AwaitRequest(f"{what}, a state that tpuctl does not know: not deleted")
    if request.state is QueuedState.SUSPENDING:
        return AwaitRequest(f"{what}, and is deleted after that")
    if request.state is QueuedState.DELETING or seen.is_delete_pending:
        return AwaitRequest("its queued resource is being deleted")
    if seen.since_delete is not None and seen.since_delete < LINGER_TIME:
        return AwaitRequest(f"{what} after its deletion")
    return SendRequestDelete(force=not request.state.is_dead)


class RequestGoal(StrEnum):
    """What `queue wait` waits for."""

    ACTIVE = "active"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class RequestReached:
    """The queued resource has reached the goal."""


AwaitedStep = RequestReached | AwaitRequest | Fail


def decide_awaited(
    goal: RequestGoal, request_id: str, request: QueuedResource | None, cause: TpuctlError | None
) -> AwaitedStep:
    """Return whether a wait for a queued resource goes on. `request` is None only after a 404.

    `cause` is the error of a FAILED one, None if the service gives none.
    """
    if request is None:
        if goal is RequestGoal.GONE:
            return RequestReached()
        return Fail(NotFoundError(f"the queued resource `{request_id}` is gone", hint="`tpuctl queue list` shows all"))
    waiting = AwaitRequest(f"it is {request.state}")
    if goal is RequestGoal.GONE:
        return waiting
    match request.state:
        case QueuedState.ACTIVE:
            return RequestReached()
        case QueuedState.FAILED:
            return Fail(request_failure(request, cause, is_left=True))
        case QueuedState.SUSPENDED:
            return Fail(_suspended_error(request))
        case QueuedState.DELETING:
            return Fail(ConflictError(f"the queued resource `{request_id}` is being deleted"))
    if not request.state.is_known:
        return AwaitRequest(f"it is {request.state}, a state that tpuctl does not know")
    return waiting


def _suspended_error(request: QueuedResource) -> ConflictError:
    name = request.short_name
    if request.was_suspended_by_service:
        what, hint = "the service: its nodes were preempted", f"`tpuctl queue retry {name}` asks again"
    else:
        what, hint = "a user", f"`tpuctl queue cancel {name}` deletes it"
    return ConflictError(f"the queued resource `{request.queued_resource_id}` was suspended by {what}", hint=hint)
