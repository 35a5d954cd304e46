"""The sandbox's Cloud APIs as one function from an HTTP request to a response, or a broken connection.

Both interfaces call it. It knows HTTP, JSON and Google's error bodies; the handlers of calls are listed in `methods.py`,
`admission.py` rejects calls to unusable projects, `uploads.py` handles uploads and downloads.
"""

from __future__ import annotations

import html
from dataclasses import replace
from email.utils import format_datetime
from typing import TYPE_CHECKING, assert_never
from urllib.parse import parse_qsl

from tpuctl.sandbox import admission, request_log, uploads
from tpuctl.sandbox.calls import ApiError, Dropped, Request, Response
from tpuctl.sandbox.discovery import APIS, route
from tpuctl.sandbox.faults import CallFaultKind, call_fault
from tpuctl.sandbox.methods import METHODS
from tpuctl.sandbox.payload import decode
from tpuctl.sandbox.schema import check_request

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.sandbox.calls import Call
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


def respond(sandbox: World, request: Request) -> Response | Dropped:
    """Return the response to a request. A write that is answered is committed.

    The `Date` header carries the sandbox time. An exception that is not an `ApiError` is a bug of the sandbox and
    propagates.
    """
    effective = request
    # googleapiclient sends a GET with more than 2048 characters as a POST that carries the query in its body.
    if request.method == "POST" and request.headers.get("x-http-method-override") == "GET":
        query = (*request.query, *parse_qsl(request.body.decode("latin-1"), keep_blank_values=True))
        effective = Request("GET", request.path, query, request.headers)
    answer: Response | Dropped
    try:
        answer = _answer(sandbox, effective)
    except ApiError as error:
        challenge = _CHALLENGE if error.code == 401 else None
        answer = error.response(challenge, with_reasons=_has_reasons(request))
    now = sandbox.clock.now()
    request_log.note(sandbox.path, request, 0 if isinstance(answer, Dropped) else answer.status, now)
    return answer if isinstance(answer, Dropped) else dated(sandbox, answer, now)


def dated(sandbox: World, response: Response, now: datetime | None = None) -> Response:
    """Return a response with the `Date` header, from which clients compute ages."""
    date = format_datetime(now or sandbox.clock.now(), usegmt=True)
    return Response(response.status, response.body, {"date": date, **response.headers})


def error_of(status: int, message: str = "") -> ApiError:
    """Return the error that Google's APIs send with a status; the default message is their general one."""
    if status == 401:
        return _unauthenticated()
    name, general = _STATUSES.get(status) or _STATUSES[500 if status >= 500 else 400]
    return ApiError(status, name, message or general)


def _answer(sandbox: World, request: Request) -> Response | Dropped:
    direction, path = uploads.split(request.path)
    is_upload = direction == "upload"
    method = "POST" if is_upload and uploads.is_continued(request) else request.method
    # The host name determines the API; on the loopback port all APIs share one origin.
    name, _, domain = request.headers.get("host", "").partition(".")
    found = route(method, path, api=name if domain == "googleapis.com" and name in APIS else None)
    transfers = found and {"upload": found.method.takes_media, "download": found.method.gives_media}.get(
        direction, True
    )
    if found is None or not transfers:
        # Google's frontends answer an unknown path before any API sees it, with a page (observed on googleapis.com).
        page = (
            "<!DOCTYPE html>\n<html lang=en>\n<meta charset=utf-8>\n<title>Error 404 (Not Found)!!1</title>\n"
            "<p><b>404.</b> <ins>That\N{RIGHT SINGLE QUOTATION MARK}s an error.</ins>\n"
            f"<p>The requested URL <code>{html.escape(request.path)}</code> was not found on this server.  "
            "<ins>That\N{RIGHT SINGLE QUOTATION MARK}s all we know.</ins>\n"
        )
        return Response(404, page.encode(), {"content-type": "text/html; charset=UTF-8"})
    call = uploads.read(found, request) if is_upload else check_request(found, request.query, decode(request.body))
    fault = call_fault(sandbox, call)
    call = _with_headers(call, request)
    if fault is None:
        return _carry_out(sandbox, call, request)
    match fault.kind:
        case CallFaultKind.DROP_BEFORE:
            return Dropped()
        case CallFaultKind.DROP_AFTER:
            _carry_out(sandbox, call, request)
            return Dropped()
        case CallFaultKind.SLOW:
            sandbox.clock.sleep(fault.delay)
            return _carry_out(sandbox, call, request)
        case CallFaultKind.HTTP_ERROR:
            wait = {} if fault.retry_after is None else {"retry-after": str(fault.retry_after)}
            return error_of(fault.status, fault.message).response(wait, with_reasons=_has_reasons(request))
        case CallFaultKind.UNAUTHENTICATED:
            raise _unauthenticated()
        case kind:
            assert_never(kind)


def _with_headers(call: Call, request: Request) -> Call:
    """Return a call with the values of headers and system parameters: the project to bill, and whether bytes are wanted."""
    params = dict(request.query)
    wants_media = request.method == "GET" and "media" in {params.get("alt"), params.get("$alt")}
    payer = request.headers.get("x-goog-user-project")
    if payer and call.method.startswith("storage."):
        call = replace(call, params={"userProject": payer, **call.params})
    return replace(call, wants_media=wants_media)


def _carry_out(sandbox: World, call: Call, request: Request) -> Response:
    handler = METHODS.get(call.method)
    if handler is None:
        raise error_of(501, f"{_STATUSES[501][1]} The sandbox does not serve {call.method}.")
    is_upload = uploads.split(request.path)[0] == "upload"
    refusal: ApiError | None = None
    with sandbox.read() if request.method == "GET" else sandbox.write() as session:
        admission.check(session, call)
        try:
            value = uploads.carry_out(session, request, call, handler) if is_upload else handler(session, call)
        except ApiError as error:
            if not error.commits:
                raise
            refusal = error
    if refusal is not None:
        raise refusal
    answer = value if isinstance(value, Response) else Response.of(value)
    return uploads.partial(answer, request.headers.get("range", "")) if call.wants_media else answer


def _has_reasons(request: Request) -> bool:
    """Return whether the request is for an API with error bodies of the older form."""
    return uploads.split(request.path)[1].startswith(("/compute/", "/storage/"))


def _unauthenticated() -> ApiError:
    message = (
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid "
        "authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project."
    )
    info = "type.googleapis.com/google.rpc.ErrorInfo"
    detail = {"@type": info, "reason": "ACCESS_TOKEN_EXPIRED", "domain": "googleapis.com"}
    return ApiError(401, "UNAUTHENTICATED", message, detail)
