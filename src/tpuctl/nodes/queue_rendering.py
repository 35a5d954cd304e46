"""Render queued resources in every format: rows of `queue list` and of `list`, JSON, details."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_duration, format_timestamp
from tpuctl.models.billing import NOTHING, Billing
from tpuctl.models.node import OWNER_LABEL, QueuedState, Tier
from tpuctl.names import NodeName, natural_key
from tpuctl.nodes.rendering import NODE_COLUMNS, age_cell, age_json, chip_words, chips_cell, count_words, label_words
from tpuctl.output.column_widths import Column, Kind
from tpuctl.output.terminal import Cell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.errors import TpuctlError
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.journal import Journal

# Names and order are a contract with scripts (docs/nodes.md): a new column is wide, and goes before the last.
QUEUE_COLUMNS = (
    Column("name", Kind.NAME),
    Column("zone", Kind.ZONE),
    Column("type", Kind.TYPE),
    Column("tier", Kind.WORD),
    Column("state", Kind.STATE),
    Column("in-state", Kind.TIME),
    Column("valid-until", Kind.TIME),
    Column("nodes"),
    Column("chips", Kind.NUMBER, is_wide=True),
    Column("age", Kind.TIME, is_wide=True),
    Column("labels", Kind.TEXT, is_wide=True),
    Column("note", Kind.TEXT),
)

_REQUEST_STATE_STYLES = {
    QueuedState.ACTIVE: "green",
    QueuedState.SUSPENDED: "red",
    QueuedState.FAILED: "red",
    QueuedState.DELETING: "dim",
}
# The state in `list` of each request whose nodes do not exist yet.
_WAITING = "WAITING"
INITIATORS = {"USER": "by a user", "SERVICE": "by the service"}
# The ids of so many nodes are shown.
_SHOWN_NODES = 3


@dataclass(frozen=True, slots=True)
class StateBegin:
    """When the state of a queued resource began: seen by tpuctl, else at the earliest its creation."""

    at: datetime
    is_from_journal: bool

    def lasted(self, now: datetime) -> str:
        """Return how long, with `≤` if only the creation is known."""
        return f"{'' if self.is_from_journal else '≤'}{format_duration(max(now - self.at, now - now))}"


def state_begin(journal: Journal, request: QueuedResource, project: str) -> StateBegin | None:
    """Return when the state began; None if the API gives no creation time. The API has no time of the last change.

    Only a request of tpuctl can have entries in the journal.
    """
    if request.is_from_tpuctl:
        past = journal.past(NodeName(project, request.zone, request.queued_resource_id))
        since = past.request_since(str(request.state), created=request.created)
        if since is not None:
            return StateBegin(since, is_from_journal=True)
    return StateBegin(request.created, is_from_journal=False) if request.created else None


def request_rows(
    requests: Sequence[QueuedResource], begins: Mapping[str, StateBegin | None], now: datetime
) -> list[tuple[Cell, ...]]:
    """Return one row for each queued resource. `begins` has the beginning of its state by its name."""
    return [
        (
            Cell(request.queued_resource_id),
            Cell(request.zone),
            Cell(request.accelerator_type),
            Cell(str(request.tier), style="dim" if request.tier is Tier.ON_DEMAND else ""),
            Cell(str(request.state), style=_REQUEST_STATE_STYLES.get(request.state, "yellow")),
            _begin_cell(begins.get(request.name), now),
            _end_cell(request, now),
            Cell(_node_list(request.node_ids)),
            chips_cell(request.chips),
            age_cell(request.created, now),
            Cell(label_words(request.labels)),
            Cell(request_note(request), style="yellow"),
        )
        for request in requests
    ]


def _begin_cell(begin: StateBegin | None, now: datetime) -> Cell:
    if begin is None:
        return Cell("")
    return Cell(begin.lasted(now), plain=format_timestamp(begin.at), rank=(now - begin.at).total_seconds())


def _end_cell(request: QueuedResource, now: datetime) -> Cell:
    end = request.valid_until
    if end is None or request.state is QueuedState.ACTIVE:
        return Cell("")
    return Cell(_relative(end, now), plain=format_timestamp(end))


def _node_list(node_ids: Sequence[str]) -> str:
    more = f" and {len(node_ids) - _SHOWN_NODES} more" if len(node_ids) > _SHOWN_NODES else ""
    return ", ".join(node_ids[:_SHOWN_NODES]) + more


def request_note(request: QueuedResource) -> str:
    """Return what users need to know beyond the state: who suspended it, what it holds of the quota, why it FAILED."""
    parts = []
    if request.state in {QueuedState.SUSPENDING, QueuedState.SUSPENDED} and request.initiator:
        parts.append(INITIATORS.get(request.initiator, request.initiator))
    if request.state.is_dead:
        parts.append(f"still holds quota{f' for {request.chips} chips' if request.chips else ''}")
    if request.error and request.error.message:
        parts.append(request.error.message)
    if not request.state.is_known:
        parts.append("this version of tpuctl does not know this state")
    return "; ".join(parts)


def request_json(request: QueuedResource, begin: StateBegin | None, project: str, now: datetime) -> dict[str, Any]:
    """Return the API's own fields, and those that users look for."""
    end = request.valid_until
    added: dict[str, Any] = {
        "queuedResourceId": request.queued_resource_id,
        "zone": request.zone,
        "project": project,
        "acceleratorType": request.accelerator_type,
        "tier": str(request.tier),
        "nodeIds": list(request.node_ids),
        "validUntil": format_timestamp(end) if end else None,
        "stateSince": format_timestamp(begin.at) if begin else None,
        # The creation is the earliest time at which the state may have begun.
        "stateSinceFrom": ("journal" if begin.is_from_journal else "creation") if begin else None,
        "heldChips": request.chips if request.state.is_dead else 0,
        "chips": request.chips,
        "owner": request.labels.get(OWNER_LABEL) or None,
        **age_json(request.created, now),
    }
    return {**request.raw, **added}


