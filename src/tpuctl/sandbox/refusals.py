"""Error messages of the service. Each was observed verbatim if its docstring names a source."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Json


def bad_request(text: str) -> ApiError:
    """Return the error for a rejected request (observed: skypilot source)."""
    return ApiError(400, "INVALID_ARGUMENT", f"Cloud TPU received a bad request. {text} {error_id(text)}")


def invalid_field(field: str, value: str) -> ApiError:
    """Return the error for an invalid field value (observed: tensorflow/tpu#877)."""
    text = f'Cloud TPU received an invalid argument. The field "{field}" cannot be "{value}".'
    return ApiError(400, "INVALID_ARGUMENT", f"{text} {error_id(text)}")


def invalid(text: str) -> ApiError:
    """Return an error whose message is unverified."""
    return ApiError(400, "INVALID_ARGUMENT", text)


def failed_precondition(text: str) -> ApiError:
    """Return the error for a wrong state of the resource."""
    return ApiError(400, "FAILED_PRECONDITION", text)


def not_found(name: str) -> ApiError:
    """Return the error for a missing resource (the status is observed, the message unverified)."""
    return ApiError(404, "NOT_FOUND", f"Resource '{name}' was not found", _resource(name))


def already_exists(name: str) -> ApiError:
    """Return the error for a second create (observed: skypilot#129)."""
    return ApiError(409, "ALREADY_EXISTS", f"Resource '{name}' already exists", _resource(name))


def unknown_location(project: str, zone: str) -> ApiError:
    """Return the error for a zone that does not exist or is closed to the project (observed)."""
    reason: Json = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "LOCATION_POLICY_VIOLATED",
        "domain": "googleapis.com",
        "metadata": {"consumer": f"projects/{project}", "location": zone, "service": "tpu.googleapis.com"},
    }
    return ApiError(403, "PERMISSION_DENIED", f"Permission denied on 'locations/{zone}' (or it may not exist).", reason)


def no_capacity(zone: str) -> str:
    """Return the message of a stock-out, the error of an operation with code 8 (observed)."""
    text = (
        f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU Nodes are offered '
        "(see https://cloud.google.com/tpu/docs/regions)"
    )
    return f"{text} {error_id(text)}"


def error_id(text: str) -> str:
    """Return an error identifier as the service appends it; the same text gives the same id."""
    return f"[EID: 0x{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}]"


def _resource(name: str) -> Json:
    return {"@type": "type.googleapis.com/google.rpc.ResourceInfo", "resourceName": name}
