"""Creation of nodes: validation, defaults, and duration."""

from __future__ import annotations

import copy
import hashlib
import re
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.sandbox import (
    capacity,
    catalog,
    consequences,
    faults,
    lifecycle,
    operations,
    orgpolicy,
    quotas,
    rendering,
    resource_names,
)
from tpuctl.sandbox.compute import networks
from tpuctl.sandbox.failures import failure
from tpuctl.sandbox.faults import FaultKind, Target
from tpuctl.sandbox.nodes import legacy
from tpuctl.sandbox.refusals import already_exists, bad_request, invalid, invalid_field
from tpuctl.sandbox.world import NodeRecord

if TYPE_CHECKING:
    from tpuctl.accelerators import AcceleratorType
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.lifecycle import Timeline
    from tpuctl.sandbox.world import Session

_NODE_ID = re.compile(r"[A-Za-z0-9_.~+%-]+")  # API field text of NodeSpec.nodeId
_SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
_CHOSEN = (
    *("description", "labels", "tags", "metadata", "dataDisks", "bootDiskConfig", "networkConfig", "networkConfigs"),
    *("serviceAccount", "schedulingConfig", "shieldedInstanceConfig", "runtimeVersion", "autocheckpointEnabled"),
)


def create(session: Session, call: Call) -> Json:
    """Answer nodes.create: the node exists at once, CREATING, or the request is rejected with 4xx.

    A failure of the service itself (no capacity) comes later, in the operation (observed).
    """
    if repeated := operations.repeated(session, call):
        return repeated
    where = resource_names.parse(str(call.params["parent"]))
    node_id = str(call.params.get("nodeId") or "")
    session.log_request(call.method, f"{call.params['parent']}/nodes/{node_id}")
    is_legacy = call.version.startswith("v1")
    body = legacy.admit(session, call) if is_legacy else chosen(call.body)
    check(session, where.project, where.zone, node_id, body=body)
    target = Target(call.method, where.project, where.zone, node_id)
    wanted = capacity.node_demand(where.project, where.zone, body)
    if fault := faults.take(session, FaultKind.QUOTA, target):
        metric, place = quotas.metrics(wanted)[1]
        raise quotas.refusal(metric, place, limit=fault.limit).committing()
    quotas.check(session, [wanted])
    node = prepare(session, where.project, where.zone, node_id, body=body)
    fault = faults.take(session, FaultKind.OPERATION_ERROR, target)
    if error := failure(fault, target, wanted.tier) if fault else capacity.shortage(session, wanted):
        return fail_create(session, node, call, error)
    node = replace(node, timeline=faults.plan(session, node, node.timeline, consequences.pace(session, node)))
    session.put_node(node)
    answer = operations.begin(session, node, "create", call, goal="READY")
    operations.settle(session, node.name, node.timeline)
    return answer


def chosen(body: Json) -> Json:
    """Return the fields that a client may set; all others are output only and ignored, as proto3 APIs do."""
    fields = (*_CHOSEN, "acceleratorType", "acceleratorConfig")
    return {field: copy.deepcopy(body[field]) for field in fields if body.get(field) is not None}


def check(session: Session, project: str, zone: str, node_id: str, *, body: Json) -> None:
    """Raise `ApiError` unless the node could be created now."""
    catalog.check_zone(project, zone)
    if not _NODE_ID.fullmatch(node_id):
        raise invalid_field("NodeId", node_id)
    catalog.accelerator(body, zone)
    if "apiVersion" not in body:
        catalog.check_runtime_version(str(body.get("runtimeVersion", "")))
    if body.get("networkConfig") and body.get("networkConfigs"):
        raise invalid("Only one of network_config and network_configs may be set.")  # API field text
    _check_policies(session, project, zone, node_id, body=body)
    for config in body.get("networkConfigs") or [body.get("networkConfig") or {}]:
        network = str(config.get("network") or "default")
        if not networks.exists(session, project, network):
            raise invalid_field("Network", network.rpartition("/")[2])
    if session.node(project, zone, node_id) is not None:
        raise already_exists(f"projects/{project}/locations/{zone}/nodes/{node_id}")


