"""The sandbox's nouns: an HTTP request, its answer, and the API call that it means.

Both faces (in process, and on a loopback port) turn what they receive into a `Request` and hand back a `Response`, or close
the connection on `Dropped`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request as it arrives. `query` keeps the order and repetition of its parameters; header names are lower case."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Json, *, status: int = 200) -> Response:
        """Return an answer that carries a JSON value."""
        return cls(status, json.dumps(value).encode(), {"content-type": "application/json; charset=UTF-8"})


@dataclass(frozen=True, slots=True)
class Dropped:
    """The connection ends without an answer."""


@dataclass(frozen=True, slots=True)
class Call:
    """One API call, checked against the discovery document.

    `method` is the discovery document's id (`tpu.projects.locations.nodes.create`), `params` its path and query
    parameters under the document's own names, with the document's types (int, bool, str); `body` the decoded JSON
    with enum numbers turned into names.
    """

    version: str
    method: str
    params: Mapping[str, Any]
    body: Json


class ApiError(Exception):
    """An error as Google's APIs answer it: `{"error": {"code", "message", "status", "details"}}`."""

    def __init__(self, code: int, status: str, message: str, *details: Json) -> None:
        super().__init__(f"{status}: {message}")
        self.code = code
        self.status = status
        self.message = message
        self.details = details

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """Return the HTTP answer that carries this error."""
        error: Json = {"code": self.code, "message": self.message, "status": self.status}
        if self.details:
            error["details"] = list(self.details)
        answer = Response.of({"error": error}, status=self.code)
        return Response(answer.status, answer.body, {**answer.headers, **(headers or {})})
