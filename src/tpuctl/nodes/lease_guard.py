"""Hold the leases of nodes during a run or a change. `lease` has the protocol and the stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.clock import SystemClock, limit_cloud_calls
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.models.events import EventKind
from tpuctl.nodes.lease import RELEASE_TIMEOUT

if TYPE_CHECKING:
    from tpuctl.names import NodeName
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.lease import Lease


class TakenOverError(ConflictError):
    """Another client stopped the node, or took its lease, during this run."""


class DeletedByOtherError(NotFoundError):
    """Another tpuctl command deleted the node during this run."""


class LeaseGuard:
    """The lease of one node during a run. With `purpose` None it is never taken, because the run changes nothing."""

    def __init__(self, context: ActionContext, name: NodeName, purpose: str | None, *, force_lease: bool) -> None:
        self._context, self._name, self._purpose, self._force_lease = context, name, purpose, force_lease
        self._is_ours = False
        self.held_by: str | None = None

    def take(self) -> bool:
        """Take the lease if it is free. Return whether it is ours now.

        Raises `TakenOverError` or `DeletedByOtherError` if another command ended the node and the purpose does not revive it.
        """
        if self._purpose is None:
            raise AssertionError("a run without a purpose changes nothing")
        if self._is_ours:
            return True
        other = self._context.leases.acquire(self._name, self._purpose, force_lease=self._force_lease)
        if other is not None and other.record.ended is not None:
            raise _ended_error(self._name, other, self._purpose)
        self._is_ours, self.held_by = other is None, other.record.who if other else None
        return self._is_ours

    def require(self) -> None:
        """Have the lease: raise what `check` and `take` raise, and `ConflictError` if another process holds it."""
        self.check()
        if not self.take():
            raise ConflictError(
                f"`{self._name.node_id}` in {self._name.zone} is in use by {self.held_by}",
                hint="wait until it has finished, or take the lease with `--force-lease`",
            )

    def check(self) -> None:
        """Look whether the other process still holds the lease.

        Raises `TakenOverError` or `DeletedByOtherError` if the lease was ours, and a write has found that it is lost.
        """
        if self._is_ours and not self._context.leases.holds(self._name):
            self.raise_lost()
        if self.held_by is not None:
            other = self._context.leases.holder(self._name)
            self.held_by = other.record.who if other else None

    def find_other_holder(self) -> bool:
        """Ask the store. Return whether another process holds the lease that this run did not know of.

        Raises `TakenOverError` or `DeletedByOtherError` if the lease was ours and is lost: that explains more than the state
        of the node.
        """
        if self._purpose is None or self.held_by is not None:
            return False
        other = self._context.leases.holder(self._name)
        if other is not None and self._is_ours:
            self.raise_lost()
        if other is None or other.record.ended is not None:
            return False
        self.held_by = other.record.who
        return True

    def raise_lost(self) -> None:
        """Raise an error that names the current holder."""
        self._is_ours = False
        raise _ended_error(self._name, self._context.leases.holder(self._name), self._purpose)

    def release(self) -> None:
        """Release the lease if it is ours."""
        if self._is_ours:
            self._is_ours = False
            self._context.leases.release(self._name)


@contextmanager
def hold_lease(
    context: ActionContext, name: NodeName, purpose: str, *, force_lease: bool = False, keep: bool = False
) -> Iterator[None]:
    """Hold the lease of a node while a change is requested; with `keep` the lease stays ours afterwards.

    Raises `ConflictError` if another client holds it.
    """
    other = context.leases.acquire(name, purpose, force_lease=force_lease)
    if other is not None or not context.leases.begin(name, purpose):
        who = str(other) if other else "another client has just taken it"
        raise ConflictError(
            f"`{name.node_id}` is in use: {who}",
            hint="wait until it has finished, or take the lease with `--force-lease`",
        )
    try:
        yield
    except BaseException:
        context.leases.release(name)
        raise
    if keep:
        context.leases.done(name)
    else:
        context.leases.release(name)


@contextmanager
def released_at_end(leases: Mapping[NodeName, LeaseGuard]) -> Iterator[None]:
    """Release these leases after the block, within 5 seconds; also those that are added during the block."""
    try:
        yield
    finally:
        with limit_cloud_calls(SystemClock(), RELEASE_TIMEOUT):
            for lease in leases.values():
                lease.release()


def end_lease(context: ActionContext, name: NodeName, by: str) -> None:
    """End the lease of a node for good, before the node is stopped or deleted."""
    context.leases.end(name, by, notify=partial(context.report, EventKind.NOTE, name))


def _ended_error(name: NodeName, lease: Lease | None, purpose: str | None) -> TakenOverError | DeletedByOtherError:
    node_id = name.node_id
    if lease is not None and (at := lease.record.ended):
        by, who = lease.record.purpose, lease.record.who
        kind = TakenOverError if by == "stop" else DeletedByOtherError
        watching = "; to watch it nevertheless, pass `--force-lease`" if purpose == "watch" else ""
        return kind(
            f"`{by}` ended `{node_id}` ({who}, {at}); this run leaves it alone",
            hint=f"`tpuctl up {node_id}` starts or creates it again{watching}",
        )
    taken = f" by {lease.record.who}" if lease else ""
    return TakenOverError(
        f"`{node_id}` was taken over{taken}; this run leaves it alone",
        hint="only one run at a time may repair a node; `--force-lease` takes it back",
    )
