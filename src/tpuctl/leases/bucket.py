"""Leases in Cloud Storage, for processes on several machines: one object for each node, replaced by its generation."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from tpuctl.lease import Record, Stored

if TYPE_CHECKING:
    from tpuctl.names import BucketPath, NodeName


class Version(Protocol):
    """One version of an object. `age` is by the service's own clock."""

    @property
    def content(self) -> bytes:
        """Return its bytes."""

    @property
    def generation(self) -> int:
        """Return its number, which no other version has."""

    @property
    def age(self) -> timedelta:
        """Return how long ago it was written."""


class Objects(Protocol):
    """The part of Cloud Storage that leases use. Generation 0 means that the object does not exist."""

    def read(self, bucket: str, name: str) -> Version | None:
        """Return the newest version; None only after a 404 from the API."""

    def write(self, bucket: str, name: str, content: bytes, *, generation: int | None) -> int:
        """Replace a generation. Raises `PreconditionFailedError` if the object has another."""

    def delete(self, bucket: str, name: str, *, generation: int | None) -> None:
        """Delete a generation. Raises `PreconditionFailedError` if the object has another."""


class BucketStore:
    """Lease records in Cloud Storage, at `PREFIX/PROJECT/ZONE/NODE.json`.

    Only the age of its record shows that a process was killed.
    """

    def __init__(self, objects: Objects, path: BucketPath) -> None:
        self._objects = objects
        self._path = path

    def read(self, name: NodeName) -> Stored | None:
        """Return the record of a node."""
        blob = self._objects.read(self._path.bucket, self._object(name))
        if blob is None:
            return None
        record = Record.from_json(blob.content, f"gs://{self._path.bucket}/{self._object(name)}")
        return Stored(record, str(blob.generation), blob.age)

    def write(self, name: NodeName, record: Record, *, expected: str | None) -> str:
        """Replace a version; see `Store`."""
        generation = int(expected) if expected else 0
        return str(self._objects.write(self._path.bucket, self._object(name), record.to_json(), generation=generation))

    def remove(self, name: NodeName, *, expected: str) -> None:
        """Remove a version; see `Store`."""
        self._objects.delete(self._path.bucket, self._object(name), generation=int(expected))

    def _object(self, name: NodeName) -> str:
        return self._path.object_name(f"{name.project}/{name.zone}/{name.node_id}.json")
