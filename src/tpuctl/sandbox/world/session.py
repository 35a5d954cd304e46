"""One transaction's view of the world: records in, records out, at one time."""

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
    """What a handler works with. `now` stays the same until the end of the transaction."""

    def __init__(self, connection: sqlite3.Connection, now: datetime, path: Path) -> None:
        self._connection = connection
        self.now = now
        self.path = path

    # The world itself

    def setting(self, name: str, default: Any = None) -> Any:
        """Return a setting of the world, or the default."""
        row = self._row("SELECT value FROM meta WHERE key = ?", f"setting.{name}")
        return records.stored(row[0]) if row else default

    @property
    def seed(self) -> int:
        """The number from which all random draws come."""
        row = self._row("SELECT value FROM meta WHERE key = 'seed'")
        return int(records.stored(row[0], INTEGER)) if row else 0

    def settings(self) -> dict[str, object]:
        """Return all settings of the world that differ from their defaults."""
        rows = self._connection.execute("SELECT key, value FROM meta WHERE key LIKE 'setting.%'")
        return {key.removeprefix("setting."): records.stored(value) for key, value in rows}

    def set_setting(self, name: str, value: object) -> None:
        """Keep a setting of the world; nothing (None) restores the default."""
        self._write("DELETE FROM meta WHERE key = ?", f"setting.{name}")
        if value is not None:
            self._write("INSERT INTO meta VALUES (?, ?)", f"setting.{name}", json.dumps(value))

    def next_incarnation(self, name: str) -> int:
        """Count how often something of a name was made, this time included."""
        text = (
            "INSERT INTO incarnations VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET count = count + 1 RETURNING count"
        )
        row = self._row(text, name)
        return int(row[0]) if row else 1

    # Nodes

    def node(self, project: str, zone: str, node_id: str) -> NodeRecord | None:
        """Return a node, also one that is still to come; nothing when it is gone."""
        text = (
            f"SELECT {_NODE} FROM nodes WHERE project = ? AND zone = ? AND node_id = ? AND (gone IS NULL OR gone > ?)"  # noqa: S608  # a constant
        )
        row = self._row(text, project, zone, node_id, self.now.timestamp())
        return records.load_node(row) if row else None

    def nodes(
        self, project: str | None = None, *, zone: str | None = None, after: tuple[str, str] = ("", ""), limit: int = -1
    ) -> Iterator[NodeRecord]:
        """Yield nodes by zone and name, those to come included; after a (zone, node id), at most `limit` (-1: all)."""
        text = (
            f"SELECT {_NODE} FROM nodes WHERE (:project IS NULL OR project = :project) AND (:zone IS NULL OR zone = :zone)"  # noqa: S608  # a constant
            " AND (zone, node_id) > (:after_zone, :after_id) AND (gone IS NULL OR gone > :now)"
            " ORDER BY zone, node_id LIMIT :limit"
        )
        values = {"project": project, "zone": zone, "after_zone": after[0], "after_id": after[1]}
        rows = self._connection.execute(text, {**values, "now": self.now.timestamp(), "limit": limit})
        return map(records.load_node, rows)

    def node_at(self, address: int) -> NodeRecord | None:
        """Return the node that owns an address, given by its number in the pool."""
        text = f"SELECT {_NODE} FROM nodes WHERE first_address <= ? AND (gone IS NULL OR gone > ?) ORDER BY first_address DESC LIMIT 1"  # noqa: S608, E501  # a constant
        row = self._row(text, address, self.now.timestamp())
        node = records.load_node(row) if row else None
        return node if node and address < node.first_address + node.workers else None

    def put_node(self, record: NodeRecord) -> None:
        """Keep a node in place of what was there under its name."""
        self._write(
            "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *(record.project, record.zone, record.node_id, record.number, record.first_address, record.workers),
            *(_seconds(end_of(record.timeline)), records.dump_node(record)),
        )

    def free_addresses(self, count: int, *, pool: int) -> int:
        """Return the first of `count` consecutive numbers below `pool` that no node holds; 0 when there are none."""
        self._write("DELETE FROM nodes WHERE gone <= ?", self.now.timestamp())
        candidate, has_wrapped = int(self.setting("next_address", 1)), False
        while True:
            if candidate + count > pool:
                if has_wrapped:
                    return 0
                candidate, has_wrapped = 1, True
            # Nodes' ranges are disjoint: only the last that begins before our end can reach into ours.
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
        """Return a queued resource; nothing when it is gone."""
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
        """Keep a queued resource in place of what was there under its name."""
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
        """Return the operation that a request id has begun."""
        row = self._row("SELECT record FROM operations WHERE request_id = ? AND request_id != ''", request_id)
        return records.load_operation(row[0]) if row else None

    def operations(
        self, project: str, zone: str | None, *, after: int = 0, limit: int
    ) -> list[tuple[int, OperationRecord]]:
        """Return operations in the order in which they began, each with its serial number."""
        text = (
            "SELECT serial, record FROM operations WHERE project = :project AND (:zone IS NULL OR zone = :zone)"
            " AND serial > :after LIMIT :limit"
        )
        values = {"project": project, "zone": zone, "after": after, "limit": limit}
        rows = self._connection.execute(text, values)
        return [(serial, records.load_operation(record)) for serial, record in rows]

    def pending_operations(self, target: str) -> list[OperationRecord]:
        """Return the operations on a resource that have not ended yet."""
        text = "SELECT record FROM operations WHERE target = ? AND (ended IS NULL OR ended > ?) ORDER BY serial"
        rows = self._connection.execute(text, (target, self.now.timestamp()))
        return [records.load_operation(record) for (record,) in rows]

    def put_operation(self, record: OperationRecord) -> None:
        """Keep an operation; the oldest are forgotten when there are very many."""
        text = (
            "INSERT INTO operations (name, project, zone, target, request_id, ended, record) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET ended = excluded.ended, record = excluded.record"
        )
        ended = _seconds(record.ended)
        target = (record.name, record.project, record.zone, record.target)
        self._write(text, *target, record.request_id, ended, records.dump_operation(record))
        self._write("DELETE FROM operations WHERE serial <= (SELECT max(serial) FROM operations) - ?", _OPERATIONS_KEPT)

    def delete_operation(self, name: str) -> None:
        """Forget an operation; what it does goes on."""
        self._write("DELETE FROM operations WHERE name = ?", name)

    # What the other APIs serve

    @property
    def resources(self) -> Resources:
        """What the APIs beside the TPU API have in this world."""
        return Resources(self._connection)

    # What is planned

    def plan_event(self, at: datetime, document: Json) -> None:
        """Keep something that shall happen at a time."""
        self._write("INSERT INTO events (at, record) VALUES (?, ?)", at.timestamp(), json.dumps(document))

    def events(self) -> list[records.Event]:
        """Return what is planned, soonest first."""
        rows = self._connection.execute("SELECT at, record FROM events ORDER BY at, id")
        return [records.Event(records.moment(at), records.stored_object(text)) for at, text in rows]

    def is_event_due(self) -> bool:
        """Tell whether the time of something planned has come."""
        return self._row("SELECT 1 FROM events WHERE at <= ? LIMIT 1", self.now.timestamp()) is not None

    def take_event(self) -> records.Event | None:
        """Return the first planned event whose time has come, and take it off the plan."""
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
        """Keep a fault, new or in place of one, and return its id."""
        row = self._row("INSERT OR REPLACE INTO faults VALUES (?, ?) RETURNING id", fault_id, json.dumps(document))
        return int(row[0]) if row else 0

    def delete_fault(self, fault_id: int) -> bool:
        """Remove a fault; tell whether it was there."""
        return self._connection.execute("DELETE FROM faults WHERE id = ?", (fault_id,)).rowcount > 0

    def project(self, project: str) -> Json:
        """Return what is kept about a project (its Compute Engine metadata); an empty object at first."""
        row = self._row("SELECT record FROM projects WHERE project = ?", project)
        return records.stored_object(row[0]) if row else {}

    def put_project(self, project: str, document: Json) -> None:
        """Keep what is known about a project."""
        self._write("INSERT OR REPLACE INTO projects VALUES (?, ?)", project, json.dumps(document))

    def log_request(self, method: str, name: str) -> None:
        """Note a call that changes something, for tests that count them. The oldest are forgotten."""
        row = self._row(
            "INSERT INTO requests (at, method, name) VALUES (?, ?, ?) RETURNING serial",
            self.now.timestamp(),
            method,
            name,
        )
        self._write("DELETE FROM requests WHERE serial <= ?", (row[0] if row else 0) - _REQUESTS_KEPT)

    def requests(self) -> list[tuple[datetime, str, str]]:
        """Return the time, the method id and the resource name of the calls that changed something, oldest first."""
        rows = self._connection.execute("SELECT at, method, name FROM requests ORDER BY serial")
        return [(records.moment(at), method, name) for at, method, name in rows]

    def is_there(self, record: NodeRecord | QueuedRecord) -> bool:
        """Tell whether a record is visible now."""
        return phase_at(record.timeline, self.now) is not None

    def _row(self, text: str, *values: object) -> Any:
        return self._connection.execute(text, values).fetchone()

    def _write(self, text: str, *values: object) -> None:
        self._connection.execute(text, values)


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
