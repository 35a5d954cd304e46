"""The kinds of seed entries: their fields, and how each is added to a sandbox.

An entry has the API's own fields, and a few keys of the sandbox for values without an API field (`project`, `zone`, `age`,
`denied`, …).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpuctl.clock import parse_duration
from tpuctl.sandbox import admin, faults, provision, resource_names
from tpuctl.sandbox.seeding import wishes
from tpuctl.sandbox.storage.bucket_changes import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.world import World

_TEXT, _DURATION, _TEXTS, _NUMBER, _FLAG = "text", "duration", "texts", "number", "flag"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of entry: the function that adds it, and its fields.

    `schema` is API, version and message whose fields it may have; `own` are further keys with their types. `refused` are
    fields of the message that cannot be set, each with the reason or the replacement.
    """

    plant: Callable[[World, Json], None]
    schema: tuple[str, str, str] | None = None
    own: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ("name",)
    refused: Mapping[str, str] = field(default_factory=dict)


def _add_node(sandbox: World, entry: Json) -> None:
    where = _place(entry)
    rest = _without(entry, "name", "project", "zone", "age", "state", "health", "queuedResource")
    named = {key: entry[key] for key in ("state", "health") if key in entry}
    age = parse_duration(str(entry.get("age", "0s")))
    admin.add_node(sandbox, **where, **named, age=age, queued_resource=entry.get("queuedResource", ""), **rest)


def _add_queued_resource(sandbox: World, entry: Json) -> None:
    state = entry.get("state") or {}
    rest = _without(entry, "name", "project", "zone", "state", "tpu")
    if "tpu" in entry:
        rest["tpu"] = entry["tpu"]
    specs = (entry.get("tpu") or {}).get("nodeSpec") or [{}]
    node_ids = tuple(spec["nodeId"] for spec in specs if "nodeId" in spec) or ("node",)
    error = (state.get("failedData") or {}).get("error")
    initiator = state.get("stateInitiator", "")
    where, name = _place(entry), state.get("state", "ACTIVE")
    admin.add_queued_resource(sandbox, **where, state=name, node_ids=node_ids, initiator=initiator, error=error, **rest)


def _add_setting(sandbox: World, entry: Json) -> None:
    admin.set_setting(sandbox, entry["name"], entry["value"])


def _add_service(sandbox: World, entry: Json) -> None:
    project = entry.get("project", admin.PROJECT)
    provision.set_services(sandbox, {entry["name"]: entry.get("state", "ENABLED")}, project=project)


def _add_iam_policy(sandbox: World, entry: Json) -> None:
    provision.set_iam_policy(sandbox, entry["bindings"], **_without(entry, "bindings"))


def _add_bucket(sandbox: World, entry: Json) -> None:
    check_name(entry["name"])
    provision.add_bucket(sandbox, **entry)


def _add_cache(sandbox: World, entry: Json) -> None:
    provision.add_cache(sandbox, entry["bucket"], entry["zone"], **_without(entry, "bucket", "zone"))


def _add_object(sandbox: World, entry: Json) -> None:
    provision.add_object(sandbox, entry["bucket"], entry["name"], **_without(entry, "bucket", "name"))


def _add_project(sandbox: World, entry: Json) -> None:
    project = entry["projectId"]
    rest = _without(entry, "projectId", "commonInstanceMetadata", "billingEnabled", "denied")
    provision.add_project(sandbox, project, denied=entry.get("denied", ()), **rest)
    if metadata := entry.get("commonInstanceMetadata"):
        with sandbox.write() as session:
            session.put_project(project, {**session.project(project), "items": metadata.get("items", [])})
    if "billingEnabled" in entry:
        provision.set_billing(sandbox, enabled=entry["billingEnabled"], project=project)


def _add_network(sandbox: World, entry: Json) -> None:
    if entry.get("absent"):
        provision.remove_network(sandbox, entry["name"], project=entry.get("project", admin.PROJECT))
    else:
        provision.add_network(sandbox, **_without(entry, "absent"))


def _add_firewall(sandbox: World, entry: Json) -> None:
    if entry.get("absent"):
        provision.remove_firewall(sandbox, entry["name"], project=entry.get("project", admin.PROJECT))
    else:
        provision.add_firewall(sandbox, **_without(entry, "absent"))


