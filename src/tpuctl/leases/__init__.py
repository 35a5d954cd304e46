"""Hold leases on nodes, so that two processes never repair the same node. The rules are in `lease.py`.

An unreachable store raises an error; it never counts as a free node. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from tpuctl.clock import SystemClock, limit_calls
from tpuctl.errors import ConflictError, PreconditionFailedError, ServiceUnavailableError, TpuctlError
from tpuctl.lease import (
    Identity,
    Lease,
    LeaseError,
    LeasePolicy,
    Record,
    Standing,
    Stored,
    held,
    judge,
    may_take,
    seen,
    tombstone,
)

if TYPE_CHECKING:
    from tpuctl.clock import Clock
    from tpuctl.names import NodeName

__all__ = ["Identity", "Lease", "LeaseError", "LeasePolicy", "Leases", "Store"]

# Attempts to write a record against simultaneous writers.
_ATTEMPTS = 5
# In real time: the run may have been interrupted, and the user waits for it to end.
_LETTING_GO = timedelta(seconds=5)


class Store(Protocol):
    """Stores one record for each node, and replaces it by compare-and-swap.

    Every method raises `LeaseError`, or the exceptions of the service, if the store cannot be used.
    """

    def read(self, name: NodeName) -> Stored | None:
        """Return the record of a node; None only if it certainly does not exist."""

    def write(self, name: NodeName, record: Record, *, expected: str | None) -> str:
        """Replace version `expected` (None: no record may exist) and return the new version.

        Raises `PreconditionFailedError` for another version.
        """

    def remove(self, name: NodeName, *, expected: str) -> None:
        """Remove version `expected`. Raises `PreconditionFailedError` if another is there; none is fine."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A record of this process. `written` is when its last write began, by our monotonic clock."""

    record: Record
    version: str
    written: timedelta


