"""Operate on a sandbox from outside its API: show it, advance its clock, add resources, remove it."""

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
    from tpuctl.sandbox.world import Session

PROJECT = "sandbox"
ZONE = "us-central2-b"
_TYPE = "v4-8"


@dataclass(frozen=True, slots=True)
class WorldStatus:
    """The contents of a sandbox. `states` counts nodes, `queued_states` queued resources, by project and state."""

    path: Path
    speed: float
    now: datetime
    states: dict[str, dict[str, int]]
    queued_states: dict[str, dict[str, int]]
    faults: tuple[tuple[int, Fault], ...]


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A call that writes: accepted, or not yet rejected."""

    at: datetime
    method: str
    name: str


def status(sandbox: World) -> WorldStatus:
    """Return a summary of the sandbox's contents."""
    with sandbox.read() as session:
        return WorldStatus(
            path=sandbox.path,
            speed=sandbox.speed,
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
    """Remove a sandbox and the home folders of its workers. Return whether it existed.

    A damaged sandbox is removed too. Raises `NotAWorldError` for a file that the sandbox did not create.
    """
    path = path.absolute()
    if not marker(path).is_file():
        if path.exists():
            raise NotAWorldError(path)
        return False
    for file in files(path):  # the marker last: an interrupted reset can be repeated
        file.unlink(missing_ok=True)
    for folder in ("workers", "programs", "gcloud"):
        shutil.rmtree(path.parent / folder, ignore_errors=True)
    return True


def advance(sandbox: World, duration: timedelta) -> datetime:
    """Advance the clock of a sandbox and return the new time. Raises `InvalidInputError` for a negative duration."""
    return sandbox.advance(duration)


def requests(sandbox: World) -> tuple[LoggedRequest, ...]:
    """Return the last 20 000 calls that write, oldest first."""
    with sandbox.read() as session:
        return tuple(LoggedRequest(*entry) for entry in session.requests())


def add_node(
    sandbox: World,
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
    """Add a node that was created `age` ago and has been in `state` since. Return it as v2 shows it.

    `fields` are the API's (`acceleratorType`, `labels`, `symptoms`, `upcomingMaintenance`, …); the default is a v4-8 with its
    usual image. The default zone is the first that offers the type. A READY node is HEALTHY unless `health` gives another
    value (empty: unset). Only the type is checked; a node of the same name is replaced.
    Raises `ApiError` if the zone does not offer the type.
    """
    with sandbox.write() as session:
        body: Json = {"acceleratorType": _TYPE} if "acceleratorConfig" not in fields else {}
        body |= {"networkConfig": {"enableExternalIps": True}, **fields}
        if not zone:
            accelerator_type = str(body.get("acceleratorType", _TYPE))
            zone = next((name for name in catalog.zones() if catalog.offers(name, accelerator_type)), ZONE)
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
        timeline: lifecycle.Timeline = (phase,)
        if state == "CREATING":
            timeline = node.timeline
        elif state in {
            "DELETING",
            "STARTING",
            "STOPPING",
            "RESTARTING",
            "REPAIRING",
            "REIMAGING",
            "HIDING",
            "UNHIDING",
        }:
            # A transient state ends a minute from now.
            ends = {"DELETING": lifecycle.GONE, "STOPPING": "STOPPED", "HIDING": "HIDDEN"}
            following = ends.get(state, "READY")
            end = session.now + timedelta(minutes=1)
            timeline = (phase, Phase(end, following, "HEALTHY" if following == "READY" else ""))
        node = replace(node, document={**node.document, **extra}, timeline=timeline)
        session.put_node(node)
        return rendering.node(node, session.now, "v2")


def add_queued_resource(
    sandbox: World,
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
    """Add a queued resource that stays in `state`. Return it as v2 shows it.

    It creates no nodes: pass its name to `add_node`. `fields` are the API's; the default requests v4-8 nodes.
    """
    with sandbox.write() as session:
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


def set_setting(sandbox: World, name: str, value: object) -> None:
    """Store a setting of the sandbox; None unsets it.

    `health_lag` (two numbers of seconds), `networks` (names), `keep_failed_nodes`, `allow_<verb>_while_<state>`,
    `legacy_nodes` (true: API v1 may create TPU Nodes), `reservations` (a list of the API's objects).
    """
    with sandbox.write() as session:
        session.set_setting(name, value)


def set_quota(session: Session, *, limit: int, **what: str) -> Quota:
    """Store a quota: `metric`, or `generation` and `tier`; `region` or `zone`; `project`. See `quotas.set_quota`."""
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
    """Add a stock-out that starts `after` from now and lasts `duration` (None: forever). Return the stored stock-out.

    Zone, type and project are globs; the tier is `on-demand`, `spot`, `reserved` or `*`. Waiting queued resources keep waiting.
    Raises `InvalidInputError`.
    """
    scope = {"zone": zone, "accelerator_type": accelerator_type, "tier": tier, "project": project}
    stockout = capacity.put_stockout(session, **scope, after=after, duration=duration)
    planning.requeue(session)
    return stockout


def end_stockouts(session: Session) -> int:
    """Remove all stock-outs, let waiting queued resources proceed, and return the number of stock-outs."""
    count = capacity.remove_stockouts(session)
    planning.requeue(session)
    return count