def request_details(
    request: QueuedResource, begin: StateBegin | None, now: datetime, *, nodes: Mapping[str, Node], project: str
) -> Iterator[tuple[str, str, str]]:
    """Yield label, text and style of each detail. `nodes` are its nodes that exist, by their ids."""
    yield "queued resource", request.queued_resource_id, "bold"
    yield "zone", request.zone, ""
    yield "project", project, ""
    words, since = [str(request.state), INITIATORS.get(request.initiator, "")], ""
    if begin is not None:
        source = "" if begin.is_from_journal else ", counted from its creation"
        since = f" ({begin.lasted(now)}{source})"
    yield "state", " ".join(filter(None, words)) + since, _REQUEST_STATE_STYLES.get(request.state, "yellow")
    requested = request.requested_node(project)
    yield "type", request.accelerator_type, ""
    yield "version", requested.runtime_version, ""
    yield "tier", str(request.tier), ""
    if reservation := request.raw.get("reservationName"):
        yield "reservation", str(reservation), ""
    if request.run_time is not None:
        yield "runs for", format_duration(request.run_time), ""
    if request.created:
        yield "created", _moment(request.created, now), ""
    if request.valid_after:
        yield "valid after", _moment(request.valid_after, now), ""
    if request.valid_until and request.state is not QueuedState.ACTIVE:
        yield "valid until", _moment(request.valid_until, now), ""
    for node_id in request.node_ids[:8]:
        node = nodes.get(node_id)
        yield "node", f"{node_id} {node.state if node else '(does not exist)'}", ""
    if len(request.node_ids) > 8:
        yield "", f"and {len(request.node_ids) - 8} more nodes", "dim"
    if request.labels:
        yield "labels", ", ".join(f"{key}={value}" for key, value in sorted(request.labels.items())), ""
    if text := request_note(request):
        yield "note", text, "yellow"


def error_details(error: TpuctlError) -> Iterator[tuple[str, str, str]]:
    """Yield the details of the error of a request that FAILED: its kind, message and hints."""
    yield "error", f"{error.kind}: {error.message}", "red"
    for line in (error.hint or "").splitlines():
        yield "hint", line, "cyan"


def request_error(cloud: TpuClient, request: QueuedResource) -> TpuctlError | None:
    """Return why a request FAILED, as the error of an operation; None if the service does not say. Hints name its node."""
    if request.error is None:
        return None
    from tpuctl.nodes.queueing import request_failure  # noqa: PLC0415  # most requests have not failed

    error = request_failure(request, cloud.operation_error(request.error), is_left=True)
    if error.hint:
        # Hints of known messages use the word NODE, as in `tpuctl status NODE`.
        node_id = next(iter(request.node_ids), "NODE")
        error.hint = re.sub(r"(?<=[ `])NODE(?=[` ])", lambda _: node_id, error.hint)
    return error


