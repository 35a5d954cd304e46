"""What `tpuctl sandbox` does to a world from outside the API: show it, move its time, fill it, remove it."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tpuctl import accelerators
from tpuctl.sandbox import capacity, catalog, faults, lifecycle, quotas, rendering
from tpuctl.sandbox.lifecycle import Phase
from tpuctl.sandbox.nodes import creation
from tpuctl.sandbox.queued import planning
from tpuctl.sandbox.world import NotAWorldError, QueuedRecord, World
from tpuctl.sandbox.world.database import files, marker

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.capacity import Stockout
    from tpuctl.sandbox.faults import Fault
    from tpuctl.sandbox.quotas import Quota
    from tpuctl.sandbox.world import NodeRecord, Session

PROJECT = "sandbox"
ZONE = "us-central2-b"
_TYPE = "v4-8"


@dataclass(frozen=True, slots=True)
class WorldStatus:
    """What is in a world. `states` counts nodes, `queued_states` queued resources, by project and state."""

    path: Path
    speed: float
    now: datetime
    states: dict[str, dict[str, int]]
    queued_states: dict[str, dict[str, int]]
    faults: tuple[tuple[int, Fault], ...]


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A call that was made to change something, accepted or not yet refused."""

    at: datetime
    method: str
    name: str


def status(world: World) -> WorldStatus:
    """Return what is in a world now."""
    with world.read() as session:
        return WorldStatus(
            path=world.path,
            speed=world.speed,
            now=session.now,
            states=_count([(node.project, node.phase(session.now)) for node in session.nodes()]),
            queued_states=_count([(r.project, r.phase(session.now)) for r in session.queued_resources()]),
            faults=tuple(faults.list_faults(session)),
        )


def _count(found: list[tuple[str, Phase | None]]) -> dict[str, dict[str, int]]:
    counters: dict[str, Counter[str]] = {}
    for project, phase in found:
        if phase:
            counters.setdefault(project, Counter())[phase.state] += 1
    return {project: dict(sorted(counter.items())) for project, counter in sorted(counters.items())}


def reset(path: Path) -> bool:
    """Remove a world with its workers' homes; tell whether there was one.

    A damaged world is removed too. Raises `NotAWorldError` for a file that the sandbox did not make.
    """
    path = path.absolute()
    if not marker(path).is_file():
        if path.exists():
            raise NotAWorldError(path)
        return False
    for file in files(path):  # the marker last: an interrupted reset can be run again
        file.unlink(missing_ok=True)
    for folder in ("workers", "programs", "gcloud"):
        shutil.rmtree(path.parent / folder, ignore_errors=True)
    return True


def advance(world: World, duration: timedelta) -> datetime:
    """Move a world's time on and return the new time. Raises `InvalidInputError` when it would go back."""
    return world.advance(duration)


def requests(world: World) -> tuple[LoggedRequest, ...]:
    """Return the calls that were made to change something, oldest first; the last 20 000."""
    with world.read() as session:
        return tuple(LoggedRequest(*entry) for entry in session.requests())


def add_node(
    world: World,
    name: str = "node",
    *,
    state: str = "READY",
    project: str = PROJECT,
    zone: str | None = None,
    health: str | None = None,
    age: timedelta = timedelta(),  # immutable
    queued_resource: str = "",
    **fields: object,
) -> Json:
    """Put a node into a world as if it had been made `age` ago and had long been in a state; return it as v2 shows it.

    `fields` are the API's (`acceleratorType`, `labels`, `symptoms`, `upcomingMaintenance`, …); a v4-8 with its
    usual image unless they say otherwise. Without a zone it lands where its type is offered. READY is HEALTHY
    unless `health` says otherwise (empty: unset). Nothing is checked but the type; a node of that name is replaced.
    Raises `ApiError` for a type that is not offered there.
    """
    with world.write() as session:
        body: Json = {"acceleratorType": _TYPE} if "acceleratorConfig" not in fields else {}
        body |= {"networkConfig": {"enableExternalIps": True}, **fields}
        zone = zone or _home(str(body.get("acceleratorType", _TYPE)))
        body.setdefault("runtimeVersion", catalog.accelerator(body, zone).runtime_version)
        owner = (
            queued_resource
            and f"projects/{project}/locations/{zone}/queuedResources/{queued_resource.rpartition('/')[2]}"
        )
        node = creation.prepare(session, project, zone, name, body=body, begin=-age, queued_resource=owner)
        extra: Json = {key: body[key] for key in ("symptoms", "multisliceNode", "apiVersion") if key in body}
        if health is None:
            health = "HEALTHY" if state == "READY" else ""
        maintenance = body.get("upcomingMaintenance")
        description = str(body.get("healthDescription") or "")
        phase = Phase(session.now - age, state, health, description, maintenance)
        node = replace(node, document={**node.document, **extra}, timeline=_life(node, phase, session))
        session.put_node(node)
        return rendering.node(node, session.now, "v2")


