"""Nodes: handlers of `tpu.projects.locations.nodes`.

TPU Nodes, the architecture of API v1 and v1alpha1, are closed by Google; a sandbox setting enables them. They are stored as
all nodes, with the field names of v2 and an `apiVersion` that distinguishes them.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from ipaddress import ip_network
from typing import TYPE_CHECKING

from tpuctl.sandbox import api_calls, capacity, catalog, faults
from tpuctl.sandbox.api_calls import (
    already_exists,
    answers,
    bad_request,
    failed_precondition,
    invalid,
    invalid_field,
    not_found,
    numeric_id,
    page_position,
    page_size,
    page_token,
    parse_resource_name,
)
from tpuctl.sandbox.capacity import check_quotas, quota_metrics, quota_refusal
from tpuctl.sandbox.catalog import check_tpu_zone, number_of_project, resolve_accelerator, zone_names
from tpuctl.sandbox.compute_engine import network_exists
from tpuctl.sandbox.faults import (
    Fault,
    FaultKind,
    FaultTarget,
    apply_fault,
    apply_faults,
    durations_of,
    durations_of_new,
    operation_failure,
    store_node,
    take_fault,
)
from tpuctl.sandbox.lifecycle import (
    GONE,
    NodeVerb,
    Timeline,
    create_timeline,
    delete_timeline,
    failed_timeline,
    is_verb_allowed,
    restart_timeline,
    stop_timeline,
)
from tpuctl.sandbox.org_policy import is_constraint_enforced, org_policy_denies_all
from tpuctl.sandbox.representation import ADDRESS_COUNT, nanosecond_timestamp, render_node
from tpuctl.sandbox.state_session import NodeRecord
from tpuctl.sandbox.stock import check_reservation, find_shortage
from tpuctl.sandbox.tpu_operations import begin_operation, repeated_operation, settle_operations

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.lifecycle import PhaseDurations
    from tpuctl.sandbox.state_session import StateSession

_NODE_ID = re.compile(r"[A-Za-z0-9_.~+%-]+")  # API field text of NodeSpec.nodeId
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_CHOSEN = (
    *("description", "labels", "tags", "metadata", "dataDisks", "bootDiskConfig", "networkConfig", "networkConfigs"),
    *("serviceAccount", "schedulingConfig", "shieldedInstanceConfig", "runtimeVersion", "autocheckpointEnabled"),
)


@answers("tpu.projects.locations.nodes.create")
def _create_node(session: StateSession, call: Call) -> Json:
    """Create a node: it exists at once, CREATING, or the request is rejected with 4xx.

    A failure of the service itself (no capacity) comes later, in the operation (observed).
    """
    if repeated := repeated_operation(session, call):
        return repeated
    where = parse_resource_name(call["parent"])
    node_id = call["nodeId"]
    is_legacy = call.version.startswith("v1")
    body = _accept_legacy_body(session, call) if is_legacy else client_fields(call.body)
    check_node(session, where.project, where.zone, node_id, body=body)
    target = FaultTarget(call.method, where.project, where.zone, node_id)
    demand = capacity.node_demand(where.project, where.zone, body)
    if fault := take_fault(session, FaultKind.QUOTA, target):
        metric, place = quota_metrics(demand)[1]
        raise quota_refusal(metric, place, limit=fault.limit).committing()
    check_quotas(session, [demand])
    node = prepare_node(session, where.project, where.zone, node_id, body=body)
    fault = take_fault(session, FaultKind.OPERATION_ERROR, target)
    if error := operation_failure(fault, target, demand.tier) if fault else find_shortage(session, demand):
        # The record disappears with the failure; with the sandbox setting `keep_failed_nodes` it stays in CREATING (both are
        # reported, neither is documented).
        timeline = failed_timeline((), session.now, durations_of(session, node), during="CREATING", then=GONE)
        is_kept = session.setting("keep_failed_nodes", default=False)
        session.put_node(replace(node, timeline=timeline[:1] if is_kept else timeline))
        return begin_operation(session, node, "create", call, goal="READY", ended=timeline[-1].at, error=error)
    node = replace(node, timeline=apply_faults(session, node, node.timeline))
    session.put_node(node)
    answer = begin_operation(session, node, "create", call, goal="READY")
    settle_operations(session, node.name, node.timeline)
    return answer


def client_fields(body: Json) -> Json:
    """Return the fields that a client may set; all others are output only and ignored, as proto3 APIs do."""
    fields = (*_CHOSEN, "acceleratorType", "acceleratorConfig", "cidrBlock")
    return {field: copy.deepcopy(body[field]) for field in fields if body.get(field) is not None}


def check_node(session: StateSession, project: str, zone: str, node_id: str, *, body: Json) -> None:
    """Raise `ApiError` unless the node could be created now."""
    check_tpu_zone(project, zone)
    if not _NODE_ID.fullmatch(node_id):
        raise invalid_field("NodeId", node_id)
    resolve_accelerator(body, zone)
    if (block := body.get("cidrBlock")) and not _is_block_of_node(str(block)):
        raise invalid_field("CidrBlock", str(block))
    if "apiVersion" not in body:
        catalog.check_runtime_version(str(body.get("runtimeVersion", "")))
    if body.get("networkConfig") and body.get("networkConfigs"):
        raise invalid("Only one of network_config and network_configs may be set.")  # API field text
    configs = body.get("networkConfigs") or [body.get("networkConfig") or {}]
    has_addresses = any(config.get("enableExternalIps") for config in configs)
    if has_addresses and org_policy_denies_all(session, project, "compute.vmExternalIpAccess"):
        # Compute Engine's message for its instances (observed: googlecodelabs/feedback#695); that the TPU API returns it is
        # unverified.
        raise bad_request(
            f"Constraint constraints/compute.vmExternalIpAccess violated for project {number_of_project(project)}. Add "
            f"instance projects/{project}/zones/{zone}/instances/{node_id} to the constraint to use external IP with it."
        )
    boots_securely = (body.get("shieldedInstanceConfig") or {}).get("enableSecureBoot")
    if not boots_securely and is_constraint_enforced(session, project, "compute.requireShieldedVm"):
        # Observed: google/fully-homomorphic-encryption#103.
        raise bad_request(
            "Constraint constraints/compute.requireShieldedVm violated. Please create TPUs with Secure Boot enabled"
        )
    for config in configs:
        network = str(config.get("network") or "default")
        if not network_exists(session, project, network):
            raise invalid_field("Network", network.rpartition("/")[2])
    check_reservation(session, str((body.get("schedulingConfig") or {}).get("reservationName") or ""), zone)
    waiting = session.queued_resources(project, zone=zone, is_waiting=True)
    if session.node(project, zone, node_id) is not None or any(node_id in record.node_ids for record in waiting):
        raise already_exists(f"projects/{project}/locations/{zone}/nodes/{node_id}")


def _is_block_of_node(text: str) -> bool:
    """Return whether a text is a /29 block, which a node requires [API v2 field text; gcloud 528 help]."""
    try:
        return ip_network(text).prefixlen == 29
    except ValueError:
        return False


def prepare_node(
    session: StateSession,
    project: str,
    zone: str,
    node_id: str,
    *,
    body: Json,
    begin: timedelta = timedelta(),  # immutable
    queued_resource: str = "",
) -> NodeRecord:
    """Return a new node that will be CREATING in `begin`, without faults; it is not stored yet."""
    name = f"projects/{project}/locations/{zone}/nodes/{node_id}"
    incarnation = session.next_incarnation(name)
    accelerator = resolve_accelerator(body, zone)
    first = session.free_addresses(accelerator.workers, pool=ADDRESS_COUNT)
    if first == 0:
        raise invalid("the sandbox has no free addresses: delete nodes, or run `tpuctl sandbox reset`")
    number = numeric_id(f"0/{name}/{incarnation}")
    document = _node_document(body, accelerator, project=project, zone=zone)
    document |= {"name": name, "id": number, "createTime": nanosecond_timestamp(session.now + begin)}
    if queued_resource:
        document["queuedResource"] = queued_resource
    timeline = create_timeline(
        session.now + begin,
        durations_of_new(session, name, incarnation, 0),
        workers=accelerator.workers,
        preemptible=bool(document["schedulingConfig"].get("preemptible")),
    )
    identity = (project, zone, node_id, number, incarnation)
    return NodeRecord(*identity, document, timeline, accelerator.workers, first, queued_resource)


def _node_document(body: Json, accelerator: AcceleratorType, *, project: str, zone: str) -> Json:
    """Return the document of a node: the given fields and the service's defaults."""
    document = {field: copy.deepcopy(body[field]) for field in _CHOSEN if body.get(field) is not None}
    config = body.get("acceleratorConfig") or {}
    document["acceleratorType"] = accelerator.name
    document["acceleratorConfig"] = {
        "type": accelerator.generation.config_type,
        "topology": str(config.get("topology") or accelerator.topology or "").lower(),
    }
    if "networkConfigs" in document:
        document["networkConfigs"] = [_network_config(entry, project, zone) for entry in document["networkConfigs"]]
    else:
        document["networkConfig"] = _network_config(document.get("networkConfig") or {}, project, zone)
    account = document.get("serviceAccount") or {}
    email = account.get("email") or catalog.default_service_account(project)
    document["serviceAccount"] = {"email": email, "scope": account.get("scope") or list(_SCOPES)}
    scheduling = dict(document.get("schedulingConfig") or {})
    if scheduling.get("provisioningModel") == "SPOT":
        scheduling["spot"] = True
    document["schedulingConfig"] = {key: value for key, value in scheduling.items() if value}
    document.setdefault("shieldedInstanceConfig", {})
    for disk in document.get("dataDisks", []):
        disk.setdefault("mode", "READ_WRITE")  # API field text
    document["cidrBlock"] = str(body.get("cidrBlock") or "10.128.0.0/20")
    document["apiVersion"] = "V2"
    if "apiVersion" in body:  # a TPU Node, of API v1
        document |= {key: body[key] for key in ("apiVersion", "useServiceNetworking") if key in body}
    return document


