"""What `doctor NODE` reads of a node: one look at it, its queued resource, what its workers publish, and the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from tpuctl.checkup.node_facts import LastFailure, NodeFacts
from tpuctl.clock import parse_timestamp
from tpuctl.errors import AccessError, NotFoundError, QuotaError, ServiceUnavailableError, TpuctlError
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from tpuctl.journal import Journal
    from tpuctl.model import Node, QueuedResource
    from tpuctl.names import NodeName

_T = TypeVar("_T")
_SUCCESSES = frozenset({"usable", "create", "restart", "start"})


class Cloud(Protocol):
    """What is asked of the cloud. Every method raises a `TpuctlError` where it does not answer."""

    def get_queued_resource(self, name: str) -> QueuedResource:
        """Return a queued resource by its full name."""

    def guest_attributes(self, name: NodeName, worker: int | None = None) -> tuple[Mapping[str, str], ...]:
        """Return what each worker published."""


def gather(
    node: Node,
    cloud: Cloud,
    journal: Journal,
    *,
    now: datetime,
    obstacle: str | None = None,
    remedy: str | None = None,
) -> NodeFacts:
    """Return what is known of a node that was just looked at. Nothing is raised: what cannot be read is unknown."""
    owner = node.queued_resource
    return NodeFacts(
        node=node,
        now=now,
        request=_ask(lambda: cloud.get_queued_resource(owner)) if owner else None,
        published=_ask(lambda: cloud.guest_attributes(node.name)),
        failure=_last_failure(node, journal),
        obstacle=obstacle,
        remedy=remedy,
    )


def unknown(error: TpuctlError) -> Unknown:
    """Return a failure as a fact that is not known."""
    is_passing = isinstance(error, ServiceUnavailableError | QuotaError)
    permission = getattr(error, "permission", None) if isinstance(error, AccessError) else None
    return Unknown(error.message, permission, is_passing=is_passing, error_id=error.error_id)


def _ask(question: Callable[[], _T]) -> Fact[_T]:
    try:
        return Known(question())
    except NotFoundError as error:
        return Absent(error.message)
    except TpuctlError as error:
        return unknown(error)


def _last_failure(node: Node, journal: Journal) -> Fact[LastFailure]:
    """Return the last failure that the journal has and that no success followed; a node of another id is not this one."""
    try:
        entries = journal.entries(node.name, rotated=False)
    except TpuctlError as error:
        return unknown(error)
    found: LastFailure | None = None
    for entry in entries:
        event, text = entry.get("event"), entry.get("text") or entry.get("reason")
        if event in _SUCCESSES:
            found = None
        elif entry.get("error") and entry.get("id") in {None, "", node.id}:
            found = LastFailure(str(text or entry["error"]), str(entry["error"]), parse_timestamp(entry.get("at")))
    return Absent() if found is None else Known(found)
