"""The journal: what was done to a node and observed of it, on this disk or in a bucket.

`Journal` appends entries, reads those of a node, and learns durations from those of many nodes. `NodeHistory` is the journal of
one node while it is reconciled. A durable entry is stored before a node is deleted; an entry about an observation may be lost.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tpuctl.durations import parse_timestamp
from tpuctl.errors import BrokenNodeError, PreconditionFailedError, TpuctlError
from tpuctl.files import make_private_folder, read_own_file, replace_file
from tpuctl.models.spec import REQUEST_LABEL, NodeSpec
from tpuctl.names import NodeName, file_stem, node_id_of_file
from tpuctl.nodes.journal_entries import (
    JournalEntry,
    ZoneMemory,
    decode_entries,
    encode_entry,
    entries_of_type,
    has_failed_creation,
    has_lost_race,
    merge_journals,
    shorten_journal,
    split_halves,
    state_durations,
    zone_memory,
)
from tpuctl.platforms import flush_to_disk, read_mount_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime

    from tpuctl.clock import Clock
    from tpuctl.cloud.storage import StorageClient
    from tpuctl.models.node import Node
    from tpuctl.names import BucketPath

# Limits on what is read to learn durations: enough for years of one node, and fast for thousands of nodes. The nodes
# that this run brings up count too, but are not read again for each of them.
_LEARN_AGAIN = timedelta(minutes=1)
_MOST_BYTES = 2 << 20
_MOST_READ = 300
_MOST_FAR = 10
# Each is a request if the journal is in a bucket.
_MOST_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class RememberedNode:
    """A spec from the journal, and the time of its use."""

    spec: NodeSpec
    at: datetime | None


class Journal:
    """The journal in one store, or in the files below a folder.

    `warn` is called once for each node with a torn or damaged line. `writer` marks the lines of this process.
    """

    def __init__(
        self, store: JournalStore | Path, *, warn: Callable[[str], None] = lambda _: None, writer: str | None = None
    ) -> None:
        self._folder = store if isinstance(store, Path) else None
        self._store: JournalStore = LocalJournalStore(store, warn=warn) if isinstance(store, Path) else store
        self._warn = warn
        self._writer = writer or f"{os.uname().nodename} {os.getpid()}"
        self._warned: set[NodeName] = set()
        self._usual: dict[tuple[str, str, str], Mapping[str, tuple[timedelta, ...]]] = {}
        self._learned_at: datetime | None = None

    def append(self, name: NodeName, event: str, at: datetime, *, durable: bool = True, **data: Any) -> None:  # JSON
        """Write one line. A durable line is on the disk, or in the bucket, when this returns.

        Raises `JournalError` if that is not possible. The caller must not delete a node then.
        """
        self._store.append(name, encode_entry(event, at, by=self._writer, data=data), durable=durable)
        if event == "usable" and (self._learned_at is None or at - self._learned_at > _LEARN_AGAIN):
            self._usual.clear()
            self._learned_at = at

    def entries(self, name: NodeName, *, rotated: bool = True) -> list[JournalEntry]:
        """Return the entries of a node, oldest first; without `rotated` only the newer half of a long journal.

        Torn and damaged lines are skipped, and `warn` is called. A file that cannot be read counts as empty; a bucket
        that cannot be read raises its error.
        """
        entries, damaged, is_torn = decode_entries(self._store.read(name, rotated=rotated))
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
            self._store.check(name)

    def last_spec(self, name: NodeName) -> RememberedNode | None:
        """Return the spec of the last creation of the node, or the one recorded before its deletion; None if there is none."""
        for entry in reversed(self.entries(name)):
            if not entry.get("spec"):
                continue
            with suppress(TypeError, ValueError, KeyError):  # written by another version of tpuctl, or another program
                return RememberedNode(NodeSpec.from_json(entry["spec"]), parse_timestamp(entry.get("at")))
        return None

    def names(self) -> list[NodeName]:
        """Return the nodes that have a journal, sorted."""
        return self._store.names()

    def without_losers(self, names: Sequence[NodeName]) -> list[NodeName]:
        """Return the names of a node in several zones without the zones that lost a race, or where its creation failed.

        All of them if it is in none of these zones.
        """
        if len(names) < 2:
            return list(names)
        kept = []
        for name in names:
            entries = self.entries(name, rotated=False)
            if not has_lost_race(entries, name.zone) and not has_failed_creation(entries):
                kept.append(name)
        return kept or list(names)

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

        near: list[Sequence[Mapping[str, Any]]] = []
        far: list[Sequence[Mapping[str, Any]]] = []
        wanted, left = f'"{accelerator_type}"'.encode(), _MOST_BYTES
        with suppress(TpuctlError):
            for name in self._store.recent(project, zone)[:_MOST_READ]:
                content = self._store.read(name, rotated=False)
                left -= len(content)
                if wanted in content and b'"CREATING"' in content:
                    (near if name.zone == zone else far).append(
                        entries_of_type(decode_entries(content)[0], accelerator_type)
                    )
                if left < 0 or len(near) >= limit // 2 or len(far) >= _MOST_FAR:
                    break
        self._usual[key] = {**state_durations(far, limit=limit), **state_durations(near, limit=limit)}
        return self._usual[key]

    def zone_memories(self, project: str, accelerator_type: str, tier: str | None) -> Mapping[str, ZoneMemory]:
        """Return what is remembered of each zone, for a type and a tier; None is on-demand.

        It is an estimate from the most recent journals: unreadable ones are skipped.
        """
        found: dict[str, ZoneMemory] = {}
        wanted, left = f'"{accelerator_type}"'.encode(), _MOST_BYTES
        with suppress(TpuctlError):
            for name in self._store.recent(project, "")[:_MOST_REMEMBERED]:
                content = self._store.read(name, rotated=False)
                left -= len(content)
                if wanted in content:
                    memory = zone_memory(decode_entries(content)[0], accelerator_type, tier)
                    found[name.zone] = found.get(name.zone, ZoneMemory()).merge(memory)
                if left < 0:
                    break
        return found

    def is_lasting(self, environ: Mapping[str, str]) -> bool:
        """Return whether the journal outlives this machine, as far as that is known; a bucket does."""
        if self._folder is None:
            return True
        table = read_mount_table()
        filesystem = None if table is None else mounted_at(table, self._folder.resolve())
        in_container = any(Path(marker).exists() for marker in _CONTAINER_MARKERS)
        return is_persistent(environ, filesystem=filesystem, in_container=in_container)

    def flush(self, *, only_due: bool = False) -> None:
        """Write the waiting lines; with `only_due` only those that have waited for a minute."""
        self._store.flush(only_due=only_due)


# The journal of a node is halved beyond this size in bytes.
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

    def read(self, name: NodeName, *, rotated: bool) -> bytes:
        """Return the lines, oldest first, with or without those that were rotated; empty if there are none."""

    def names(self) -> list[NodeName]:
        """Return the nodes that have lines, sorted."""

    def recent(self, project: str, zone: str) -> list[NodeName]:
        """Return the nodes of a project: first those of the zone, then the others, each the most recent first."""

    def where(self, name: NodeName) -> str:
        """Return the path or URL of the lines of a node."""

    def flush(self, *, only_due: bool) -> None:
        """Write the waiting lines; with `only_due` only those that have waited long enough."""


_FULL = "the disk is full"


class LocalJournalStore:
    """The journal on the local disk: one private file for each node, PROJECT/ZONE/NAME.jsonl. The first write creates it.

    Every process locks the file to write and to read, so that it can be rotated while others write: NAME.1.jsonl gets the
    older half. On a file system without locks, lines are still written whole, and nothing is rotated. `warn` is called once for
    each file that cannot be read.
    """

    def __init__(self, folder: Path, *, warn: Callable[[str], None] = lambda _: None) -> None:
        self._folder, self._warn = folder, warn
        self._safe: set[Path] = set()
        # Reported once each.
        self._unreadable: set[Path] = set()

    def append(self, name: NodeName, line: bytes, *, durable: bool) -> None:
        """Write a line. A durable line is on the disk when this returns."""
        path = self._path(name)
        try:
            make_private_folder(path.parent)
            with _locked(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as (handle, is_locked):
                size = _write(path, handle, line, may_take_back=is_locked)
                if durable:
                    flush_to_disk(handle)
                    if path not in self._safe:  # once in this process, so that the file survives a power failure
                        for folder in path.relative_to(self._folder).parents:
                            _sync(self._folder / folder)
                        _sync(self._folder.parent)
                        self._safe.add(path)
                if is_locked and size > JOURNAL_SIZE_LIMIT:
                    _rotate(path, _rotated(path))
        except OSError as error:
            raise JournalError(path, error.strerror or str(error)) from error

    def read(self, name: NodeName, *, rotated: bool) -> bytes:
        """Return the content of the files. For a file that cannot be read, `warn` is called and nothing is returned."""
        path = self._path(name)
        try:
            with _locked(path, os.O_RDONLY, fcntl.LOCK_SH):
                newer = read_own_file(path)
                older = read_own_file(_rotated(path)) if rotated and _rotated(path).exists() else b""
        except FileNotFoundError:
            return b""
        except OSError as error:
            if path not in self._unreadable:
                self._unreadable.add(path)
                self._warn(f"cannot read the journal: {path}: {error.strerror or error}")
            return b""
        return merge_journals(older, newer)

    def check(self, name: NodeName | None) -> None:
        """Raise `UnreadableJournalError` if the file of a node, or without a name one of the folders, cannot be read."""
        place = self._path(name) if name else self._folder
        try:
            if name:
                read_own_file(place)
                return
            for place in (self._folder, *self._folder.glob("*/"), *self._folder.glob("*/*/")):
                list(place.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnreadableJournalError(place, error.strerror or str(error)) from error

    def names(self) -> list[NodeName]:
        """Return the nodes that have a file, sorted."""
        return sorted(_name(path) for path in self._files("*/*"))

    def recent(self, project: str, zone: str) -> list[NodeName]:
        """Return the nodes of a project: first those of the zone, then the others, each the most recent first."""
        dated = []
        for path in self._files(f"{_folder_of(project)}/*"):
            with suppress(OSError):
                dated.append((path.parent.name == zone, path.stat().st_mtime_ns, path))
        return [_name(path) for _, _, path in sorted(dated, reverse=True)]

    def where(self, name: NodeName) -> str:
        """Return the path of a node's file."""
        return str(self._path(name))

    def flush(self, *, only_due: bool) -> None:
        """Do nothing: every line is written at once."""

    def _files(self, pattern: str) -> Iterator[Path]:
        # Of a folder that cannot be listed, such as one below /proc, there are no files; a write reports it.
        with suppress(OSError):
            # The stem of a node has no dot: a file with one is a rotated file.
            yield from (path for path in self._folder.glob(f"{pattern}/*.jsonl") if "." not in path.stem)

    def _path(self, name: NodeName) -> Path:
        return self._folder / _folder_of(name.project) / name.zone / f"{file_stem(name.node_id)}.jsonl"


