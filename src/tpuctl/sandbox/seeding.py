"""Seeds: the resources of a sandbox, in a file. `read_seed` parses it without a sandbox, `apply_seed` adds its entries.

An entry has the API's own fields, checked against the discovery documents, and a few keys of the sandbox for values without
an API field (`project`, `zone`, `age`, `denied`, …). `SEED_KINDS` lists the kinds of entries.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.durations import parse_duration
from tpuctl.errors import InvalidInputError
from tpuctl.names import closest_match
from tpuctl.sandbox import administration, faults
from tpuctl.sandbox.administration import DEFAULT_PROJECT, set_tpu_quota
from tpuctl.sandbox.api_calls import ApiError, parse_resource_name
from tpuctl.sandbox.discovery import load_document
from tpuctl.sandbox.faults import Fault, FaultKind
from tpuctl.sandbox.storage_buckets import check_bucket_name
from tpuctl.yaml_reader import parse_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tpuctl.sandbox.api_calls import Json
    from tpuctl.sandbox.state import SandboxState
    from tpuctl.yaml_reader import KeyPath, YamlDocument

_KNOWN_SETTINGS = ("health_lag", "networks", "keep_failed_nodes", "legacy_nodes", "reservations")
_RULE_SETTING = re.compile(r"allow_(start|stop|update|delete)_while_[a-z]+")


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
    found: list[SeedEntry] = []
    for key, kind in SEED_KINDS.items():
        if key == "settings":
            found += _parse_settings(document, (*path, key), value.get(key))
        elif value.get(key) is not None:
            found += _parse_kind(document, (*path, key), kind, value[key])
    return found


def apply_seed(sandbox: SandboxState, wanted: Iterable[SeedEntry]) -> None:
    """Add entries to a sandbox: all or none.

    An entry replaces an existing resource of its name. Raises `SeedError` naming the position of the entry that the
    sandbox rejects.
    """
    with sandbox.joint_write():
        for entry in wanted:
            try:
                SEED_KINDS[entry.kind].add(sandbox, entry.fields)
            except ApiError as error:
                raise SeedError(f"{entry.place}: {error.message.partition(' [EID')[0]}") from error
            except SeedError:
                raise
            except InvalidInputError as error:
                raise SeedError(f"{entry.place}: {error.message}", hint=error.hint) from error


def check_keys(document: YamlDocument, path: KeyPath, words: Mapping[str, str], entry: Json) -> None:
    """Raise `SeedError` unless each key is known and has a value of its type."""
    for key, value in entry.items():
        if key not in words:
            raise document.unknown((*path, key), words)
        _check_type(document, (*path, key), words[key], value)


def _parse_kind(document: YamlDocument, path: KeyPath, kind: SeedKind, value: Any) -> list[SeedEntry]:
    if not isinstance(value, list):
        raise document.error(path, f"`{path[-1]}` must be a list")
    found = []
    for index, item in enumerate(value):
        here = (*path, index)
        if not isinstance(item, dict):
            raise document.error(here, f"each of `{path[-1]}` must be a mapping, such as `- name: trainer`")
        if path[-1] == "queuedResources" and isinstance(item.get("state"), str):
            item = {**item, "state": {"state": item["state"]}}  # noqa: PLW2901  # the short form of a state
        fields = _check_entry(document, here, kind, item)
        found.append(SeedEntry(str(path[-1]), fields, document.place(*here)))
    return found


def _check_entry(document: YamlDocument, path: KeyPath, kind: SeedKind, item: Json) -> Json:
    message = {key: value for key, value in item.items() if key not in kind.own}
    for key in message:
        if key in kind.refused:
            raise document.error((*path, key), f"`{key}` cannot be given: {kind.refused[key]}")
    known = [*kind.own, *(message_fields(kind.schema) if kind.schema else ())]
    for key in message:
        if key not in known:
            raise document.unknown((*path, key), known)
    for key in kind.required:
        if item.get(key) in (None, ""):
            raise document.error(path, f"`{key}` is missing")
    for key in (key for key in item if key in kind.own):
        _check_type(document, (*path, key), kind.own[key], item[key])
    fields = check_message(document, path, kind.schema, message) if kind.schema else message
    return {**fields, **{key: value for key, value in item.items() if key in kind.own}}


def _check_type(document: YamlDocument, path: KeyPath, kind: str, value: Any) -> None:
    match kind:
        case "duration":
            try:
                parse_duration(str(value))
            except ValueError as error:
                raise document.error(path, f"`{path[-1]}`: {error}") from None
            fits = True
        case "number":
            fits = isinstance(value, int) and not isinstance(value, bool)
        case "flag":
            fits = isinstance(value, bool)
        case "texts":
            fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
        case "text":
            fits = isinstance(value, str | int) and not isinstance(value, bool)
        case _:
            fits = True
    if not fits:
        words = {"number": "a whole number", "flag": "true or false", "texts": "a list of texts", "text": "a text"}
        raise document.error(path, f"`{path[-1]}` must be {words[kind]}")


def _parse_settings(document: YamlDocument, path: KeyPath, value: Any) -> list[SeedEntry]:
    if value is None:
        return []
    if not isinstance(value, dict):
        raise document.error(path, "`settings` must be a mapping, such as `keep_failed_nodes: true`")
    for key in value:
        if key not in _KNOWN_SETTINGS and not _RULE_SETTING.fullmatch(key):
            near = closest_match(key, [*_KNOWN_SETTINGS, "allow_stop_while_creating", "allow_stop_while_starting"])
            hint = (
                f"did you mean `{near}`?"
                if near
                else f"known are {', '.join(_KNOWN_SETTINGS)}, allow_<verb>_while_<state>"
            )
            raise document.error((*path, key), f"unknown key `{key}`", hint=hint)
    return [
        SeedEntry("settings", {"name": key, "value": item}, document.place(*path, key)) for key, item in value.items()
    ]


# The keys of a fault, with their types. `after` delays the whole fault.
FAULT_KEYS: Mapping[str, str] = {
    "kind": "text",
    "node": "text",
    "zone": "text",
    "project": "text",
    "call": "text",
    "times": "number",
    "state": "text",
    "health": "text",
    "description": "text",
    "after": "duration",
    "duration": "duration",
    "code": "number",
    "message": "text",
    "limit": "number",
    "status": "number",
    "retryAfter": "number",
    "worker": "number",
}
_FAULT_FIELDS = {"call": "method", "times": "count", "retryAfter": "retry_after"}
QUOTA_KEYS: Mapping[str, str] = {
    "metric": "text",
    "generation": "text",
    "tier": "text",
    "region": "text",
    "zone": "text",
    "project": "text",
    "limit": "number",
    "usage": "number",
}
STOCKOUT_KEYS: Mapping[str, str] = {"zone": "text", "acceleratorType": "text", "tier": "text", "project": "text"}


def parse_fault(entry: Json) -> Fault:
    """Return the fault of an entry. Raises `InvalidInputError` for an unknown kind."""
    values: dict[str, Any] = {_FAULT_FIELDS.get(key, key): value for key, value in entry.items()}
    for key in ("after", "duration"):
        if key in values and not isinstance(values[key], timedelta):
            values[key] = parse_duration(str(values[key]))
    return Fault(parse_fault_kind(values.pop("kind")), **values)


def parse_fault_kind(word: str) -> FaultKind:
    """Return the fault kind of a name. Raises `InvalidInputError` naming the nearest."""
    known = [str(entry) for entry in FaultKind]
    if word not in known:
        near = closest_match(word, known)
        hint = f"did you mean `{near}`?" if near else f"use one of {', '.join(known)}"
        raise InvalidInputError(f"unknown fault kind `{word}`" if word else "no fault kind given", hint=hint)
    return FaultKind(word)


def seed_stockout(sandbox: SandboxState, entry: Json) -> None:
    """Add the stock-out of an entry. Raises `InvalidInputError` for an unknown tier."""
    words = {"acceleratorType": "accelerator_type"}
    values = {words.get(key, key): str(value) for key, value in entry.items() if key in STOCKOUT_KEYS}
    after, duration = (entry.get(key) for key in ("after", "duration"))
    with sandbox.write() as session:
        administration.add_stockout(
            session,
            **values,
            after=parse_duration(str(after)) if after else timedelta(),
            duration=parse_duration(str(duration)) if duration else None,
        )


def seed_quota(sandbox: SandboxState, entry: Json) -> None:
    """Set a quota of the TPU API, or of Compute Engine if the metric is one of its. Raises `InvalidInputError`."""
    metric = str(entry.get("metric", ""))
    if metric and not metric.endswith("ForTPUAPI"):
        words = {key: value for key, value in entry.items() if key in {"limit", "usage", "project"}}
        if "region" not in entry:
            raise InvalidInputError(f"the Compute Engine quota `{metric}` needs a `region`")
        administration.set_region_quota(sandbox, entry["region"], metric, **words)
        return
    if "usage" in entry:
        raise InvalidInputError(
            "`usage` cannot be set for quotas of the TPU API", hint="leave it out: usage is counted"
        )
    with sandbox.write() as session:
        set_tpu_quota(session, **entry)


_TEXT, _DURATION, _TEXTS, _NUMBER, _FLAG = "text", "duration", "texts", "number", "flag"


@dataclass(frozen=True, slots=True)
class SeedKind:
    """One kind of entry: the function that adds it, and its fields.

    `schema` is API, version and message whose fields it may have; `own` are further keys with their types. `refused` are
    fields of the message that cannot be set, each with the reason or the replacement.
    """

    add: Callable[[SandboxState, Json], None]
    schema: tuple[str, str, str] | None = None
    own: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ("name",)
    refused: Mapping[str, str] = field(default_factory=dict)


def _add_node(sandbox: SandboxState, entry: Json) -> None:
    where = _name_and_place(entry)
    rest = _without(entry, "name", "project", "zone", "age", "state", "health", "queuedResource")
    named = {key: entry[key] for key in ("state", "health") if key in entry}
    age = parse_duration(str(entry.get("age", "0s")))
    administration.add_node(sandbox, **where, **named, age=age, queued_resource=entry.get("queuedResource", ""), **rest)


def _add_queued_resource(sandbox: SandboxState, entry: Json) -> None:
    state = entry.get("state") or {}
    rest = _without(entry, "name", "project", "zone", "state", "tpu")
    if "tpu" in entry:
        rest["tpu"] = entry["tpu"]
    specs = (entry.get("tpu") or {}).get("nodeSpec") or [{}]
    node_ids = tuple(spec["nodeId"] for spec in specs if "nodeId" in spec) or ("node",)
    error = (state.get("failedData") or {}).get("error")
    initiator = state.get("stateInitiator", "")
    where, name = _name_and_place(entry), state.get("state", "ACTIVE")
    administration.add_queued_resource(
        sandbox, **where, state=name, node_ids=node_ids, initiator=initiator, error=error, **rest
    )


def _add_service(sandbox: SandboxState, entry: Json) -> None:
    project = entry.get("project", DEFAULT_PROJECT)
    administration.set_services(sandbox, {entry["name"]: entry.get("state", "ENABLED")}, project=project)


def _add_bucket(sandbox: SandboxState, entry: Json) -> None:
    check_bucket_name(entry["name"])
    administration.add_bucket(sandbox, **entry)


def _add_project(sandbox: SandboxState, entry: Json) -> None:
    project = entry["projectId"]
    rest = _without(entry, "projectId", "commonInstanceMetadata", "billingEnabled", "denied")
    administration.add_project(sandbox, project, denied=entry.get("denied", ()), **rest)
    if metadata := entry.get("commonInstanceMetadata"):
        with sandbox.write() as session:
            session.put_project(project, {**session.project(project), "items": metadata.get("items", [])})
    if "billingEnabled" in entry:
        administration.set_billing(sandbox, enabled=entry["billingEnabled"], project=project)


def _add_org_policy(sandbox: SandboxState, entry: Json) -> None:
    parts = entry["name"].split("/")
    project = parts[1] if len(parts) == 4 else entry.get("project", DEFAULT_PROJECT)
    administration.set_org_policy(sandbox, parts[-1], entry["spec"], project=project)


def _add_fault(sandbox: SandboxState, entry: Json) -> None:
    with sandbox.write() as session:
        faults.add_fault(session, parse_fault(entry))


def _name_and_place(entry: Json) -> Json:
    """Return project, zone and name of an entry; the name may be a full one."""
    found: Json = {key: entry[key] for key in ("project", "zone") if key in entry}
    if "/" not in entry["name"]:
        return {"name": entry["name"], **found}
    where = parse_resource_name(entry["name"])
    return {"project": where.project, "zone": where.zone, "name": where.resource_id}


def _without(entry: Json, *keys: str) -> Json:
    return {key: value for key, value in entry.items() if key not in keys}


def _call_with_entry(add: Callable[..., Any], *leading: str) -> Callable[[SandboxState, Json], None]:
    """Return a function that calls `add` with an entry's values: the leading ones by position, the others by keyword."""

    def add_entry(sandbox: SandboxState, entry: Json) -> None:
        add(sandbox, *(entry[key] for key in leading), **_without(entry, *leading))

    return add_entry


