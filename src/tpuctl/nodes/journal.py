"""The journal: what was done to a node and observed of it, on this disk or in a bucket.

`Journal` appends entries and reads them, as they are or folded into a `Past`. `NodeHistory` is the journal of one node while it
is reconciled. A durable entry is stored before a node is deleted; an entry about an observation may be lost.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tpuctl.errors import PreconditionFailedError, TpuctlError
from tpuctl.files import make_private_folder, read_own_file
from tpuctl.names import NodeName, file_stem, node_id_of_file
from tpuctl.nodes.journal_entries import (
    JournalEntry,
    decode_entries,
    encode_entry,
    last_lines,
    merge_journals,
    shorten_journal,
)
from tpuctl.nodes.past import Past, past_of, zone_memory
from tpuctl.platforms import flush_to_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tpuctl.clock import Clock
    from tpuctl.cloud.storage import StorageClient
    from tpuctl.models.node import Node
    from tpuctl.names import BucketPath
    from tpuctl.nodes.past import Creation, ZoneMemory

# Limits on what is read of other nodes: enough for years, and fast for thousands of nodes.
_MOST_BYTES = 2 << 20
# Files of Podman and Docker.
_CONTAINER_MARKERS = ("/run/.containerenv", "/.dockerenv")
# Each is a request if the journal is in a bucket.
_MOST_REMEMBERED = 100


class Journal:
    """The journal in one store, or in the files below a folder.

    `warn` is called once for each node with a torn or damaged line. `writer` marks the lines of this process.
    """

    def __init__(
        self, store: JournalStore | Path, *, warn: Callable[[str], None] = lambda _: None, writer: str | None = None
    ) -> None:
        self._folder = store if isinstance(store, Path) else None
        self._store: JournalStore = LocalJournalStore(store) if isinstance(store, Path) else store
        self._warn = warn
        self._writer = writer or f"{os.uname().nodename} {os.getpid()}"
        self._warned: set[NodeName] = set()
        self._usual: dict[tuple[str, str, str], timedelta | None] = {}

    def append(self, name: NodeName, event: str, at: datetime, *, durable: bool = True, **data: Any) -> None:  # JSON
        """Write one line. A durable line is on the disk, or in the bucket, when this returns.

        Raises `JournalError` if that is not possible. The caller must not delete a node then.
        """
        self._store.append(name, encode_entry(event, at, by=self._writer, data=data), durable=durable)

    def past(self, name: NodeName) -> Past:
        """Return what the entries of a node say about its past."""
        return past_of(self.entries(name), name.zone)

    def withdraw(self, name: NodeName, event: str, at: datetime) -> None:
        """Write that the change of the last entry with this event was not sent, so that it does not count."""
        with suppress(JournalError):
            self.append(name, "note", at, durable=False, unsent=event, text=f"the {event} was not sent")

    def entries(self, name: NodeName) -> list[JournalEntry]:
        """Return the entries of a node, oldest first.

        Torn and damaged lines are skipped, and `warn` is called. A file that cannot be read counts as empty; a bucket
        that cannot be read raises its error.
        """
        try:
            entries, damaged, is_torn = decode_entries(self._store.read(name))
        except UnreadableJournalError as error:
            if name not in self._warned:
                self._warned.add(name)
                self._warn(error.message)
            return []
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
        if isinstance(self._store, LocalJournalStore):
            if name is None:
                self._store.check()
            else:
                self._store.read(name)

    def names(self) -> list[NodeName]:
        """Return the nodes that have a journal, sorted."""
        return self._store.names()

    def namesakes(self, project: str, node_id: str) -> list[NodeName]:
        """Return the nodes of this name that have a journal, in any zone."""
        return [name for name in self.names() if (name.project, name.node_id) == (project, node_id)]

    def without_losers(self, names: Sequence[NodeName]) -> list[NodeName]:
        """Return the names of a node in several zones without the zones that lost a race, or where its creation failed.

        All of them if it is in none of these zones.
        """
        if len(names) < 2:
            return list(names)
        pasts = [(name, self.past(name)) for name in names]
        return [name for name, past in pasts if not (past.has_lost_race or past.has_failed_creation)] or list(names)

    def usual(self, project: str, accelerator_type: str, zone: str) -> timedelta | None:
        """Return the median time until nodes of this type were READY: in this zone, else in others; None if it is unknown.

        It is a hint, computed once: a thousand nodes of a type need it at each poll.
        """
        key = (project, accelerator_type, zone)
        if key not in self._usual:
            near: list[timedelta] = []
            far: list[timedelta] = []
            for name, creations in self._recent_creations(project, zone, accelerator_type):
                if near and name.zone != zone:
                    break
                (near if name.zone == zone else far).extend(
                    one.took for one in creations if one.took and one.is_for(accelerator_type)
                )
            lasted = sorted(near or far)
            self._usual[key] = lasted[len(lasted) // 2] if lasted else None
        return self._usual[key]

    def zone_memories(self, project: str, accelerator_type: str, tier: str | None) -> Mapping[str, ZoneMemory]:
        """Return what is remembered of each zone, for a type and a tier; None is on-demand."""
        found: dict[str, list[Creation]] = {}
        for name, creations in self._recent_creations(project, "", accelerator_type):
            found.setdefault(name.zone, []).extend(creations)
        return {zone: zone_memory(creations, accelerator_type, tier) for zone, creations in found.items()}

    def _recent_creations(
        self, project: str, zone: str, accelerator_type: str
    ) -> Iterator[tuple[NodeName, Sequence[Creation]]]:
        """Yield the creations in the most recent journals that have this type, those of the zone first.

        Unreadable ones are skipped.
        """
        wanted, left = f'"{accelerator_type}"'.encode(), _MOST_BYTES
        names: Sequence[NodeName] = ()
        with suppress(TpuctlError):
            names = self._store.recent(project, zone)[:_MOST_REMEMBERED]
        for name in names:
            content = b""
            with suppress(TpuctlError):
                content = self._store.read(name)
            left -= len(content)
            if wanted in content:
                yield name, past_of(decode_entries(content)[0], name.zone).creations
            if left < 0:
                return

    def is_lasting(self, environ: Mapping[str, str]) -> bool:
        """Return whether the journal outlives this machine, as far as that is known; a bucket does."""
        if self._folder is None:
            return True
        folder = self._folder.resolve()
        existing = next(place for place in (folder, *folder.parents) if place.exists())
        in_container = any(Path(marker).exists() for marker in _CONTAINER_MARKERS)
        # The layer of a container, which is deleted with it, is on no device. A volume is another file system.
        device = existing.stat().st_dev
        in_layer = in_container and device == Path("/").stat().st_dev and os.major(device) == 0
        # The volume of a pod may or may not be persistent.
        return not (in_layer or environ.get("KUBERNETES_SERVICE_HOST") or environ.get("CI"))

    def flush(self, *, only_due: bool = False) -> None:
        """Write the waiting lines; with `only_due` only those that have waited for a minute."""
        self._store.flush(only_due=only_due)


# Beyond this size in bytes the file of a node is renamed, and an object in a bucket halved.
JOURNAL_SIZE_LIMIT = 1 << 20


class JournalError(TpuctlError):
    """The journal cannot be written, so that no node may be deleted."""

    kind = "journal"

    def __init__(self, where: object, reason: str, *, remedy: str | None = None) -> None:
        remedy = remedy or "free some space or make the folder writable, or set TPUCTL_STATE_DIR"
        super().__init__(f"cannot write the journal: {where}: {reason}", hint=f"the change was not sent; {remedy}")


class UnreadableJournalError(TpuctlError):
    """The journal exists but cannot be read, so that its entries are unknown."""

    kind = "journal"

    def __init__(self, where: object, reason: str) -> None:
        super().__init__(
            f"cannot read the journal: {where}: {reason}",
            hint="make it readable, or set `TPUCTL_STATE_DIR` to its folder",
        )


class JournalStore(Protocol):
    """Stores a sequence of lines for each node. Several processes may write at the same time."""

    def append(self, name: NodeName, line: bytes, *, durable: bool) -> None:
        """Append a line. A durable line is stored when this returns. Raises `JournalError` if that is not possible."""

    def read(self, name: NodeName) -> bytes:
        """Return the lines, oldest first; empty if there are none."""

    def names(self) -> list[NodeName]:
        """Return the nodes that have lines, sorted."""

    def recent(self, project: str, zone: str) -> list[NodeName]:
        """Return the nodes of a project: first those of the zone, then the others, each the most recent first."""

    def where(self, name: NodeName) -> str:
        """Return the path or URL of the lines of a node."""

    def flush(self, *, only_due: bool) -> None:
        """Write the waiting lines; with `only_due` only those that have waited long enough."""


_FULL = "the disk is full"


class _LockError(OSError):
    """The file system has no locks, or none for this file."""


class LocalJournalStore:
    """The journal on the local disk: one private file for each node, PROJECT/ZONE/NAME.jsonl. The first write creates it.

    Every process locks the file to write and to read, so that it can be renamed while others write: to NAME.1.jsonl, which is
    read too and replaced by the next one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._safe: set[Path] = set()

    def append(self, name: NodeName, line: bytes, *, durable: bool) -> None:
        """Write a line. A durable line is on the disk when this returns."""
        path = self._path(name)
        try:
            make_private_folder(path.parent)
            with _locked(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as handle:
                size = _write(path, handle, line)
                if durable:
                    flush_to_disk(handle)
                    if path not in self._safe:  # once in this process, so that the file survives a power failure
                        for folder in path.relative_to(self._folder).parents:
                            _sync(self._folder / folder)
                        _sync(self._folder.parent)
                        self._safe.add(path)
                if size > JOURNAL_SIZE_LIMIT:
                    _rotate(path)
        except _LockError as error:
            remedy = "set TPUCTL_STATE_DIR to a folder on a file system with locks"
            raise JournalError(path, error.strerror or str(error), remedy=remedy) from error
        except OSError as error:
            raise JournalError(path, error.strerror or str(error)) from error

    def read(self, name: NodeName) -> bytes:
        """Return the content of the files. Raises `UnreadableJournalError`."""
        path = self._path(name)
        try:
            try:
                with _locked(path, os.O_RDONLY, fcntl.LOCK_SH):
                    return _read_both(path)
            except FileNotFoundError:  # there is none, or another process is renaming it
                return read_own_file(_rotated(path)) if _rotated(path).exists() else b""
        except OSError as error:
            raise UnreadableJournalError(path, error.strerror or str(error)) from error

    def check(self) -> None:
        """Raise `UnreadableJournalError` if one of the folders cannot be read."""
        place = self._folder
        try:
            for place in (self._folder, *self._folder.glob("*/"), *self._folder.glob("*/*/")):
                list(place.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnreadableJournalError(place, error.strerror or str(error)) from error

    def names(self) -> list[NodeName]:
        """Return the nodes that have a file, sorted."""
        return sorted({_name(path) for path in self._files("*/*")})

    def recent(self, project: str, zone: str) -> list[NodeName]:
        """Return the nodes of a project: first those of the zone, then the others, each the most recent first."""
        dated = []
        for path in self._files(f"{_folder_of(project)}/*"):
            with suppress(OSError):
                dated.append((path.parent.name == zone, path.stat().st_mtime_ns, path))
        return list(dict.fromkeys(_name(path) for _, _, path in sorted(dated, reverse=True)))

    def where(self, name: NodeName) -> str:
        """Return the path of a node's file."""
        return str(self._path(name))

    def flush(self, *, only_due: bool) -> None:
        """Do nothing: every line is written at once."""

    def _files(self, pattern: str) -> Iterator[Path]:
        # Of a folder that cannot be listed, such as one below /proc, there are no files; a write reports it.
        with suppress(OSError):
            yield from self._folder.glob(f"{pattern}/*.jsonl")

    def _path(self, name: NodeName) -> Path:
        return self._folder / _folder_of(name.project) / name.zone / f"{file_stem(name.node_id)}.jsonl"


def _write(path: Path, handle: int, line: bytes) -> int:
    """Write the whole line or none of it. Return the size of the file."""
    size = os.fstat(handle).st_size
    # A crash may have left a line without its end. The next line must not be lost with it.
    is_torn = size and os.pread(handle, 1, size - 1) != b"\n"
    text = b"\n" + line if is_torn else line
    if os.write(handle, text) < len(text):
        os.ftruncate(handle, size)
        raise JournalError(path, _FULL)
    return size + len(text)


def _rotate(path: Path) -> None:
    """Rename a long file, and begin the next one with lines that must outlive a later rename.

    Without them, on a full disk, readers find them in the renamed file.
    """
    with suppress(OSError, JournalError):
        kept = last_lines(_read_both(path))
        path.replace(_rotated(path))
        with _locked(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as handle:
            _write(path, handle, kept)
            flush_to_disk(handle)
        _sync(path.parent)


def _read_both(path: Path) -> bytes:
    newer = read_own_file(path)
    return merge_journals(read_own_file(_rotated(path)) if _rotated(path).exists() else b"", newer)


@contextmanager
def _locked(path: Path, flags: int, kind: int) -> Iterator[int]:
    """Open a file and wait for its lock. Yield the handle."""
    while True:
        # Opening a pipe for writing would block until it has a reader.
        handle = os.open(path, flags | os.O_NONBLOCK, 0o600)
        try:
            if stat.S_ISFIFO(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            try:
                fcntl.flock(handle, kind)
            except OSError as error:
                raise _LockError(error.errno, f"it cannot be locked: {error.strerror}") from error
            try:
                is_current = os.path.samestat(os.fstat(handle), path.stat())
            except FileNotFoundError:
                is_current = False
            # The file may have been renamed meanwhile.
            if is_current:
                yield handle
                return
        finally:
            os.close(handle)


def _sync(folder: Path) -> None:
    """Write the entries of a folder to the disk, if the file system supports it and the folder can be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            flush_to_disk(handle)
        finally:
            os.close(handle)


def _rotated(path: Path) -> Path:
    return path.with_name(f"{path.stem}.1.jsonl")


def _folder_of(project: str) -> str:
    # A domain-scoped project has a colon, which some file systems reject. No project has an underscore.
    return project.replace(":", "_")


def _name(path: Path) -> NodeName:
    project, zone, node_id = path.with_suffix("").parts[-3:]
    # The name of a node has no dot: behind one is the number of a renamed file.
    return NodeName(project.replace("_", ":"), zone, node_id_of_file(node_id.partition(".")[0]))


# How long a line that is not durable may wait. An object accepts about one write per second [docs: Cloud Storage quotas],
# so that not every line can be written by itself.
JOURNAL_PATIENCE = timedelta(seconds=60)
_ATTEMPTS = 20
_PAUSE = timedelta(milliseconds=200)
_MOST_WAITING = 1000


class BucketJournalStore:
    """The journal in Cloud Storage, for machines without a persistent disk: one object for each node below a prefix.

    An object is read, extended and replaced with its generation as precondition, and again after a simultaneous write: no
    line of another writer is lost. Lines that are not durable wait in memory, and are written with the next durable one;
    `warn` is called if they cannot be written.
    """

    def __init__(
        self,
        objects: StorageClient,
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

    def read(self, name: NodeName) -> bytes:
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
        if self._since is None or (only_due and now - self._since < JOURNAL_PATIENCE):
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
            if len(content) > JOURNAL_SIZE_LIMIT:
                content = shorten_journal(content, JOURNAL_SIZE_LIMIT // 2)
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
        return sorted(NodeName(part[0], part[1], node_id_of_file(part[2])) for part in parts if len(part) == 3)

    def _object(self, name: NodeName) -> str:
        return self._place.object_name(f"{name.project}/{name.zone}/{file_stem(name.node_id)}.jsonl")


class NodeHistory:
    """The journal of one node while it is reconciled.

    A node that tpuctl created or started and never saw usable is not in use yet, so that a repair interrupts no work; any
    other node may be in use. A set-up that has not succeeded on a node that tpuctl created runs again. A line that cannot be
    written is skipped: none of them is needed to undo a deletion.
    """

    def __init__(self, journal: Journal, name: NodeName, clock: Clock, *, only_reads: bool = False) -> None:
        self._journal, self._name, self._clock, self._only_reads = journal, name, clock, only_reads
        self.past, self.read_at = Past(zone=name.zone), clock.now()

    def read(self) -> None:
        """Read the entries of earlier runs."""
        self.past, self.read_at = self._journal.past(self._name), self._clock.now()

    def read_setups(self) -> None:
        """Read which set-ups have succeeded, also those of other runs since."""
        self.past = replace(self.past, setups={**self.past.setups, **self._journal.past(self._name).setups})

    def record_setup(self, node: Node, *, ok: bool, script: str | None = None) -> None:
        """Write the result of the set-up of a node, durably: another run may wait to run it.

        A `script` that is not that of the creation is written too: once it has succeeded, it is that of the next one.
        """
        data: dict[str, Any] = {"id": node.id, "ok": ok}
        made = self.past.created.spec if self.past.created else None
        if script not in {None, made.setup if made else None}:
            data["script"] = script
        with suppress(JournalError):
            self._journal.append(self._name, "setup", self._clock.now(), **data)
        self.remember("setup", **data)

    def record_stop(self, node_id: str | None) -> None:
        """Record that this run stops the node to start it again; None: it does not."""
        self.past = replace(self.past, stopped=node_id)

    def begin(self, node_id: str) -> None:
        """Write that a run is bringing the node up."""
        if not self.past.is_unfinished(node_id, self.read_at):
            self.write("bringing-up", id=node_id)

    def finish(self, node_id: str, **data: Any) -> None:  # JSON
        """Write that the node that a run was bringing up is usable."""
        if self.past.is_unfinished(node_id, self.read_at):
            self.write("usable", id=node_id, **data)
        self.record_stop(None)

    def write(self, event: str, **data: Any) -> None:  # JSON
        """Write an entry, unless the run only looks."""
        if not self._only_reads:
            with suppress(JournalError):
                self._journal.append(self._name, event, self._clock.now(), durable=False, **data)
        if event != "gave-up":  # this run goes on with the node
            self.remember(event, **data)

    def remember(self, event: str, **data: Any) -> None:  # JSON
        """Take an entry into account that is in the journal."""
        self.past = self.past.after({"at": self._clock.now().isoformat(), "event": event, **data})
