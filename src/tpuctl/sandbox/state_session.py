"""One transaction's view of the stored records, at one time; and the records.

A record has the data that determines its state at any time.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tpuctl.decoding import ShapeError, parse_json
from tpuctl.sandbox.lifecycle import LifecyclePhase, Timeline, end_of_timeline, phase_at

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tpuctl.sandbox.api_calls import Json

_IN_PLACE = "(:project IS NULL OR project = :project) AND (:zone IS NULL OR zone = :zone)"
_NODE_COLUMNS = "project, zone, node_id, number, first_address, workers, record"
_QUEUED_COLUMNS = "project, zone, queued_resource_id, record"
_OPERATIONS_KEPT = 50_000
# An event that only looks for capacity for waiting queued resources.
_TICK: Json = {"do": "schedule"}


class StateSession:
    """The access of a handler to the stored records. `now` is constant within the transaction."""

    def __init__(self, connection: sqlite3.Connection, now: datetime, path: Path) -> None:
        self._connection = connection
        self.now = now
        self.path = path
        # Whether the transaction changed the stock, or what uses it.
        self._is_use_changed = False

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting of the sandbox, or the default."""
        row = self._row("SELECT value FROM meta WHERE key = ?", f"setting.{name}")
        return parse_stored(row[0]) if row else default

    def settings(self) -> dict[str, object]:
        """Return all settings that differ from their defaults."""
        rows = self._connection.execute("SELECT key, value FROM meta WHERE key LIKE 'setting.%'")
        return {key.removeprefix("setting."): parse_stored(value) for key, value in rows}

    def set_setting(self, name: str, value: object) -> None:
        """Store a setting; None restores the default."""
        self._write("DELETE FROM meta WHERE key = ?", f"setting.{name}")
        if value is not None:
            self._write("INSERT INTO meta VALUES (?, ?)", f"setting.{name}", json.dumps(value))
        self._is_use_changed = True

    def set_clock_offset(self, offset: timedelta) -> None:
        """Replace the time by which the clock was advanced."""
        text = "UPDATE meta SET value = json_set(value, '$.offset', ?) WHERE key = 'clock'"
        self._write(text, offset.total_seconds())

    @contextmanager
    def savepoint(self, at: datetime) -> Iterator[StateSession]:
        """Open a session at another time within the transaction; what it changed is undone if `UndoneError` passes."""
        self._write("SAVEPOINT event")
        try:
            yield StateSession(self._connection, at, self.path)
        except UndoneError:
            self._write("ROLLBACK TO event")
        self._write("RELEASE event")

    def reschedule(self) -> None:
        """Let `is_schedule_stale` be true if a queued resource waits."""
        self._is_use_changed = True

    def is_schedule_stale(self) -> bool:
        """Return whether a queued resource waits, and the transaction changed the stock or its use."""
        return self._is_use_changed and bool(self._row("SELECT 1 FROM queued WHERE is_waiting LIMIT 1"))

    def next_incarnation(self, name: str) -> int:
        """Increment and return the number of times that a name was used."""
        text = (
            "INSERT INTO incarnations VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET count = count + 1 RETURNING count"
        )
        row = self._row(text, name)
        return int(row[0]) if row else 1

    def node(self, project: str, zone: str, node_id: str) -> NodeRecord | None:
        """Return a node, a planned one too. None if it is gone."""
        key = "project = ? AND zone = ? AND node_id = ?"
        text = f"SELECT {_NODE_COLUMNS} FROM nodes WHERE {key} AND (gone IS NULL OR gone > ?)"  # noqa: S608  # constants
        row = self._row(text, project, zone, node_id, self.now.timestamp())
        return load_record(NodeRecord, row) if row else None

    def nodes(
        self, project: str | None = None, *, zone: str | None = None, after: tuple[str, str] = ("", ""), limit: int = -1
    ) -> Iterator[NodeRecord]:
        """Yield nodes by zone and name, planned ones included; after a (zone, node id), at most `limit` (-1: all)."""
        text = (
            f"SELECT {_NODE_COLUMNS} FROM nodes WHERE {_IN_PLACE}"  # noqa: S608  # constants
            " AND (zone, node_id) > (:after_zone, :after_id) AND (gone IS NULL OR gone > :now)"
            " ORDER BY zone, node_id LIMIT :limit"
        )
        values = {"project": project, "zone": zone, "after_zone": after[0], "after_id": after[1]}
        rows = self._connection.execute(text, {**values, "now": self.now.timestamp(), "limit": limit})
        return (load_record(NodeRecord, row) for row in rows)

    def node_at(self, address: int) -> NodeRecord | None:
        """Return the node that owns an address, given by its number in the pool. None if no node owns it."""
        text = f"SELECT {_NODE_COLUMNS} FROM nodes WHERE first_address <= ? AND (gone IS NULL OR gone > ?) ORDER BY first_address DESC LIMIT 1"  # noqa: S608, E501  # a constant
        row = self._row(text, address, self.now.timestamp())
        node = load_record(NodeRecord, row) if row else None
        return node if node and address < node.first_address + node.workers else None

    def put_node(self, record: NodeRecord) -> None:
        """Store a node, replacing the one of its name."""
        *columns, text = dump_record(record)
        gone = _timestamp_or_none(end_of_timeline(record.timeline))
        self._write("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *columns, gone, text)
        self._is_use_changed = True

    def free_addresses(self, count: int, *, pool: int) -> int:
        """Return the first of `count` consecutive free numbers below `pool`; 0 if there are none."""
        self._write("DELETE FROM nodes WHERE gone <= ?", self.now.timestamp())
        candidate, has_wrapped = int(self.setting("next_address", 1)), False
        while True:
            if candidate + count > pool:
                if has_wrapped:
                    return 0
                candidate, has_wrapped = 1, True
            # Nodes' ranges are disjoint: only the last range that begins before the candidate's end can overlap it.
            text = (
                "SELECT first_address + workers FROM nodes WHERE first_address < ? ORDER BY first_address DESC LIMIT 1"
            )
            row = self._row(text, candidate + count)
            if row is None or row[0] <= candidate:
                self.set_setting("next_address", candidate + count)
                return candidate
            candidate = row[0]

    def queued_resource(self, project: str, zone: str, queued_resource_id: str) -> QueuedRecord | None:
        """Return a queued resource. None if it is gone."""
        records = self.queued_resources(project, zone=zone, only=queued_resource_id)
        return next(iter(records), None)

    def queued_resources(
        self, project: str | None = None, *, zone: str | None = None, only: str | None = None, is_waiting: bool = False
    ) -> list[QueuedRecord]:
        """Return queued resources by zone and name; with `is_waiting` those alone that wait for capacity."""
        text = (
            f"SELECT {_QUEUED_COLUMNS} FROM queued WHERE {_IN_PLACE}"  # noqa: S608  # constants
            " AND (:only IS NULL OR queued_resource_id = :only) AND (gone IS NULL OR gone > :now)"
            " AND is_waiting >= :waiting"
            " ORDER BY zone, queued_resource_id"
        )
        values = {"project": project, "zone": zone, "only": only, "waiting": is_waiting}
        rows = self._connection.execute(text, {**values, "now": self.now.timestamp()})
        return [load_record(QueuedRecord, row) for row in rows]

    def put_queued_resource(self, record: QueuedRecord) -> None:
        """Store a queued resource, replacing the one of its name."""
        *columns, text = dump_record(record)
        gone = _timestamp_or_none(end_of_timeline(record.timeline))
        is_waiting = record.not_before is not None
        self._write("INSERT OR REPLACE INTO queued VALUES (?, ?, ?, ?, ?, ?)", *columns, gone, is_waiting, text)
        self._is_use_changed = True

    def operation(self, name: str) -> OperationRecord | None:
        """Return an operation by its full name."""
        row = self._row("SELECT record FROM operations WHERE name = ?", name)
        return load_record(OperationRecord, row) if row else None

    def operation_of_request(self, request_id: str) -> OperationRecord | None:
        """Return the operation that a request id started. None if there is none."""
        row = self._row("SELECT record FROM operations WHERE request_id = ? AND request_id != ''", request_id)
        return load_record(OperationRecord, row) if row else None

    def operations(
        self, project: str, zone: str | None, *, after: int = 0, limit: int
    ) -> list[tuple[int, OperationRecord]]:
        """Return operations in the order of their starts, each with its serial number."""
        text = (
            "SELECT serial, record FROM operations WHERE project = :project AND (:zone IS NULL OR zone = :zone)"
            " AND serial > :after LIMIT :limit"
        )
        values = {"project": project, "zone": zone, "after": after, "limit": limit}
        rows = self._connection.execute(text, values)
        return [(serial, load_record(OperationRecord, (record,))) for serial, record in rows]

    def pending_operations(self, target: str) -> list[OperationRecord]:
        """Return the unfinished operations on a resource."""
        text = "SELECT record FROM operations WHERE target = ? AND (ended IS NULL OR ended > ?) ORDER BY serial"
        rows = self._connection.execute(text, (target, self.now.timestamp()))
        return [load_record(OperationRecord, row) for row in rows]

    def put_operation(self, record: OperationRecord) -> None:
        """Store an operation and delete the oldest beyond the limit."""
        text = (
            "INSERT INTO operations (name, project, zone, target, request_id, ended, record) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET ended = excluded.ended, record = excluded.record"
        )
        ended = _timestamp_or_none(record.ended)
        target = (record.name, record.project, record.zone, record.target)
        self._write(text, *target, record.request_id, ended, *dump_record(record))
        self._write("DELETE FROM operations WHERE serial <= (SELECT max(serial) FROM operations) - ?", _OPERATIONS_KEPT)

    def delete_operation(self, name: str) -> None:
        """Delete an operation; its effect continues."""
        self._write("DELETE FROM operations WHERE name = ?", name)

    @property
    def resources(self) -> ResourceStore:
        """The resources of the APIs beside the TPU API."""
        return ResourceStore(self._connection)

    def plan_event(self, at: datetime, document: Json) -> None:
        """Store an event for a time."""
        self._write("INSERT INTO events (at, record) VALUES (?, ?)", at.timestamp(), json.dumps(document))

    def plan_tick(self, at: datetime | None) -> None:
        """Plan when waiting queued resources are looked at again, in place of an earlier plan; None: at no time."""
        self._write("DELETE FROM events WHERE record = ?", json.dumps(_TICK))
        if at is not None:
            self.plan_event(at, _TICK)

    def events(self) -> list[PlannedEvent]:
        """Return the planned events, soonest first."""
        rows = self._connection.execute("SELECT at, record FROM events ORDER BY at, id")
        return [PlannedEvent(_parse_moment(at), _parse_stored_object(text)) for at, text in rows]

    def is_event_due(self) -> bool:
        """Return whether a planned event is due."""
        return self._row("SELECT 1 FROM events WHERE at <= ? LIMIT 1", self.now.timestamp()) is not None

    def take_event(self) -> PlannedEvent | None:
        """Remove and return the first planned event that is due. None if none is due."""
        text = "SELECT id, at, record FROM events WHERE at <= ? ORDER BY at, id LIMIT 1"
        row = self._row(text, self.now.timestamp())
        if row is None:
            return None
        self._write("DELETE FROM events WHERE id = ?", row[0])
        return PlannedEvent(_parse_moment(row[1]), _parse_stored_object(row[2]))

    def faults(self) -> list[tuple[int, Json]]:
        """Return the faults with their ids, oldest first."""
        return [
            (i, _parse_stored_object(text))
            for i, text in self._connection.execute("SELECT id, record FROM faults ORDER BY id")
        ]

    def put_fault(self, document: Json, *, fault_id: int | None = None) -> int:
        """Store a fault, new or in place of an existing one, and return its id."""
        row = self._row("INSERT OR REPLACE INTO faults VALUES (?, ?) RETURNING id", fault_id, json.dumps(document))
        return int(row[0]) if row else 0

    def delete_fault(self, fault_id: int) -> bool:
        """Delete a fault. Return whether it existed."""
        return self._connection.execute("DELETE FROM faults WHERE id = ?", (fault_id,)).rowcount > 0

    def project(self, project: str) -> Json:
        """Return the stored data of a project (its Compute Engine metadata); empty at first."""
        return self.resources.get("compute.project", "", project) or {}

    def put_project(self, project: str, document: Json) -> None:
        """Store the data of a project."""
        self.resources.put("compute.project", "", project, document)

    def exists(self, record: NodeRecord | QueuedRecord) -> bool:
        """Return whether a record is visible now."""
        return phase_at(record.timeline, self.now) is not None

    def _row(self, text: str, *values: object) -> Any:
        return self._connection.execute(text, values).fetchone()

    def _write(self, text: str, *values: object) -> None:
        self._connection.execute(text, values)


def _timestamp_or_none(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


class _TimedRecord:
    """A record with a timeline."""

    __slots__ = ()
    timeline: Timeline

    def phase(self, now: datetime) -> LifecyclePhase | None:
        """Return the phase at a time. None if the record does not exist then."""
        return phase_at(self.timeline, now)

    def state(self, now: datetime) -> str:
        """Return the state at a time. A record that is gone shows as DELETING."""
        phase = self.phase(now)
        return phase.state if phase else "DELETING"


@dataclass(frozen=True, slots=True)
class NodeRecord(_TimedRecord):
    """A node. `document` is the API's v2 JSON without the fields that depend on time.

    `number` is the API's numeric id, `first_address` the first of the consecutive addresses of its workers.
    `keys_before` is the `ssh-keys` metadata that was replaced at `keys_changed`.
    """

    project: str
    zone: str
    node_id: str
    number: str
    incarnation: int
    document: Json
    timeline: Timeline
    workers: int
    first_address: int
    queued_resource: str = ""
    keys_before: str = ""
    keys_changed: datetime | None = None

    @property
    def name(self) -> str:
        """The full resource name."""
        return f"projects/{self.project}/locations/{self.zone}/nodes/{self.node_id}"


@dataclass(frozen=True, slots=True)
class QueuedRecord(_TimedRecord):
    """A queued resource. `node_ids` are the nodes that it creates; `error` is the reason of a FAILED state.

    `not_before`: while it waits, when it is provisioned at the earliest; None: it does not wait for capacity. `expires`: its
    valid-until time.
    """

    project: str
    zone: str
    queued_resource_id: str
    incarnation: int
    document: Json
    timeline: Timeline
    node_ids: tuple[str, ...]
    error: Json | None = None
    not_before: datetime | None = None
    expires: datetime | None = None

    @property
    def name(self) -> str:
        """The full resource name."""
        return f"projects/{self.project}/locations/{self.zone}/queuedResources/{self.queued_resource_id}"


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """A long-running operation: it ends when its target reaches `goal`, or at `ended` with `error`.

    `ended` may lie in the future; None: no end is planned. `snapshot` is the target at the start of the operation,
    for the result after the target is gone.
    """

    name: str
    project: str
    zone: str
    verb: str
    target: str
    incarnation: int
    created: datetime
    goal: str
    version: str
    snapshot: Json
    ended: datetime | None = None
    error: Json | None = None
    request_id: str = ""
    cancel_requested: bool = False

    def is_done(self, now: datetime) -> bool:
        """Return whether it has ended at a time."""
        return self.ended is not None and self.ended <= now


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """A planned event. `document` describes it in the format of `scenarios`."""

    at: datetime
    document: Json

    @property
    def is_tick(self) -> bool:
        """Whether it only looks for capacity for waiting queued resources."""
        return self.document == _TICK


class UndoneError(Exception):
    """Raised to undo what a savepoint, or a trial run, changed."""


def parse_stored(text: object) -> Any:  # JSON
    """Parse stored JSON. Raises `ShapeError` if it is damaged, which becomes `CorruptStateError`."""
    if not isinstance(text, str):
        raise ShapeError("not text")
    return parse_json(text)


def _parse_stored_object(text: object) -> Json:
    """Parse a stored JSON object, as `parse_stored` does."""
    document = parse_stored(text)
    if not isinstance(document, dict):
        raise ShapeError("expected an object")
    return document


def _parse_moment(seconds: object) -> datetime:
    """Return the time of a number of seconds since 1970."""
    assert isinstance(seconds, int | float)  # noqa: S101  # written by ourselves; guides mypy
    return datetime.fromtimestamp(seconds, UTC)


def dump_record(record: NodeRecord | QueuedRecord | OperationRecord) -> tuple[Any, ...]:
    """Return the database row of a record: the values of its columns, and JSON with all others."""
    values = {name: getattr(record, name) for name in record.__slots__}
    columns = [values.pop(name) for name in _COLUMNS.get(type(record), ())]
    return (*columns, json.dumps(values, default=_encode))


def load_record(kind: type[_Record], row: Sequence[Any]) -> _Record:
    """Return the record of a database row. Raises `ShapeError` if it is damaged."""
    values = _parse_stored_object(row[-1])
    try:
        for name in _DECODERS.keys() & values.keys():
            if values[name] is not None:
                values[name] = _DECODERS[name](values[name])
        return kind(**dict(zip(_COLUMNS.get(kind, ()), row, strict=False)), **values)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise ShapeError(f"{kind.__name__}: {error}") from error


def _parse_timeline(rows: list[list[Any]]) -> Timeline:
    return tuple([LifecyclePhase(datetime.fromtimestamp(at, UTC), *rest) for at, *rest in rows])


_Record = TypeVar("_Record", "NodeRecord", "QueuedRecord", "OperationRecord")
_COLUMNS: Mapping[type, tuple[str, ...]] = {
    NodeRecord: ("project", "zone", "node_id", "number", "first_address", "workers"),
    QueuedRecord: ("project", "zone", "queued_resource_id"),
}
_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "timeline": _parse_timeline,
    "node_ids": tuple,
    **dict.fromkeys(("keys_changed", "not_before", "expires", "created", "ended"), _parse_moment),
}


def _encode(value: datetime | LifecyclePhase) -> object:
    """Return a value that JSON does not have: a time as seconds since 1970, a phase as a list of its fields."""
    if isinstance(value, LifecyclePhase):
        return [getattr(value, name) for name in LifecyclePhase.__slots__]
    return value.timestamp()


class StoredResource(NamedTuple):
    """One record."""

    parent: str
    name: str
    document: Json


class ResourceStore:
    """The resources of the APIs beside the TPU API, which have no life cycle, in one transaction.

    They are JSON documents by kind, parent and name, and bytes that belong to some of them. A kind is the API's word with its
    service (`storage.bucket`); a parent is a project, or the bucket of an object.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, kind: str, parent: str, name: str) -> Json | None:
        """Return a document. None if there is none."""
        text = "SELECT record FROM resources WHERE kind = ? AND parent = ? AND name = ?"
        row = self._connection.execute(text, (kind, parent, name)).fetchone()
        return _parse_stored_object(row[0]) if row else None

    def fetch(self, kind: str, parent: str, name: str, *, missing: Exception) -> Json:
        """Return a document. Raises `missing` if there is none."""
        document = self.get(kind, parent, name)
        if document is None:
            raise missing
        return document

    def find(self, kind: str, name: str) -> StoredResource | None:
        """Return the record of a name that is unique among all parents, such as a bucket's. None if there is none."""
        text = "SELECT parent, name, record FROM resources WHERE kind = ? AND name = ?"
        row = self._connection.execute(text, (kind, name)).fetchone()
        return StoredResource(row[0], row[1], _parse_stored_object(row[2])) if row else None

    def list_records(self, kind: str, parent: str | None = None, *, prefix: str = "") -> Iterator[StoredResource]:
        """Yield the records of a parent (None: of all parents) by name, those whose name begins with a prefix."""
        text = (
            "SELECT parent, name, record FROM resources WHERE kind = :kind AND (:parent IS NULL OR parent = :parent)"
            " AND name >= :prefix AND substr(name, 1, length(:prefix)) = :prefix ORDER BY parent, name"
        )
        for row in self._connection.execute(text, {"kind": kind, "parent": parent, "prefix": prefix}):
            yield StoredResource(row[0], row[1], _parse_stored_object(row[2]))

    def put(self, kind: str, parent: str, name: str, document: Json) -> None:
        """Store a document, replacing the current one."""
        self._write("INSERT OR REPLACE INTO resources VALUES (?, ?, ?, ?)", kind, parent, name, json.dumps(document))

    def delete(self, kind: str, parent: str, name: str) -> None:
        """Delete a document, if it exists."""
        self._write("DELETE FROM resources WHERE kind = ? AND parent = ? AND name = ?", kind, parent, name)

    def trim(self, kind: str, parent: str, *, keep: int) -> None:
        """Delete the records of a parent except the last `keep` by name."""
        text = (
            "DELETE FROM resources WHERE kind = ? AND parent = ? AND name <= (SELECT name FROM resources"
            " WHERE kind = ? AND parent = ? ORDER BY name DESC LIMIT 1 OFFSET ?)"
        )
        self._write(text, kind, parent, kind, parent, keep)

    def content(self, name: str) -> bytes:
        """Return the stored bytes of a name; empty if there are none."""
        row = self._connection.execute("SELECT content FROM contents WHERE name = ?", (name,)).fetchone()
        return bytes(row[0]) if row else b""

    def put_content(self, name: str, content: bytes) -> None:
        """Store bytes, replacing the current ones."""
        self._write("INSERT OR REPLACE INTO contents VALUES (?, ?)", name, content)

    def delete_content(self, name: str) -> None:
        """Delete bytes, if they exist."""
        self._write("DELETE FROM contents WHERE name = ?", name)

    def _write(self, text: str, *values: object) -> None:
        self._connection.execute(text, values)