def _add_unless_absent(add: Callable[..., Any], remove: Callable[..., Any]) -> Callable[[SandboxState, Json], None]:
    """Return a function that adds an entry; with `absent: true` it removes a resource that a project has by default."""

    def add_or_remove(sandbox: SandboxState, entry: Json) -> None:
        if entry.get("absent"):
            remove(sandbox, entry["name"], project=entry.get("project", DEFAULT_PROJECT))
        else:
            add(sandbox, **_without(entry, "absent"))

    return add_or_remove


_COMPUTED = "the sandbox computes it; leave it out"
_REFUSED_FIELDS = {"id": _COMPUTED, "networkEndpoints": _COMPUTED, "createTime": "give `age: 2h` instead"}
_PROJECT: Mapping[str, str] = {"project": _TEXT}
_PLACE: Mapping[str, str] = {**_PROJECT, "zone": _TEXT}

# The order in which entries are added: later kinds may refer to earlier ones.
SEED_KINDS: Mapping[str, SeedKind] = {
    "settings": SeedKind(
        _call_with_entry(administration.set_setting, "name", "value"), own={"value": "any"}, required=("name", "value")
    ),
    "projects": SeedKind(
        _add_project,
        ("cloudresourcemanager", "v3", "Project"),
        {"commonInstanceMetadata": "any", "billingEnabled": _FLAG, "denied": _TEXTS},
        ("projectId",),
    ),
    "services": SeedKind(_add_service, own={**_PROJECT, "name": _TEXT, "state": _TEXT}),
    "quotas": SeedKind(seed_quota, own=QUOTA_KEYS, required=("limit",)),
    "stockouts": SeedKind(seed_stockout, own={**STOCKOUT_KEYS, "after": _DURATION, "duration": _DURATION}, required=()),
    "networks": SeedKind(
        _add_unless_absent(administration.add_network, administration.remove_network),
        ("compute", "v1", "Network"),
        {**_PROJECT, "absent": _FLAG},
    ),
    "subnetworks": SeedKind(
        _call_with_entry(administration.add_subnetwork, "name"),
        ("compute", "v1", "Subnetwork"),
        _PROJECT,
        ("name", "region"),
    ),
    "firewalls": SeedKind(
        _add_unless_absent(administration.add_firewall, administration.remove_firewall),
        ("compute", "v1", "Firewall"),
        {**_PROJECT, "absent": _FLAG},
    ),
    "disks": SeedKind(_call_with_entry(administration.add_disk, "name"), ("compute", "v1", "Disk"), _PROJECT),
    "instances": SeedKind(
        _call_with_entry(administration.add_instance, "name"), ("compute", "v1", "Instance"), _PROJECT
    ),
    "buckets": SeedKind(_add_bucket, ("storage", "v1", "Bucket"), {**_PROJECT, "denied": _TEXTS}),
    "objects": SeedKind(
        _call_with_entry(administration.add_object, "bucket", "name"),
        ("storage", "v1", "Object"),
        {"content": _TEXT},
        ("bucket", "name"),
    ),
    "anywhereCaches": SeedKind(
        _call_with_entry(administration.add_cache, "bucket", "zone"),
        ("storage", "v1", "AnywhereCache"),
        required=("bucket", "zone"),
    ),
    "roles": SeedKind(_call_with_entry(administration.add_role, "name"), ("iam", "v1", "Role"), _PROJECT),
    "orgPolicies": SeedKind(
        _add_org_policy, ("orgpolicy", "v2", "GoogleCloudOrgpolicyV2Policy"), _PROJECT, ("name", "spec")
    ),
    "iamPolicies": SeedKind(
        _call_with_entry(administration.set_iam_policy, "bindings"),
        ("cloudresourcemanager", "v3", "Policy"),
        {**_PROJECT, "bucket": _TEXT},
        ("bindings",),
    ),
    "queuedResources": SeedKind(_add_queued_resource, ("tpu", "v2", "QueuedResource"), _PLACE, refused=_REFUSED_FIELDS),
    "nodes": SeedKind(_add_node, ("tpu", "v2", "Node"), {**_PLACE, "age": _DURATION}, refused=_REFUSED_FIELDS),
    "faults": SeedKind(_add_fault, own=FAULT_KEYS, required=("kind",)),
}