def _add_org_policy(sandbox: World, entry: Json) -> None:
    parts = entry["name"].split("/")
    project = parts[1] if len(parts) == 4 else entry.get("project", admin.PROJECT)
    provision.set_org_policy(sandbox, parts[-1], entry["spec"], project=project)


def _add_fault(sandbox: World, entry: Json) -> None:
    with sandbox.write() as session:
        faults.add_fault(session, wishes.fault(entry))


def _place(entry: Json) -> Json:
    """Return project, zone and name of an entry; the name may be a full one."""
    found: Json = {key: entry[key] for key in ("project", "zone") if key in entry}
    if "/" not in entry["name"]:
        return {"name": entry["name"], **found}
    where = resource_names.parse(entry["name"])
    return {"project": where.project, "zone": where.zone, "name": where.resource_id}


def _without(entry: Json, *keys: str) -> Json:
    return {key: value for key, value in entry.items() if key not in keys}


def _call_with_entry(add: Callable[..., Any], **words: str) -> Callable[[World, Json], None]:
    """Return a function that calls `add` with an entry's keys as parameters, some renamed."""

    def plant(sandbox: World, entry: Json) -> None:
        named = {words.get(key, key): value for key, value in entry.items()}
        add(sandbox, named.pop("name"), **named)

    return plant


_OF_ITSELF = "the sandbox computes it; leave it out"
_REFUSED = {"id": _OF_ITSELF, "networkEndpoints": _OF_ITSELF, "createTime": "give `age: 2h` instead"}
_PROJECT: Mapping[str, str] = {"project": _TEXT}
_PLACE: Mapping[str, str] = {**_PROJECT, "zone": _TEXT}

# The order in which entries are added: later kinds may refer to earlier ones.
KINDS: Mapping[str, Kind] = {
    "settings": Kind(_add_setting, own={"value": "any"}, required=("name", "value")),
    "projects": Kind(
        _add_project,
        ("cloudresourcemanager", "v3", "Project"),
        {"commonInstanceMetadata": "any", "billingEnabled": _FLAG, "denied": _TEXTS},
        ("projectId",),
    ),
    "services": Kind(_add_service, own={**_PROJECT, "name": _TEXT, "state": _TEXT}),
    "quotas": Kind(wishes.set_quota, own=wishes.QUOTA_KEYS, required=("limit",)),
    "stockouts": Kind(
        wishes.add_stockout, own={**wishes.STOCKOUT_KEYS, "after": _DURATION, "duration": _DURATION}, required=()
    ),
    "networks": Kind(_add_network, ("compute", "v1", "Network"), {**_PROJECT, "absent": _FLAG}),
    "subnetworks": Kind(
        _call_with_entry(provision.add_subnetwork), ("compute", "v1", "Subnetwork"), _PROJECT, ("name", "region")
    ),
    "firewalls": Kind(_add_firewall, ("compute", "v1", "Firewall"), {**_PROJECT, "absent": _FLAG}),
    "disks": Kind(_call_with_entry(provision.add_disk), ("compute", "v1", "Disk"), _PROJECT),
    "instances": Kind(_call_with_entry(provision.add_instance), ("compute", "v1", "Instance"), _PROJECT),
    "buckets": Kind(_add_bucket, ("storage", "v1", "Bucket"), {**_PROJECT, "denied": _TEXTS}),
    "objects": Kind(_add_object, ("storage", "v1", "Object"), {"content": _TEXT}, ("bucket", "name")),
    "anywhereCaches": Kind(_add_cache, ("storage", "v1", "AnywhereCache"), required=("bucket", "zone")),
    "roles": Kind(_call_with_entry(provision.add_role), ("iam", "v1", "Role"), _PROJECT),
    "orgPolicies": Kind(
        _add_org_policy, ("orgpolicy", "v2", "GoogleCloudOrgpolicyV2Policy"), _PROJECT, ("name", "spec")
    ),
    "iamPolicies": Kind(
        _add_iam_policy, ("cloudresourcemanager", "v3", "Policy"), {**_PROJECT, "bucket": _TEXT}, ("bindings",)
    ),
    "queuedResources": Kind(_add_queued_resource, ("tpu", "v2", "QueuedResource"), _PLACE, refused=_REFUSED),
    "nodes": Kind(_add_node, ("tpu", "v2", "Node"), {**_PLACE, "age": _DURATION}, refused=_REFUSED),
    "faults": Kind(_add_fault, own=wishes.FAULT_KEYS, required=("kind",)),
}
