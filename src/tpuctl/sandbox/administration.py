"""Operate on a sandbox from outside its API: show it, advance its clock, add resources, remove it.

What adds a resource is for seeds and tests: it checks nothing against existing resources, and replaces a record of the same
name. It takes a sandbox, or a session if several changes belong together. `fields` are the API's own, in its spelling;
they override the service's defaults. It returns the document as the API shows it, unless its docstring says otherwise.
"""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.accelerators import parse_accelerator_type
from tpuctl.sandbox import capacity, faults, lifecycle
from tpuctl.sandbox.api_calls import Media
from tpuctl.sandbox.capacity import put_quota
from tpuctl.sandbox.catalog import number_of_project, resolve_accelerator, zone_names, zone_offers
from tpuctl.sandbox.compute_engine import put_disk, put_instance, put_region_quota
from tpuctl.sandbox.compute_networks import drop_firewall, drop_network, put_firewall, put_network, put_subnetwork
from tpuctl.sandbox.lifecycle import LifecyclePhase
from tpuctl.sandbox.org_policy import put_org_policy
from tpuctl.sandbox.representation import nanosecond_timestamp, render_node, render_queued_resource
from tpuctl.sandbox.resource_manager import BILLING_ACCOUNT, put_billing, put_iam_policy, put_project, put_role
from tpuctl.sandbox.service_usage import put_service_state
from tpuctl.sandbox.state import NotASandboxError, SandboxState, marker_path, state_files
from tpuctl.sandbox.state_session import QueuedRecord, StateSession
from tpuctl.sandbox.storage_buckets import put_bucket, put_cache
from tpuctl.sandbox.storage_objects import store_object
from tpuctl.sandbox.tpu_nodes import prepare_node
from tpuctl.sandbox.tpu_queued_resources import replan_waiting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tpuctl.sandbox.api_calls import Json
    from tpuctl.sandbox.capacity import Stockout, TpuQuota
    from tpuctl.sandbox.faults import Fault

DEFAULT_PROJECT = "sandbox"
DEFAULT_ZONE = "us-central2-b"
_DEFAULT_TYPE = "v4-8"


@dataclass(frozen=True, slots=True)
class SandboxStatus:
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


def _count_states(found: list[tuple[str, LifecyclePhase | None]]) -> dict[str, dict[str, int]]:
    counters: dict[str, Counter[str]] = {}
    for project, phase in found:
        if phase:
            counters.setdefault(project, Counter())[phase.state] += 1
    return {project: dict(sorted(counter.items())) for project, counter in sorted(counters.items())}


def reset_sandbox(path: Path) -> bool:
    """Remove a sandbox and the home folders of its workers. Return whether it existed.

    A damaged sandbox is removed too. Raises `NotASandboxError` for a file that the sandbox did not create.
    """
    path = path.absolute()
    if not marker_path(path).is_file():
        if path.exists():
            raise NotASandboxError(path)
        return False
    for file in state_files(path):  # the marker last: an interrupted reset can be repeated
        file.unlink(missing_ok=True)
    for folder in ("workers", "programs", "gcloud"):
        shutil.rmtree(path.parent / folder, ignore_errors=True)
    return True


def advance_clock(sandbox: SandboxState, duration: timedelta) -> datetime:
    """Advance the clock of a sandbox and return the new time. Raises `InvalidInputError` for a negative duration."""
    return sandbox.advance(duration)


def list_requests(sandbox: SandboxState) -> tuple[LoggedRequest, ...]:
    """Return the last 20 000 calls that write, oldest first."""
    with sandbox.read() as session:
        return tuple(LoggedRequest(*entry) for entry in session.requests())


