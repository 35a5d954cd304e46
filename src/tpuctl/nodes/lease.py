"""Leases: at most one process changes a node at a time.

A store holds one record for each node: its owner (random), its time to live (two minutes), the verb of a change in flight
(`acting`), and a tombstone (`ended`). A record is only replaced by compare-and-swap, so that one of two competing processes
gets it. `judge_lease` and `may_take` have the rules (pure), `LeaseKeeper` the protocol over a store and the heartbeat,
`LeaseGuard` the lease of one node during a run.

- A process that finds no record, or an expired one, writes its own over exactly the version that it read.
- A heartbeat of the owner renews every third of the time to live, whatever the run does meanwhile: it writes the record as it
  is, `acting` included. It may renew an expired lease that no other process has taken. The run learns before its next step and
  before its next change that a lease is lost.
- Before each change of the cloud the owner writes the verb (`acting`), and clears it afterwards. It must not send the change
  if this write fails, or began longer ago than `LeasePolicy.acts_within` (90 seconds): it writes again first.
- With `--force-lease` a process also takes a held lease, but never while its owner has a change in flight: it waits for that
  change for up to `LeasePolicy.waits_at_most` (2.5 minutes).
- `down`, `delete` and `stop` do the same and leave a permanent tombstone, which keeps watchers away until `up`, `run`,
  `create`, `start` or `reset` removes it. `gc` takes no held lease; it leaves a tombstone where the node was alive.
- A process that cannot reach the store changes nothing: an unreachable store never counts as a free node.

Why that is safe: of two writes over the same version one fails. An owner measures the age of its last write with its own
monotonic clock; other processes wait until the age of the record, by the clock of the store, reaches the time to live. The
clocks of two machines are never compared, so that times inside a record are only shown. On one machine the age does not
matter: a process keeps a file lock as long as it lives, and the kernel releases it. `tests/nodes/test_lease_model.py` runs
random interleavings: never two changes at once, and never a create after `down`.

What it does not exclude: other tools, processes with another lease store, and a request that hangs for longer than
`LeasePolicy.margin` (30 seconds) and then still takes effect. Other guards remain for these: a delete checks the id of the
node, and the API refuses a second create with 409.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar

from tpuctl.clock import SystemClock, limit_cloud_calls
from tpuctl.decoding import By, Range, ShapeError, decode, parse_json
from tpuctl.durations import format_duration, format_timestamp
from tpuctl.errors import ConflictError, PreconditionFailedError, TpuctlError
from tpuctl.fan_out import fan_out
from tpuctl.files import file_lock, open_private_file, read_own_file, replace_file
from tpuctl.models.api_values import ApiText, ApiTime
from tpuctl.names import NodeName, file_stem, node_id_of_file

if TYPE_CHECKING:
    from tpuctl.clock import Clock
    from tpuctl.cloud.storage import StorageClient
    from tpuctl.names import BucketPath

T = TypeVar("T")


def _owner(value: Any) -> str:  # JSON
    # It is part of a file name.
    if type(value) is str and 0 < len(value) < 200 and value.isprintable():
        return value
    raise ShapeError("expected the name of an owner")


def _ended_at(value: Any) -> str | None:  # JSON
    if value is None:
        return None
    ended = decode(_Ended, value)
    if ended.at is None:
        raise ShapeError("expected a time", "at")
    return format_timestamp(ended.at)


@dataclass(frozen=True, slots=True)
class _Ended:
    by: ApiText
    who: ApiText
    at: ApiTime


# The purposes that remove a tombstone, because the user wants the node again. A watcher does not. `gc` only deletes, and writes
# a tombstone again; a `move` goes on in another zone, while its lease in the old zone is not ended.
_REVIVING: Final = frozenset({"up", "run", "create", "start", "reset", "gc", "move"})


class LeaseError(TpuctlError):
    """The lease of a node cannot be read or written. The change that it is for was not sent."""

    kind = "lease"


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """The durations of leases."""

    # How long a lease is valid after its last renewal.
    ttl: timedelta = timedelta(minutes=2)
    # The part of that time which is reserved for a request in flight.
    margin: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(seconds=2)

    @property
    def renews_every(self) -> timedelta:
        """Return the age at which a holder renews its record."""
        return self.ttl / 3

    @property
    def looks_every(self) -> timedelta:
        """Return how often the heartbeat looks for records of that age. A write that failed is tried again then."""
        return self.renews_every / 4

    @property
    def acts_within(self) -> timedelta:
        """Return how long after the beginning of its last write a holder may send a change of the cloud."""
        return self.ttl - self.margin

    @property
    def waits_at_most(self) -> timedelta:
        """Return how long another process waits for a change of the holder in flight."""
        return self.ttl + self.margin


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """One process. `token` is random, so that it identifies the process uniquely."""

    host: str
    pid: int
    token: str

    @classmethod
    def of_process(cls) -> LeaseOwner:
        """Return this process."""
        return cls(socket.gethostname(), os.getpid(), secrets.token_hex(8))

    @property
    def owner(self) -> str:
        """Return the unique id of this process in records."""
        return f"{self.host}-{self.pid}-{self.token}"

    def who(self, purpose: str) -> str:
        """Describe this process for users."""
        return f"{purpose} on {self.host} pid {self.pid}"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The stored record of a node."""

    owner: Annotated[str, By(_owner)]
    who: ApiText
    purpose: ApiText
    ttl: Annotated[timedelta, Range(0, 10**9)]
    # The verb while a change of the cloud is in flight.
    acting: ApiText | None = None
    # In a tombstone: when `purpose` ended the lease, by the clock of that machine. It is shown, and never compared.
    ended: Annotated[str | None, By(_ended_at)] = None

    def to_document(self) -> dict[str, Any]:
        """Return the stored form of the record."""
        ended = {"by": self.purpose, "who": self.who, "at": self.ended} if self.ended else None
        return {**asdict(self), "ttl": self.ttl.total_seconds(), "ended": ended}


