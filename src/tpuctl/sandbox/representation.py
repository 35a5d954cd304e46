"""Render records as the API shows them, each API version in its own schema. Pure."""

from __future__ import annotations

from datetime import UTC
from functools import lru_cache
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from tpuctl.sandbox.lifecycle import WITHOUT_ENDPOINTS

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.sandbox.api_calls import Json
    from tpuctl.sandbox.state_session import NodeRecord, QueuedRecord

# Every worker has a number from which its addresses follow. 198.18.0.0/15 is reserved for tests (RFC 2544).
ADDRESS_COUNT = 1 << 17
_EXTERNAL = int(IPv4Address("198.18.0.0"))
_INTERNAL = int(IPv4Address("10.128.0.0"))
# On a network of this name workers have addresses of this machine, where programs of different workers reach one another.
LOOPBACK_NETWORK = "loopback"
_LOOPBACK = int(IPv4Address("127.128.0.0"))
_NETWORKS = 1 << 17
ENDPOINT_PORT = 8470

_V1 = frozenset({"v1", "v1alpha1"})
_V1_FIELDS = (
    *("acceleratorType", "cidrBlock", "createTime", "description", "health", "healthDescription", "labels", "name"),
    *("state", "symptoms", "useServiceNetworking"),
)
_ONLY_ALPHA = frozenset({"autocheckpointEnabled"})
_ONLY_V1 = frozenset({"useServiceNetworking"})
_LEGACY = frozenset({"V1", "V1_ALPHA1"})
# The models of v2alpha1's nodes. What the nodes of best-effort and flex-start requests show is unverified.
_NODE_MODELS = frozenset({"STANDARD", "SPOT", "RESERVATION_BOUND"})
_SCHEDULING = {"v2": ("preemptible", "reserved", "spot"), "v1": ("preemptible", "reserved")}


def nanosecond_timestamp(moment: datetime) -> str:
    """Return a time in the API's format, with nine digits of a second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


def millisecond_timestamp(moment: datetime) -> str:
    """Return a time in the format of storage and cloudresourcemanager, with three digits of a second."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def internal_address(number: int, document: Json, *, network: int = 0) -> str:
    """Return the internal address of a worker of a node in the n-th of the node's networks."""
    config = (document.get("networkConfigs") or [document.get("networkConfig") or {}])[network]
    is_loopback = str(config.get("network", "")).rpartition("/")[2] == LOOPBACK_NETWORK
    return _address((_LOOPBACK if is_loopback else _INTERNAL) + network * _NETWORKS + number)


@lru_cache(maxsize=4096)
def _address(value: int) -> str:
    return str(IPv4Address(value))


def address_number(address: str) -> int | None:
    """Return the number of the worker that has an address. None for an address outside the sandbox."""
    try:
        value = int(IPv4Address(address))
    except ValueError:
        return None
    if _EXTERNAL <= value < _EXTERNAL + ADDRESS_COUNT:
        return value - _EXTERNAL
    for base in (_INTERNAL, _LOOPBACK):
        if base <= value < base + (1 << 22):
            return (value - base) % _NETWORKS
    return None


def render_node(record: NodeRecord, now: datetime, version: str) -> Json:
    """Return a node as one version of the API shows it at a time. A record that is gone shows as DELETING."""
    phase = record.phase(now)
    document = dict(record.document)
    document["state"] = record.state(now)
    if phase and phase.health and phase.health != "HEALTH_UNSPECIFIED":
        document["health"] = phase.health
        if phase.description:
            document["healthDescription"] = phase.description
    if phase and phase.maintenance:
        document["upcomingMaintenance"] = phase.maintenance
    if document["state"] not in WITHOUT_ENDPOINTS:
        document["networkEndpoints"] = _endpoints(record)
    if version in _V1:
        return _node_as_v1(document)
    for field in _ONLY_V1:
        document.pop(field, None)
    if version != "v2alpha1":
        return _node_as_v2(document)
    if document["apiVersion"] not in _LEGACY:
        document["apiVersion"] = "V2_ALPHA1"  # the enum of v2alpha1 ends there
    scheduling = document["schedulingConfig"]
    model = "SPOT" if scheduling.get("spot") else "STANDARD"
    if scheduling.get("provisioningModel") in _NODE_MODELS:
        model = scheduling["provisioningModel"]
    document["schedulingConfig"] = {**scheduling, "provisioningModel": model}
    return document