def _write(path: Path, handle: int, line: bytes, *, may_take_back: bool) -> int:
    """Write the whole line or none of it. Return the size of the file."""
    size = os.fstat(handle).st_size
    # A crash may have left a line without its end. The next line must not be lost with it.
    is_torn = size and os.pread(handle, 1, size - 1) != b"\n"
    text = b"\n" + line if is_torn else line
    if os.write(handle, text) < len(text):
        if may_take_back:
            os.ftruncate(handle, size)
        raise JournalError(path, _FULL)
    return size + len(text)


def _rotate(path: Path, aside: Path) -> None:
    """Move the older half to another file. If the disk is full or the file is too large to read, it keeps growing."""
    try:
        before = read_own_file(aside) if aside.exists() else b""
        older, newer = split_halves(read_own_file(path), before=before)
        # In this order, a crash in between leaves lines twice, but loses none.
        for target, content in ((aside, older), (path, newer)):
            replace_file(target, content)
            _sync(target.parent)
    except OSError:
        return


@contextmanager
def _locked(path: Path, flags: int, kind: int) -> Iterator[tuple[int, bool]]:
    """Open a file and wait for its lock. Yield the handle, and whether the file system has locks."""
    while True:
        # Opening a pipe for writing would block until it has a reader.
        handle = os.open(path, flags | os.O_NONBLOCK, 0o600)
        try:
            if stat.S_ISFIFO(os.fstat(handle).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            try:
                fcntl.flock(handle, kind)
                is_locked = True
            except OSError:
                is_locked = False
            try:
                is_current = os.path.samestat(os.fstat(handle), path.stat())
            except FileNotFoundError:
                is_current = False
            # The file may have been rotated meanwhile. Then the lock is that of the deleted file.
            if is_current:
                yield handle, is_locked
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
    return NodeName(project.replace("_", ":"), zone, node_id_of_file(node_id))


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
                content = shorten_journal(content)
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


# Files of Podman and Docker.
_CONTAINER_MARKERS = ("/run/.containerenv", "/.dockerenv")
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


def is_persistent(environ: Mapping[str, str], *, filesystem: str | None = None, in_container: bool = False) -> bool:
    """Return whether files outlive this machine, as far as that is known. Pure.

    `filesystem` is the type of the file system of the folder. The layer of a container (overlay) is deleted with it. The
    volume of a pod may or may not be persistent, so that a pod counts as not persistent.
    """
    if environ.get("KUBERNETES_SERVICE_HOST") or environ.get("CI"):
        return False
    return filesystem not in _IN_MEMORY and not (in_container and filesystem == "overlay")


def mounted_at(table: str, folder: Path) -> str | None:
    """Return the type of the file system of a folder from a mount table [proc(5)]. Pure."""
    found, depth = None, -1
    for line in table.splitlines():
        _, _, rest = line.partition(" ")
        point, _, rest = rest.partition(" ")
        mount = Path(point.replace("\\040", " "))
        # Of two mounts at the same path, the later covers the earlier.
        if len(mount.parts) >= depth and folder.is_relative_to(mount):
            found, depth = rest.partition(" ")[0], len(mount.parts)
    return found


# After this time, a user may have begun to work on the node.
_RECENT = timedelta(hours=1)
_BEGINNINGS = frozenset({"bringing-up", "reboot", "restart", "start"})
# The maximum difference between the clocks of this machine and the service.
_SKEW = timedelta(minutes=5)


class NodeHistory:
    """The journal of one node while it is reconciled.

    A node that tpuctl created or started and never saw usable is not in use yet, so that a repair interrupts no work; any
    other node may be in use. A set-up that has not succeeded on a node that tpuctl created runs again. A line that cannot be
    written is skipped: none of them is needed to undo a deletion.
    """

    def __init__(self, journal: Journal, name: NodeName, clock: Clock) -> None:
        self._journal, self._name, self._clock = journal, name, clock
        # The node that tpuctl created or started and has not seen usable since.
        self._unfinished: str | None = None
        # The node that tpuctl stopped in order to start it again, and has not seen usable since.
        self.stopped: str | None = None
        # When tpuctl requested a node and has not observed it since.
        self._asked: datetime | None = None
        # When tpuctl last created a node, and the set-up that its workers run once it is usable.
        self.created: tuple[datetime, str | None] | None = None
        self._created_spec: Mapping[str, Any] = {}
        self._set_up: set[str] = set()

    def read(self) -> None:
        """Read the entries of earlier runs."""
        now = self._clock.now()
        for entry in self._journal.entries(self._name):
            at, event = parse_timestamp(entry.get("at")), entry.get("event")
            if event in {"restart", "usable"}:
                self.stopped = entry.get("id") if event == "restart" else None
            if event in _BEGINNINGS and at is not None and now - at < _RECENT:
                self._unfinished = entry.get("id")
            elif event == "usable" or (event == "gave-up" and entry.get("error") == BrokenNodeError.kind):
                # After any other end, such as a timeout, the next run continues with the node.
                self._unfinished = self._asked = None
            elif event == "note" and entry.get("refused") == "stop":
                self.stopped = None
            elif event == "create" and at is not None:
                self._created_spec = entry.get("spec") or {}
                self.created = (at, self._created_spec.get("setup"))
                # `tpuctl create` gives no reason: it does not wait until the node is usable.
                self._asked = at if entry.get("reason") and now - at < _RECENT else None
            elif event == "delete":
                self._asked = None
        self.read_setups()

    def read_setups(self) -> None:
        """Read which set-ups have succeeded, also those of other runs since."""
        done = (
            entry for entry in self._journal.entries(self._name) if entry.get("event") == "setup" and entry.get("ok")
        )
        self._set_up |= {str(entry.get("id")) for entry in done}

    def queued_spec(self) -> NodeSpec | None:
        """Return the spec of the last creation if it went through the queue, else None."""
        spec = NodeSpec.from_json(self._created_spec) if self._created_spec else None
        return spec if spec is not None and spec.is_queued else None

    def spec_as_it_is(self, node: Node) -> NodeSpec:
        """Return the spec of an existing node, with the set-up of the last creation, which only the journal knows."""
        spec = replace(NodeSpec.from_node(node), setup=self.created[1] if self.created else None)
        made = self.made_as(node)
        return spec if made is None else spec.completed_from(made, node)

    def record_creation(self, at: datetime, spec: NodeSpec | None) -> None:
        """Record that the node was requested with this spec."""
        self.created = (at, spec.setup if spec else None)
        self._created_spec = spec.to_json() if spec else {}

    def made_as(self, node: Node, *, created: datetime | None = None) -> NodeSpec | None:
        """Return the spec that tpuctl created this node with; None if it is not the one of the last creation.

        `created` is the time of the creation of a node that is only requested.
        """
        created = node.created if created is None else created
        if self.created is None or not self._created_spec or REQUEST_LABEL not in node.labels or created is None:
            return None
        return NodeSpec.from_json(self._created_spec) if created >= self.created[0] - _SKEW else None

    def setup_to_do(self, node: Node) -> str | None:
        """Return the set-up that has not run yet on a node that tpuctl created; None for any other node."""
        if self.created is None or node.id in self._set_up:
            return None
        at, setup = self.created
        return setup if setup and node.created is not None and node.created >= at - _SKEW else None

    def record_setup(self, node: Node, *, ok: bool) -> None:
        """Write the result of the set-up of a node, durably: another run may wait to run it."""
        with suppress(JournalError):
            self._journal.append(self._name, "setup", self._clock.now(), id=node.id, ok=ok)
        if ok:
            self._set_up.add(node.id)

    def is_left(self, node: Node) -> bool:
        """Return whether an earlier run requested or started this node and ended before it was usable."""
        if self._unfinished == node.id:
            return True
        if REQUEST_LABEL not in node.labels or self._asked is None or node.created is None:
            return False
        return node.created >= self._asked - _SKEW

    def record_refused_stop(self, text: str) -> None:
        """Write that the service refused to stop the node, so that no later run starts it again."""
        self.stopped = None
        self.write("note", text=text, refused="stop")

    def begin(self, node_id: str) -> None:
        """Write that a run is bringing the node up."""
        if self._unfinished != node_id:
            self.write("bringing-up", id=node_id)
        self._unfinished = node_id

    def finish(self, node_id: str, **data: Any) -> None:  # JSON
        """Write that the node that a run was bringing up is usable."""
        self.stopped = None
        if self._unfinished == node_id:
            self.write("usable", id=node_id, **data)
            self._unfinished = None

    def write(self, event: str, **data: Any) -> None:  # JSON
        """Write an entry."""
        with suppress(JournalError):
            self._journal.append(self._name, event, self._clock.now(), durable=False, **data)


# Why a node was deleted that is not created again by the run that deleted it; `gc: …` is another.
FINAL_REASONS: Final = frozenset({"asked for", "expired", "idle"})


def is_being_recreated(journal: Journal, name: NodeName) -> bool:
    """Return whether an earlier run deleted the node in order to create it again, and ended before it did."""
    is_between = False
    for entry in journal.entries(name):
        if entry.get("event") == "delete":
            is_between = not _is_final(str(entry.get("reason")))
        elif entry.get("event") in {"bringing-up", "usable", "gave-up"}:
            is_between = False
    return is_between


def was_ended(journal: Journal, name: NodeName) -> bool:
    """Return whether the last thing that tpuctl did with the node was to delete it for good."""
    is_ended = False
    for entry in journal.entries(name):
        if entry.get("event") == "delete":
            is_ended = _is_final(str(entry.get("reason")))
        elif entry.get("event") in {"create", "bringing-up", "usable"}:
            is_ended = False
    return is_ended


def former_spec(journal: Journal, name: NodeName) -> NodeSpec | None:
    """Return the spec of a node that tpuctl created and has not deleted for good; None if there is none."""
    remembered = journal.last_spec(name)
    if remembered is None or was_ended(journal, name) or has_failed_creation(journal.entries(name)):
        return None
    return remembered.spec


def _is_final(reason: str) -> bool:
    return reason in FINAL_REASONS or reason.startswith("gc: ")


def current_spec(journal: Journal, node: Node, clock: Clock) -> NodeSpec:
    """Return the spec of an existing node, with its set-up, which only the journal knows."""
    history = NodeHistory(journal, node.name, clock)
    history.read()
    return history.spec_as_it_is(node)
