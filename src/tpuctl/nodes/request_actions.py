"""Delete one queued resource, wait for it, or request its node again. `request_steps` decides."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.durations import format_duration
from tpuctl.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
)
from tpuctl.models.events import EventKind
from tpuctl.models.node import QueuedState
from tpuctl.models.operation import Operation
from tpuctl.models.spec import QueueWindow
from tpuctl.nodes.actions import spec_with_ssh_key
from tpuctl.nodes.actuator import NoLongerMeantError, describe_file_choices, describe_spec
from tpuctl.nodes.conditions import Fail, Verb
from tpuctl.nodes.garbage import group_of
from tpuctl.nodes.lease import hold_lease
from tpuctl.nodes.polling import poll_interval
from tpuctl.nodes.request_steps import (
    AwaitRequest,
    DeletionRefusedError,
    ObservedRequest,
    RequestGoal,
    RequestGone,
    RequestReached,
    SendRequestDelete,
    decide_awaited,
    decide_removal,
)

if TYPE_CHECKING:
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.garbage import ResourceGroup

# Raises if what was just read must stay.
StillMeant = Callable[["ResourceGroup"], None]


class _RequestChangedError(Exception):
    """The request is not as it was when its deletion was decided: it never leaves this module."""


# Refusals in a row for a state that does not change. The service may refuse what its own state allows for a moment.
_MAX_REFUSALS = 3


class RequestRemoval:
    """Deletes one queued resource, and no other of its name, until the API answers 404.

    `name` is the node that events are about. `until` is a monotonic time of the context's clock; None: no deadline.
    `still_meant` gets the request with its nodes right before each deletion, and raises if they must stay.
    """

    def __init__(
        self,
        context: ActionContext,
        name: NodeName,
        request: QueuedResource,
        *,
        until: timedelta | None,
        still_meant: StillMeant = lambda _: None,
    ) -> None:
        self.request = request
        # The last delete that the service accepted; None before it.
        self.operation: Operation | None = None
        self.has_forced = False
        self._context, self._name, self._until = context, name, until
        self._still_meant = still_meant
        self._ended_at: timedelta | None = None
        # Refused deletes in a row, and the state in which they were refused.
        self._refusals = 0
        self._refused_in: QueuedState | None = None

    def send(self, *, wait: bool) -> None:
        """Delete it as soon as its state allows that. Return when the service has accepted it, or when it is gone.

        Without `wait` raise `ConflictError` if its state does not allow it now. Raises `TimedOutError` at the deadline.
        """
        self._advance(wait=wait, until_gone=False)

    def follow(self) -> None:
        """Wait until it is gone, and delete it again if it stays. Raises `TimedOutError` at the deadline."""
        self._advance(wait=True, until_gone=True)

    def report_gone(self) -> None:
        """Report that it is gone."""
        self._context.report(
            EventKind.REACHED, self._name, f"its queued resource `{self.request.queued_resource_id}` is gone"
        )

    def _advance(self, *, wait: bool, until_gone: bool) -> None:
        clock = self._context.clock
        started, has_looked = clock.monotonic(), False
        while True:
            reason = "the API does not answer"
            try:
                seen = self._look()
                has_looked = True
                match step := decide_removal(seen):
                    case RequestGone():
                        return
                    case AwaitRequest(reason):
                        is_accepted = self.operation is not None or _is_deleting(seen)
                        if not until_gone and is_accepted:
                            return
                        if not wait:
                            raise self._not_now(reason)
                    case SendRequestDelete():
                        if self._delete(seen, step) and not until_gone:
                            return
                        reason = "its queued resource is being deleted"
                    case _:
                        assert_never(step)
            except (ServiceUnavailableError, QuotaError):
                # An outage is no evidence about the request: it is looked at again.
                if not (wait and has_looked):
                    raise
            waited = clock.monotonic() - started
            pause = poll_interval(waited)
            if self._until is not None:
                left = self._until - clock.monotonic()
                if left <= timedelta():
                    raise self._late(waited, reason)
                pause = min(pause, left)
            self._context.report(EventKind.WAIT, self._name, reason, in_state=waited.total_seconds())
            clock.sleep(pause)

    def _look(self) -> ObservedRequest:
        """Fetch the request, and the operation of the delete while the request does not show it."""
        clock, cloud = self._context.clock, self._context.cloud
        left = None if self._until is None else max(self._until - clock.monotonic(), timedelta())
        with limit_cloud_calls(clock, left, grace=DEADLINE_GRACE):
            try:
                current = cloud.get_queued_resource(self.request.name)
            except NotFoundError:
                return ObservedRequest(request=None)
            if current.created != self.request.created:
                if self.operation is None:
                    raise ConflictError(
                        f"the queued resource `{self.request.queued_resource_id}` changed meanwhile: another client requested "
                        "the node again",
                        hint=f"see the new one with `tpuctl queue status {self.request.short_name}`",
                    )
                return ObservedRequest(request=None)
            if self.operation is None:
                return ObservedRequest(request=current)
            if (
                self.operation.name is not None
                and not self.operation.done
                and current.state is not QueuedState.DELETING
            ):
                try:
                    self.operation = cloud.get_operation(self.operation.name)
                except NotFoundError:
                    # The service forgets operations after a while: this one has ended.
                    self.operation = Operation(None, done=True)
        if self.operation.error is not None:
            error = cloud.operation_error(self.operation.error)
            if not isinstance(error, ServiceUnavailableError):
                raise error
            # It counts as ended: a request that stays is deleted again.
            self.operation = Operation(None, done=True)
        is_pending = self.operation.name is not None and not self.operation.done
        now = clock.monotonic()
        self._ended_at = None if is_pending else self._ended_at or now
        since = None if self._ended_at is None else now - self._ended_at
        return ObservedRequest(request=current, is_delete_pending=is_pending, since_delete=since)

    def _delete(self, seen: ObservedRequest, step: SendRequestDelete) -> bool:
        """Send the delete. Return False if the service refused it and the request must be looked at again."""
        again = " again: it is still there" if self.operation else ""
        text = f"deleting its queued resource `{self.request.queued_resource_id}`{again}"
        self._context.report(EventKind.ACTION, self._name, text, verb=str(Verb.DELETE))

        def judge(current: QueuedResource, nodes: tuple[Node, ...]) -> None:
            if seen.request is None or (current.created, current.state) != (seen.request.created, seen.request.state):
                raise _RequestChangedError
            self._still_meant(group_of(self._name.project, current, nodes))

        try:
            self.operation = self._context.cloud.delete_queued_resource(self.request.name, judge, force=step.force)
        except _RequestChangedError:
            return False
        except (NoLongerMeantError, NotFoundError):
            raise
        except ConflictError:
            # Its state may have changed since it was fetched.
            state = seen.request.state if seen.request else None
            self._refusals = self._refusals + 1 if state == self._refused_in else 1
            self._refused_in = state
            if self._refusals >= _MAX_REFUSALS:
                raise
            return False
        self._refusals, self._ended_at, self.has_forced = 0, None, self.has_forced or step.force
        return True

    def _not_now(self, reason: str) -> DeletionRefusedError:
        return DeletionRefusedError(
            f"`{self.request.queued_resource_id}` cannot be deleted now: {reason}",
            hint=f"`tpuctl queue cancel {self.request.short_name}` waits for that and deletes it",
        )

    def _late(self, waited: timedelta, reason: str) -> TimedOutError:
        request_id, lasted = self.request.queued_resource_id, format_duration(waited)
        if self.operation is None:
            return TimedOutError(
                f"the queued resource `{request_id}` was not deleted within {lasted}: {reason}",
                hint=f"it counts against the quota; continue with `tpuctl queue cancel {self.request.short_name}`",
            )
        return TimedOutError(
            f"the queued resource `{request_id}` is still being deleted after {lasted}",
            hint="no change was undone; the deletion continues in the cloud",
        )


def await_request(
    context: ActionContext, name: NodeName, request: QueuedResource, goal: RequestGoal, *, timeout: timedelta | None
) -> QueuedResource | None:
    """Wait until a queued resource is ACTIVE or gone. Return it as last seen, None if it is gone.

    Raises the error of a request that FAILED, `ConflictError` for one that was suspended, `TimedOutError` after the timeout.
    """
    clock, cloud, request_id = context.clock, context.cloud, request.queued_resource_id
    started = since = clock.monotonic()
    current: QueuedResource | None = request
    state = None
    while True:
        cause = cloud.operation_error(current.error) if current is not None and current.error else None
        step = decide_awaited(goal, request_id, current, cause)
        if current is not None and current.state != state:
            state, since = current.state, clock.monotonic()
            context.report(EventKind.STATE, name, f"queued resource {state}", request=str(state))
        match step:
            case RequestReached():
                text = f"its queued resource is {goal} after {format_duration(clock.monotonic() - started)}"
                context.report(EventKind.REACHED, name, text)
                return current
            case Fail(error):
                raise error
            case AwaitRequest(reason):
                pass
            case _:
                assert_never(step)
        now = clock.monotonic()
        left = None if timeout is None else started + timeout - now
        if left is not None and left <= timedelta():
            raise TimedOutError(
                f"the queued resource `{request_id}` is not {goal} after {format_duration(now - started)}: {reason}",
                hint=f"it still waits and counts against the quota; continue with `tpuctl queue wait {request.short_name}`, or "
                f"cancel it with `tpuctl queue cancel {request.short_name}`",
            )
        lasted = now - since
        text = f"{reason} for {format_duration(lasted)}"
        context.report(EventKind.WAIT, name, text, request=str(state), in_state=lasted.total_seconds())
        pause = poll_interval(lasted)
        clock.sleep(pause if left is None else min(pause, left))
        with suppress(ServiceUnavailableError, QuotaError), limit_cloud_calls(clock, left, grace=DEADLINE_GRACE):
            try:
                found = cloud.get_queued_resource(request.name, version=request.api_version)
                # Another request of that name is not the one that is waited for.
                current = found if found.created == request.created else None
            except NotFoundError:
                current = None
            except AccessError as error:
                left_text = (
                    f"the queued resource {request.short_name} is left, and counts against the quota: "
                    f"`tpuctl queue cancel {request.short_name}` cancels it"
                )
                error.hint = f"{error.hint}\n{left_text}" if error.hint else left_text
                raise


def request_node(
    context: ActionContext,
    name: NodeName,
    spec: NodeSpec,
    window: QueueWindow,
    *,
    reason: str,
    queued_resource_id: str | None = None,
    force_lease: bool = False,
) -> Operation:
    """Request a node through the queue, at most once. The spec is written to the journal first.

    Raises `ConflictError` if another client holds the lease of that name, `AlreadyExistsError` if the request exists.
    """
    context.check(name, spec)
    spec = context.stamped(spec)
    with hold_lease(context, name, "create", force_lease=force_lease):
        context.record(name, "create", reason=reason, spec=spec.to_json())
        chosen = describe_file_choices(context, name, spec)
        text = f"requesting {describe_spec(context, spec, name.zone)}{chosen}"
        context.report(EventKind.ACTION, name, text, verb=str(Verb.CREATE))
        with_key = spec_with_ssh_key(context, spec)
        try:
            return context.cloud.create_queued_resource(
                name, with_key, window.ended_by(spec.expires), queued_resource_id=queued_resource_id
            )
        except AlreadyExistsError as error:
            error.hint = f"`tpuctl queue status {name.zone}/{queued_resource_id or name.node_id}` shows it"
            raise


def retry_request(
    context: ActionContext,
    name: NodeName,
    request: QueuedResource,
    spec: NodeSpec,
    *,
    valid_for: timedelta | None,
    timeout: timedelta | None,
    force_lease: bool = False,
) -> QueuedResource:
    """Delete the record of a request that has ended, ask again with the same names, and wait for the acceptance.

    The journal has the spec before the deletion: `tpuctl up` continues an interrupted run.
    """
    clock = context.clock
    until = None if timeout is None else clock.monotonic() + timeout
    # A request that could not be made again is better kept.
    context.check(name, spec, replaces=request.requested_node(name.project))
    with hold_lease(context, name, "create", force_lease=force_lease, keep=True):
        context.record(name, "delete", reason=f"retry: it is {request.state}", spec=spec.to_json())
        removal = RequestRemoval(context, name, request, until=until)
        removal.send(wait=True)
        removal.follow()
    operation = request_node(
        context,
        name,
        spec,
        QueueWindow(now=context.server_now(), valid_until=valid_for),
        reason="retry",
        queued_resource_id=request.queued_resource_id,
    )
    left = None if until is None else max(until - clock.monotonic(), timedelta())
    return accepted_request(context, request.name, operation, version=spec.api_version, timeout=left)


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


def _is_deleting(seen: ObservedRequest) -> bool:
    return seen.request is not None and seen.request.state is QueuedState.DELETING