def _check_policies(session: Session, project: str, zone: str, node_id: str, *, body: Json) -> None:
    """Raise `ApiError` 400 if an organisation policy forbids the node."""
    configs = body.get("networkConfigs") or [body.get("networkConfig") or {}]
    has_addresses = any(config.get("enableExternalIps") for config in configs)
    if has_addresses and orgpolicy.denies_all(session, project, "compute.vmExternalIpAccess"):
        # Compute Engine's message for its instances (observed: googlecodelabs/feedback#695); that the TPU API returns it is
        # unverified.
        raise bad_request(
            f"Constraint constraints/compute.vmExternalIpAccess violated for project {catalog.project_number(project)}. Add "
            f"instance projects/{project}/zones/{zone}/instances/{node_id} to the constraint to use external IP with it."
        )
    boots_securely = (body.get("shieldedInstanceConfig") or {}).get("enableSecureBoot")
    if not boots_securely and orgpolicy.is_enforced(session, project, "compute.requireShieldedVm"):
        # Observed: google/fully-homomorphic-encryption#103.
        raise bad_request(
            "Constraint constraints/compute.requireShieldedVm violated. Please create TPUs with Secure Boot enabled"
        )


def prepare(
    session: Session,
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
    accelerator = catalog.accelerator(body, zone)
    first = session.free_addresses(accelerator.workers, pool=rendering.ADDRESSES)
    if first == 0:
        raise invalid("the sandbox has no free addresses: delete nodes, or run `tpuctl sandbox reset`")
    # A numeric id of nineteen digits, like the service's.
    digest = hashlib.blake2b(f"{session.seed}/{name}/{incarnation}".encode(), digest_size=8).digest()
    number_text = str(10**18 + int.from_bytes(digest, "big") % (8 * 10**18))
    document = _document(body, accelerator, project=project, zone=zone)
    document |= {"name": name, "id": number_text, "createTime": rendering.timestamp(session.now + begin)}
    if queued_resource:
        document["queuedResource"] = queued_resource
    timeline = lifecycle.create(
        session.now + begin,
        consequences.pace_of(session, name, incarnation, 0),
        workers=accelerator.workers,
        preemptible=bool(document["schedulingConfig"].get("preemptible")),
    )
    return NodeRecord(
        project,
        zone,
        node_id,
        number_text,
        incarnation,
        document,
        timeline,
        accelerator.workers,
        first,
        queued_resource,
    )


def _document(body: Json, accelerator: AcceleratorType, *, project: str, zone: str) -> Json:
    """Return the document of a node: the given fields and the service's defaults."""
    document = {field: copy.deepcopy(body[field]) for field in _CHOSEN if body.get(field) is not None}
    config = body.get("acceleratorConfig") or {}
    document["acceleratorType"] = accelerator.name
    document["acceleratorConfig"] = {
        "type": accelerator.generation.config_type,
        "topology": str(config.get("topology") or accelerator.topology or "").lower(),
    }
    if "networkConfigs" in document:
        document["networkConfigs"] = [_network(entry, project, zone) for entry in document["networkConfigs"]]
    else:
        document["networkConfig"] = _network(document.get("networkConfig") or {}, project, zone)
    account = document.get("serviceAccount") or {}
    email = account.get("email") or f"{catalog.project_number(project)}-compute@developer.gserviceaccount.com"
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


def _network(config: Json, project: str, zone: str) -> Json:
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


def fail_create(session: Session, node: NodeRecord, call: Call, error: Json) -> Json:
    """Store a node whose creation fails, and return its operation.

    The record disappears with the failure; with the sandbox setting `keep_failed_nodes` it stays in CREATING (both are
    reported, neither is documented).
    """
    pace = consequences.pace(session, node)
    timeline: Timeline = lifecycle.fail((), session.now, pace, during="CREATING", then=lifecycle.GONE)
    ended = timeline[-1].at
    if session.setting("keep_failed_nodes", default=False):
        timeline = timeline[:1]
    node = replace(node, timeline=timeline)
    session.put_node(node)
    return operations.begin(session, node, "create", call, goal="READY", ended=ended, error=error)