def add_node(
    sandbox: SandboxState,
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
    with sandbox.write() as session:
        body: Json = {"acceleratorType": _DEFAULT_TYPE} if "acceleratorConfig" not in fields else {}
        body |= {"networkConfig": {"enableExternalIps": True}, **fields}
        if not zone:
            accelerator_type = str(body.get("acceleratorType", _DEFAULT_TYPE))
            zone = next((name for name in zone_names() if zone_offers(name, accelerator_type)), DEFAULT_ZONE)
        body.setdefault("runtimeVersion", resolve_accelerator(body, zone).runtime_version)
        owner = (
            queued_resource
            and f"projects/{project}/locations/{zone}/queuedResources/{queued_resource.rpartition('/')[2]}"
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
            timeline = (phase, LifecyclePhase(end, following, "HEALTHY" if following == "READY" else ""))
        node = replace(node, document={**node.document, **extra}, timeline=timeline)
        session.put_node(node)
        return render_node(node, session.now, "v2")


def add_queued_resource(
    sandbox: SandboxState,
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
    with sandbox.write() as session:
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


def set_setting(sandbox: SandboxState, name: str, value: object) -> None:
    """Store a setting of the sandbox; None unsets it.

    `health_lag` (two numbers of seconds), `networks` (names), `keep_failed_nodes`, `allow_<verb>_while_<state>`,
    `legacy_nodes` (true: API v1 may create TPU Nodes), `reservations` (a list of the API's objects).
    """
    with sandbox.write() as session:
        session.set_setting(name, value)


def set_tpu_quota(session: StateSession, *, limit: int, **what: str) -> TpuQuota:
    """Store a quota: `metric`, or `generation` and `tier`; `region` or `zone`; `project`. See `capacity.put_quota`."""
    return put_quota(session, limit=limit, **what)


def add_stockout(
    session: StateSession,
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
    replan_waiting(session)
    return stockout


def end_stockouts(session: StateSession) -> int:
    """Remove all stock-outs, let waiting queued resources proceed, and return the number of stock-outs."""
    count = capacity.remove_stockouts(session)
    replan_waiting(session)
    return count


@contextmanager
def _session_of(sandbox: SandboxState | StateSession) -> Iterator[StateSession]:
    if isinstance(sandbox, StateSession):
        yield sandbox
        return
    with sandbox.write() as session:
        yield session


def add_bucket(
    sandbox: SandboxState | StateSession,
    name: str,
    *,
    project: str = DEFAULT_PROJECT,
    location: str = "US",
    denied: Sequence[str] = (),
    **fields: Any,
) -> Json:
    """Add a bucket. `denied` are the permissions that the caller lacks on it; `("*",)`: a bucket of another owner, 403."""
    with _session_of(sandbox) as session:
        return put_bucket(session, project, name, fields={**fields, "location": location}, denied=tuple(denied))


def add_object(
    sandbox: SandboxState | StateSession, bucket: str, name: str, content: bytes | str = b"", **fields: Any
) -> Json:
    """Add an object, or a new generation of it. Raises `ApiError` 404 for a bucket that does not exist."""
    media = Media(content.encode() if isinstance(content, str) else content, str(fields.get("contentType", "")))
    with _session_of(sandbox) as session:
        return store_object(session, bucket, name, media=media, fields=fields)


def add_cache(sandbox: SandboxState | StateSession, bucket: str, zone: str, **fields: Any) -> Json:
    """Add an Anywhere Cache of a bucket (`state`, `ttl`, …). Raises `ApiError` 404 for a bucket that does not exist."""
    with _session_of(sandbox) as session:
        return put_cache(session, bucket, zone, fields=fields)


def add_network(
    sandbox: SandboxState | StateSession, name: str, *, project: str = DEFAULT_PROJECT, **fields: Any
) -> Json:
    """Add a network; it gets a subnetwork in every region unless `autoCreateSubnetworks` is false."""
    with _session_of(sandbox) as session:
        return put_network(session, project, name, fields=fields)


def remove_network(sandbox: SandboxState | StateSession, name: str, *, project: str = DEFAULT_PROJECT) -> None:
    """Remove a network; `default`, which every project has, too."""
    with _session_of(sandbox) as session:
        drop_network(session, project, name)


def add_subnetwork(
    sandbox: SandboxState | StateSession,
    name: str,
    *,
    region: str,
    network: str = "default",
    project: str = DEFAULT_PROJECT,
    **fields: Any,
) -> Json:
    """Add a subnetwork (`privateIpGoogleAccess`, `ipCidrRange`, …), or change one of an auto-mode network."""
    with _session_of(sandbox) as session:
        return put_subnetwork(session, project, name, fields={**fields, "region": region, "network": network})


def add_firewall(
    sandbox: SandboxState | StateSession, name: str, *, project: str = DEFAULT_PROJECT, **fields: Any
) -> Json:
    """Add a firewall rule (`network`, `allowed`, `sourceRanges`, …)."""
    with _session_of(sandbox) as session:
        return put_firewall(session, project, name, fields=fields)


def remove_firewall(sandbox: SandboxState | StateSession, name: str, *, project: str = DEFAULT_PROJECT) -> None:
    """Remove a firewall rule; those of default networks (`default-allow-ssh`) too."""
    with _session_of(sandbox) as session:
        drop_firewall(session, project, name)


def add_disk(
    sandbox: SandboxState | StateSession,
    name: str,
    *,
    zone: str = DEFAULT_ZONE,
    project: str = DEFAULT_PROJECT,
    **fields: Any,
) -> Json:
    """Add a persistent disk (`sizeGb`, `status`, `users`, …)."""
    with _session_of(sandbox) as session:
        return put_disk(session, project, zone, name, fields=fields)


def add_instance(
    sandbox: SandboxState | StateSession,
    name: str,
    *,
    zone: str = DEFAULT_ZONE,
    project: str = DEFAULT_PROJECT,
    **fields: Any,
) -> Json:
    """Add a virtual machine (`status`, `serviceAccounts`, `machineType`, …)."""
    with _session_of(sandbox) as session:
        return put_instance(session, project, zone, name, fields=fields)


def set_region_quota(
    sandbox: SandboxState | StateSession,
    region: str,
    metric: str,
    *,
    limit: float,
    usage: float | None = None,
    project: str = DEFAULT_PROJECT,
) -> None:
    """Set a quota of Compute Engine in a region (`IN_USE_ADDRESSES`); without `usage` the usage is counted."""
    with _session_of(sandbox) as session:
        put_region_quota(session, project, region, metric=metric, limit=limit, usage=usage)


def add_project(
    sandbox: SandboxState | StateSession, project: str, *, denied: Sequence[str] = (), **fields: Any
) -> Json:
    """Add a project. As soon as one is added, only added projects are known.

    `denied` are the permissions that the caller lacks on it. Its number follows from its name: `projectNumber` is ignored.
    """
    with _session_of(sandbox) as session:
        return put_project(session, project, fields=fields, denied=tuple(denied))


def set_services(
    sandbox: SandboxState | StateSession, states: Mapping[str, str | bool], *, project: str = DEFAULT_PROJECT
) -> None:
    """Enable or disable services: `{"tpu.googleapis.com": "DISABLED"}`, or booleans."""
    with _session_of(sandbox) as session:
        for name, state in states.items():
            put_service_state(session, project, name, enabled=state in {True, "ENABLED"})


def set_billing(
    sandbox: SandboxState | StateSession,
    *,
    enabled: bool,
    project: str = DEFAULT_PROJECT,
    account: str = BILLING_ACCOUNT,
) -> None:
    """Enable or disable a project's billing; `account` is `billingAccounts/012345-567890-ABCDEF`."""
    with _session_of(sandbox) as session:
        put_billing(session, project, enabled=enabled, account=account)


def set_iam_policy(
    sandbox: SandboxState | StateSession,
    bindings: Sequence[Mapping[str, Any]],
    *,
    bucket: str = "",
    project: str = DEFAULT_PROJECT,
) -> None:
    """Replace the IAM policy of a bucket; without `bucket`, of the project."""
    kind, name = ("storage.bucket", bucket) if bucket else ("project", project)
    with _session_of(sandbox) as session:
        put_iam_policy(session, kind, name, {"bindings": [dict(binding) for binding in bindings]})


def set_org_policy(
    sandbox: SandboxState | StateSession, constraint: str, spec: Mapping[str, Any], *, project: str = DEFAULT_PROJECT
) -> Json:
    """Set an organisation policy on a project; `spec` as the API has it: `{"rules": [{"enforce": True}]}`."""
    with _session_of(sandbox) as session:
        return put_org_policy(session, project, constraint, dict(spec))


def add_role(sandbox: SandboxState | StateSession, name: str, *, project: str = DEFAULT_PROJECT, **fields: Any) -> Json:
    """Add a custom role of a project (`title`, `includedPermissions`, …)."""
    with _session_of(sandbox) as session:
        return put_role(session, project, name, fields=fields)


def project_number(project: str) -> str:
    """Return the number of a project, as it appears in service accounts and buckets."""
    return str(number_of_project(project))
