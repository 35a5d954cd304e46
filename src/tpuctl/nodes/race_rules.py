"""The rules of a race: queued resources for one node in several zones, of which the first ACTIVE one is kept. Pure.

A request belongs to a race if the journal has its creation, and it has the label of the race. Anyone can copy the label: alone
it proves nothing, and what only has the label is named and never cancelled.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tpuctl.durations import format_timestamp
from tpuctl.errors import ConflictError, ServiceUnavailableError, TimedOutError, TpuctlError
from tpuctl.models.node import OWNER_LABEL, NodeState, QueuedState
from tpuctl.models.spec import RACE_LABEL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName

_NEVER = datetime.max.replace(tzinfo=UTC)
_ENDING = frozenset({QueuedState.SUSPENDING, QueuedState.SUSPENDED, QueuedState.DELETING, QueuedState.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """A race, as far as the journal and the API know it."""

    id: str
    names: tuple[NodeName, ...] = ()
    spec: NodeSpec | None = None
    begun: datetime | None = None
    # The recorded winner, the creation time of its request, and those of the requests that lost, by zone.
    winner: tuple[NodeName, datetime | None] | None = None
    lost: Mapping[str, datetime | None] = field(default_factory=dict)
    # Where the journal has a request, and when the last one was sent.
    sent: frozenset[NodeName] = frozenset()
    last_sent: datetime | None = None
    # Its requests that exist.
    requests: Mapping[NodeName, QueuedResource] = field(default_factory=dict)
    # The journal has its beginning and not its end.
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class ZoneRefusal:
    """Why and when a zone dropped out of a race."""

    error: TpuctlError = field(compare=False)
    at: datetime


def race_id_of(request: QueuedResource, node_id: str) -> str:
    """Return the id of the race that a request for this node alone belongs to; empty if it belongs to none."""
    if request.queued_resource_id != node_id or request.node_ids != (node_id,):
        return ""
    return request.labels.get(RACE_LABEL, "")


def race_members(
    project: str, nodes: Iterable[Node], requests: Iterable[QueuedResource]
) -> dict[tuple[str, str], list[NodeName]]:
    """Return where the races have living nodes or requests, by the id of the node and that of the race."""
    members: dict[tuple[str, str], dict[NodeName, None]] = {}
    for node in nodes:
        if (race_id := node.labels.get(RACE_LABEL)) and is_living(node) and not node.is_preempted:
            members.setdefault((node.name.node_id, race_id), {})[node.name] = None
    for request in requests:
        if (race_id := race_id_of(request, request.queued_resource_id)) and is_alive(request):
            members.setdefault((request.queued_resource_id, race_id), {})[request.node_name(project)] = None
    return {key: list(names) for key, names in members.items()}


def is_alive(request: QueuedResource) -> bool:
    """Return whether a request has nodes, or gets some, unless it is cancelled."""
    return request.state.is_known and request.state not in {*_ENDING, QueuedState.STATE_UNSPECIFIED}


def is_living(node: Node) -> bool:
    """Return whether a node exists, and is not being deleted."""
    return not (node.state.is_dead or node.state is NodeState.DELETING)


def first_active(requests: Mapping[NodeName, QueuedResource]) -> NodeName | None:
    """Return the zone that wins: of the ACTIVE requests the oldest, of two of one age the first.

    It depends on nothing that a run has done: a run that was killed between two ACTIVE requests and the next one agree.
    """
    active = [name for name, request in requests.items() if request.state is QueuedState.ACTIVE]
    return min(active, key=lambda name: requests[name].created or _NEVER, default=None)


def is_abandoned(request: QueuedResource) -> bool:
    """Return whether a request that is not of the race is only a record that tpuctl made: it is replaced."""
    return request.state is QueuedState.DELETING or (request.state.is_dead and request.is_from_tpuctl)


def requested_already_error(node_id: str, request: QueuedResource) -> ConflictError:
    """Return the error for a request for the node that is not one of a race."""
    several = f" for {len(request.node_ids)} nodes" if len(request.node_ids) > 1 else ""
    return ConflictError(
        f"`{node_id}` is requested in {request.zone} already: the queued resource `{request.queued_resource_id}`{several} is "
        f"{request.state}",
        hint=f"`tpuctl down {request.zone}/{node_id}` cancels it",
    )


def other_race_error(
    node_id: str, others: Mapping[NodeName, QueuedResource], winner: NodeName | None, *, owner: str
) -> ConflictError:
    """Return the error for requests that are labelled as of a race, and that the journal does not have.

    Its hint keeps the one that wins, and ends the others: a `down` would end all of them.
    """
    is_foreign = any(request.labels.get(OWNER_LABEL, "") != owner for request in others.values())
    made_by = {
        name: f" by {request.labels.get(OWNER_LABEL) or 'an unknown user'}" if is_foreign else ""
        for name, request in others.items()
    }
    named = ", ".join(f"{name.zone} ({request.state}{made_by[name]})" for name, request in others.items())
    everything = f"cancel all with `{shlex.join(['tpuctl', 'down', node_id])}`"
    if is_foreign:
        hint = "choose another name; `tpuctl queue list` shows all requests"
    elif winner is None:
        hint = f"name its zone to keep one, or {everything}"
    else:
        ended = [f"{name.zone}/{node_id}" for name in others if name != winner]
        command = shlex.join(["tpuctl", "queue", "cancel", *ended])
        hint = (
            f"keep the one in {winner.zone} with `{command}`, or {everything}" if ended else "name its zone to keep it"
        )
    return ConflictError(f"`{node_id}` is requested by another race already, in {named}", hint=hint)


def timeout_error(
    names: Sequence[NodeName], spec: NodeSpec, refusals: Mapping[NodeName, ZoneRefusal], silent: Collection[NodeName]
) -> TimedOutError:
    """Return the error of a deadline that passed before a request was ACTIVE."""
    zones_named = ",".join(name.zone for name in names)
    # The race is over: a plain `up` would not know its zones.
    options = {
        "--type": spec.accelerator_type,
        "--topology": spec.topology,
        "--version": spec.runtime_version if "runtime_version" in spec.named else None,
        "--tier": spec.tier,
        "--zone": zones_named,
    }
    asked = [word for option, value in options.items() if value for word in (option, str(value))]
    again = shlex.join(["tpuctl", "up", names[0].node_id, *asked, "--race", "--timeout", "12h"])
    node_id, zones = names[0].node_id, len(names)
    return TimedOutError(
        f"{f'none of {zones} zones had a' if zones > 1 else 'there was no'} TPU for `{node_id}` in time; "
        "every request is cancelled",
        details=_answers(names, refusals, silent),
        hint=f"wait longer with `{again}`, or ask in more zones with `--zone any`",
    )


def refused_error(names: Sequence[NodeName], refusals: Mapping[NodeName, ZoneRefusal]) -> TpuctlError:
    """Return the error of the zone that dropped out first, with those of the others as details."""
    first = min(refusals.values(), key=lambda refusal: refusal.at).error
    return type(first)(
        f"no zone is left in the race for `{names[0].node_id}`:",
        details=_answers(names, refusals, ()),
        hint=first.hint,
        error_id=first.error_id,
    )


def _answers(
    names: Sequence[NodeName], refusals: Mapping[NodeName, ZoneRefusal], silent: Collection[NodeName]
) -> list[str]:
    """Return the refusals of the zones, and which zones do not answer."""
    lines = []
    for name in names:
        if refusal := refusals.get(name):
            lines.append(f"  {name.zone} at {format_timestamp(refusal.at)}: {refusal.error.lines[0]}")
        elif name in silent:
            lines.append(f"  {name.zone} does not answer")
    return lines


def left_error(left: Mapping[NodeName, TpuctlError]) -> ServiceUnavailableError:
    """Return the error that names the requests that are left, with why, and the command that cancels them."""
    node_id = next(iter(left)).node_id
    return ServiceUnavailableError(
        f"{len(left)} of the requests for `{node_id}` may still get a TPU that bills:",
        details=[
            f"  {name.zone} does not answer"
            if isinstance(error, ServiceUnavailableError)
            else f"  {name.zone}: {error.lines[0]}"
            for name, error in left.items()
        ],
        hint=f"`tpuctl down {node_id}` cancels them",
    )


def describe_race(names: Sequence[NodeName]) -> str:
    """Return what an interruption of a race leaves in the cloud, for `App.in_flight`."""
    zones = ", ".join(name.zone for name in names)
    return (
        f"the requests for `{names[0].node_id}` in {zones} still count against the quota, and bill when they get a TPU"
    )