def _life(node: NodeRecord, phase: Phase, session: Session) -> lifecycle.Timeline:
    """Return what was and what will be of a node that is in a phase: states that pass by themselves go on from now."""
    match phase.state:
        case "CREATING":
            return node.timeline
        case "DELETING" | "STARTING" | "STOPPING" | "RESTARTING" | "REPAIRING" | "REIMAGING" | "HIDING" | "UNHIDING":
            ends = {"DELETING": lifecycle.GONE, "STOPPING": "STOPPED", "HIDING": "HIDDEN"}
            following = ends.get(phase.state, "READY")
            at = session.now + timedelta(minutes=1)
            return (phase, Phase(at, following, "HEALTHY" if following == "READY" else ""))
        case _:
            return (phase,)


def _home(accelerator_type: str) -> str:
    offered = [zone for zone in catalog.zones() if catalog.offers(zone, accelerator_type)]
    return offered[0] if offered else ZONE


def add_queued_resource(
    world: World,
    name: str = "queued",
    *,
    state: str = "ACTIVE",
    project: str = PROJECT,
    zone: str = ZONE,
    node_ids: tuple[str, ...] = ("node",),
    initiator: str = "",
    error: Json | None = None,
    **fields: object,
) -> Json:
    """Put a queued resource into a world, in a state in which it stays; return it as v2 shows it.

    It makes no nodes: give `add_node` its name. `fields` are the API's; a request for v4-8 nodes unless they say otherwise.
    """
    with world.write() as session:
        full = f"projects/{project}/locations/{zone}/queuedResources/{name}"
        spec: Json = {
            "acceleratorType": _TYPE,
            "runtimeVersion": accelerators.parse(_TYPE).runtime_version,
        }
        parent = f"projects/{project}/locations/{zone}"
        tpu = {"nodeSpec": [{"parent": parent, "nodeId": node_id, "node": spec} for node_id in node_ids]}
        document: Json = {"tpu": tpu, **fields, "name": full, "createTime": rendering.timestamp(session.now)}
        timeline = (Phase(session.now, state, initiator=initiator),)
        record = QueuedRecord(project, zone, name, session.next_incarnation(full), document, timeline, node_ids, error)
        session.put_queued_resource(record)
        return rendering.queued_resource(record, session.now, "v2")


def set_setting(world: World, name: str, value: object) -> None:
    """Keep a setting of a world; None unsets it.

    `health_lag` (two numbers of seconds), `networks` (names), `keep_failed_nodes`, `allow_<verb>_while_<state>`,
    `legacy_nodes` (true: API v1 may create TPU Nodes), `reservations` (a list of the API's objects).
    """
    with world.write() as session:
        session.set_setting(name, value)


def set_quota(session: Session, *, limit: int, **what: str) -> Quota:
    """Keep a quota: `metric`, or `generation` and `tier`; `region` or `zone`; `project`. `quotas.set_quota` says more."""
    return quotas.set_quota(session, limit=limit, **what)


def add_stockout(
    session: Session,
    *,
    zone: str = "*",
    accelerator_type: str = "*",
    tier: str = "*",
    project: str = "*",
    after: timedelta = timedelta(),  # immutable
    duration: timedelta | None = None,
) -> Stockout:
    """Let a zone run out of capacity, `after` from now and for `duration` (for ever without), and return how that is kept.

    Zone, type and project are globs, the tier `on-demand`, `spot`, `reserved` or all. Queued resources that wait go on waiting.
    Raises `InvalidInputError`.
    """
    where = {"zone": zone, "accelerator_type": accelerator_type, "tier": tier, "project": project}
    stockout = capacity.put_stockout(session, **where, after=after, duration=duration)
    planning.requeue(session)
    return stockout


def end_stockouts(session: Session) -> int:
    """Let there be capacity everywhere: queued resources that waited have their turn. Return how many stock-outs there were."""
    count = capacity.remove_stockouts(session)
    planning.requeue(session)
    return count