class Leases:
    """The leases of this process, and those of others."""

    def __init__(self, store: Store, clock: Clock, identity: Identity, policy: LeasePolicy | None = None) -> None:
        self.policy = policy or LeasePolicy()
        self._store = store
        self._clock = clock
        self._identity = identity
        self._held: dict[NodeName, _Held] = {}

    def holder(self, name: NodeName) -> Lease | None:
        """Return the lease of another holder, or the mark of its end; None if the node is free or ours."""
        found = self._store.read(name)
        standing = judge(found, self._identity.owner)
        return None if found is None or standing in {Standing.FREE, Standing.OURS} else seen(found)

    def acquire(
        self, name: NodeName, purpose: str, *, steal: bool = False, tell: Callable[[str], None] | None = None
    ) -> Lease | None:
        """Take the lease. Return None if it is ours now, else the other lease or the mark of its end.

        With `steal` it is taken from any holder; a change of the holder in flight is awaited as in `end`.
        """
        for _ in range(_ATTEMPTS):
            found, standing = self._idle(name, tell) if steal else self._read(name)
            if not may_take(standing, purpose, steal=steal) and found is not None:
                return seen(found)
            if self._swap(name, held(self._identity, purpose, self.policy), found):
                return None
        raise self._contended(name)

    def renew(self, name: NodeName) -> bool:
        """Renew the lease if that is due. Return False if it is not ours any more.

        If the store does not answer, the lease stays ours for now: no change is sent before `begin` has written.
        """
        ours = self._held.get(name)
        if ours is None:
            return False
        if self._since(ours) < self.policy.renews_every:
            return True
        try:
            return self._rewrite(name, ours.record)
        except ServiceUnavailableError:
            return True

    def begin(self, name: NodeName, verb: str) -> bool:
        """Announce a change. Return False if it must not be sent, because the lease is not ours any more.

        Call it again right before the request: it writes again unless the last write is recent
        (`LeasePolicy.acts_within`). Raises if the store cannot be used; the change must not be sent then either.
        """
        try:
            for _ in range(_ATTEMPTS):
                ours = self._held.get(name)
                if ours is None:
                    return False
                if ours.record.acting == verb and self._since(ours) <= self.policy.acts_within:
                    return True
                if not self._rewrite(name, replace(ours.record, acting=verb)):
                    return False
            hint = "try again in a few minutes"
            raise LeaseError("writing the lease takes too long; no change was made", hint=hint)
        except TpuctlError:
            self._mark_idle(name)
            raise

    def done(self, name: NodeName) -> None:
        """Write that the change has ended. If the store does not answer, the next `renew` writes it."""
        ours = self._held.get(name)
        if ours is None or ours.record.acting is None:
            return
        try:
            with limit_calls(SystemClock(), _LETTING_GO):
                self._rewrite(name, replace(ours.record, acting=None))
        except ServiceUnavailableError:
            self._mark_idle(name)

    def release(self, name: NodeName) -> None:
        """Release the lease if it is ours. If that cannot be written, the lease expires."""
        self._held.pop(name, None)
        try:
            with limit_calls(SystemClock(), _LETTING_GO):
                for _ in range(_ATTEMPTS):
                    found, standing = self._read(name)
                    if found is None or standing is not Standing.OURS:
                        return
                    with suppress(PreconditionFailedError):
                        self._store.remove(name, expected=found.version)
                        return
        except TpuctlError:
            return

    def end(self, name: NodeName, by: str, *, tell: Callable[[str], None]) -> None:
        """Replace the lease of any holder by a tombstone, before `down`, `delete` or `stop` act.

        A change of the holder in flight is awaited for up to `LeasePolicy.waits_at_most`; `tell` gets a message about
        that. Raises `ConflictError` if the change does not end.
        """
        for _ in range(_ATTEMPTS):
            found, _standing = self._idle(name, tell)
            if self._swap(name, tombstone(self._identity, by, self._clock.now(), self.policy), found):
                self._held.pop(name, None)
                return
        raise self._contended(name)

    def _mark_idle(self, name: NodeName) -> None:
        """Remember that no change is in flight; the next `renew` writes it."""
        if ours := self._held.get(name):
            idle = replace(ours.record, acting=None)
            self._held[name] = replace(ours, record=idle, written=ours.written - self.policy.ttl)

    def _read(self, name: NodeName) -> tuple[Stored | None, Standing]:
        found = self._store.read(name)
        return found, judge(found, self._identity.owner)

    def _idle(self, name: NodeName, tell: Callable[[str], None] | None) -> tuple[Stored | None, Standing]:
        """Return the record once its holder has no change in flight, or has not written for its time to live."""
        start = self._clock.monotonic()
        version, since = "", start
        while True:
            found, standing = self._read(name)
            if found is None or standing is not Standing.ACTING:
                return found, standing
            now = self._clock.monotonic()
            if found.version != version:
                version, since = found.version, now
                if tell:
                    tell(f"waiting for `{found.record.who}`, which is about to {found.record.acting} `{name.node_id}`")
            elif now - since >= found.record.ttl:
                # A living process that hangs: it must not act on a write this old.
                return found, Standing.HELD
            if now - start > self.policy.waits_at_most:
                raise ConflictError(f"`{name.node_id}`: {seen(found)}", hint="stop that process, then try again")
            self._clock.sleep(self.policy.poll)

    def _rewrite(self, name: NodeName, record: Record) -> bool:
        """Replace our record. If it is not ours any more, forget it and return False."""
        for _ in range(_ATTEMPTS):
            ours = self._held[name]
            if self._swap(name, record, Stored(ours.record, ours.version, timedelta())):
                return True
            # A write of ours whose answer was lost may have changed the version.
            found, standing = self._read(name)
            if found is None or standing is not Standing.OURS:
                break
            self._held[name] = replace(ours, version=found.version)
        self._held.pop(name, None)
        return False

    def _swap(self, name: NodeName, record: Record, found: Stored | None) -> bool:
        began = self._clock.monotonic()
        try:
            version = self._store.write(name, record, expected=found.version if found else None)
        except PreconditionFailedError:
            return False
        self._held[name] = _Held(record, version, began)
        return True

    def _since(self, ours: _Held) -> timedelta:
        return self._clock.monotonic() - ours.written

    def _contended(self, name: NodeName) -> ConflictError:
        return ConflictError(f"too many processes want `{name.node_id}` at the same time", hint="try again in a moment")
