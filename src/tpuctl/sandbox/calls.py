"""The types of the sandbox's interface: an HTTP request, its response, and the API call that it means.

Both interfaces (in process, and HTTP on loopback) turn what they receive into a `Request` and send a `Response`, or close
the connection on `Dropped`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. `query` keeps the order and repetition of parameters; header names are lower case."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Json, *, status: int = 200) -> Response:
        """Return a response with a JSON body."""
        return cls(status, json.dumps(value).encode(), {"content-type": "application/json; charset=UTF-8"})


@dataclass(frozen=True, slots=True)
class Dropped:
    """A connection that ends without a response."""


@dataclass(frozen=True, slots=True)
class Media:
    """The bytes that a call uploads, beside its JSON. `content_type` is empty if the client sent none."""

    content: bytes
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One API call, checked against the discovery document.

    `method` is the discovery document's id (`tpu.projects.locations.nodes.create`), `params` its path and query
    parameters under the document's own names, with the document's types (int, bool, str); `body` the decoded JSON
    with enum numbers replaced by names. `media` is the upload; with `wants_media` (`alt=media`) the handler returns a
    `Response` with the bytes of the resource in place of its JSON.
    """

    version: str
    method: str
    params: Mapping[str, Any]
    body: Json
    media: Media | None = None
    wants_media: bool = False


class ApiError(Exception):
    """An error as Google's APIs return it: `{"error": {"code", "message", "status", "details"}}`.

    `reason` is the reason that compute and storage report, whose error bodies are older: `{"error": {"code", "message",
    "errors": [{"message", "domain", "reason"}]}}`; the default follows from the code. An error rolls back the changes of its
    handler if `commits` is not set: then the fault that caused it stays used up.
    """

    commits = False

    def __init__(self, code: int, status: str, message: str, *details: Json, reason: str = "") -> None:
        super().__init__(f"{status}: {message}")
        self.code = code
        self.status = status
        self.message = message
        self.details = details
        self.reason = reason or _REASONS.get(code, "backendError" if code >= 500 else "invalid")

    def committing(self) -> Self:
        """Return this error, marked to commit the changes made before it."""
        self.commits = True
        return self

    def response(self, headers: Mapping[str, str] | None = None, *, with_reasons: bool = False) -> Response:
        """Return the HTTP response for this error; `with_reasons`: in the form of compute and storage."""
        if self.code == 304:  # HTTP allows it no body
            return Response(304, b"", headers or {})
        error: Json = {"code": self.code, "message": self.message}
        if with_reasons:
            error["errors"] = [{"message": self.message, "domain": "global", "reason": self.reason}]
        if self.details or not with_reasons:
            error["status"] = self.status
        if self.details:
            error["details"] = list(self.details)
        answer = Response.of({"error": error}, status=self.code)
        return Response(answer.status, answer.body, {**answer.headers, **(headers or {})})


# Source: error bodies that users of both APIs have published.
_REASONS = {
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "conflict",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    501: "notImplemented",
}