def _network_config(config: Json, project: str, zone: str) -> Json:
    region = zone.rpartition("-")[0]
    network, subnetwork = str(config.get("network") or "default"), str(config.get("subnetwork") or "default")
    full = {"network": f"projects/{project}/global/networks/{network}"} if "/" not in network else {"network": network}
    if "/" not in subnetwork:
        subnetwork = f"projects/{project}/regions/{region}/subnetworks/{subnetwork}"
    return {
        **config,
        **full,
        "subnetwork": subnetwork,
        # Absent means false, as for every field of proto3; clients that want addresses request them.
        "enableExternalIps": bool(config.get("enableExternalIps", False)),
    }


@dataclass(frozen=True, slots=True)
class _Transition:
    """How a verb changes a node: its timeline, the goal of the operation, the states during a failure and after it.

    `after_failure` is empty if the state does not change.
    """

    timeline: Callable[[Timeline, datetime, PhaseDurations], Timeline]
    goal: str
    during: str
    after_failure: str = ""


_TRANSITIONS = {
    NodeVerb.STOP: _Transition(stop_timeline, "STOPPED", "STOPPING", "READY"),
    NodeVerb.START: _Transition(partial(restart_timeline, during="STARTING"), "READY", "STARTING", "STOPPED"),
    NodeVerb.DELETE: _Transition(delete_timeline, GONE, "DELETING"),
    NodeVerb.REIMAGE: _Transition(partial(restart_timeline, during="REIMAGING"), "READY", "REIMAGING"),
}


