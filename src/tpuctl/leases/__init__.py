"""Holding nodes, so that two processes never repair the same one at once. The rules are in `lease.py`.

A store that cannot be reached raises; its failure is never taken for a node that is free. For one thread.
"""

from __future__ import annotations

from collections.abc import Callable
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

# So often another client may be quicker before we give up.
_ATTEMPTS = 5
# In real time: the run may have been interrupted, and the user waits for its end.
_LETTING_GO = timedelta(seconds=5)


class Store(Protocol):
    """Where records are: one for each node, replaced only by who names the version that is there.

    Every method raises `LeaseError`, or the exceptions of the service, where the store cannot be used.
    """

    def read(self, name: NodeName) -> Stored | None:
        """Return the record of a node; nothing only where there certainly is none."""

    def write(self, name: NodeName, record: Record, *, expected: str | None) -> str:
        """Replace version `expected` (None: there must be none) and return the new version.

        Raises `PreconditionFailedError` if another is there.
        """

    def remove(self, name: NodeName, *, expected: str) -> None:
        """Remove version `expected`. Raises `PreconditionFailedError` if another is there; none is fine."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A record of ours as we know it. `written` is when its last write began, by our monotonic clock."""

    record: Record
    version: str
    written: timedelta


class Leases:
    """The nodes that this process holds, and those of others."""

    def __init__(self, store: Store, clock: Clock, identity: Identity, policy: LeasePolicy | None = None) -> None:
        self.policy = policy or LeasePolicy()
        self._store = store
        self._clock = clock
        self._identity = identity
        self._held: dict[NodeName, _Held] = {}

    def holder(self, name: NodeName) -> Lease | None:
        """Return who else has the node, or took it away; None if it is free or ours."""
        found = self._store.read(name)
        standing = judge(found, self._identity.owner)
        return None if found is None or standing in {Standing.FREE, Standing.OURS} else seen(found)

    def acquire(
        self, name: NodeName, purpose: str, *, steal: bool = False, tell: Callable[[str], None] | None = None
    ) -> Lease | None:
        """Take the node; None if it is ours now, else who has it or took it away.

        With `steal` it is taken from anybody; one who is acting is waited for as in `end`.
        """
        for _ in range(_ATTEMPTS):
            found, standing = self._idle(name, tell) if steal else self._look(name)
            if not may_take(standing, purpose, steal=steal) and found is not None:
                return seen(found)
            if self._swap(name, held(self._identity, purpose, self.policy), found):
                return None
        raise self._contended(name)

    def renew(self, name: NodeName) -> bool:
        """Keep the node; False where it is not ours any more. Writes only when it is due.

        A store that does not answer leaves it ours for now: nothing can be changed before `begin` has written.
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
        """Write what is about to be done; False where it must not be, since the node is not ours any more.

        Call it again right before the request leaves: while the write is recent (`LeasePolicy.acts_within`) that costs
        nothing, and otherwise it is written anew. Raises where the store cannot be used: then nothing may be done either.
        """
        try:
            return self._announce(name, verb)
        except TpuctlError:
            self._is_idle(name)
            raise

    def done(self, name: NodeName) -> None:
        """Write that the change has ended. Where the store does not answer, the next `renew` writes it."""
        ours = self._held.get(name)
        if ours is None or ours.record.acting is None:
            return
        try:
            with limit_calls(SystemClock(), _LETTING_GO):
                self._rewrite(name, replace(ours.record, acting=None))
        except ServiceUnavailableError:
            self._is_idle(name)

    def release(self, name: NodeName) -> None:
        """Give the node up; nothing happens where it is not ours. Where that cannot be written, it expires."""
        self._held.pop(name, None)
        try:
            with limit_calls(SystemClock(), _LETTING_GO):
                for _ in range(_ATTEMPTS):
                    found, standing = self._look(name)
                    if found is None or standing is not Standing.OURS or self._removed(name, found):
                        return
        except TpuctlError:
            return

    def end(self, name: NodeName, by: str, *, tell: Callable[[str], None]) -> None:
        """Put a tombstone in the place of whoever has the node, before `down`, `delete` or `stop` act.

        One who is acting is waited for, `LeasePolicy.waits_at_most`; `tell` gets the words for that. Raises
        `ConflictError` where the holder goes on acting.
        """
        for _ in range(_ATTEMPTS):
            found, _standing = self._idle(name, tell)
            if self._swap(name, tombstone(self._identity, by, self._clock.now(), self.policy), found):
                self._held.pop(name, None)
                return
        raise self._contended(name)

    def _announce(self, name: NodeName, verb: str) -> bool:
        for _ in range(_ATTEMPTS):
            ours = self._held.get(name)
            if ours is None:
                return False
            if ours.record.acting == verb and self._since(ours) <= self.policy.acts_within:
                return True
            if not self._rewrite(name, replace(ours.record, acting=verb)):
                return False
        raise LeaseError("the lease takes too long to write; nothing was changed", hint="try again in a few minutes")

    def _is_idle(self, name: NodeName) -> None:
        """Keep in mind that nothing is under way; the next `renew` writes it."""
        if ours := self._held.get(name):
            idle = replace(ours.record, acting=None)
            self._held[name] = replace(ours, record=idle, written=ours.written - self.policy.ttl)

    def _look(self, name: NodeName) -> tuple[Stored | None, Standing]:
        found = self._store.read(name)
        return found, judge(found, self._identity.owner)

    def _idle(self, name: NodeName, tell: Callable[[str], None] | None) -> tuple[Stored | None, Standing]:
        """Return what is found as soon as its holder is not acting; one that is silent for its time to live is not."""
        start = self._clock.monotonic()
        version, since = "", start
        while True:
            found, standing = self._look(name)
            if found is None or standing is not Standing.ACTING:
                return found, standing
            now = self._clock.monotonic()
            if found.version != version:
                version, since = found.version, now
                if tell:
                    tell(f"waiting for `{found.record.who}`, which is about to {found.record.acting} `{name.node_id}`")
            elif now - since >= found.record.ttl:
                # A process that lives but hangs: it must not act on a write as old as this.
                return found, Standing.HELD
            if now - start > self.policy.waits_at_most:
                raise ConflictError(f"`{name.node_id}`: {seen(found)}", hint="stop that process, then try again")
            self._clock.sleep(self.policy.poll)

    def _rewrite(self, name: NodeName, record: Record) -> bool:
        """Replace our record; False, and forgotten, where it is not ours any more."""
        for _ in range(_ATTEMPTS):
            ours = self._held[name]
            if self._swap(name, record, Stored(ours.record, ours.version, timedelta())):
                return True
            # A write of ours whose answer was lost may have changed the version.
            found, standing = self._look(name)
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

    def _removed(self, name: NodeName, found: Stored) -> bool:
        try:
            self._store.remove(name, expected=found.version)
        except PreconditionFailedError:
            return False
        return True

    def _since(self, ours: _Held) -> timedelta:
        return self._clock.monotonic() - ours.written

    def _contended(self, name: NodeName) -> ConflictError:
        return ConflictError(f"too many processes want `{name.node_id}` at the same time", hint="try again in a moment")
