"""Records of any kind: JSON documents by kind, parent and name, and bytes that belong to some of them.

For the APIs beside the TPU API, whose resources have no life cycle. A kind is the API's word with its service
(`storage.bucket`); a parent is a project, or the bucket of an object.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.sandbox.world.records import stored_object

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from tpuctl.sandbox.calls import Json


class Resource(NamedTuple):
    """One record."""

    parent: str
    name: str
    document: Json


class Resources:
    """The records of one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, kind: str, parent: str, name: str) -> Json | None:
        """Return a document. None if there is none."""
        text = "SELECT record FROM resources WHERE kind = ? AND parent = ? AND name = ?"
        row = self._connection.execute(text, (kind, parent, name)).fetchone()
        return stored_object(row[0]) if row else None

    def find(self, kind: str, name: str) -> Resource | None:
        """Return the record of a name that is unique among all parents, such as a bucket's. None if there is none."""
        text = "SELECT parent, name, record FROM resources WHERE kind = ? AND name = ?"
        row = self._connection.execute(text, (kind, name)).fetchone()
        return Resource(row[0], row[1], stored_object(row[2])) if row else None

    def list_records(self, kind: str, parent: str | None = None, *, prefix: str = "") -> Iterator[Resource]:
        """Yield the records of a parent (None: of all parents) by name, those whose name begins with a prefix."""
        text = (
            "SELECT parent, name, record FROM resources WHERE kind = :kind AND (:parent IS NULL OR parent = :parent)"
            " AND name >= :prefix AND substr(name, 1, length(:prefix)) = :prefix ORDER BY parent, name"
        )
        for row in self._connection.execute(text, {"kind": kind, "parent": parent, "prefix": prefix}):
            yield Resource(row[0], row[1], stored_object(row[2]))

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
