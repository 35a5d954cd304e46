"""Operate on a sandbox from outside its API: show it, advance its clock, add resources, remove it.

What adds a resource is for seeds and tests: it checks nothing against existing resources, and replaces a record of the same
name. It takes a sandbox, or a session if several changes belong together. `fields` are the API's own, in its spelling;
they override the service's defaults. It returns the document as the API shows it, unless its docstring says otherwise.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from tpuctl.accelerators import parse_accelerator_type
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import faults, lifecycle
from tpuctl.sandbox.api_calls import DEFAULT_PROJECT, DEFAULT_ZONE
from tpuctl.sandbox.capacity import put_quota
from tpuctl.sandbox.catalog import number_of_project, resolve_accelerator, zone_names, zone_offers
from tpuctl.sandbox.compute_engine import drop_resource, put_region_quota, put_resource
from tpuctl.sandbox.lifecycle import LifecyclePhase
from tpuctl.sandbox.org_policy import put_org_policy
from tpuctl.sandbox.representation import nanosecond_timestamp, render_node, render_queued_resource
from tpuctl.sandbox.resource_manager import put_billing, put_iam_policy, put_project, put_role
from tpuctl.sandbox.service_usage import put_service_states
from tpuctl.sandbox.sshd.power import end_all_processes, end_processes_of_powered_off
from tpuctl.sandbox.state_file import NotASandboxError, marker_path, state_files
from tpuctl.sandbox.state_session import QueuedRecord, StateSession
from tpuctl.sandbox.stock import put_level, put_reservation, put_stockout, remove_levels
from tpuctl.sandbox.storage_buckets import put_bucket, put_cache
from tpuctl.sandbox.storage_objects import put_object
from tpuctl.sandbox.tpu_nodes import prepare_node

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tpuctl.sandbox.api_calls import Json
    from tpuctl.sandbox.faults import Fault
    from tpuctl.sandbox.state import SandboxState
    from tpuctl.sandbox.stock import StockLevel

__all__ = ["DEFAULT_PROJECT", "DEFAULT_ZONE"]
_P = ParamSpec("_P")
_R = TypeVar("_R")
_DEFAULT_TYPE = "v4-8"
# The states that end, a minute from now, with those that follow.
_TRANSIENT = {
    "DELETING": lifecycle.GONE,
    "STOPPING": "STOPPED",
    "HIDING": "HIDDEN",
    **dict.fromkeys(("STARTING", "RESTARTING", "REPAIRING", "REIMAGING", "UNHIDING"), "READY"),
}


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """The contents of a sandbox. `states` counts nodes, `queued_states` queued resources, by project and state."""

    path: Path
    speed: float
    now: datetime
    states: dict[str, dict[str, int]]
    queued_states: dict[str, dict[str, int]]
    faults: tuple[tuple[int, Fault], ...]


def read_status(sandbox: SandboxState) -> SandboxStatus:
    """Return a summary of the sandbox's contents."""
    with sandbox.read() as session:
        return SandboxStatus(
            path=sandbox.path,
            speed=sandbox.speed,
            now=session.now,
            states=_count_states([(node.project, node.phase(session.now)) for node in session.nodes()]),
            queued_states=_count_states([(r.project, r.phase(session.now)) for r in session.queued_resources()]),
            faults=tuple(faults.list_faults(session)),
        )


def _count_states(phases: list[tuple[str, LifecyclePhase | None]]) -> dict[str, dict[str, int]]:
    counters: dict[str, Counter[str]] = {}
    for project, phase in phases:
        if phase:
            counters.setdefault(project, Counter())[phase.state] += 1
    return {project: dict(sorted(counter.items())) for project, counter in sorted(counters.items())}


def reset_sandbox(path: Path) -> bool:
    """Remove a sandbox, end the processes of its workers and remove their home folders. Return whether it existed.

    A damaged sandbox is removed too. Raises `NotASandboxError` for a file that the sandbox did not create.
    """
    path = path.absolute()
    if not marker_path(path).is_file():
        if path.exists():
            raise NotASandboxError(path)
        return False
    end_all_processes(path)
    for file in state_files(path):  # the marker last: an interrupted reset can be repeated
        file.unlink(missing_ok=True)
    for folder in ("workers", "boots", "programs", "gcloud"):
        shutil.rmtree(path.parent / folder, ignore_errors=True)
    return True


def advance_clock(sandbox: SandboxState, duration: timedelta) -> datetime:
    """Advance the clock of a sandbox and return the new time. Raises `InvalidInputError` for a negative duration."""
    now = sandbox.advance(duration)
    end_processes_of_powered_off(sandbox)
    return now


