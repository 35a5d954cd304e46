"""Whether this run may repair a node: it holds the node's lease while it does, and leaves the node to whoever else has it."""

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

# How often to look whether somebody else still has it.
_LOOK = timedelta(seconds=20)


class EndedError(ConflictError):
    """Somebody stopped the node, or took it over, while this run looked after it."""


class DeletedError(NotFoundError):
    """Somebody had tpuctl delete the node while this run looked after it."""


class Holding:
    """The lease of one node. `purpose` nothing: never taken, since this run changes nothing."""

    def __init__(self, context: Context, name: NodeName, purpose: str | None, *, steal: bool) -> None:
        self._context, self._name, self._purpose, self._steal = context, name, purpose, steal
        self._holds = False
        self._looked: timedelta | None = None
        self.held_by: str | None = None

    def take(self) -> bool:
        """Take the lease if it is not taken; returns whether it is ours now.

        Raises `EndedError` or `DeletedError` where somebody ended the node, and this run is not one that may begin anew.
        """
        if self._purpose is None:
            raise AssertionError("a run without a purpose changes nothing")
        if self._holds:
            return True
        other = self._context.leases.acquire(self._name, self._purpose, steal=self._steal)
        self._looked = self._context.clock.monotonic()
        if other is not None and other.ended is not None:
            raise _ended(self._name, other)
        self._holds, self.held_by = other is None, other.who if other else None
        return self._holds

    def find_out(self) -> bool:
        """Look who else has the node before it is given up; tell whether somebody was found that was not known of.

        Raises `EndedError` or `DeletedError` where it was ours and is not any more: that says more than what was seen.
        """
        if self._purpose is None or self.held_by is not None:
            return False
        other = self._context.leases.holder(self._name)
        if other is not None and self._holds:
            self.lose()
        if other is None or other.ended is not None:
            return False
        self._looked, self.held_by = self._context.clock.monotonic(), other.who
        return True

    def keep(self) -> None:
        """Renew the lease where it is ours; else look, from time to time, whether whoever had it still has it.

        Raises `EndedError` or `DeletedError` where it was ours and is not any more.
        """
        now = self._context.clock.monotonic()
        if self._holds:
            if not self._context.leases.renew(self._name):
                self.lose()
            return
        if self.held_by is not None and (self._looked is None or now - self._looked >= _LOOK):
            other = self._context.leases.holder(self._name)
            self._looked, self.held_by = now, other.who if other else None

    def lose(self) -> None:
        """Raise an error that says who has it now."""
        self._holds = False
        raise _ended(self._name, self._context.leases.holder(self._name))

    def release(self) -> None:
        """Let go of it."""
        if self._holds:
            self._holds = False
            self._context.leases.release(self._name)


@contextmanager
def changing(
    context: Context, name: NodeName, purpose: str, *, steal: bool = False, keep: bool = False
) -> Iterator[None]:
    """Hold the lease of a node while its user's change is requested; with `keep` it stays ours afterwards.

    Raises `ConflictError` where somebody else has the node.
    """
    other = context.leases.acquire(name, purpose, steal=steal)
    if other is not None or not context.leases.begin(name, purpose):
        who = str(other) if other else "somebody else has just taken it"
        raise ConflictError(
            f"`{name.node_id}` is looked after by somebody else: {who}",
            hint="let them finish, or take it over: `--steal`",
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
    """Take a node from whoever looks after it, for good, before it is stopped or deleted."""

    def tell(text: str) -> None:
        context.tell(Event(EventKind.NOTE, context.clock.now(), name, text))

    context.leases.end(name, by, tell=tell)


def _ended(name: NodeName, lease: Lease | None) -> EndedError | DeletedError:
    node_id = name.node_id
    if lease is not None and lease.ended is not None:
        by, who, at = lease.ended.by, lease.ended.who, lease.ended.at
        kind = EndedError if by == "stop" else DeletedError
        return kind(
            f"`{node_id}` was ended by `{by}` ({who}, {format_timestamp(at)}), so nothing more is done for it",
            hint=f"`tpuctl up {node_id}` brings it up again; a watch of what is there all the same: `--steal`",
        )
    taken = f" by {lease.who}" if lease else ""
    return EndedError(
        f"`{node_id}` was taken over{taken}, so nothing more is done for it here",
        hint="only one run at a time repairs a node; `--steal` takes it back",
    )
