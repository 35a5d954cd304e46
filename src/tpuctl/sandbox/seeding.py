"""Seeds: the resources of a sandbox, in a file. `read_seed` parses it without a sandbox, `apply_seed` adds its entries.

An entry has the API's own fields, checked against the discovery documents, and a few keys of the sandbox for values without
an API field (`project`, `zone`, `age`, `denied`, …). `SEED_KINDS` lists the kinds of entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuctl.durations import parse_duration
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import administration, faults
from tpuctl.sandbox.api_calls import DEFAULT_PROJECT, ApiError, parse_resource_name
from tpuctl.sandbox.capacity import put_quota
from tpuctl.sandbox.compute_engine import drop_resource, put_region_quota, put_resource
from tpuctl.sandbox.discovery import load_document
from tpuctl.sandbox.fault_kinds import FAULT_KEYS
from tpuctl.sandbox.org_policy import put_org_policy
from tpuctl.sandbox.resource_manager import put_billing, put_project, put_role
from tpuctl.sandbox.service_usage import put_service_states
from tpuctl.sandbox.stock import put_level, put_reservation, put_stockout
from tpuctl.sandbox.storage_buckets import check_bucket_name, put_bucket, put_cache
from tpuctl.sandbox.storage_objects import put_object
from tpuctl.yaml_reader import parse_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tpuctl.sandbox.api_calls import Json
    from tpuctl.sandbox.state import SandboxState
    from tpuctl.sandbox.state_session import StateSession
    from tpuctl.sandbox.stock import StockLevel
    from tpuctl.yaml_reader import KeyPath, YamlDocument

_KNOWN_SETTINGS = ("health_lag", "keep_failed_nodes", "legacy_nodes", "reservations")


@dataclass(frozen=True, slots=True)
class SeedEntry:
    """One resource of a seed. `place` is its position: `FILE line N`."""

    kind: str
    fields: Json
    place: str

    @property
    def name(self) -> str:
        """The name, for a list of added resources."""
        fields = self.fields
        return str(fields.get("name") or fields.get("projectId") or fields.get("kind") or fields.get("metric") or "")


def read_seed(text: str, source: str) -> list[SeedEntry]:
    """Return the entries of a file, in the order in which they can be added.

    Raises `SeedError` naming file, line and key: broken YAML, an unknown kind or field (with the nearest), a wrong
    type, a missing field.
    """
    document = parse_document(text, source, error=SeedError)
    if isinstance(document.value, dict) and "steps" in document.value:
        raise document.error(("steps",), "this is a scenario", hint=f"plan it with `tpuctl sandbox scenario {source}`")
    return parse_entries(document, (), document.value)


def parse_entries(document: YamlDocument, path: KeyPath, value: Any) -> list[SeedEntry]:  # JSON
    """Return the entries of the part of a document that is a seed. Raises as `read_seed` does."""
    if value is None:
        return []
    if not isinstance(value, dict):
        raise document.error(path, "expected kinds such as `nodes:`, each with a list")
    for key in value:
        if key not in SEED_KINDS:
            raise document.unknown((*path, key), SEED_KINDS)
    entries: list[SeedEntry] = []
    for key, kind in SEED_KINDS.items():
        if key == "settings":
            entries += _parse_settings(document, (*path, key), value.get(key))
        elif value.get(key) is not None:
            entries += _parse_kind(document, (*path, key), kind, value[key])
    return entries


def apply_seed(sandbox: SandboxState, entries: Iterable[SeedEntry]) -> None:
    """Add entries to a sandbox: all or none.

    An entry replaces an existing resource of its name. Raises `SeedError` naming the position of the entry that the
    sandbox rejects.
    """
    with sandbox.joint_write() as session:
        for entry in entries:
            try:
                SEED_KINDS[entry.kind].add(session, **entry.fields)
            except ApiError as error:
                raise SeedError(f"{entry.place}: {error.message.partition(' [EID')[0]}") from error
            except SeedError:
                raise
            except InvalidInputError as error:
                raise SeedError(f"{entry.place}: {error.message}", hint=error.hint) from error


def check_keys(document: YamlDocument, path: KeyPath, known: Mapping[str, Json], entry: Json) -> Json:
    """Return an entry with its values in the types of its keys. Raises `SeedError` for an unknown key or a wrong type."""
    return _check_members(document, path, {}, known, entry)


def _parse_kind(document: YamlDocument, path: KeyPath, kind: SeedKind, value: Any) -> list[SeedEntry]:
    if not isinstance(value, list):
        raise document.error(path, f"`{path[-1]}` must be a list")
    schemas: Mapping[str, Json] = {}
    known = kind.own
    if kind.schema:
        api, version, name = kind.schema
        schemas = load_document(api, version).schemas
        known = {**schemas[name]["properties"], **kind.own}
    entries = []
    for index, item in enumerate(value):
        here = (*path, index)
        if not isinstance(item, dict):
            raise document.error(here, f"each of `{path[-1]}` must be a mapping, such as `- name: trainer`")
        if path[-1] == "queuedResources" and isinstance(item.get("state"), str):
            item = {**item, "state": {"state": item["state"]}}  # noqa: PLW2901  # the short form of a state
        for key in item:
            if key in kind.refused:
                raise document.error((*here, key), f"`{key}` cannot be given: {kind.refused[key]}")
        fields = _check_members(document, here, schemas, known, item)
        for key in kind.required:
            if item.get(key) in (None, ""):
                raise document.error(here, f"`{key}` is missing")
        entries.append(SeedEntry(str(path[-1]), fields, document.place(*here)))
    return entries


def _check_members(
    document: YamlDocument, path: KeyPath, schemas: Mapping[str, Json], known: Mapping[str, Json], value: Any
) -> Json:
    """Return a message in the API's JSON. Raises `SeedError` for an unknown field, type or enum name."""
    if not isinstance(value, dict):
        raise _type_error(document, path, "object")
    for key in value:
        if key not in known:
            raise document.unknown((*path, key), known)
    return {key: _check_field(document, (*path, key), schemas, known[key], item) for key, item in value.items()}


