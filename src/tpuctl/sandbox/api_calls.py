"""What all handlers share: requests, responses and calls, error messages, resource names, and pages of lists.

Both interfaces (in process, and HTTP on loopback) turn what they receive into a `Request` and send a `Response`, or close
the connection on `DroppedConnection`. An error message was observed verbatim if its docstring names a source.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.sandbox.state_session import StateSession

Json = dict[str, Any]
_Item = TypeVar("_Item")
DEFAULT_PROJECT = "sandbox"
DEFAULT_ZONE = "us-central2-b"


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
class DroppedConnection:
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

    def __getitem__(self, name: str) -> str:
        """Return a parameter as text; empty if it was not given."""
        return str(self.params.get(name) or "")


Handler: TypeAlias = "Callable[[StateSession, Call], Json | Response]"
_AnyHandler = TypeVar("_AnyHandler", bound="Handler")
HANDLERS: dict[str, Handler] = {}


def answers(*methods: str) -> Callable[[_AnyHandler], _AnyHandler]:
    """Register the handler of API methods, given by their ids in the discovery documents."""

    def register(handler: _AnyHandler) -> _AnyHandler:
        HANDLERS.update(dict.fromkeys(methods, handler))
        return handler

    return register


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


# Source of the texts: answers of Google's APIs that users have published.
_STATUSES = {
    400: ("INVALID_ARGUMENT", "Request contains an invalid argument."),
    403: ("PERMISSION_DENIED", "The caller does not have permission"),
    404: ("NOT_FOUND", "Requested entity was not found."),
    409: ("ABORTED", "The operation was aborted."),
    429: ("RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota)."),
    500: ("INTERNAL", "Internal error encountered."),
    501: ("UNIMPLEMENTED", "Operation is not implemented, or supported, or enabled."),
    503: ("UNAVAILABLE", "The service is currently unavailable."),
    504: ("DEADLINE_EXCEEDED", "Deadline expired before operation could complete."),
}


def error_of(status: int, message: str = "") -> ApiError:
    """Return the error that Google's APIs send with a status; the default message is their general one."""
    if status == 401:
        message = (
            "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid "
            "authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project."
        )
        return ApiError(401, "UNAUTHENTICATED", message, error_info("ACCESS_TOKEN_EXPIRED"))
    name, general = _STATUSES.get(status) or _STATUSES[500 if status >= 500 else 400]
    return ApiError(status, name, message or general)


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
    return ApiError(404, "NOT_FOUND", f"Resource '{name}' was not found", _resource_info(name))


def already_exists(name: str) -> ApiError:
    """Return the error for a second create (observed: skypilot#129)."""
    return ApiError(409, "ALREADY_EXISTS", f"Resource '{name}' already exists", _resource_info(name))


def unknown_location(project: str, zone: str) -> ApiError:
    """Return the error for a zone that does not exist or is closed to the project (observed)."""
    metadata = {"consumer": f"projects/{project}", "location": zone, "service": "tpu.googleapis.com"}
    info = error_info("LOCATION_POLICY_VIOLATED", metadata)
    return ApiError(403, "PERMISSION_DENIED", f"Permission denied on 'locations/{zone}' (or it may not exist).", info)


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


def numeric_id(text: str) -> str:
    """Return a numeric id of nineteen digits, like the services'; the same text gives the same id."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return str(10**18 + int.from_bytes(digest) % (8 * 10**18))


def etag_of(document: object) -> str:
    """Return the etag of a JSON document."""
    digest = hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=8).digest()
    return base64.b64encode(digest).decode()


def error_info(reason: str, metadata: Json | None = None, *, domain: str = "googleapis.com") -> Json:
    """Return the detail of an error that programs read."""
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": domain}
    return {**info, "metadata": metadata} if metadata else info


def help_detail(description: str, url: str) -> Json:
    """Return the detail of an error with a link."""
    return {"@type": "type.googleapis.com/google.rpc.Help", "links": [{"description": description, "url": url}]}


def _resource_info(name: str) -> Json:
    return {"@type": "type.googleapis.com/google.rpc.ResourceInfo", "resourceName": name}


ANYWHERE = "-"


class ResourceName(NamedTuple):
    """The parts of a name; `resource_id` is empty for a location."""

    project: str
    zone: str
    resource_id: str = ""


def parse_resource_name(name: str) -> ResourceName:
    """Return the parts of a resource name. Raises `ApiError` 400 for an invalid name."""
    parts = name.split("/")
    if len(parts) not in {4, 6} or parts[0] != "projects" or parts[2] != "locations" or not all(parts):
        raise invalid(f"Invalid resource field value in the request: {name!r}.")
    return ResourceName(parts[1], parts[3], parts[5] if len(parts) == 6 else "")


def page_size(call: Call) -> int:
    """Return the page size. Raises `ApiError` 400 for a negative number."""
    requested = int(call.params.get("pageSize") or call.params.get("maxResults") or 0)
    if requested < 0:
        raise invalid("The page size must not be negative.")
    # API field texts of Compute Engine and Cloud Storage; unverified for the others.
    default = 1000 if call.method.startswith("storage.") else 500
    return min(requested or default, 500 if call.method.startswith("compute.") else 1000)


def page_position(call: Call) -> list[str]:
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


def page_token(*place: str) -> str:
    """Return the token of the page that begins after a position."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode()


def page_number(call: Call) -> int:
    """Return the number after which the page begins, for lists whose positions are numbers."""
    place = page_position(call)
    if place and not place[0].isdecimal():
        raise invalid("The page token is not valid.")
    return int(place[0]) if place else 0


def page_of(call: Call, entries: Sequence[_Item]) -> tuple[Sequence[_Item], Json]:
    """Return one page of a constant list, and the response's field with the token of the next page, if there is one."""
    start = page_number(call)
    end = start + page_size(call)
    return entries[start:end], {"nextPageToken": page_token(str(end))} if end < len(entries) else {}


def list_response(call: Call, field: str, entries: Sequence[Json], **others: Any) -> Json:
    """Return one page of a constant list as a response, with other fields. It has no field for an empty page."""
    page, following = page_of(call, entries)
    return {**others, **({field: list(page)} if page else {}), **following}
