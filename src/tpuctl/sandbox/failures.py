"""The service's messages for failed operations, one for each google.rpc code.

Observed in operations: the two messages of 8, that of 13, and for 9 that reserved capacity is short. Those of 3, 6 and 7 were
observed as errors of calls: that an operation has the same is unverified. All others are unverified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import capacity
from tpuctl.sandbox.capacity import Tier
from tpuctl.sandbox.refusals import already_exists, error_id, invalid_field, not_found

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.faults import Fault, Target

# google.rpc.Code: the meaning of each, for the description of a planned failure.
MEANINGS = {
    1: "cancelled",
    2: "unknown error",
    3: "bad request",
    4: "deadline exceeded",
    5: "not found",
    6: "exists already",
    7: "permission denied",
    8: "no capacity",
    9: "failed precondition",
    10: "aborted",
    11: "out of range",
    12: "not implemented",
    13: "internal error",
    14: "unavailable",
    15: "data loss",
    16: "no valid credentials",
}


def failure(fault: Fault, target: Target, tier: Tier) -> Json:
    """Return the google.rpc.Status of a fault: its own message, by default the service's message for that code."""
    collection, verb = target.method.split(".")[-2:]
    name = f"projects/{target.project}/locations/{target.zone}/{collection}/{target.node}"
    match fault.code:
        case _ if fault.message:
            message = fault.message
        case 3:
            message = invalid_field("Network", "default").message  # observed on a call: tensorflow/tpu#877
        case 5:
            message = not_found(name).message  # unverified
        case 6:
            message = already_exists(name).message  # observed on a call: skypilot#129
        case 7:
            message = (
                f"Permission 'tpu.{collection}.{verb}' denied on '{name}'"  # observed on a call: tensorflow/tpu#296
            )
        case 8:
            message = capacity.shortage_text(target.zone, tier)  # observed
        case 9 if verb in {"create", "start"}:
            message = capacity.shortage_text(
                target.zone, Tier.RESERVED
            )  # observed, with this code too: skypilot source
        case 13:
            message = "an internal error has occurred"  # observed: terraform-provider-google#16147
        case code:
            message = _UNVERIFIED.get(code) or f"The operation failed with code {code}. {error_id(name)}"
    return {"code": fault.code, "message": message}


_UNVERIFIED = {
    1: "The operation was cancelled.",
    2: "An unknown error has occurred.",
    4: "The operation was not completed within its deadline.",
    9: "The operation is not possible in the current state of the resource.",
    10: "The operation was aborted.",
    11: "A value of the request is out of range.",
    12: "The operation is not implemented or not supported.",
    14: "The service is currently unavailable.",
    15: "Data was lost.",
    16: "Request had invalid authentication credentials.",
}
