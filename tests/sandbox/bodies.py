"""Hypothesis strategies from a discovery document: requests of clients, plausible or not. Bounded in size and depth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from tpuctl.sandbox.discovery import load_document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hypothesis.strategies import SearchStrategy

ZONE = "projects/sandbox/locations/us-central2-b"
# By field: what a sensible client sends. Without such values nearly every body would be refused.
PLAUSIBLE: Mapping[str, tuple[Any, ...]] = {
    "acceleratorType": ("v4-8", "v4-16"),
    "runtimeVersion": ("tpu-ubuntu2204-base",),
    "tensorflowVersion": ("2.12.0",),
    "topology": ("2x2x1", "2x2x2"),
    "network": ("default",),
    "parent": (ZONE,),
    "nodeId": ("made", "other"),
    "nodeIdPrefix": ("made",),
    "nodeCount": (2,),
    "queuedResourceId": ("made", "another"),
    "requestId": ("4f6b4a4e-0f0c-4d7e-9f1a-0a4f1c1d2e3f",),
    "workerIds": ("0", "1"),
    "nodeNames": ("owned",),
    "updateMask": ("labels,metadata", "description", "data_disks"),
    "pageSize": (0, 1, 500),
    "pageToken": ("",),
    "filter": ("", "done=true"),
    "validAfterTime": ("2026-01-01T01:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"),
    "validUntilDuration": ("3600s", "1s", "-5s", "999999999999s"),
}
_TIMES = ("2026-01-01T00:10:00Z", "2026-06-01T00:00:00.123456789+02:00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z")
_TEXT = st.text(max_size=8) | st.sampled_from(("a", "projects/p/zones/z/disks/d", "..", "-", "x" * 300))
_BY_FORMAT = {
    "google-datetime": st.sampled_from(_TIMES),
    "google-duration": st.sampled_from(("0s", "1.5s", "86400s", "-1s", "999999999999s")),
    "int64": st.integers(-(2**63), 2**63 - 1).map(str),
    "byte": st.sampled_from(("", "AAAA", "_-8=")),
}


def value(version: str, spec: Mapping[str, Any], name: str, depth: int = 6) -> SearchStrategy[Any]:
    """Return values that a field may have under its declaration, about half of them plausible."""
    if "$ref" in spec:
        return message(version, spec["$ref"], depth)
    made = _made(version, spec, name, depth)
    sensible = PLAUSIBLE.get(name)
    if sensible is None or spec.get("type") == "array":
        return made
    return st.sampled_from(sensible) | st.sampled_from(sensible) | made


def message(version: str, schema_name: str, depth: int = 6) -> SearchStrategy[dict[str, Any]]:
    """Return messages of a schema: all required fields, each other field sometimes."""
    schema = load_document("tpu", version).schemas[schema_name]
    properties: Mapping[str, Any] = schema.get("properties", {})
    if depth == 0:
        return st.just({})
    must = {name for name, spec in properties.items() if spec.get("description", "").startswith("Required.")}
    fields = {name: value(version, spec, name, depth - 1) for name, spec in properties.items()}
    if schema_name == "Node" and "tensorflowVersion" not in properties:
        must |= {"acceleratorType"}
        fields.pop("networkConfigs")  # with networkConfig it is always refused; test_lifecycle has it
        fields.pop("acceleratorConfig")
    required = {name: field for name, field in fields.items() if name in must}
    optional = {name: field for name, field in fields.items() if name not in must}
    return st.fixed_dictionaries(required, optional=optional)


def _made(version: str, spec: Mapping[str, Any], name: str, depth: int) -> SearchStrategy[Any]:
    if "enum" in spec:
        return st.sampled_from(spec["enum"])
    kind = spec.get("type")
    if kind == "array":
        return st.lists(value(version, spec["items"], name, depth), max_size=2)
    if kind == "object":
        return st.dictionaries(_TEXT, value(version, spec.get("additionalProperties", {}), "", depth), max_size=2)
    if kind == "integer":
        return st.integers(-(2**31), 2**31 - 1)
    if kind == "boolean":
        return st.booleans()
    return _BY_FORMAT.get(spec.get("format", ""), _TEXT)
