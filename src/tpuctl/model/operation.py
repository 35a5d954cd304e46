"""A long-running operation of the API, and what was started on whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.names import short
from tpuctl.shapes import ANY, INTEGER, ListOf, MapOf, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping


STATUS = Shape("tpu.v2 Status", {"code": INTEGER, "message": str, "details": ListOf(MapOf(ANY))})
OPERATION = Shape(
    "tpu.v2 Operation", {"name": str, "done": bool, "error": STATUS, "metadata": MapOf(ANY)}, required=("name",)
)


@dataclass(frozen=True, slots=True)
class OperationError:
    """Why an operation failed: a google.rpc.Status. Its code alone does not tell the reason."""

    code: int
    message: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """What the service is doing, or did. `name` is nothing where the answer to the request was lost."""

    name: str | None
    done: bool = False
    error: OperationError | None = None

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Operation:
        """Read an Operation. Raises `ShapeError`."""
        status = OPERATION.read(data).get("error")
        error = None
        if status:
            reasons = [detail.get("reason", "") for detail in status.get("details") or ()]
            reason = str(next(filter(None, reasons), ""))
            error = OperationError(int(status.get("code", 2)), status.get("message", ""), reason)
        return cls(data.get("name"), bool(data.get("done")), error)

    @classmethod
    def unnamed(cls) -> Operation:
        """Return the operation of a change that took effect while its answer was lost."""
        return cls(None)

    @property
    def short_name(self) -> str:
        """The last part of its name."""
        return short(self.name) if self.name else "(its name was lost with the answer)"
