"""The stored records: nodes, queued resources and operations, each with the data that determines its state at any time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tpuctl.sandbox.lifecycle import Phase, Timeline, phase_at
from tpuctl.shapes import INTEGER, ITEM, Checker, Fields, ListOf, Scalar, Shape, ShapeError, parse_json

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Json


@dataclass(frozen=True, slots=True)
class NodeRecord:
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

    def phase(self, now: datetime) -> Phase | None:
        """Return the phase at a time. None if the node does not exist then."""
        return phase_at(self.timeline, now)


@dataclass(frozen=True, slots=True)
class QueuedRecord:
    """A queued resource. `node_ids` are the nodes that it creates; `error` is the reason of a FAILED state."""

    project: str
    zone: str
    queued_resource_id: str
    incarnation: int
    document: Json
    timeline: Timeline
    node_ids: tuple[str, ...]
    error: Json | None = None

    @property
    def name(self) -> str:
        """The full resource name."""
        return f"projects/{self.project}/locations/{self.zone}/queuedResources/{self.queued_resource_id}"

    def phase(self, now: datetime) -> Phase | None:
        """Return the phase at a time. None if the queued resource does not exist then."""
        return phase_at(self.timeline, now)


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
class Event:
    """A planned event. `document` describes it in the format of `scenarios`."""

    at: datetime
    document: Json


def _is_time(value: object) -> bool:
    return type(value) in {int, float} and 0 <= float(value) < 10**11  # type: ignore[arg-type]  # a number here


_OBJECT = Scalar("an object", lambda value: isinstance(value, dict))
_PHASE = Scalar(
    "a phase", lambda row: isinstance(row, list) and 2 <= len(row) <= 9 and _is_time(row[0]) and type(row[1]) is str
)
_TIMELINE = ListOf(_PHASE)
_TIME = Scalar("a time", _is_time)
_COMMON: Fields = {"incarnation": INTEGER, "document": _OBJECT, "timeline": _TIMELINE}
_NODE = Shape(
    "",
    {**_COMMON, "queued_resource": str, "keys_before": str, "keys_changed": _TIME},
    required=(*_COMMON, "queued_resource", "keys_before"),
    nullable=True,
)
_QUEUED = Shape(
    "", {**_COMMON, "node_ids": ListOf(str), "error": _OBJECT}, required=(*_COMMON, "node_ids"), nullable=True
)
_TEXTS = ("name", "project", "zone", "verb", "target", "goal", "version")
_OPERATION = Shape(
    "",
    {
        **dict.fromkeys((*_TEXTS, "request_id"), str),
        **dict.fromkeys(("created", "ended"), _TIME),
        **dict.fromkeys(("snapshot", "error"), _OBJECT),
        "incarnation": INTEGER,
        "cancel_requested": bool,
    },
    required=(*_TEXTS, "created", "snapshot", "incarnation"),
    nullable=True,
)


def stored(text: object, kind: Checker = ITEM) -> Any:
    """Parse stored JSON. Raises `ShapeError` if it is damaged, which becomes `WorldCorruptError`."""
    if not isinstance(text, str):
        raise ShapeError("not text")
    found = parse_json(text)
    kind.check(found)
    return found


def stored_object(text: object) -> Json:
    """Parse a stored JSON object, as `stored` does."""
    found: Json = stored(text, _OBJECT)
    return found


def dump_timeline(timeline: Timeline) -> list[list[object]]:
    """Return a timeline as JSON."""
    return [
        [
            *(p.at.timestamp(), p.state, p.health, p.description, p.maintenance, p.initiator, p.lacks_chip),
            *(p.startup_delay, p.startup_fails),
        ]
        for p in timeline
    ]


def load_timeline(rows: list[list[object]]) -> Timeline:
    """Return a timeline read from JSON."""
    return tuple(Phase(moment(row[0]), *row[1:]) for row in rows)  # type: ignore[arg-type]  # the inverse of dump


def moment(seconds: object) -> datetime:
    """Return the time of a number of seconds since 1970."""
    assert isinstance(seconds, int | float)  # noqa: S101  # written by ourselves; guides mypy
    return datetime.fromtimestamp(seconds, UTC)


def dump_node(record: NodeRecord) -> str:
    """Return the part of a node record that has no columns."""
    return json.dumps(
        {
            "incarnation": record.incarnation,
            "document": record.document,
            "timeline": dump_timeline(record.timeline),
            "queued_resource": record.queued_resource,
            "keys_before": record.keys_before,
            "keys_changed": record.keys_changed.timestamp() if record.keys_changed else None,
        }
    )


def load_node(row: tuple[str, str, str, str, int, int, str]) -> NodeRecord:
    """Return the node of a database row."""
    project, zone, node_id, number, first_address, workers, text = row
    rest = stored(text, _NODE)
    return NodeRecord(
        project=project,
        zone=zone,
        node_id=node_id,
        number=number,
        incarnation=rest["incarnation"],
        document=rest["document"],
        timeline=load_timeline(rest["timeline"]),
        workers=workers,
        first_address=first_address,
        queued_resource=rest["queued_resource"],
        keys_before=rest["keys_before"],
        keys_changed=moment(rest["keys_changed"]) if rest.get("keys_changed") is not None else None,
    )


def dump_queued(record: QueuedRecord) -> str:
    """Return the part of a queued resource that has no columns."""
    return json.dumps(
        {
            "incarnation": record.incarnation,
            "document": record.document,
            "timeline": dump_timeline(record.timeline),
            "node_ids": record.node_ids,
            "error": record.error,
        }
    )


def load_queued(row: tuple[str, str, str, str]) -> QueuedRecord:
    """Return the queued resource of a database row."""
    project, zone, queued_resource_id, text = row
    rest = stored(text, _QUEUED)
    return QueuedRecord(
        project,
        zone,
        queued_resource_id,
        rest["incarnation"],
        rest["document"],
        load_timeline(rest["timeline"]),
        tuple(rest["node_ids"]),
        rest.get("error"),
    )


def dump_operation(record: OperationRecord) -> str:
    """Return an operation as JSON."""
    values = {field: getattr(record, field) for field in OperationRecord.__slots__}
    for field in ("created", "ended"):
        values[field] = values[field].timestamp() if values[field] else None
    return json.dumps(values)


def load_operation(text: str) -> OperationRecord:
    """Return an operation read from JSON."""
    values = stored(text, _OPERATION)
    values["created"] = moment(values["created"])
    values["ended"] = moment(values["ended"]) if values.get("ended") is not None else None
    return OperationRecord(**{field: values[field] for field in OperationRecord.__slots__ if field in values})
