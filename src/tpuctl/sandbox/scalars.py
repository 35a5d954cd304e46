"""Read single values as Google's JSON transcoding does: accepted forms, and the names of enum numbers.

Source: the proto3 JSON mapping, and protobuf's JSON parser for what it accepts beyond that.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.calls import Json

_RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
_TYPE_NAMES = {"byte": "TYPE_BYTES", "float": "TYPE_FLOAT", "double": "TYPE_DOUBLE"}
_WELL_KNOWN = {
    "google-datetime": ("google.protobuf.Timestamp", "timestamp"),
    "google-duration": ("google.protobuf.Duration", "duration"),
}
_TIMESTAMP = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)"
)
_DURATION = re.compile(r"-?\d{1,12}(\.\d{1,9})?s")
_BAD_TIMESTAMP = "Illegal timestamp format; timestamps must end with 'Z' or have a valid timezone offset."
_BAD_DURATION = "Illegal duration format; duration must end with 's'"

# Enum numbers that are not the position of the name in the document. Source: the enums of google-cloud-tpu 1.28.
_STATES = ["CREATING", "READY", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING"]
_LATER_STATES = [
    "STOPPED",
    "STOPPING",
    "STARTING",
    "PREEMPTED",
    "TERMINATED",
    "HIDING",
    "HIDDEN",
    "UNHIDING",
    "UNKNOWN",
]
_NUMBERS: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("AcceleratorConfig", "type"): {"V2": 2, "V3": 4, "V4": 7, "V5LITE_POD": 9, "V5P": 10, "V6E": 11},
    ("Node", "state"): {
        **{name: number for number, name in enumerate(_STATES, start=1)},
        **{name: number for number, name in enumerate(_LATER_STATES, start=8)},
    },
    ("Node", "health"): {
        "HEALTHY": 1,
        "DEPRECATED_UNHEALTHY": 2,
        "TIMEOUT": 3,
        "UNHEALTHY_TENSORFLOW": 4,
        "UNHEALTHY_MAINTENANCE": 5,
    },
    ("Reservation", "state"): {
        "APPROVED": 3,
        "PROVISIONING": 4,
        "ACTIVE": 5,
        "DEPROVISIONING": 6,
        "EXPIRED": 7,
        "FAILED": 8,
    },
}


class ScalarError(ValueError):
    """A value that the field cannot hold; the text follows `Invalid value at '<path>' `."""


def enum_numbers(message: str, field: str, names: list[str]) -> Mapping[str, int]:
    """Return the number of each name of an enum of the TPU API (source: google-cloud-tpu 1.28).

    Enums of messages that the library lacks are counted from 0 in the document's order, as protobuf files nearly always are.
    """
    known = _NUMBERS.get((message, field), {})
    return {name: known.get(name, position) for position, name in enumerate(names)}


def read_scalar(
    spec: Json, value: Any, *, field: str, enum_type: str = "", numbers: Mapping[str, int] | None = None
) -> Any:
    """Return a value in the form that handlers expect: enum names, int32 as int, int64 as digits, bytes as sent.

    `spec` is the document's declaration. `enum_type` is the full name of the enum's proto type, `numbers` the meaning of
    integers in it. Raises `ScalarError`.
    """
    if "enum" in spec:
        return _read_enum(spec["enum"], value, enum_type=enum_type, numbers=numbers or {})
    kind, form = spec.get("type"), spec.get("format")
    if kind == "any":
        return value
    if form in _WELL_KNOWN:
        type_name, word = _WELL_KNOWN[form]
        prefix = f"(type.googleapis.com/{type_name}), Field '{field}', "
        if not isinstance(value, str):
            raise ScalarError(f"{prefix}Invalid data type for {word}, value is {quoted(value)}")
        pattern, complaint = (_TIMESTAMP, _BAD_TIMESTAMP) if word == "timestamp" else (_DURATION, _BAD_DURATION)
        if not pattern.fullmatch(value):
            raise ScalarError(prefix + complaint)
        return value
    if form in _RANGES:
        number = _read_integer(form, value)
        return str(number) if kind == "string" else number
    if kind == "integer":
        return _read_integer("int32", value)
    if form == "byte":
        return _read_bytes(value)
    if kind == "boolean":
        return _read_boolean(value)
    if kind == "number":
        return _read_float(value)
    if not isinstance(value, str):
        raise ScalarError(f"(TYPE_STRING), {quoted(value)}")
    return value


def read_query_value(spec: Json, text: str, *, field: str) -> Any:
    """Return a query parameter's value with the document's type; booleans in any case, as gcloud sends `True`."""
    if spec.get("type") == "boolean":
        return _read_boolean(text.lower(), shown=text)
    return read_scalar(spec, text, field=field, enum_type=field)


def quoted(value: Any) -> str:
    """Return a value as it appears in the service's error message."""
    return json.dumps(value, ensure_ascii=False)


def _read_enum(names: list[str], value: Any, *, enum_type: str, numbers: Mapping[str, int]) -> str:
    if isinstance(value, str) and value in names:
        return value
    wanted = int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,10}", value) else value
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        for name, number in numbers.items():
            if number == wanted:
                return name
    raise ScalarError(f"(type.googleapis.com/{enum_type}), {quoted(value)}")


def _read_integer(form: str, value: Any) -> int:
    number: int | None = None
    if isinstance(value, str):
        number = int(value) if re.fullmatch(r"-?\d{1,20}", value) else None
    elif isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1:
        number = int(value)
    low, high = _RANGES[form]
    if number is None or not low <= number <= high:
        raise ScalarError(f"(TYPE_{form.upper()}), {quoted(value)}")
    return number


def _read_boolean(value: Any, *, shown: Any = None) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ScalarError(f"(TYPE_BOOL), {quoted(value if shown is None else shown)}")


def _read_float(value: Any) -> float:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError as error:
            raise ScalarError(f"(TYPE_DOUBLE), {quoted(value)}") from error
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ScalarError(f"(TYPE_DOUBLE), {quoted(value)}")
    return value


def _read_bytes(value: Any) -> str:
    text = value.rstrip("=").replace("-", "+").replace("_", "/") if isinstance(value, str) else "*"
    try:
        base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScalarError(f"({_TYPE_NAMES['byte']}), Base64 decoding failed for {quoted(value)}") from error
    return str(value)