def _check_field(document: YamlDocument, path: KeyPath, schemas: Mapping[str, Json], spec: Json, value: Any) -> Any:
    if "$ref" in spec:
        return _check_members(document, path, schemas, schemas[spec["$ref"]].get("properties", {}), value)
    kind = spec.get("type", "any")
    if kind == "object" and "additionalProperties" in spec and isinstance(value, dict):
        inner = spec["additionalProperties"]
        return {key: _check_field(document, (*path, key), schemas, inner, item) for key, item in value.items()}
    if kind == "object" and "properties" in spec:
        return _check_members(document, path, schemas, spec["properties"], value)
    if kind == "array" and isinstance(value, list):
        return [_check_field(document, (*path, i), schemas, spec["items"], item) for i, item in enumerate(value)]
    if spec == DURATION:
        try:
            parse_duration(str(value))
        except ValueError as error:
            raise document.error(path, f"`{path[-1]}`: {error}") from None
        return str(value)
    if kind == "string" and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # `8` is as good as `"8"` in a label; an int64 is a text in JSON
    fits = {
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "object": isinstance(value, dict),
        "array": False,
    }
    if not fits.get(kind, True):
        raise _type_error(document, path, kind)
    names = spec.get("enum")
    if names and value not in names:
        raise document.error(path, f"`{path[-1]}` cannot be `{value}`", hint=f"use one of {', '.join(names)}")
    return value


_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
}


def _type_error(document: YamlDocument, path: KeyPath, kind: str) -> Exception:
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    return document.error(path, f"`{key}` must be {_TYPE_NAMES.get(kind, kind)}")


def _parse_settings(document: YamlDocument, path: KeyPath, value: Any) -> list[SeedEntry]:
    if value is None:
        return []
    if not isinstance(value, dict):
        raise document.error(path, "`settings` must be a mapping, such as `keep_failed_nodes: true`")
    for key in value:
        if key not in _KNOWN_SETTINGS:
            raise document.unknown((*path, key), _KNOWN_SETTINGS)
    return [
        SeedEntry("settings", {"name": key, "value": item}, document.place(*path, key)) for key, item in value.items()
    ]