def _change_state(session: StateSession, call: Call, verb: NodeVerb, node: NodeRecord) -> Json:
    """Start a transition of a node and return its operation; a fault may let it fail. Raises `ApiError` as `_check_verb`."""
    _check_verb(verb, node, session.now)
    transition, pace = _TRANSITIONS[verb], durations_of(session, node)
    target = FaultTarget(call.method, node.project, node.zone, node.node_id)
    demand = capacity.node_demand(node.project, node.zone, node.document)
    error = find_shortage(session, demand) if verb is NodeVerb.START else None
    if fault := take_fault(session, FaultKind.OPERATION_ERROR, target):
        error = operation_failure(fault, target, demand.tier)
    if error is None:
        timeline = transition.timeline(node.timeline, session.now, pace)
    else:
        after = transition.after_failure or node.state(session.now)
        timeline = failed_timeline(node.timeline, session.now, pace, during=transition.during, then=after)
    node = store_node(session, node, apply_faults(session, node, timeline), initiator="USER")
    if error is None:
        return begin_operation(session, node, verb, call, goal=transition.goal)
    return begin_operation(session, node, verb, call, goal="", ended=node.timeline[-1].at, error=error)


@answers("tpu.projects.locations.nodes.stop")
def _stop_node(session: StateSession, call: Call) -> Json:
    """Stop a node. Rejected for slices (API field text) and for nodes of queued resources (observed)."""
    node = find_node(session, call["name"])
    if node.queued_resource:
        raise failed_precondition("StopNode is not supported for queued resources")
    if node.workers > 1:
        raise bad_request("This operation is only available with single TPU nodes.")
    return _change_state(session, call, NodeVerb.STOP, node)