_TYPE_NAMES = {"object": "a mapping", "array": "a list", "string": "a text", "boolean": "true or false"}
_NUMBER_NAMES = {"integer": "a whole number", "number": "a number"}


def check_message(document: YamlDocument, path: KeyPath, schema: tuple[str, str, str], value: Json) -> Json:
    """Return a message in the API's JSON: a number in a string field becomes a string.

    `schema` is API, version and the schema's name. Raises `SeedError` for an unknown field, type or enum name.
    """
    api, version, name = schema
    found = _check_object(document, path, load_document(api, version).schemas, name, value)
    assert isinstance(found, dict)  # noqa: S101  # a message is one; guides mypy
    return found


def message_fields(schema: tuple[str, str, str]) -> list[str]:
    """Return the fields of a message."""
    api, version, name = schema
    return list(load_document(api, version).schemas[name]["properties"])


def _check_object(document: YamlDocument, path: KeyPath, schemas: Mapping[str, Json], name: str, value: Any) -> Any:
    properties: Json = schemas[name].get("properties", {})
    if not isinstance(value, dict):
        raise _type_error(document, path, "object")
    for key in value:
        if key not in properties:
            raise document.unknown((*path, key), properties)
    return {key: _check_field(document, (*path, key), schemas, properties[key], item) for key, item in value.items()}