# Types of the sandbox's own keys, in the form of the discovery documents.
_TEXT, _NUMBER, _FLAG, _ANY = ({"type": name} for name in ("string", "integer", "boolean", "any"))
_TEXTS: Json = {"type": "array", "items": _TEXT}
DURATION: Json = {"type": "string", "format": "duration"}
_KEY_TYPES = {"string": _TEXT, "integer": _NUMBER, "duration": DURATION}
# `after` delays the whole fault.
FAULT_WORDS: Mapping[str, Json] = {key: _KEY_TYPES[row.type] for key, row in FAULT_KEYS.items()}


@dataclass(frozen=True, slots=True)
class SeedKind:
    """One kind of entry: the function that adds it, and its fields.

    `schema` is API, version and message whose fields it may have; `own` are further keys with their types. `refused` are
    fields of the message that cannot be set, each with the reason or the replacement.
    """

    add: Callable[..., object]
    schema: tuple[str, str, str] | None = None
    own: Mapping[str, Json] = field(default_factory=dict)
    required: tuple[str, ...] = ("name",)
    refused: Mapping[str, str] = field(default_factory=dict)


def _set_stock(put: Callable[..., StockLevel], session: StateSession, **entry: Any) -> None:
    for key in {"after", "duration"} & entry.keys():
        entry[key] = parse_duration(entry[key])
    put(session, accelerator_type=entry.pop("acceleratorType", "*"), **entry)


def _set_quota(session: StateSession, *, metric: str = "", **entry: Any) -> None:
    """Set a quota of the TPU API, or of Compute Engine if the metric is one of its. Raises `InvalidInputError`."""
    if metric and not metric.endswith("ForTPUAPI"):
        if "region" not in entry:
            raise InvalidInputError(f"the Compute Engine quota `{metric}` needs a `region`")
        words = {key: value for key, value in entry.items() if key in {"region", "limit", "usage", "project"}}
        put_region_quota(session, metric=metric, **words)
        return
    if "usage" in entry:
        raise InvalidInputError(
            "`usage` cannot be set for quotas of the TPU API", hint="leave it out: usage is counted"
        )
    put_quota(session, metric=metric, **entry)


def _add_node(session: StateSession, *, name: str, age: str = "0s", **entry: Any) -> None:
    owner = entry.pop("queuedResource", "")
    where = {**entry, **_name_and_place(name)}
    administration.add_node(session, **where, age=parse_duration(age), queued_resource=owner)


def _add_queued_resource(session: StateSession, *, name: str, state: Json | None = None, **fields: Any) -> None:
    state = state or {}
    specs = (fields.get("tpu") or {}).get("nodeSpec") or []
    administration.add_queued_resource(
        session,
        **{**fields, **_name_and_place(name)},
        state=state.get("state", "ACTIVE"),
        node_ids=tuple(spec["nodeId"] for spec in specs if "nodeId" in spec) or ("node",),
        initiator=state.get("stateInitiator", ""),
        error=(state.get("failedData") or {}).get("error"),
    )


def _name_and_place(name: str) -> Json:
    """Return the name of an entry; with project and zone if it is a full one."""
    if "/" not in name:
        return {"name": name}
    where = parse_resource_name(name)
    return {"project": where.project, "zone": where.zone, "name": where.resource_id}


def _set_service(session: StateSession, *, name: str, state: str = "ENABLED", project: str = DEFAULT_PROJECT) -> None:
    put_service_states(session, {name: state}, project=project)


def _add_project(session: StateSession, **entry: Any) -> None:
    project, billing = entry.pop("projectId"), entry.pop("billingEnabled", None)
    if metadata := entry.pop("commonInstanceMetadata", None):
        session.put_project(project, {**session.project(project), "items": metadata.get("items", [])})
    put_project(session, project, **entry)
    if billing is not None:
        put_billing(session, enabled=billing, project=project)


def _add_bucket(session: StateSession, *, name: str, **fields: Any) -> None:
    check_bucket_name(name)
    put_bucket(session, name, **fields)


def _add_fault(session: StateSession, **entry: Any) -> None:
    faults.add_fault(session, faults.parse_fault(entry))