def _in_session(
    add: Callable[Concatenate[StateSession, _P], _R],
) -> Callable[Concatenate[SandboxState | StateSession, _P], _R]:
    """Return a function that also takes a sandbox, in which it opens a write transaction."""

    @wraps(add)
    def add_to(sandbox: SandboxState | StateSession, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if isinstance(sandbox, StateSession):
            return add(sandbox, *args, **kwargs)
        with sandbox.write() as session:
            return add(session, *args, **kwargs)

    return add_to


@_in_session
def add_node(
    session: StateSession,
    /,
    name: str = "node",
    *,
    state: str = "READY",
    project: str = DEFAULT_PROJECT,
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
    body: Json = {"acceleratorType": _DEFAULT_TYPE} if "acceleratorConfig" not in fields else {}
    body |= {"networkConfig": {"enableExternalIps": True}, **fields}
    if not zone:
        accelerator_type = str(body.get("acceleratorType", _DEFAULT_TYPE))
        zone = next((name for name in zone_names() if zone_offers(name, accelerator_type)), DEFAULT_ZONE)
    body.setdefault("runtimeVersion", resolve_accelerator(body, zone).runtime_version)
    owner = (
        queued_resource and f"projects/{project}/locations/{zone}/queuedResources/{queued_resource.rpartition('/')[2]}"
    )
    node = prepare_node(session, project, zone, name, body=body, begin=-age, queued_resource=owner)
    extra: Json = {key: body[key] for key in ("symptoms", "multisliceNode", "apiVersion") if key in body}
    if health is None:
        health = "HEALTHY" if state == "READY" else ""
    maintenance = body.get("upcomingMaintenance")
    description = str(body.get("healthDescription") or "")
    phase = LifecyclePhase(session.now - age, state, health, description, maintenance)
    timeline: lifecycle.Timeline = (phase,)
    if state == "CREATING":
        timeline = node.timeline
    elif following := _TRANSIENT.get(state):
        end = session.now + timedelta(minutes=1)
        timeline = (phase, LifecyclePhase(end, following, "HEALTHY" if following == "READY" else ""))
    node = replace(node, document={**node.document, **extra}, timeline=timeline)
    session.put_node(node)
    return render_node(node, session.now, "v2")


@_in_session
def add_queued_resource(
    session: StateSession,
    /,
    name: str = "queued",
    *,
    state: str = "ACTIVE",
    project: str = DEFAULT_PROJECT,
    zone: str = DEFAULT_ZONE,
    node_ids: tuple[str, ...] = ("node",),
    initiator: str = "",
    error: Json | None = None,
    **fields: object,
) -> Json:
    """Add a queued resource that stays in `state`. Return it as v2 shows it.

    It creates no nodes: pass its name to `add_node`. `fields` are the API's; the default requests v4-8 nodes.
    """
    full = f"projects/{project}/locations/{zone}/queuedResources/{name}"
    spec: Json = {
        "acceleratorType": _DEFAULT_TYPE,
        "runtimeVersion": parse_accelerator_type(_DEFAULT_TYPE).runtime_version,
    }
    parent = f"projects/{project}/locations/{zone}"
    tpu = {"nodeSpec": [{"parent": parent, "nodeId": node_id, "node": spec} for node_id in node_ids]}
    document: Json = {"tpu": tpu, **fields, "name": full, "createTime": nanosecond_timestamp(session.now)}
    timeline = (LifecyclePhase(session.now, state, initiator=initiator),)
    record = QueuedRecord(project, zone, name, session.next_incarnation(full), document, timeline, node_ids, error)
    session.put_queued_resource(record)
    return render_queued_resource(record, session.now, "v2")


@_in_session
def set_setting(session: StateSession, name: str, value: object) -> None:
    """Store a setting of the sandbox; None unsets it.

    `health_lag` (two numbers of seconds), `keep_failed_nodes`, `legacy_nodes` (true: API v1 may create TPU Nodes),
    `reservations` (a list of the API's objects).
    """
    if name == "reservations" and value is not None:
        session.set_setting(name, [])
        for entry in value if isinstance(value, list) else [value]:
            if not isinstance(entry, dict):
                raise InvalidInputError("`reservations` must be a list of reservations")
            put_reservation(session, **entry)
        return
    session.set_setting(name, value)


@_in_session
def set_iam_policy(
    session: StateSession, bindings: Sequence[Json], *, bucket: str = "", project: str = DEFAULT_PROJECT
) -> None:
    """Replace the IAM policy of a bucket; without `bucket`, of the project."""
    kind, name = ("storage.bucket", bucket) if bucket else ("project", project)
    put_iam_policy(session, kind, name, {"bindings": list(bindings)})


def add_stockout(session: StateSession, **what: Any) -> StockLevel:
    """Add a stock-out as `stock.put_stockout` does and return it. Waiting queued resources keep waiting."""
    return put_stockout(session, **what)


@_in_session
def clear_stock(session: StateSession, /, **scope: Any) -> int:
    """Remove the stock of a scope, as `stock.remove_levels` does, and return the number of entries."""
    return remove_levels(session, **scope)


def end_stockouts(session: StateSession) -> int:
    """Remove all stock-outs, let waiting queued resources proceed, and return the number of stock-outs."""
    return remove_levels(session, only_stockouts=True)


set_stock = _in_session(put_level)
add_reservation = _in_session(put_reservation)
set_tpu_quota = put_quota
add_bucket = _in_session(put_bucket)
add_object = _in_session(put_object)
add_cache = _in_session(put_cache)
add_network = _in_session(partial(put_resource, "networks"))
remove_network = _in_session(partial(drop_resource, "networks"))
add_subnetwork = _in_session(partial(put_resource, "subnetworks"))
add_firewall = _in_session(partial(put_resource, "firewalls"))
remove_firewall = _in_session(partial(drop_resource, "firewalls"))
add_disk = _in_session(partial(put_resource, "disks"))
add_instance = _in_session(partial(put_resource, "instances"))
set_region_quota = _in_session(put_region_quota)
add_project = _in_session(put_project)
set_services = _in_session(put_service_states)
set_billing = _in_session(put_billing)
set_org_policy = _in_session(put_org_policy)
add_role = _in_session(put_role)


def project_number(project: str) -> str:
    """Return the number of a project, as it appears in service accounts and buckets."""
    return str(number_of_project(project))