def _decode_stored(kind: type[T], content: bytes, where: str) -> T:
    """Decode what is stored at `where`. Raises `LeaseError` for invalid content, which never counts as free."""
    try:
        return decode(kind, parse_json(content))
    except ShapeError as error:
        raise LeaseError(
            f"cannot read `{where}`: not a lease of this version of tpuctl; the change was not sent",
            hint="make sure that no process uses the node, delete the file or object, and try again",
        ) from error


@dataclass(frozen=True, slots=True)
class Lease:
    """A record, and what its store knows about it."""

    record: LeaseRecord
    # Never used twice for a node.
    version: str
    # The time since the record was written, by the clock of the store.
    age: timedelta
    # Whether the process that wrote it is alive; None if the store does not know. If known, the age is ignored.
    is_alive: bool | None = None

    def __str__(self) -> str:
        record, ago = self.record, f"{format_duration(self.age)} ago"
        if record.ended:
            return f"`{record.purpose}` ended it {ago} ({record.who})"
        doing = f", about to {record.acting}" if record.acting else ""
        return f"`{record.who}` holds the lease{doing}, renewed {ago}"


class LeaseStanding(Enum):
    """What the stored record means for a process that wants the lease."""

    FREE = auto()
    OURS = auto()
    HELD = auto()
    ACTING = auto()
    ENDED = auto()


def judge_lease(found: Lease | None, owner: str) -> LeaseStanding:
    """Return what the stored record means for `owner`. The first rule that matches wins."""
    if found is None:
        return LeaseStanding.FREE
    if found.record.ended:
        return LeaseStanding.ENDED
    if found.record.owner == owner:
        return LeaseStanding.OURS
    # If its process is known to be dead or alive, the age of the record does not matter.
    if found.age >= found.record.ttl if found.is_alive is None else not found.is_alive:
        return LeaseStanding.FREE
    return LeaseStanding.ACTING if found.record.acting else LeaseStanding.HELD


def may_take(standing: LeaseStanding, purpose: str, *, force_lease: bool) -> bool:
    """Return whether the lease may be taken for a purpose; never while its holder has a change in flight."""
    is_open = standing in {LeaseStanding.FREE, LeaseStanding.OURS}
    is_revived = standing is LeaseStanding.ENDED and purpose in _REVIVING
    return is_open or is_revived or (force_lease and standing is not LeaseStanding.ACTING)