@answers("tpu.projects.locations.nodes.start")
def _start_node(session: StateSession, call: Call) -> Json:
    """Start a node. Rejected for spot and preemptible nodes (gcloud's help); may fail for lack of capacity (observed)."""
    node = find_node(session, call["name"])
    scheduling = node.document["schedulingConfig"]
    if scheduling.get("preemptible"):
        raise bad_request("Preemptible TPUs cannot be restarted.")
    if scheduling.get("spot"):
        raise bad_request("Spot VM TPUs cannot be restarted, and must be recreated again.")
    return _change_state(session, call, NodeVerb.START, node)


@answers("tpu.projects.locations.nodes.delete")
def _delete_node(session: StateSession, call: Call) -> Json:
    """Delete a node, in any state. A repeat while DELETING starts another operation with the same end (unverified)."""
    if repeated := repeated_operation(session, call):
        return repeated
    return _change_state(session, call, NodeVerb.DELETE, find_node(session, call["name"]))


@answers("tpu.projects.locations.nodes.reimage")
def _reimage_node(session: StateSession, call: Call) -> Json:
    """Reimage a node (v1, v1alpha1): REIMAGING, then READY with the requested version, by default the current one.

    Rejected for TPU VMs, whose API has no such method; that, and the states in which it is allowed, are unverified.
    """
    node = find_node(session, call["name"])
    if node.document.get("apiVersion") not in LEGACY_API_VERSIONS.values():
        raise bad_request("reimage is not supported for TPU VMs.")  # unverified words
    version = str(call.body.get("tensorflowVersion") or node.document["runtimeVersion"])
    catalog.check_tensorflow_version(version)
    node = replace(node, document={**node.document, "runtimeVersion": version})
    return _change_state(session, call, NodeVerb.REIMAGE, node)


_SNAKE = re.compile(r"_([a-z])")
_PATCHABLE = ("description", "tags", "labels", "metadata", "networkConfig.enableExternalIps", "dataDisks")


