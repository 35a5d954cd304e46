"""The sandbox's Cloud APIs as one function: an HTTP request in, its answer, or a connection that breaks, out.

Both faces call it. It knows HTTP, JSON and Google's error bodies; what a call does is in `methods.py`.
"""

from __future__ import annotations

import html
from email.utils import format_datetime
from typing import TYPE_CHECKING, assert_never
from urllib.parse import parse_qsl

from tpuctl.sandbox.calls import ApiError, Dropped, Request, Response
from tpuctl.sandbox.discovery import APIS, route
from tpuctl.sandbox.faults import CallFaultKind, call_fault
from tpuctl.sandbox.methods import METHODS
from tpuctl.sandbox.payload import decode
from tpuctl.sandbox.schema import check_request

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.faults import CallFault
    from tpuctl.sandbox.world import World

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
_CHALLENGE = {"www-authenticate": 'Bearer realm="https://accounts.google.com/", error="invalid_token"'}


def respond(world: World, request: Request) -> Response | Dropped:
    """Return what a request is answered with; a write that is answered is committed.

    A `Date` header carries the world's time. An exception that is not an `ApiError` is a bug of the sandbox and leaves
    this function as it is.
    """
    try:
        answer = _answer(world, _overridden(request))
    except ApiError as error:
        answer = error.response(_CHALLENGE if error.code == 401 else None)
    return answer if isinstance(answer, Dropped) else dated(world, answer)


def dated(world: World, response: Response) -> Response:
    """Return an answer with the `Date` header that clients take ages from."""
    date = format_datetime(world.clock.now(), usegmt=True)
    return Response(response.status, response.body, {"date": date, **response.headers})


def error_of(status: int, message: str = "") -> ApiError:
    """Return the error that Google's APIs answer with a status, by default in their own general words."""
    if status == 401:
        return _unauthenticated()
    name, general = _STATUSES.get(status) or _STATUSES[500 if status >= 500 else 400]
    return ApiError(status, name, message or general)


def _answer(world: World, request: Request) -> Response | Dropped:
    found = route(request.method, request.path, api=_api(request))
    if found is None:
        return _page_not_found(request.path)
    call = check_request(found, request.query, decode(request.body))
    fault = call_fault(world, call)
    if fault is None:
        return _carry_out(world, call, request.method)
    return _faulty_answer(world, call, request.method, fault=fault)


def _carry_out(world: World, call: Call, http_method: str) -> Response:
    handler = METHODS.get(call.method)
    if handler is None:
        raise error_of(501)
    with world.read() if http_method == "GET" else world.write() as session:
        value: Json = handler(session, call)
    return Response.of(value)


def _faulty_answer(world: World, call: Call, http_method: str, *, fault: CallFault) -> Response | Dropped:
    match fault.kind:
        case CallFaultKind.DROP_BEFORE:
            return Dropped()
        case CallFaultKind.DROP_AFTER:
            _carry_out(world, call, http_method)
            return Dropped()
        case CallFaultKind.SLOW:
            world.clock.sleep(fault.delay)
            return _carry_out(world, call, http_method)
        case CallFaultKind.HTTP_ERROR:
            wait = {} if fault.retry_after is None else {"retry-after": str(fault.retry_after)}
            return error_of(fault.status, fault.message).response(wait)
        case CallFaultKind.UNAUTHENTICATED:
            raise _unauthenticated()
        case _:
            assert_never(fault.kind)


def _overridden(request: Request) -> Request:
    # googleapiclient sends a GET with more than 2048 characters as a POST that carries the query in its body.
    method = request.headers.get("x-http-method-override")
    if request.method != "POST" or method != "GET":
        return request
    query = (*request.query, *parse_qsl(request.body.decode("latin-1"), keep_blank_values=True))
    return Request(method, request.path, query, request.headers)


def _api(request: Request) -> str | None:
    """Return the API whose host name was called; nothing on the loopback port, where all share one origin."""
    name, _, domain = request.headers.get("host", "").partition(".")
    return name if domain == "googleapis.com" and name in APIS else None


def _page_not_found(path: str) -> Response:
    # Google's frontends answer an unknown path before any API sees it, with a page (observed on googleapis.com).
    page = (
        "<!DOCTYPE html>\n<html lang=en>\n<meta charset=utf-8>\n<title>Error 404 (Not Found)!!1</title>\n"
        "<p><b>404.</b> <ins>That\N{RIGHT SINGLE QUOTATION MARK}s an error.</ins>\n"
        f"<p>The requested URL <code>{html.escape(path)}</code> was not found on this server.  "
        "<ins>That\N{RIGHT SINGLE QUOTATION MARK}s all we know.</ins>\n"
    )
    return Response(404, page.encode(), {"content-type": "text/html; charset=UTF-8"})


def _unauthenticated() -> ApiError:
    message = (
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid "
        "authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project."
    )
    info = "type.googleapis.com/google.rpc.ErrorInfo"
    detail = {"@type": info, "reason": "ACCESS_TOKEN_EXPIRED", "domain": "googleapis.com"}
    return ApiError(401, "UNAUTHENTICATED", message, detail)
