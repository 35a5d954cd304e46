"""Whether an answer is what the discovery document promises: its schema, what is packed in operations, and Google's errors."""

from __future__ import annotations

from typing import Any

from tpuctl.sandbox.discovery import load
from tpuctl.sandbox.schema import check_response

VERSIONS = ("v1", "v1alpha1", "v2", "v2alpha1")
STATUSES = {
    400: {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"},
    403: {"PERMISSION_DENIED"},
    404: {"NOT_FOUND"},
    409: {"ALREADY_EXISTS", "ABORTED"},
    429: {"RESOURCE_EXHAUSTED"},
}
_PACKAGE = "type.googleapis.com/google.cloud.tpu."


def wrong_with(version: str, method: str, answer: Any) -> list[str]:
    """Return what is wrong with a successful answer of a method of the TPU API."""
    found = next(known for known in load("tpu", version).methods if known.id == method)
    assert found.response is not None
    return _wrong(version, found.response, answer)


def _wrong(version: str, schema: str, answer: Any) -> list[str]:
    complaints = check_response(version, schema, answer)
    operations = [answer] if schema == "Operation" else answer.get("operations", [])
    for operation in operations:
        for packed in (operation["metadata"], operation.get("response", {})):
            complaints += _wrong_with_packed(version, packed)
        if operation["done"] != (("response" in operation) or ("error" in operation)):
            complaints.append(f"{operation['name']}: done is not what its result says")
    return complaints


def _wrong_with_packed(version: str, packed: dict[str, Any]) -> list[str]:
    """Return what is wrong with a `google.protobuf.Any`: its type must be of the version that answers."""
    kind = packed.get("@type", "")
    if not packed or kind == "type.googleapis.com/google.protobuf.Empty":
        return []
    prefix = f"{_PACKAGE}{version}."
    if not kind.startswith(prefix):
        return [f"{kind} in an answer of {version}"]
    content = {name: value for name, value in packed.items() if name != "@type"}
    return check_response(version, kind.removeprefix(prefix), content)


def is_googles_error(status: int, body: Any) -> bool:
    """Tell whether a refusal has the form of Google's APIs, and a code that goes with its status."""
    error = body.get("error", {})
    details = error.get("details", [])
    return (
        set(body) == {"error"}
        and error.get("code") == status
        and error.get("status") in STATUSES.get(status, set())
        and bool(error.get("message"))
        and all(str(detail["@type"]).startswith("type.googleapis.com/google.rpc.") for detail in details)
    )