_READS_AT_ONCE = 16
# Attempts to write a record against simultaneous writers.
_ATTEMPTS = 5
# For writes that nothing waits for, in real time: a run that was interrupted ends after them, and a store that hangs must not
# keep the lock of the leases.
RELEASE_TIMEOUT = timedelta(seconds=5)


class LeaseStore(Protocol):
    """Stores one record for each node, and replaces it by compare-and-swap.

    Every method raises `LeaseError`, or the exceptions of the service, if the store cannot be used.
    """

    def read(self, name: NodeName) -> Lease | None:
        """Return the record of a node; None only if it certainly does not exist."""

    def write(self, name: NodeName, record: LeaseRecord, *, expected: str | None) -> str:
        """Replace version `expected` (None: no record may exist) and return the new version.

        Raises `PreconditionFailedError` for another version.
        """

    def remove(self, name: NodeName, *, expected: str) -> None:
        """Remove version `expected`. Raises `PreconditionFailedError` if another is there; none is fine."""

    def names(self, project: str) -> Collection[NodeName]:
        """Return the nodes of a project that have a record."""


@dataclass(frozen=True, slots=True)
class _HeldLease:
    """A record of this process. `written` is when its last write began, by our monotonic clock."""

    record: LeaseRecord
    version: str
    written: timedelta


