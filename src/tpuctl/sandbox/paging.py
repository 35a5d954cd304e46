"""Pages of a list: page sizes as the API accepts them, and tokens that name the start of the next page."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, TypeVar

from tpuctl.sandbox.refusals import invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.sandbox.calls import Call

_Entry = TypeVar("_Entry")
DEFAULT_SIZE = 500  # unverified
LARGEST_SIZE = 1000  # unverified


def size(call: Call) -> int:
    """Return the page size. Raises `ApiError` 400 for a negative number."""
    asked = int(call.params.get("pageSize") or 0)
    if asked < 0:
        raise invalid("The page size must not be negative.")
    return min(asked or DEFAULT_SIZE, LARGEST_SIZE)


def position(call: Call) -> list[str]:
    """Return the position after which the page begins; empty for the first page. Raises `ApiError` 400 for an invalid token."""
    token = call.params.get("pageToken")
    if not token:
        return []
    try:
        place = json.loads(base64.urlsafe_b64decode(str(token).encode("ascii")))
    except ValueError as error:
        raise invalid("The page token is not valid.") from error
    if not isinstance(place, list) or not place or not all(isinstance(part, str) for part in place):
        raise invalid("The page token is not valid.")
    return place


def token(*place: str) -> str:
    """Return the token of the page that begins after a position."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def page(call: Call, entries: Sequence[_Entry]) -> tuple[Sequence[_Entry], str]:
    """Return one page of a constant list, and the token of the next page (empty at the end)."""
    place = position(call)
    if place and not place[0].isdecimal():
        raise invalid("The page token is not valid.")
    start = int(place[0]) if place else 0
    end = start + size(call)
    return entries[start:end], token(str(end)) if end < len(entries) else ""
