"""The journal in Cloud Storage, for machines without a persistent disk: one object for each node.

An object is read, extended and replaced with its generation as precondition, and again after a simultaneous write: no line
of another writer is lost. Lines that are not durable wait in memory, and are written with the next durable one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from tpuctl.errors import PreconditionFailedError, TpuctlError
from tpuctl.journal.lines import shortened
from tpuctl.journal.store import LIMIT, JournalError
from tpuctl.names import NodeName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpuctl.clock import Clock
    from tpuctl.names import BucketPath

# How long a line that is not durable may wait. An object accepts about one write per second [docs: Cloud Storage quotas],
# so that not every line can be written by itself.
PATIENCE = timedelta(seconds=60)
_ATTEMPTS = 20
_PAUSE = timedelta(milliseconds=200)
_MOST_WAITING = 1000


class _Stored(Protocol):
    """One version of an object."""

    @property
    def content(self) -> bytes:
        """Its bytes."""

    @property
    def generation(self) -> int:
        """The generation of this version."""


class Objects(Protocol):
    """The part of Cloud Storage that the journal uses. Raises `PreconditionFailedError` if another generation is there."""

    def read(self, bucket: str, name: str) -> _Stored | None:
        """Return the object, or None if there is none."""

    def write(self, bucket: str, name: str, content: bytes, *, generation: int | None) -> int:
        """Replace that generation of the object (0: the object must not exist) and return the new one."""

    def list(self, bucket: str, prefix: str) -> Iterable[str]:
        """Return the names that begin with the prefix."""


class BucketStore:
    """The objects below a prefix of a bucket. `warn` is called if lines that are not durable cannot be written."""

    def __init__(
        self,
        objects: Objects,
        place: BucketPath,
        clock: Clock,
        *,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._objects, self._place, self._clock, self._warn = objects, place, clock, warn
        self._waiting: dict[NodeName, list[bytes]] = {}
        self._since: timedelta | None = None
        self._has_warned = False

    def append(self, name: NodeName, line: bytes, *, durable: bool) -> None:
        """Write a durable line, together with those that wait; keep any other for the next write."""
        waiting = self._waiting.get(name, [])
        if durable:
            try:
                self._extend(name, [*waiting, line])
            except TpuctlError as error:
                raise JournalError(
                    self.where(name), error.message, remedy=error.hint or "make the bucket writable"
                ) from error
            self._waiting.pop(name, None)
            return
        # Lines that cannot be written must not fill the memory: the oldest are dropped.
        self._waiting[name] = [*waiting, line][-_MOST_WAITING:]
        if self._since is None:
            self._since = self._clock.monotonic()
        self.flush(only_due=True)

    def read(self, name: NodeName, *, rotated: bool) -> bytes:  # noqa: ARG002  # nothing is rotated here
        """Return the content of the object and the waiting lines. Raises the error of the service."""
        found = self._objects.read(self._place.bucket, self._object(name))
        return (found.content if found else b"") + b"".join(self._waiting.get(name, ()))

    def names(self) -> list[NodeName]:
        """Return the nodes that have an object, sorted. Raises the error of the service."""
        return self._names("")

    def recent(self, project: str, zone: str) -> list[NodeName]:
        """Return the nodes of a project, those of the zone first. The order of their use is unknown."""
        return sorted(self._names(f"{project}/"), key=lambda name: name.zone != zone)

    def where(self, name: NodeName) -> str:
        """Return the URL of a node's object."""
        return f"gs://{self._place.bucket}/{self._object(name)}"

    def flush(self, *, only_due: bool) -> None:
        """Write the waiting lines; with `only_due` only if one has waited for a minute. Lines that fail keep waiting."""
        now = self._clock.monotonic()
        if self._since is None or (only_due and now - self._since < PATIENCE):
            return
        for name, waiting in list(self._waiting.items()):
            try:
                self._extend(name, waiting)
            except TpuctlError as error:
                if not self._has_warned:
                    self._warn(f"cannot write the journal at the moment: {self.where(name)}: {error.message}")
                self._has_warned = True
                continue
            del self._waiting[name]
        self._since = now if self._waiting else None

    def _extend(self, name: NodeName, added: list[bytes]) -> None:
        objects, bucket, target = self._objects, self._place.bucket, self._object(name)
        for attempt in range(1, _ATTEMPTS + 1):
            found = objects.read(bucket, target)
            before = found.content if found else b""
            if before and not before.endswith(b"\n"):
                before += b"\n"
            content = before + b"".join(added)
            if len(content) > LIMIT:
                content = shortened(content)
            try:
                objects.write(bucket, target, content, generation=found.generation if found else 0)
            except PreconditionFailedError:
                if attempt == _ATTEMPTS:
                    raise
                # Another writer may be quicker again: the pause grows with each attempt.
                self._clock.sleep(_PAUSE * attempt)
            else:
                return

    def _names(self, below: str) -> list[NodeName]:
        prefix = self._place.object_name(below)
        start = len(self._place.object_name(""))
        found = self._objects.list(self._place.bucket, prefix)
        parts = [name[start:].removesuffix(".jsonl").split("/") for name in found if name.endswith(".jsonl")]
        return sorted(NodeName(*part) for part in parts if len(part) == 3)

    def _object(self, name: NodeName) -> str:
        return self._place.object_name(f"{name.project}/{name.zone}/{name.node_id}.jsonl")