def _check_field(document: YamlDocument, path: KeyPath, schemas: Mapping[str, Json], spec: Json, value: Any) -> Any:
    if "$ref" in spec:
        return _check_object(document, path, schemas, spec["$ref"], value)
    kind = spec.get("type", "any")
    if kind == "object" and "additionalProperties" in spec and isinstance(value, dict):
        inner = spec["additionalProperties"]
        return {key: _check_field(document, (*path, key), schemas, inner, item) for key, item in value.items()}
    if kind == "object" and "properties" in spec and isinstance(value, dict):
        return _check_object(document, path, {**schemas, "": spec}, "", value)
    if kind == "array" and isinstance(value, list):
        return [_check_field(document, (*path, i), schemas, spec["items"], item) for i, item in enumerate(value)]
    return _check_scalar(document, path, spec, value)


def _check_scalar(document: YamlDocument, path: KeyPath, spec: Json, value: Any) -> Any:
    kind = spec.get("type", "any")
    if kind == "string" and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # `8` is as good as `"8"` in a label; an int64 is a text in JSON
    fits = {
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "any": True,
        "object": isinstance(value, dict),
        "array": False,
    }
    if not fits.get(kind, True):
        raise _type_error(document, path, kind)
    names = spec.get("enum")
    if names and value not in names:
        raise document.error(path, f"`{path[-1]}` cannot be `{value}`", hint=f"use one of {', '.join(names)}")
    return value


def _type_error(document: YamlDocument, path: KeyPath, kind: str) -> Exception:
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    return document.error(path, f"`{key}` must be {(_TYPE_NAMES | _NUMBER_NAMES).get(kind, kind)}")


class SeedError(InvalidInputError):
    """A file for the sandbox is invalid; the message names file, line and key."""

    kind = "seed"