@answers("tpu.projects.locations.nodes.patch")
def _patch_node(session: StateSession, call: Call) -> Json:
    """Set the fields of the mask to the values of the body, at once.

    The allowed fields are those of the API's field text, and `dataDisks`, which gcloud sends.
    """
    node = find_node(session, call["name"])
    paths = [_SNAKE.sub(lambda m: m[1].upper(), path.strip()) for path in call["updateMask"].split(",")]
    unknown = [path for path in paths if path not in _PATCHABLE]
    if unknown:
        raise invalid(f"Invalid update mask: the field {unknown[0]!r} cannot be updated.")  # unverified
    _check_verb(NodeVerb.UPDATE, node, session.now)
    state = node.state(session.now)
    if state == "CREATING" and "labels" in paths:
        raise _state_error(NodeVerb.UPDATE, state)  # observed: labels cannot be set on pending nodes
    document = copy.deepcopy(node.document)
    for path in paths:
        if path == "networkConfig.enableExternalIps":
            has_addresses = bool((call.body.get("networkConfig") or {}).get("enableExternalIps", False))
            for config in document.get("networkConfigs") or [document["networkConfig"]]:
                config["enableExternalIps"] = has_addresses
        elif value := copy.deepcopy(call.body.get(path)):
            document[path] = value
        else:
            document.pop(path, None)  # in the mask but not in the body: cleared
    for disk in document.get("dataDisks", []):
        disk.setdefault("mode", "READ_WRITE")
    if document.get("metadata", {}).get("ssh-keys") != node.document.get("metadata", {}).get("ssh-keys"):
        before = str(node.document.get("metadata", {}).get("ssh-keys", ""))
        node = replace(node, keys_before=before, keys_changed=session.now)
    node = replace(node, document=document)
    session.put_node(node)
    return begin_operation(session, node, "update", call, goal="", ended=session.now)


def _check_verb(verb: NodeVerb, node: NodeRecord, now: datetime) -> None:
    """Raise `ApiError` 400 unless the node's state allows a verb."""
    state = node.state(now)
    if not is_verb_allowed(verb, state):
        raise _state_error(verb, state)


def _state_error(verb: str, state: str) -> Exception:
    return bad_request(f"{verb} is not supported while in state {state}")


@answers("tpu.projects.locations.nodes.get")
def _get_node(session: StateSession, call: Call) -> Json:
    return render_node(find_node(session, call["name"]), session.now, call.version)


def find_node(session: StateSession, name: str) -> NodeRecord:
    """Return an existing node. Raises `ApiError` 404, or 403 for an unknown zone."""
    where = parse_resource_name(name)
    catalog.check_location(where.project, where.zone)
    node = session.node(*where)
    if node is None or not session.exists(node):
        raise not_found(name)
    return node


@answers("tpu.projects.locations.nodes.list")
def _list_nodes(session: StateSession, call: Call) -> Json:
    """List a zone, or all with `locations/-`, ordered by zone and name.

    Every page names the unreachable zones in `unreachable`.
    """
    where = parse_resource_name(call["parent"])
    everywhere = where.zone == api_calls.ANYWHERE
    if not everywhere:
        catalog.check_location(where.project, where.zone)
    place = page_position(call)
    if place and len(place) != 2:
        raise invalid("The page token is not valid.")
    limit = page_size(call)
    unreachable = faults.unreachable_zones(session, where.project, zone_names()) if everywhere else ()
    after = (place[0], place[1]) if place else ("", "")
    rows = session.nodes(where.project, zone=None if everywhere else where.zone, after=after, limit=limit + 1)
    page: list[Json] = []
    last, next_token = after, ""
    for count, node in enumerate(rows):
        if count == limit:
            next_token = page_token(*last)
            break
        last = (node.zone, node.node_id)
        if node.zone not in unreachable and session.exists(node):
            page.append(render_node(node, session.now, call.version))
    answer: Json = {"nodes": page} if page else {}
    if unreachable:
        answer["unreachable"] = [f"projects/{where.project}/locations/{zone}" for zone in unreachable]
    return {**answer, "nextPageToken": next_token} if next_token else answer