class LeaseKeeper:
    """The leases of this process, and those of others.

    A heartbeat renews the leases of this process, from the first to the last.
    """

    def __init__(
        self, store: LeaseStore, clock: Clock, identity: LeaseOwner, policy: LeasePolicy | None = None
    ) -> None:
        self.policy = policy or LeasePolicy()
        self._store = store
        self._clock = clock
        self._identity = identity
        self._held: dict[NodeName, _HeldLease] = {}
        # Held during each write, so that the heartbeat and a change cannot write at the same time.
        self._lock = threading.Lock()
        self._writer: int | None = None
        self._end_heartbeat: Callable[[], None] | None = None

    def holder(self, name: NodeName) -> Lease | None:
        """Return the lease of another holder, or the mark of its end; None if the node is free or ours."""
        found = self._store.read(name)
        standing = judge_lease(found, self._identity.owner)
        return None if found is None or standing in {LeaseStanding.FREE, LeaseStanding.OURS} else found

    def holds(self, name: NodeName) -> bool:
        """Return whether this process took the lease, and has not seen since that it lost it."""
        return name in self._held

    def namesakes(self, name: NodeName) -> list[NodeName]:
        """Return the nodes of the same name, in any zone of the project, that have a record."""
        return [other for other in self._store.names(name.project) if other.node_id == name.node_id]

    def holders(self, names: Collection[NodeName]) -> dict[NodeName, Lease]:
        """Return the leases of these nodes that other processes hold now. Asks the store once, and for each record."""
        recorded = {name for project in {name.project for name in names} for name in self._store.names(project)}
        found = fan_out(self.holder, [name for name in names if name in recorded], limit=_READS_AT_ONCE)
        leases = {one.item: one.get() for one in found}
        return {name: lease for name, lease in leases.items() if lease and not lease.record.ended}

    def acquire(self, name: NodeName, purpose: str, *, force_lease: bool = False) -> Lease | None:
        """Take the lease. Return None if it is ours now, else the other lease or the mark of its end.

        With `force_lease` it is taken from any holder; a change of the holder in flight is awaited as in `end`.
        """
        for _ in range(_ATTEMPTS):
            found, standing = self._idle(name) if force_lease else self._read(name)
            if not may_take(standing, purpose, force_lease=force_lease) and found is not None:
                return found
            with self._alone():
                if self._swap(name, self._record(purpose), found):
                    return None
        raise self._contended(name)

    def begin(self, name: NodeName, verb: str) -> bool:
        """Announce a change. Return False if it must not be sent, because the lease is not ours any more.

        Call it again right before the request: it writes again unless the last write is recent
        (`LeasePolicy.acts_within`). Raises if the store cannot be used; the change must not be sent then either.
        """
        with self._alone():
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
                raise LeaseError("writing the lease takes too long; the change was not sent", hint=hint)
            except TpuctlError:
                self._mark_idle(name)
                raise

    def done(self, name: NodeName) -> None:
        """Write that the change has ended. If the store cannot be used, the heartbeat writes it: the change was sent."""
        with self._alone(), limit_cloud_calls(SystemClock(), RELEASE_TIMEOUT):
            ours = self._held.get(name)
            if ours is None or ours.record.acting is None:
                return
            try:
                self._rewrite(name, replace(ours.record, acting=None))
            except TpuctlError:
                self._mark_idle(name)

    def release(self, name: NodeName) -> None:
        """Release the lease if it is ours. If that cannot be written, the lease expires."""
        with self._alone(), limit_cloud_calls(SystemClock(), RELEASE_TIMEOUT), suppress(TpuctlError):
            self._forget(name)
            for _ in range(_ATTEMPTS):
                found, standing = self._read(name)
                if found is None or standing is not LeaseStanding.OURS:
                    return
                with suppress(PreconditionFailedError):
                    self._store.remove(name, expected=found.version)
                    return

    def close(self) -> None:
        """Release what is still held, within 5 seconds."""
        with limit_cloud_calls(SystemClock(), RELEASE_TIMEOUT):
            for name in list(self._held):
                self.release(name)

    def end(self, name: NodeName, by: str, *, notify: Callable[[str], None]) -> None:
        """Replace the lease of any holder by a tombstone, before `down`, `delete` or `stop` act.

        A change of the holder in flight is awaited for up to `LeasePolicy.waits_at_most`; `notify` gets a message about
        that. Raises `ConflictError` if the change does not end.
        """
        for _ in range(_ATTEMPTS):
            found, _standing = self._idle(name, notify)
            tombstone = replace(self._record(by), ended=format_timestamp(self._clock.now()))
            with self._alone():
                if self._swap(name, tombstone, found):
                    return
        raise self._contended(name)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            self._writer = threading.get_ident()
            try:
                yield
            finally:
                self._writer = None

    def _beat(self) -> None:
        """Renew what is due, the oldest first. If the store cannot be used, the leases stay ours for now."""
        if self._writer == threading.get_ident():
            return  # in simulated time, this thread sleeps before it tries its own write again
        with limit_cloud_calls(SystemClock(), RELEASE_TIMEOUT):
            for name, _ in sorted(self._held.copy().items(), key=lambda item: item[1].written):
                with self._alone(), suppress(TpuctlError):
                    ours = self._held.get(name)
                    if ours is not None and self._since(ours) >= self.policy.renews_every:
                        self._rewrite(name, ours.record)

    def _record(self, purpose: str) -> LeaseRecord:
        return LeaseRecord(self._identity.owner, self._identity.who(purpose), purpose, self.policy.ttl)

    def _mark_idle(self, name: NodeName) -> None:
        """Remember that no change is in flight; the heartbeat writes it."""
        if ours := self._held.get(name):
            idle = replace(ours.record, acting=None)
            self._held[name] = replace(ours, record=idle, written=ours.written - self.policy.ttl)

    def _read(self, name: NodeName) -> tuple[Lease | None, LeaseStanding]:
        found = self._store.read(name)
        return found, judge_lease(found, self._identity.owner)

    def _idle(
        self, name: NodeName, notify: Callable[[str], None] = lambda _: None
    ) -> tuple[Lease | None, LeaseStanding]:
        """Return the record once its holder has no change in flight, or has not written for its time to live."""
        start = self._clock.monotonic()
        version, since, notified = "", start, ""
        while True:
            found, standing = self._read(name)
            if found is None or standing is not LeaseStanding.ACTING:
                return found, standing
            now = self._clock.monotonic()
            if found.version != version:
                version, since = found.version, now
                text = f"waiting for `{found.record.who}`, which is about to {found.record.acting} `{name.node_id}`"
                if text != notified:
                    notify(text)
                    notified = text
            elif now - since >= found.record.ttl:
                # A living process that hangs: it must not act on a write this old.
                return found, LeaseStanding.HELD
            if now - start > self.policy.waits_at_most:
                raise ConflictError(f"`{name.node_id}`: {found}", hint="stop that process, then try again")
            self._clock.sleep(self.policy.poll)

    def _rewrite(self, name: NodeName, record: LeaseRecord) -> bool:
        """Replace our record. If it is not ours any more, forget it and return False."""
        for _ in range(_ATTEMPTS):
            ours = self._held[name]
            if self._swap(name, record, Lease(ours.record, ours.version, timedelta())):
                return True
            # A write of ours whose answer was lost may have changed the version.
            found, standing = self._read(name)
            if found is None or standing is not LeaseStanding.OURS:
                break
            self._held[name] = replace(ours, version=found.version)
        self._forget(name)
        return False

    def _swap(self, name: NodeName, record: LeaseRecord, found: Lease | None) -> bool:
        """Replace what was found by a record of ours. Return False if it has changed."""
        began = self._clock.monotonic()
        try:
            version = self._store.write(name, record, expected=found.version if found else None)
        except PreconditionFailedError:
            return False
        if record.ended:
            self._forget(name)
            return True
        self._held[name] = _HeldLease(record, version, began)
        if self._end_heartbeat is None:
            self._end_heartbeat = self._clock.every(self.policy.looks_every, self._beat)
        return True

    def _forget(self, name: NodeName) -> None:
        self._held.pop(name, None)
        if not self._held and self._end_heartbeat is not None:
            self._end_heartbeat()
            self._end_heartbeat = None

    def _since(self, ours: _HeldLease) -> timedelta:
        return self._clock.monotonic() - ours.written

    def _contended(self, name: NodeName) -> ConflictError:
        return ConflictError(f"too many processes want `{name.node_id}` at the same time", hint="try again in a moment")