def _add_or_remove(collection: str, session: StateSession, *, name: str, absent: bool = False, **fields: Any) -> None:
    """Add a resource; with `absent` remove one that each project has."""
    if absent:
        drop_resource(collection, session, name, project=fields.get("project", DEFAULT_PROJECT))
    else:
        put_resource(collection, session, name, **fields)


_COMPUTED = "the sandbox computes it; leave it out"
_REFUSED_FIELDS = {"id": _COMPUTED, "networkEndpoints": _COMPUTED, "createTime": "give `age: 2h` instead"}
_PROJECT = {"project": _TEXT}
_PLACE = {**_PROJECT, "zone": _TEXT}
_STOCK = {**_PLACE, "acceleratorType": _TEXT, "tier": _TEXT, "after": DURATION, "duration": DURATION}
_COMPUTE = ("compute", "v1")

# The order in which entries are added: later kinds may refer to earlier ones.
SEED_KINDS: Mapping[str, SeedKind] = {
    "settings": SeedKind(administration.set_setting),
    "projects": SeedKind(
        _add_project,
        ("cloudresourcemanager", "v3", "Project"),
        {"commonInstanceMetadata": _ANY, "billingEnabled": _FLAG, "denied": _TEXTS},
        ("projectId",),
    ),
    "services": SeedKind(_set_service, own={**_PROJECT, "name": _TEXT, "state": _TEXT}),
    "quotas": SeedKind(
        _set_quota,
        own={
            **dict.fromkeys(("metric", "generation", "tier", "region", "zone", "project"), _TEXT),
            **dict.fromkeys(("limit", "usage"), _NUMBER),
        },
        required=("limit",),
    ),
    "stock": SeedKind(partial(_set_stock, put_level), own={**_STOCK, "nodes": _NUMBER}, required=("nodes",)),
    "stockouts": SeedKind(partial(_set_stock, put_stockout), own=_STOCK, required=()),
    "reservations": SeedKind(put_reservation, ("tpu", "v2alpha1", "Reservation")),
    "networks": SeedKind(partial(_add_or_remove, "networks"), (*_COMPUTE, "Network"), {**_PROJECT, "absent": _FLAG}),
    "subnetworks": SeedKind(
        partial(put_resource, "subnetworks"), (*_COMPUTE, "Subnetwork"), _PROJECT, ("name", "region")
    ),
    "firewalls": SeedKind(partial(_add_or_remove, "firewalls"), (*_COMPUTE, "Firewall"), {**_PROJECT, "absent": _FLAG}),
    "disks": SeedKind(partial(put_resource, "disks"), (*_COMPUTE, "Disk"), _PROJECT),
    "instances": SeedKind(partial(put_resource, "instances"), (*_COMPUTE, "Instance"), _PROJECT),
    "buckets": SeedKind(_add_bucket, ("storage", "v1", "Bucket"), {**_PROJECT, "denied": _TEXTS}),
    "objects": SeedKind(put_object, ("storage", "v1", "Object"), {"content": _TEXT}, ("bucket", "name")),
    "anywhereCaches": SeedKind(put_cache, ("storage", "v1", "AnywhereCache"), required=("bucket", "zone")),
    "roles": SeedKind(put_role, ("iam", "v1", "Role"), _PROJECT),
    "orgPolicies": SeedKind(
        put_org_policy, ("orgpolicy", "v2", "GoogleCloudOrgpolicyV2Policy"), _PROJECT, ("name", "spec")
    ),
    "iamPolicies": SeedKind(
        administration.set_iam_policy,
        ("cloudresourcemanager", "v3", "Policy"),
        {**_PROJECT, "bucket": _TEXT},
        ("bindings",),
    ),
    "queuedResources": SeedKind(_add_queued_resource, ("tpu", "v2", "QueuedResource"), _PLACE, refused=_REFUSED_FIELDS),
    "nodes": SeedKind(_add_node, ("tpu", "v2", "Node"), {**_PLACE, "age": DURATION}, refused=_REFUSED_FIELDS),
    "faults": SeedKind(_add_fault, own={"kind": _TEXT, **FAULT_WORDS}, required=("kind",)),
}


class SeedError(InvalidInputError):
    """A file for the sandbox is invalid; the message names file, line and key."""

    kind = "seed"
