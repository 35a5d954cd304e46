"""Gather the facts about a node and its workers: queued resource, operations, guest attributes, journal, worker reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tpuctl.actions.checking.asking import fact_of
from tpuctl.api.errors import operation_error
from tpuctl.checkup.node.facts import Asked, LastFailure, NodeFacts
from tpuctl.clock import parse_timestamp
from tpuctl.errors import CredentialsError, TpuctlError
from tpuctl.model import Operation
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import datetime

    from tpuctl.journal import Journal
    from tpuctl.model import Node, QueuedResource
    from tpuctl.names import NodeName

_T = TypeVar("_T")
_OPERATIONS = 10
_SUCCESSES = frozenset({"usable", "create", "restart", "start"})


class Cloud(Protocol):
    """The API methods that are called. Each raises `TpuctlError` if the API does not answer."""

    def get_queued_resource(self, name: str) -> QueuedResource:
        """Return a queued resource by its full name."""

    def guest_attributes(self, name: NodeName, worker: int | None = None) -> tuple[Mapping[str, str], ...]:
        """Return the guest attributes of each worker."""


class Operations(Protocol):
    """The API method that lists operations."""

    def operations(
        self, project: str, zone: str, targets: Collection[str], *, limit: int
    ) -> tuple[Mapping[str, Any], ...]:
        """Return the newest operations on some resources as the API's JSON. Raises `TpuctlError` if it does not answer."""


def gather(
    node: Node,
    cloud: Cloud,
    operations: Operations,
    journal: Journal,
    *,
    now: datetime,
    obstacle: str | None = None,
    remedy: str | None = None,
) -> NodeFacts:
    """Return the facts about a node that was just fetched. A failed read raises nothing: the fact is unknown."""
    owner = node.queued_resource
    return NodeFacts(
        node=node,
        now=now,
        request=_ask(lambda: cloud.get_queued_resource(owner)) if owner else None,
        published=_ask(lambda: cloud.guest_attributes(node.name)),
        failure=_last_failure(node, journal),
        operations=_ask(lambda: _list_operations(node, operations)),
        obstacle=obstacle,
        remedy=remedy,
    )


def _ask(question: Callable[[], _T]) -> Fact[_T]:
    try:
        return Known(question())
    except TpuctlError as error:
        return _fact(error)


def _fact(error: TpuctlError) -> Absent | Unknown:
    # The credentials work: the node was just fetched.
    return Unknown(error.message) if isinstance(error, CredentialsError) else fact_of(error)


def _list_operations(node: Node, operations: Operations) -> tuple[Asked, ...]:
    targets = {str(node.name)} | ({node.queued_resource} if node.queued_resource else set())
    found = operations.operations(node.name.project, node.name.zone, targets, limit=_OPERATIONS)
    parsed = []
    for raw in found:
        about, operation = raw.get("metadata") or {}, Operation.from_api(raw)
        failed = operation_error(operation.error) if operation.error else None
        parsed.append(
            Asked(
                verb=str(about.get("verb") or "a change"),
                began=parse_timestamp(about.get("createTime")),
                is_done=operation.done,
                error=failed.message if failed else None,
                error_id=failed.error_id if failed else None,
            )
        )
    return tuple(parsed)


def _last_failure(node: Node, journal: Journal) -> Fact[LastFailure]:
    """Return the last failure in the journal without a later success. Entries with another node id are ignored."""
    try:
        entries = journal.entries(node.name, rotated=False)
    except TpuctlError as error:
        return _fact(error)
    found: LastFailure | None = None
    for entry in entries:
        event, text = entry.get("event"), entry.get("text") or entry.get("reason")
        if event in _SUCCESSES:
            found = None
        elif entry.get("error") and entry.get("id") in {None, "", node.id}:
            found = LastFailure(str(text or entry["error"]), str(entry["error"]), parse_timestamp(entry.get("at")))
    return Absent() if found is None else Known(found)
