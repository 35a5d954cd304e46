"""A long-running operation of the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.decoding import By, decode, decoder_of, json_field
from tpuctl.models.api_values import ApiInteger, ApiObject, ApiText

if TYPE_CHECKING:
    from collections.abc import Mapping


def _first_reason(details: Any) -> str:  # JSON
    """Return the first reason of google.rpc.ErrorInfo."""
    reasons = (str(detail.get("reason") or "") for detail in decoder_of(tuple[ApiObject, ...])(details))
    return next(filter(None, reasons), "")


@dataclass(frozen=True, slots=True)
class OperationError:
    """Why an operation failed: a google.rpc.Status. The code alone does not identify the reason."""

    code: ApiInteger = 2
    message: ApiText = ""
    reason: Annotated[str, By(_first_reason)] = json_field("details", default="")


def _error(status: Any) -> OperationError | None:  # JSON
    error = decode(OperationError, status)
    return error if status else None


# None for an empty Status.
OptionalError = Annotated[OperationError | None, By(_error)]


@dataclass(frozen=True, slots=True)
class _Named:
    name: ApiText


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation, in progress or done. `name` is None if the answer to the request was lost.

    `was_sent` is False if no request was: what would be deleted or stopped was gone, or another client was ending it.
    """

    name: ApiText | None
    done: bool = False
    error: OptionalError = None
    was_sent: bool = True

    @classmethod
    def from_api(cls, data: Mapping[str, Any]) -> Operation:
        """Parse an Operation. Raises `ShapeError`."""
        # An answer without a name is none, whatever it contains.
        return decode(cls, data, name=decode(_Named, data).name, was_sent=True)

    @classmethod
    def unnamed(cls) -> Operation:
        """Return the operation of a change that took effect although its answer was lost."""
        return cls(None)