def _endpoints(record: NodeRecord) -> list[Json]:
    """Return the workers' endpoints; with several networks, those of the first network come first."""
    configs = record.document.get("networkConfigs") or [record.document.get("networkConfig") or {}]
    endpoints: list[Json] = []
    for network, config in enumerate(configs):
        has_external = network == 0 and config.get("enableExternalIps", False)
        for number in range(record.first_address, record.first_address + record.workers):
            endpoint: Json = {
                "ipAddress": internal_address(number, record.document, network=network),
                "port": ENDPOINT_PORT,
            }
            endpoint["accessConfig"] = {"externalIp": _address(_EXTERNAL + number)} if has_external else {}
            endpoints.append(endpoint)
    return endpoints


def _node_as_v2(document: Json) -> Json:
    for field in _ONLY_ALPHA:
        document.pop(field, None)
    document["schedulingConfig"] = _pick(document["schedulingConfig"], _SCHEDULING["v2"])
    if "dataDisks" in document:
        document["dataDisks"] = [_pick(disk, ("sourceDisk", "mode")) for disk in document["dataDisks"]]
    if "bootDiskConfig" in document:
        document["bootDiskConfig"] = _pick(document["bootDiskConfig"], ("customerEncryptionKey",))
    return document


def _node_as_v1(document: Json) -> Json:
    node = {field: document[field] for field in _V1_FIELDS if field in document}
    is_legacy = document["apiVersion"] in _LEGACY
    node["apiVersion"] = document["apiVersion"] if is_legacy else "V2_ALPHA1"  # the newest that v1 can name
    node["tensorflowVersion"] = document["runtimeVersion"]
    node["network"] = (document.get("networkConfig") or document["networkConfigs"][0]).get("network", "")
    node["serviceAccount"] = document["serviceAccount"]["email"]
    node["schedulingConfig"] = _pick(document["schedulingConfig"], _SCHEDULING["v1"])
    if endpoints := document.get("networkEndpoints"):
        node["networkEndpoints"] = [_pick(endpoint, ("ipAddress", "port")) for endpoint in endpoints]
        node["ipAddress"], node["port"] = endpoints[0]["ipAddress"], str(ENDPOINT_PORT)
    return node


_STATE_DATA = {
    "CREATING": "creatingData",
    "ACCEPTED": "acceptedData",
    "PROVISIONING": "provisioningData",
    "ACTIVE": "activeData",
    "SUSPENDING": "suspendingData",
    "SUSPENDED": "suspendedData",
    "DELETING": "deletingData",
}


def render_queued_resource(record: QueuedRecord, now: datetime, version: str) -> Json:
    """Return a queued resource as one version of the API shows it at a time. One that is gone shows as DELETING."""
    phase = record.phase(now)
    state: Json = {"state": record.state(now)}
    if phase and phase.initiator:
        state["stateInitiator"] = phase.initiator
    if field := _STATE_DATA.get(state["state"]):
        state[field] = {}
    if state["state"] == "FAILED" and record.error:
        state["failedData"] = {"error": record.error}
    document = {**record.document, "state": state}
    specs = []
    for spec in (document.get("tpu") or {}).get("nodeSpec", []):
        # The two versions have different names for the parameters of several nodes.
        rendered = {key: value for key, value in spec.items() if key not in {"multiNodeParams", "multisliceParams"}}
        several = spec.get("multiNodeParams") or spec.get("multisliceParams")
        if several and version == "v2":
            rendered["multisliceParams"] = _pick(several, ("nodeCount", "nodeIdPrefix"))
        elif several:
            rendered["multiNodeParams"] = several
        if version == "v2":
            rendered["node"] = _node_as_v2({"schedulingConfig": {}, **spec["node"]})
        specs.append(rendered)
    document["tpu"] = {"nodeSpec": specs}
    if version == "v2":
        for key in ("bestEffort", "provisioningModel", "runDuration"):  # fields of v2alpha1
            document.pop(key, None)
        if "guaranteed" in document:
            document["guaranteed"] = _pick(document["guaranteed"], ("minDuration",))
    return document


def _pick(document: Json, fields: tuple[str, ...]) -> Json:
    return {field: document[field] for field in fields if field in document}
