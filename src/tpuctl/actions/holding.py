"""Hold the lease of a node while it is changed, and leave the node alone while another process holds it."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import format_timestamp
from tpuctl.errors import ConflictError, NotFoundError
from tpuctl.events import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.actions.cloud import Context
    from tpuctl.lease import Lease
    from tpuctl.names import NodeName

# How often to check whether another process still holds the lease.
_LOOK = timedelta(seconds=20)


class EndedError(ConflictError):
    """Another client stopped the node, or took its lease, during this run."""


class DeletedError(NotFoundError):
    """Another tpuctl command deleted the node during this run."""


class Holding:
    """The lease of one node. With `purpose` None it is never taken, because the run changes nothing."""

    def __init__(self, context: Context, name: NodeName, purpose: str | None, *, steal: bool) -> None:
        self._context, self._name, self._purpose, self._steal = context, name, purpose, steal
        self._holds = False
        self._checked_at: timedelta | None = None
        self.held_by: str | None = None

    def take(self) -> bool:
        """Take the lease if it is free. Return whether it is ours now.

        Raises `EndedError` or `DeletedError` if another command ended the node and the purpose does not revive it.
        """
        if self._purpose is None:
            raise AssertionError("a run without a purpose changes nothing")
        if self._holds:
            return True
        other = self._context.leases.acquire(self._name, self._purpose, steal=self._steal)
        self._checked_at = self._context.clock.monotonic()
        if other is not None and other.ended is not None:
            raise _ended(self._name, other)
        self._holds, self.held_by = other is None, other.who if other else None
        return self._holds

    def find_other_holder(self) -> bool:
        """Return whether another process holds the lease that this run did not know of.

        Raises `EndedError` or `DeletedError` if the lease was ours and is lost: that explains more than the node's state.
        """
        if self._purpose is None or self.held_by is not None:
            return False
        other = self._context.leases.holder(self._name)
        if other is not None and self._holds:
            self.raise_lost()
        if other is None or other.ended is not None:
            return False
        self._checked_at, self.held_by = self._context.clock.monotonic(), other.who
        return True

    def keep(self) -> None:
        """Renew our lease; if another process holds it, check from time to time whether it still does.

        Raises `EndedError` or `DeletedError` if the lease was ours and is lost.
        """
        now = self._context.clock.monotonic()
        if self._holds:
            if not self._context.leases.renew(self._name):
                self.raise_lost()
            return
        if self.held_by is not None and (self._checked_at is None or now - self._checked_at >= _LOOK):
            other = self._context.leases.holder(self._name)
            self._checked_at, self.held_by = now, other.who if other else None

    def raise_lost(self) -> None:
        """Raise an error that names the current holder."""
        self._holds = False
        raise _ended(self._name, self._context.leases.holder(self._name))

    def release(self) -> None:
        """Release the lease if it is ours."""
        if self._holds:
            self._holds = False
            self._context.leases.release(self._name)


@contextmanager
def changing(
    context: Context, name: NodeName, purpose: str, *, steal: bool = False, keep: bool = False
) -> Iterator[None]:
    """Hold the lease of a node while a change is requested; with `keep` the lease stays ours afterwards.

    Raises `ConflictError` if another client holds it.
    """
    other = context.leases.acquire(name, purpose, steal=steal)
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


def end_watch(context: Context, name: NodeName, by: str) -> None:
    """End the lease of a node for good, before the node is stopped or deleted."""

    def tell(text: str) -> None:
        context.tell(Event(EventKind.NOTE, context.clock.now(), name, text))

    context.leases.end(name, by, tell=tell)


def _ended(name: NodeName, lease: Lease | None) -> EndedError | DeletedError:
    node_id = name.node_id
    if lease is not None and lease.ended is not None:
        by, who, at = lease.ended.by, lease.ended.who, lease.ended.at
        kind = EndedError if by == "stop" else DeletedError
        return kind(
            f"`{by}` ended `{node_id}` ({who}, {format_timestamp(at)}); this run leaves it alone",
            hint=f"`tpuctl up {node_id}` starts or creates it again; to watch it anyway, pass `--force-lease`",
        )
    taken = f" by {lease.who}" if lease else ""
    return EndedError(
        f"`{node_id}` was taken over{taken}; this run leaves it alone",
        hint="only one run at a time may repair a node; `--force-lease` takes it back",
    )
