"""One transaction's view of the stored records, at one time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tpuctl.sandbox.lifecycle import end_of, phase_at
from tpuctl.sandbox.world import records
from tpuctl.sandbox.world.resources import Resources
from tpuctl.shapes import INTEGER

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.world.records import NodeRecord, OperationRecord, QueuedRecord

_NODE = "project, zone, node_id, number, first_address, workers, record"
_QUEUED = "project, zone, queued_resource_id, record"
_REQUESTS_KEPT = 20_000
_OPERATIONS_KEPT = 50_000


class Session:
    """The access of a handler to the stored records. `now` is constant within the transaction."""

    def __init__(self, connection: sqlite3.Connection, now: datetime, path: Path) -> None:
        self._connection = connection
        self.now = now
        self.path = path

    # Settings

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting of the sandbox, or the default."""
        row = self._row("SELECT value FROM meta WHERE key = ?", f"setting.{name}")
        return records.stored(row[0]) if row else default

    @property
    def seed(self) -> int:
        """The seed of all random numbers."""
        row = self._row("SELECT value FROM meta WHERE key = 'seed'")
        return int(records.stored(row[0], INTEGER)) if row else 0

    def settings(self) -> dict[str, object]:
        """Return all settings that differ from their defaults."""
        rows = self._connection.execute("SELECT key, value FROM meta WHERE key LIKE 'setting.%'")
        return {key.removeprefix("setting."): records.stored(value) for key, value in rows}

    def set_setting(self, name: str, value: object) -> None:
        """Store a setting; None restores the default."""
        self._write("DELETE FROM meta WHERE key = ?", f"setting.{name}")
        if value is not None:
            self._write("INSERT INTO meta VALUES (?, ?)", f"setting.{name}", json.dumps(value))

    def next_incarnation(self, name: str) -> int:
        """Increment and return the number of times that a name was used."""
        text = (
            "INSERT INTO incarnations VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET count = count + 1 RETURNING count"
        )
        row = self._row(text, name)
        return int(row[0]) if row else 1

    # Nodes

    def node(self, project: str, zone: str, node_id: str) -> NodeRecord | None:
        """Return a node, a planned one too. None if it is gone."""
        text = (
            f"SELECT {_NODE} FROM nodes WHERE project = ? AND zone = ? AND node_id = ? AND (gone IS NULL OR gone > ?)"  # noqa: S608  # a constant
        )
        row = self._row(text, project, zone, node_id, self.now.timestamp())
        return records.load_node(row) if row else None

    def nodes(
        self, project: str | None = None, *, zone: str | None = None, after: tuple[str, str] = ("", ""), limit: int = -1
    ) -> Iterator[NodeRecord]:
        """Yield nodes by zone and name, planned ones included; after a (zone, node id), at most `limit` (-1: all)."""
        text = (
            f"SELECT {_NODE} FROM nodes WHERE (:project IS NULL OR project = :project) AND (:zone IS NULL OR zone = :zone)"  # noqa: S608  # a constant
            " AND (zone, node_id) > (:after_zone, :after_id) AND (gone IS NULL OR gone > :now)"
            " ORDER BY zone, node_id LIMIT :limit"
        )
        values = {"project": project, "zone": zone, "after_zone": after[0], "after_id": after[1]}
        rows = self._connection.execute(text, {**values, "now": self.now.timestamp(), "limit": limit})
        return map(records.load_node, rows)

    def node_at(self, address: int) -> NodeRecord | None:
        """Return the node that owns an address, given by its number in the pool. None if no node owns it."""
        text = f"SELECT {_NODE} FROM nodes WHERE first_address <= ? AND (gone IS NULL OR gone > ?) ORDER BY first_address DESC LIMIT 1"  # noqa: S608, E501  # a constant
        row = self._row(text, address, self.now.timestamp())
        node = records.load_node(row) if row else None
        return node if node and address < node.first_address + node.workers else None

    def put_node(self, record: NodeRecord) -> None:
        """Store a node, replacing the one of its name."""
        self._write(
            "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(record.project, record.zone, record.node_id, record.number, record.first_address, record.workers),
            *(_seconds(end_of(record.timeline)), records.dump_node(record)),
        )

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

    # Queued resources

    def queued_resource(self, project: str, zone: str, queued_resource_id: str) -> QueuedRecord | None:
        """Return a queued resource. None if it is gone."""
        found = self.queued_resources(project, zone=zone, only=queued_resource_id)
        return next(iter(found), None)

    def queued_resources(
        self, project: str | None = None, *, zone: str | None = None, only: str | None = None
    ) -> list[QueuedRecord]:
        """Return queued resources by zone and name."""
        text = (
            f"SELECT {_QUEUED} FROM queued WHERE (:project IS NULL OR project = :project) AND (:zone IS NULL OR zone = :zone)"  # noqa: S608  # a constant
            " AND (:only IS NULL OR queued_resource_id = :only) AND (gone IS NULL OR gone > :now)"
            " ORDER BY zone, queued_resource_id"
        )
        values = {"project": project, "zone": zone, "only": only, "now": self.now.timestamp()}
        rows = self._connection.execute(text, values)
        return [records.load_queued(row) for row in rows]

    def put_queued_resource(self, record: QueuedRecord) -> None:
        """Store a queued resource, replacing the one of its name."""
        self._write(
            "INSERT OR REPLACE INTO queued VALUES (?, ?, ?, ?, ?)",
            *(record.project, record.zone, record.queued_resource_id),
            *(_seconds(end_of(record.timeline)), records.dump_queued(record)),
        )

    # Operations

    def operation(self, name: str) -> OperationRecord | None:
        """Return an operation by its full name."""
        row = self._row("SELECT record FROM operations WHERE name = ?", name)
        return records.load_operation(row[0]) if row else None

    def operation_of_request(self, request_id: str) -> OperationRecord | None:
        """Return the operation that a request id started. None if there is none."""
        row = self._row("SELECT record FROM operations WHERE request_id = ? AND request_id != ''", request_id)
        return records.load_operation(row[0]) if row else None

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
        return [(serial, records.load_operation(record)) for serial, record in rows]

    def pending_operations(self, target: str) -> list[OperationRecord]:
        """Return the unfinished operations on a resource."""
        text = "SELECT record FROM operations WHERE target = ? AND (ended IS NULL OR ended > ?) ORDER BY serial"
        rows = self._connection.execute(text, (target, self.now.timestamp()))
        return [records.load_operation(record) for (record,) in rows]

    def put_operation(self, record: OperationRecord) -> None:
        """Store an operation and delete the oldest beyond the limit."""
        text = (
            "INSERT INTO operations (name, project, zone, target, request_id, ended, record) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET ended = excluded.ended, record = excluded.record"
        )
        ended = _seconds(record.ended)
        target = (record.name, record.project, record.zone, record.target)
        self._write(text, *target, record.request_id, ended, records.dump_operation(record))
        self._write("DELETE FROM operations WHERE serial <= (SELECT max(serial) FROM operations) - ?", _OPERATIONS_KEPT)

    def delete_operation(self, name: str) -> None:
        """Delete an operation; its effect continues."""
        self._write("DELETE FROM operations WHERE name = ?", name)

    # Resources of the other APIs

    @property
    def resources(self) -> Resources:
        """The resources of the APIs beside the TPU API."""
        return Resources(self._connection)

    # Planned events

    def plan_event(self, at: datetime, document: Json) -> None:
        """Store an event for a time."""
        self._write("INSERT INTO events (at, record) VALUES (?, ?)", at.timestamp(), json.dumps(document))

    def events(self) -> list[records.Event]:
        """Return the planned events, soonest first."""
        rows = self._connection.execute("SELECT at, record FROM events ORDER BY at, id")
        return [records.Event(records.moment(at), records.stored_object(text)) for at, text in rows]

    def is_event_due(self) -> bool:
        """Return whether a planned event is due."""
        return self._row("SELECT 1 FROM events WHERE at <= ? LIMIT 1", self.now.timestamp()) is not None

    def take_event(self) -> records.Event | None:
        """Remove and return the first planned event that is due. None if none is due."""
        text = "SELECT id, at, record FROM events WHERE at <= ? ORDER BY at, id LIMIT 1"
        row = self._row(text, self.now.timestamp())
        if row is None:
            return None
        self._write("DELETE FROM events WHERE id = ?", row[0])
        return records.Event(records.moment(row[1]), records.stored_object(row[2]))

    # Faults, projects, the log of writes

    def faults(self) -> list[tuple[int, Json]]:
        """Return the faults with their ids, oldest first."""
        return [
            (i, records.stored_object(text))
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
        row = self._row("SELECT record FROM projects WHERE project = ?", project)
        return records.stored_object(row[0]) if row else {}

    def put_project(self, project: str, document: Json) -> None:
        """Store the data of a project."""
        self._write("INSERT OR REPLACE INTO projects VALUES (?, ?)", project, json.dumps(document))

    def log_request(self, method: str, name: str) -> None:
        """Record a call that writes, for tests that count them; delete the oldest beyond the limit."""
        row = self._row(
            "INSERT INTO requests (at, method, name) VALUES (?, ?, ?) RETURNING serial",
            self.now.timestamp(),
            method,
            name,
        )
        self._write("DELETE FROM requests WHERE serial <= ?", (row[0] if row else 0) - _REQUESTS_KEPT)

    def requests(self) -> list[tuple[datetime, str, str]]:
        """Return time, method id and resource name of the calls that write, oldest first."""
        rows = self._connection.execute("SELECT at, method, name FROM requests ORDER BY serial")
        return [(records.moment(at), method, name) for at, method, name in rows]

    def exists(self, record: NodeRecord | QueuedRecord) -> bool:
        """Return whether a record is visible now."""
        return phase_at(record.timeline, self.now) is not None

    def _row(self, text: str, *values: object) -> Any:
        return self._connection.execute(text, values).fetchone()

    def _write(self, text: str, *values: object) -> None:
        self._connection.execute(text, values)


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