# Not a valid name of a project.
_PROCESSES = ".processes"


@dataclass(frozen=True, slots=True)
class _Document:
    version: ApiText
    written: ApiTime
    record: LeaseRecord


class LocalLeaseStore:
    """Lease records below a folder, at `PROJECT/ZONE/NODE.json`, and one file for each process that holds a lease.

    A process keeps its own file locked (`flock`) while it lives, and the kernel unlocks it when the process ends in any way.
    A killed process is detected at once, and a living one never expires, even if the clock is wrong. The first write creates
    folders and files.
    """

    def __init__(self, folder: Path, clock: Clock, *, notify: Callable[[str], None] = lambda _: None) -> None:
        self._folder, self._clock, self._notify = folder, clock, notify
        self._alive: dict[str, int] = {}

    def read(self, name: NodeName) -> Lease | None:
        """Return the record of a node, with the information whether its process is alive."""
        with self._explained():
            return self._read(self._file(name))

    def write(self, name: NodeName, record: LeaseRecord, *, expected: str | None) -> str:
        """Replace a version; see `LeaseStore`. After the first record this process counts as alive."""
        version = secrets.token_hex(8)
        written = self._clock.now().isoformat()
        document = {"version": version, "written": written, "record": record.to_document()}
        with self._explained():
            self._mark_alive(record.owner)
            file = self._file(name)
            with file_lock(file.with_suffix(".lock"), notify=self._notify):
                self._expect(file, expected)
                replace_file(file, json.dumps(document, indent=1).encode() + b"\n")
        return version

    def remove(self, name: NodeName, *, expected: str) -> None:
        """Remove a version; see `LeaseStore`."""
        file = self._file(name)
        with self._explained(), file_lock(file.with_suffix(".lock"), notify=self._notify):
            if file.exists():
                self._expect(file, expected)
                file.unlink()

    def names(self, project: str) -> Collection[NodeName]:
        """Return the nodes of a project that have a record."""
        files = (self._folder / project).glob("*/*.json")
        with self._explained():
            return [NodeName(project, file.parent.name, node_id_of_file(file.stem)) for file in files]

    def close(self) -> None:
        """Mark this process as dead in all its records."""
        for owner, descriptor in self._alive.items():
            with suppress(OSError):  # the lock ends with the descriptor, whatever becomes of the file
                self._process(owner).unlink(missing_ok=True)
            os.close(descriptor)
        self._alive.clear()

    def _read(self, file: Path) -> Lease | None:
        try:
            content = read_own_file(file)
        except FileNotFoundError:
            return None
        document = _decode_stored(_Document, content, str(file))
        record, written = document.record, document.written
        age = max(self._clock.now() - written, timedelta()) if written else timedelta()
        return Lease(record, document.version, age, is_alive=_is_locked(self._process(record.owner)))

    def _expect(self, file: Path, expected: str | None) -> None:
        found = self._read(file)
        if (found.version if found else None) != expected:
            raise PreconditionFailedError(f"`{file}` was changed by another process meanwhile", hint="try again")

    def _mark_alive(self, owner: str) -> None:
        """Lock the file of our own process, and remove those of killed processes."""
        if owner in self._alive:
            return
        file = self._process(owner)
        while True:
            descriptor = open_private_file(file)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another process may have removed it before it was locked.
            with suppress(FileNotFoundError):
                if file.stat().st_ino == os.fstat(descriptor).st_ino:
                    break
            os.close(descriptor)
        self._alive[owner] = descriptor
        for other in file.parent.iterdir():
            _is_locked(other)

    def _file(self, name: NodeName) -> Path:
        return self._folder / name.project / name.zone / f"{file_stem(name.node_id)}.json"

    def _process(self, owner: str) -> Path:
        # The name is read from a file: it must not lead out of the folder.
        return self._folder / _PROCESSES / f"{owner.replace('/', '_')}.lock"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LeaseError(
                f"cannot write the lease to `{self._folder}`: {error.strerror or error}; the change was not sent",
                hint="set `TPUCTL_STATE_DIR` to a local folder that can be written, or `lease: gs://BUCKET/PREFIX`",
            ) from error


