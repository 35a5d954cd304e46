"""The journal as commands use it: add a line, read the lines of a node, learn from those of many."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuctl.clock import parse_timestamp
from tpuctl.errors import TpuctlError
from tpuctl.journal.lasting import filesystem_of, is_in_container, is_lasting
from tpuctl.journal.lines import Entry, decode, encode
from tpuctl.journal.local import LocalStore
from tpuctl.model import NodeSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from tpuctl.journal.store import Store
    from tpuctl.names import NodeName

# What is read at most to learn how long states last: enough for years of one node, quick also for thousands of nodes.
# What this run brings up is learned from as well, but not read again for each node.
_LEARN_AGAIN = timedelta(minutes=1)
_MOST_BYTES = 2 << 20
_MOST_READ = 300
_MOST_FAR = 10


@dataclass(frozen=True, slots=True)
class Remembered:
    """A spec from the journal, and when it was used."""

    spec: NodeSpec
    at: datetime | None


class Journal:
    """The journal in one store; a folder stands for the files below it.

    `warn` is told, once for each node, of a last line that a crash left torn. `writer` marks the lines of this process.
    """

    def __init__(
        self, store: Store | Path, *, warn: Callable[[str], None] = lambda _: None, writer: str | None = None
    ) -> None:
        self._folder = store if isinstance(store, Path) else None
        self._store: Store = LocalStore(store, warn=warn) if isinstance(store, Path) else store
        self._warn = warn
        self._writer = writer or f"{os.uname().nodename} {os.getpid()}"
        self._warned: set[NodeName] = set()
        self._usual: dict[tuple[str, str, str], Mapping[str, tuple[timedelta, ...]]] = {}
        self._learned_at: datetime | None = None

    def append(self, name: NodeName, event: str, at: datetime, *, durable: bool = True, **data: Any) -> None:  # JSON
        """Write one line; a durable one is on the disk, or in the bucket, when this returns.

        Raises `JournalError` if that is not possible: then nothing may be destroyed.
        """
        self._store.append(name, encode(event, at, by=self._writer, data=data), durable=durable)
        if event == "usable" and (self._learned_at is None or at - self._learned_at > _LEARN_AGAIN):
            self._usual.clear()
            self._learned_at = at

    def entries(self, name: NodeName, *, rotated: bool = True) -> list[Entry]:
        """Return what was written about a node, oldest first; without `rotated` only the newer lines where there are many.

        A torn or damaged line is left out, and `warn` is told.
        A file that cannot be read is empty; a bucket that cannot be read raises its error.
        """
        entries, damaged, is_torn = decode(self._store.read(name, rotated=rotated))
        if (damaged or is_torn) and name not in self._warned:
            self._warned.add(name)
            where = self._store.where(name)
            if is_torn:
                self._warn(f"the last line of the journal is incomplete and is left out: {where}")
            if damaged:
                lines = f"lines {', '.join(map(str, damaged[:3]))}{' …' if len(damaged) > 3 else ''}"
                which = f"{lines} of the journal are" if len(damaged) > 1 else f"line {damaged[0]} of the journal is"
                self._warn(f"{which} not tpuctl's, or damaged, and left out: {where}")
        return entries

    def check(self, name: NodeName | None = None) -> None:
        """Raise `UnreadableJournalError` if what a node left here, or with no name any of them, cannot be read.

        A bucket raises what the service answers when it is read.
        """
        if isinstance(self._store, LocalStore):
            self._store.check(name)

    def last_spec(self, name: NodeName) -> Remembered | None:
        """Return the spec that the node was last created from, or was seen to have before it was deleted."""
        for entry in reversed(self.entries(name)):
            if not entry.get("spec"):
                continue
            with suppress(TypeError, ValueError, KeyError):  # of another version of tpuctl, or not tpuctl's at all
                return Remembered(NodeSpec.from_json(entry["spec"]), parse_timestamp(entry.get("at")))
        return None

    def names(self) -> list[NodeName]:
        """Return the nodes that have a journal, sorted."""
        return self._store.names()

    def usual(
        self, project: str, accelerator_type: str, zone: str, *, limit: int = 50
    ) -> Mapping[str, tuple[timedelta, ...]]:
        """Return how long each state of nodes of that type lasted, sorted: the most recent `limit` times.

        Those of the same zone where there are any, else those of all zones. A guess: what cannot be read is done without.
        It is read seldom: a thousand nodes of a type ask the same at each look.
        """
        asked = (project, accelerator_type, zone)
        if asked not in self._usual:
            self._usual[asked] = self._learned(project, accelerator_type, zone, limit=limit)
        return self._usual[asked]

    def is_lasting(self, environ: Mapping[str, str]) -> bool:
        """Return whether what is written here outlasts this machine, as far as can be told; a bucket does."""
        if self._folder is None:
            return True
        return is_lasting(environ, filesystem=filesystem_of(self._folder), in_container=is_in_container())

    def flush(self, *, only_due: bool = False) -> None:
        """Write what waits to be written; with `only_due` only what has waited for a minute."""
        self._store.flush(only_due=only_due)

    def _learned(
        self, project: str, accelerator_type: str, zone: str, *, limit: int
    ) -> Mapping[str, tuple[timedelta, ...]]:
        from tpuctl.timing import durations, of_type  # noqa: PLC0415  # not needed to write

        near: list[Sequence[Mapping[str, Any]]] = []
        far: list[Sequence[Mapping[str, Any]]] = []
        wanted, left = f'"{accelerator_type}"'.encode(), _MOST_BYTES
        with suppress(TpuctlError):
            for name in self._store.recent(project, zone)[:_MOST_READ]:
                content = self._store.read(name, rotated=False)
                left -= len(content)
                if wanted in content and b'"CREATING"' in content:
                    (near if name.zone == zone else far).append(of_type(decode(content)[0], accelerator_type))
                if left < 0 or len(near) >= limit // 2 or len(far) >= _MOST_FAR:
                    break
        same = durations(near, limit=limit)
        return {**durations(far, limit=limit), **same}
