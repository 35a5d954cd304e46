"""The journal: append entries, read those of a node, and learn durations from those of many nodes."""

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

# Limits on what is read to learn durations: enough for years of one node, and fast for thousands of nodes. The nodes
# that this run brings up count too, but are not read again for each of them.
_LEARN_AGAIN = timedelta(minutes=1)
_MOST_BYTES = 2 << 20
_MOST_READ = 300
_MOST_FAR = 10


@dataclass(frozen=True, slots=True)
class Remembered:
    """A spec from the journal, and the time of its use."""

    spec: NodeSpec
    at: datetime | None


class Journal:
    """The journal in one store, or in the files below a folder.

    `warn` is called once for each node with a torn or damaged line. `writer` marks the lines of this process.
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
        """Write one line. A durable line is on the disk, or in the bucket, when this returns.

        Raises `JournalError` if that is not possible. The caller must not delete a node then.
        """
        self._store.append(name, encode(event, at, by=self._writer, data=data), durable=durable)
        if event == "usable" and (self._learned_at is None or at - self._learned_at > _LEARN_AGAIN):
            self._usual.clear()
            self._learned_at = at

    def entries(self, name: NodeName, *, rotated: bool = True) -> list[Entry]:
        """Return the entries of a node, oldest first; without `rotated` only the newer half of a long journal.

        Torn and damaged lines are skipped, and `warn` is called. A file that cannot be read counts as empty; a bucket
        that cannot be read raises its error.
        """
        entries, damaged, is_torn = decode(self._store.read(name, rotated=rotated))
        if (damaged or is_torn) and name not in self._warned:
            self._warned.add(name)
            where = self._store.where(name)
            if is_torn:
                self._warn(f"skipped the incomplete last line of the journal: {where}")
            if damaged:
                lines = f"lines {', '.join(map(str, damaged[:3]))}{' …' if len(damaged) > 3 else ''}"
                which = lines if len(damaged) > 1 else f"line {damaged[0]}"
                self._warn(f"skipped {which} of the journal, damaged or not written by tpuctl: {where}")
        return entries

    def check(self, name: NodeName | None = None) -> None:
        """Raise `UnreadableJournalError` if the file of a node, or without a name one of the folders, cannot be read.

        A bucket raises the error of the service when it is read.
        """
        if isinstance(self._store, LocalStore):
            self._store.check(name)

    def last_spec(self, name: NodeName) -> Remembered | None:
        """Return the spec of the last creation of the node, or the one recorded before its deletion; None if there is none."""
        for entry in reversed(self.entries(name)):
            if not entry.get("spec"):
                continue
            with suppress(TypeError, ValueError, KeyError):  # written by another version of tpuctl, or another program
                return Remembered(NodeSpec.from_json(entry["spec"]), parse_timestamp(entry.get("at")))
        return None

    def names(self) -> list[NodeName]:
        """Return the nodes that have a journal, sorted."""
        return self._store.names()

    def usual(
        self, project: str, accelerator_type: str, zone: str, *, limit: int = 50
    ) -> Mapping[str, tuple[timedelta, ...]]:
        """Return the sorted durations of each state of nodes of this type, from the most recent `limit` times.

        They are from the same zone if it has any, else from all zones. They are an estimate: unreadable journals are
        skipped. The result is cached, because a thousand nodes of a type need it at each poll.
        """
        key = (project, accelerator_type, zone)
        if key in self._usual:
            return self._usual[key]
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
        self._usual[key] = {**durations(far, limit=limit), **durations(near, limit=limit)}
        return self._usual[key]

    def is_lasting(self, environ: Mapping[str, str]) -> bool:
        """Return whether the journal outlives this machine, as far as that is known; a bucket does."""
        if self._folder is None:
            return True
        return is_lasting(environ, filesystem=filesystem_of(self._folder), in_container=is_in_container())

    def flush(self, *, only_due: bool = False) -> None:
        """Write the waiting lines; with `only_due` only those that have waited for a minute."""
        self._store.flush(only_due=only_due)