_MIGRATION_GUIDE = "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm#from-tpu-node-to-tpu-vm"
LEGACY_API_VERSIONS = {"v1": "V1", "v1alpha1": "V1_ALPHA1"}


def _accept_legacy_body(session: StateSession, call: Call) -> Json:
    """Return the body of a v1 create with the field names of v2.

    Raises `ApiError` 400, verbatim (observed: skypilot#5593), unless the sandbox setting `legacy_nodes` is true.
    """
    if not session.setting("legacy_nodes", default=False):
        raise failed_precondition(
            "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture or contact Cloud TPU "
            f"team to gain TPU Node access. {_MIGRATION_GUIDE}"
        )
    catalog.check_tensorflow_version(str(call.body.get("tensorflowVersion", "")))
    same = ("acceleratorType", "description", "labels", "schedulingConfig", "cidrBlock", "useServiceNetworking")
    body = {field: call.body[field] for field in same if field in call.body}
    body["runtimeVersion"] = call.body.get("tensorflowVersion", "")
    body["networkConfig"] = {"network": str(call.body.get("network") or "default")}
    body["apiVersion"] = LEGACY_API_VERSIONS[call.version]
    return body


@answers("tpu.projects.locations.nodes.simulateMaintenanceEvent")
def _simulate_maintenance_event(session: StateSession, call: Call) -> Json:
    """Simulate ten minutes of maintenance on the first named worker.

    The default is worker 0 (API field text). That the node is READY and UNHEALTHY_MAINTENANCE meanwhile is unverified.
    """
    node = find_node(session, call["name"])
    worker = next((str(index) for index in call.body.get("workerIds") or ()), "0")
    if not worker.isdecimal() or int(worker) >= node.workers:
        raise invalid(f'Cloud TPU received an invalid argument. The "WorkerId" value "{worker}" was not found.')
    _require_ready(node, session.now, "simulateMaintenanceEvent")
    ended = _maintain(session, node)
    return begin_operation(session, node, "simulateMaintenanceEvent", call, goal="", ended=ended)


@answers("tpu.projects.locations.nodes.performMaintenance")
def _perform_node_maintenance(session: StateSession, call: Call) -> Json:
    """Start announced maintenance now; the operation ends with it."""
    node = find_node(session, call["name"])
    ended = begin_maintenance(session, node, call)
    return begin_operation(session, node, "performMaintenance", call, goal="", ended=ended)


def begin_maintenance(session: StateSession, node: NodeRecord, call: Call) -> datetime:
    """Start a node's announced maintenance now, and return its end.

    Raises `ApiError` 400 if none is pending, or only Google may start it (`canReschedule`, API field text; words unverified).
    """
    _require_ready(node, session.now, call.method.rpartition(".")[2])
    phase = node.phase(session.now)
    announced = (phase.maintenance if phase else None) or {}
    if announced.get("maintenanceStatus") != "PENDING" or not announced.get("canReschedule"):
        raise failed_precondition(f"The node {node.node_id} has no pending maintenance that can be performed now.")
    return _maintain(session, node)


def _maintain(session: StateSession, node: NodeRecord) -> datetime:
    """Start maintenance now, replacing announced maintenance; return its end."""
    pace, owned = durations_of(session, node), bool(node.queued_resource)
    timeline = apply_fault(node.timeline, Fault(FaultKind.MAINTENANCE), session.now, pace, owned=owned, is_new=False)
    node = store_node(session, node, timeline or node.timeline)
    return next((p.at for p in node.timeline if p.at > session.now and not p.maintenance), session.now)


def _require_ready(node: NodeRecord, now: datetime, verb: str) -> None:
    if (state := node.state(now)) != "READY":
        raise _state_error(verb, state)
