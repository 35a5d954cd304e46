"""A long-running operation of the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.shapes import ANY, INTEGER, ListOf, MapOf, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

STATUS = Shape("tpu.v2 Status", {"code": INTEGER, "message": str, "details": ListOf(MapOf(ANY))})
OPERATION = Shape(
    "tpu.v2 Operation", {"name": str, "done": bool, "error": STATUS, "metadata": MapOf(ANY)}, required=("name",)
)


@dataclass(frozen=True, slots=True)
class OperationError:
    """Why an operation failed: a google.rpc.Status. The code alone does not identify the reason."""

    code: int
    message: str
    reason: str = ""

    @classmethod
    def from_api(cls, status: Mapping[str, Any]) -> OperationError:
        """Return the error of a Status that was parsed."""
        reasons = [detail.get("reason", "") for detail in status.get("details") or ()]
        return cls(int(status.get("code", 2)), status.get("message", ""), str(next(filter(None, reasons), "")))


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation, in progress or done. `name` is None if the answer to the request was lost.

    `was_sent` is False if no request was: what would be deleted or stopped was gone, or another client was ending it.
    """

    name: str | None
    done: bool = False
    error: OperationError | None = None
    was_sent: bool = True

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Operation:
        """Parse an Operation. Raises `ShapeError`."""
        status = OPERATION.read(data).get("error")
        error = OperationError.from_api(status) if status else None
        return cls(data.get("name"), bool(data.get("done")), error)

    @classmethod
    def unnamed(cls) -> Operation:
        """Return the operation of a change that took effect although its answer was lost."""
        return cls(None)