def _is_locked(file: Path) -> bool:
    """Return whether the process of this file is alive. Remove the file of a dead process."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        # Removed while it is locked here, so that no process locks a file that disappears.
        file.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class BucketLeaseStore:
    """Lease records in Cloud Storage, at `PREFIX/PROJECT/ZONE/NODE.json`, for processes on several machines.

    A record is replaced with the generation of its object as precondition. Only the age of its record shows that a process
    was killed.
    """

    def __init__(self, objects: StorageClient, path: BucketPath) -> None:
        self._objects = objects
        self._path = path

    def read(self, name: NodeName) -> Lease | None:
        """Return the record of a node."""
        blob = self._objects.read(self._path.bucket, self._object(name))
        if blob is None:
            return None
        record = _decode_stored(LeaseRecord, blob.content, f"gs://{self._path.bucket}/{self._object(name)}")
        return Lease(record, str(blob.generation), blob.age)

    def write(self, name: NodeName, record: LeaseRecord, *, expected: str | None) -> str:
        """Replace a version; see `LeaseStore`."""
        content = json.dumps(record.to_document(), sort_keys=True, indent=1).encode() + b"\n"
        generation = int(expected) if expected else 0
        return str(self._objects.write(self._path.bucket, self._object(name), content, generation=generation))

    def remove(self, name: NodeName, *, expected: str) -> None:
        """Remove a version; see `LeaseStore`."""
        self._objects.delete(self._path.bucket, self._object(name), generation=int(expected))

    def names(self, project: str) -> Collection[NodeName]:
        """Return the nodes of a project that have a record."""
        prefix = self._path.object_name(f"{project}/")
        found = self._objects.list(self._path.bucket, prefix)
        parts = [name.removeprefix(prefix).removesuffix(".json").split("/") for name in found]
        return [NodeName(project, part[0], node_id_of_file(part[1])) for part in parts if len(part) == 2]

    def _object(self, name: NodeName) -> str:
        return self._path.object_name(f"{name.project}/{name.zone}/{file_stem(name.node_id)}.json")
