"""Check responses against the discovery document: schema, results of operations, and Google's errors."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from tpuctl.sandbox.api_calls import Call
from tpuctl.sandbox.discovery import load_document
from tpuctl.sandbox.lifecycle import GONE, STATES
from tpuctl.sandbox.service import METHODS

if TYPE_CHECKING:
    from tpuctl.sandbox.state import SandboxState

VERSIONS = ("v1", "v1alpha1", "v2", "v2alpha1")
STATUSES = {
    400: {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"},
    403: {"PERMISSION_DENIED"},
    404: {"NOT_FOUND"},
    409: {"ALREADY_EXISTS", "ABORTED"},
    429: {"RESOURCE_EXHAUSTED"},
}
_PACKAGE = "type.googleapis.com/google.cloud.tpu."


def check_response_body(version: str, schema_name: str, value: Any, *, api: str = "tpu") -> list[str]:
    """Return the errors in a response: unknown fields, wrong types, unknown enum names."""
    schemas = load_document(api, version).schemas
    errors: list[str] = []

    def check(spec: dict[str, Any], found: Any, path: str) -> None:
        spec = schemas[spec["$ref"]] if "$ref" in spec else spec
        kind = spec.get("type", "any")
        if not isinstance(found, _JSON_TYPES.get(kind, object)) or (
            isinstance(found, bool) and kind not in {"boolean", "any"}
        ):
            errors.append(f"{path}: {found!r} is not of the type {kind}")
        elif kind == "array":
            for index, element in enumerate(found):
                check(spec["items"], element, f"{path}[{index}]")
        elif kind == "object":
            properties, others = spec.get("properties", {}), spec.get("additionalProperties")
            for name, member in found.items():
                declared = properties.get(name, others)
                if declared is None:
                    errors.append(f"{path}.{name}: unknown field".removeprefix("."))
                elif type(member) is not str or declared.get("type") != "string" or "enum" in declared:  # most are text
                    check(declared, member, f"{path}.{name}".removeprefix("."))
        elif "enum" in spec and found not in spec["enum"]:
            errors.append(f"{path}: {found!r} is not one of its values")

    check({"$ref": schema_name}, value, "")
    return errors


_JSON_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": int | float,
}


def schema_errors(version: str, method: str, answer: Any) -> list[str]:
    """Return the errors in a successful response of a TPU API method."""
    found = next(known for known in load_document("tpu", version).methods if known.id == method)
    assert found.response is not None
    return _body_errors(version, found.response, answer)


def schema_errors_of_all(sandbox_state: SandboxState) -> list[str]:
    """Return the errors in the nodes, queued resources and operations of all projects, as every version shows them.

    A state that no version has was put there by a test, to see what a client makes of it.
    """
    errors = []
    with sandbox_state.read() as session:
        known = {*STATES, GONE}
        invented = {
            f'"{phase.state}"' for node in session.nodes() for phase in node.timeline if phase.state not in known
        }
        projects = {"sandbox", *(node.project for node in session.nodes())}
        projects |= {record.project for record in session.queued_resources()}
        for version, collection in product(VERSIONS, ("nodes", "operations", "queuedResources")):
            method = f"tpu.projects.locations.{collection}.list"
            if any(listed.id == method for listed in load_document("tpu", version).methods):
                for parent in (f"projects/{project}/locations/-" for project in projects):
                    call = Call(version, method, {"parent": parent, "name": parent, "pageSize": 1000}, {})
                    errors += schema_errors(version, method, METHODS[method](session, call))
    return [error for error in errors if not any(state in error for state in invented)]


def _body_errors(version: str, schema: str, answer: Any) -> list[str]:
    errors = check_response_body(version, schema, answer)
    operations = [answer] if schema == "Operation" else answer.get("operations", [])
    for operation in operations:
        for packed in (operation["metadata"], operation.get("response", {})):
            errors += _packed_errors(version, packed)
        if operation["done"] != (("response" in operation) or ("error" in operation)):
            errors.append(f"{operation['name']}: done is not what its result says")
    return errors


def _packed_errors(version: str, packed: dict[str, Any]) -> list[str]:
    """Return the errors in a `google.protobuf.Any`: its type must belong to the version of the response, if that has it."""
    kind = packed.get("@type", "")
    if not packed or kind == "type.googleapis.com/google.protobuf.Empty":
        return []
    packed_by, _, schema = kind.removeprefix(_PACKAGE).partition(".")
    if packed_by != version and (packed_by not in VERSIONS or schema in load_document("tpu", version).schemas):
        return [f"{kind} in an answer of {version}"]
    return check_response_body(packed_by, schema, {name: value for name, value in packed.items() if name != "@type"})


def is_googles_error(status: int, body: Any) -> bool:
    """Return whether an error has the form of Google's APIs, and a code that matches its status."""
    error = body.get("error", {})
    details = error.get("details", [])
    return (
        set(body) == {"error"}
        and error.get("code") == status
        and error.get("status") in STATUSES.get(status, set())
        and bool(error.get("message"))
        and all(str(detail["@type"]).startswith("type.googleapis.com/google.rpc.") for detail in details)
    )