def _moment(at: datetime, now: datetime) -> str:
    return f"{format_timestamp(at)} ({_relative(at, now)})"


def _relative(at: datetime, now: datetime) -> str:
    return f"in {format_duration(at - now)}" if at > now else f"{format_duration(now - at)} ago"


def request_totals(requests: Sequence[QueuedResource]) -> str:
    """Return the last line of a list: `3 queued resources, 96 chips, 2 not ACTIVE`."""
    parts = [count_words(len(requests), "queued resource"), chip_words([request.chips for request in requests])]
    waiting = sum(request.state is not QueuedState.ACTIVE for request in requests)
    return ", ".join([*parts, f"{waiting:,} not ACTIVE"] if waiting else parts)


def waiting_requests(requests: Sequence[QueuedResource], nodes: Sequence[Node]) -> list[QueuedResource]:
    """Return the queued resources that wait: without a node, and not ended. `dead_request_line` has those that ended."""
    existing = {(node.name.zone, node.name.node_id) for node in nodes}
    return [
        request
        for request in sorted(requests, key=lambda request: (request.zone, natural_key(request.queued_resource_id)))
        if not request.state.is_dead and not any((request.zone, node_id) in existing for node_id in request.node_ids)
    ]


def waiting_json(request: QueuedResource, project: str, now: datetime) -> dict[str, Any]:
    """Return a queued resource without a node for `list`, with the fields of a node; `kind` tells them apart.

    `nodeId` is null if it requests several nodes: `nodeIds` has them.
    """
    end = request.valid_until
    return {
        "kind": "queuedResource",
        "name": request.name,
        "queuedResourceId": request.queued_resource_id,
        "nodeId": request.node_ids[0] if len(request.node_ids) == 1 else None,
        "nodeIds": list(request.node_ids),
        "zone": request.zone,
        "project": project,
        "state": str(request.state),
        "acceleratorType": request.accelerator_type,
        "runtimeVersion": request.requested_node(project).runtime_version,
        "labels": dict(request.labels),
        "workers": request.requested_node(project).workers,
        "chips": request.chips,
        "tier": str(request.tier),
        "owner": request.labels.get(OWNER_LABEL) or None,
        "createTime": request.raw.get("createTime"),
        **age_json(request.created, now),
        "validUntil": format_timestamp(end) if end else None,
        "billing": {
            "isBilled": False,
            "billed": str(Billing.NOTHING),
            "perHour": NOTHING.to_json(),
            "tier": str(request.tier),
            "since": None,
            "note": "not billed",
        },
    }


def waiting_row(request: QueuedResource, now: datetime) -> tuple[Cell, ...]:
    """Return the row of `list` for a queued resource that waits."""
    is_single = len(request.node_ids) == 1
    age = format_duration(now - request.created) if request.created else ""
    notes = [f"queued{f' {age}' if age else ''}, {request.state}"]
    if request.valid_until:
        notes.append(f"valid until {format_timestamp(request.valid_until)}")
    if not is_single:
        notes.append(f"{len(request.node_ids)} nodes: {_node_list(request.node_ids)}")
    elif request.node_ids[0] != request.queued_resource_id:
        notes.append(f"of queued resource {request.queued_resource_id}")
    cells = {
        "name": Cell(request.node_ids[0] if is_single else request.queued_resource_id),
        "zone": Cell(request.zone),
        "type": Cell(request.accelerator_type),
        "state": Cell(_WAITING, style="yellow"),
        "chips": chips_cell(request.chips),
        "tier": Cell(str(request.tier), style="dim" if request.tier is Tier.ON_DEMAND else ""),
        "workers": Cell(str(request.requested_node("").workers)),
        "owner": Cell(request.labels.get(OWNER_LABEL, "")),
        "labels": Cell(label_words(request.labels)),
        "note": Cell(", ".join(notes), style="yellow"),
    }
    return tuple(cells.get(column.name, Cell("")) for column in NODE_COLUMNS)
