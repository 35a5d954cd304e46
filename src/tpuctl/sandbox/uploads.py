"""Google's upload protocol: bytes in one body, together with JSON, or in many requests.

`uploadType=media`: the body is the object. `multipart`: JSON and object in one `multipart/related` body. `resumable`: a
first request opens a session, whose URL accepts the object in any number of chunks. Source: the API's documentation.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.sandbox.api_calls import ApiError, Call, Media, Response
from tpuctl.sandbox.discovery import check_request, decode_json

if TYPE_CHECKING:
    from tpuctl.sandbox.api_calls import Request
    from tpuctl.sandbox.discovery import ApiRoute
    from tpuctl.sandbox.state_session import StateSession

UPLOAD_KIND = "upload"
_PREFIX = re.compile(r"/(?:resumable/)?(upload|download)(?=/)")
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_UPLOADS_KEPT = 1000


def split_upload_path(path: str) -> tuple[str, str]:
    """Return `upload`, `download` or an empty string, and the path of the API after it."""
    found = _PREFIX.match(path)
    return (found.group(1), path[found.end() :]) if found else ("", path)


def is_upload_continued(request: Request) -> bool:
    """Return whether a request belongs to an open resumable upload."""
    return any(name == "upload_id" for name, _ in request.query)


def read_upload(route: ApiRoute, request: Request) -> Call:
    """Return the call that an upload means. Raises `ApiError` 400 if it does not follow the protocol."""
    query = tuple((name, value) for name, value in request.query if name != "upload_id")
    if is_upload_continued(request):
        return Call(route.document.service.version, route.method.id, route.path_params, {})
    kind = dict(query).get("uploadType")
    content_type = request.headers.get("content-type", "")
    if kind == "media":
        return replace(check_request(route, query), media=Media(request.body, content_type))
    if kind == "multipart":
        metadata, media = multipart_parts(request.body, content_type)
        return replace(check_request(route, query, decode_json(metadata)), media=media)
    if kind == "resumable":
        expected = request.headers.get("x-upload-content-type", "")
        return replace(check_request(route, query, decode_json(request.body)), media=Media(b"", expected))
    raise _upload_error(f"Invalid upload request: the upload type {kind or ''!r} is not known.")  # unverified words


def receive_chunk(session: StateSession, request: Request, call: Call) -> Call | Response:
    """Return the call of a complete upload, or the response to a request of one that continues."""
    if is_upload_continued(request):
        return _receive_part(session, request, call)
    if dict(request.query).get("uploadType") != "resumable":
        return call
    count = session.next_incarnation(UPLOAD_KIND)
    upload_id = hashlib.blake2b(f"{session.seed}/{count}".encode(), digest_size=24).hexdigest()
    content_type = call.media.content_type if call.media else ""
    document = {"params": dict(call.params), "body": call.body, "type": content_type}
    session.resources.put(UPLOAD_KIND, "", f"{count:012d}/{upload_id}", document)
    session.resources.trim(UPLOAD_KIND, "", keep=_UPLOADS_KEPT)
    host = request.headers.get("host", "")
    scheme = "https" if host.endswith("googleapis.com") or not host else "http"
    address = f"{scheme}://{host or 'storage.googleapis.com'}{request.path}"
    location = f"{address}?uploadType=resumable&upload_id={count:012d}.{upload_id}"
    return Response(200, b"", {"location": location, "x-guploader-uploadid": upload_id})


def multipart_parts(body: bytes, content_type: str) -> tuple[bytes, Media]:
    """Return the JSON and the media of a `multipart/related` body. Raises `ApiError` 400 for an invalid body."""
    found = re.search(r"boundary=(\"[^\"]+\"|'[^']+'|[^;\s]+)", content_type)
    boundary = b"--" + found.group(1).strip("\"'").encode() if found else b"--"
    start = body.find(boundary)
    if not found or start < 0:
        raise _upload_error("Malformed multipart body.")
    # Clients end lines with CR LF or with LF alone; a wrong guess must not remove a CR from the object's bytes.
    newline = b"\r\n" if body[start + len(boundary) :][:2] == b"\r\n" else b"\n"
    pieces = (newline + body[start:]).split(newline + boundary)[1:]
    if len(pieces) != 3 or not pieces[2].startswith(b"--"):
        raise _upload_error("Malformed multipart body.")
    (_, found_metadata, metadata), (headers, found_content, content) = (
        piece.partition(newline * 2) for piece in pieces[:2]
    )
    if not found_metadata or not found_content:
        raise _upload_error("Malformed multipart body.")
    named = re.search(rb"(?im)^content-type:[ \t]*([^\r\n]+)", headers)
    return metadata, Media(content, named.group(1).decode("latin-1").strip() if named else "")


def partial_content(answer: Response, wanted: str) -> Response:
    """Return the part of a download that a Range header requests: 206, or 416 if it starts behind the end."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted.strip())
    if answer.status != 200 or not found or not any(found.groups()):
        return answer
    size = len(answer.body)
    first, last = found.groups()
    begin = int(first) if first else max(size - int(last), 0)
    end = min(int(last), size - 1) if first and last else size - 1
    if begin > end:
        headers = {"content-range": f"bytes */{size}", "content-type": "text/html; charset=UTF-8"}
        return Response(416, b"", headers)
    headers = {**answer.headers, "content-range": f"bytes {begin}-{end}/{size}"}
    return Response(206, answer.body[begin : end + 1], headers)


def _receive_part(session: StateSession, request: Request, call: Call) -> Call | Response:
    name = dict(request.query)["upload_id"].replace(".", "/")
    opened = session.resources.get(UPLOAD_KIND, "", name)
    if opened is None:
        raise ApiError(404, "NOT_FOUND", "Upload session not found.")  # unverified words
    if request.method == "DELETE":
        _close_upload(session, name)
        return Response(499, b"")  # documentation: 499 Client Closed Request is success
    header = request.headers.get("content-range", "").strip()
    if header:
        content = session.resources.content(f"{UPLOAD_KIND}/{name}")
        found = _RANGE.fullmatch(header)
        if found is None:
            raise _upload_error("Failed to parse Content-Range header.")
        first, last, size = found.groups()
        total = None if size == "*" else int(size)  # unknown until the client sends the last chunk
        if first is not None:
            if int(last) - int(first) + 1 != len(request.body) or int(first) > len(content):
                raise ApiError(503, "UNAVAILABLE", "Invalid request. The piece does not follow what was received.")
            content = content[: int(first)] + request.body
    else:
        content, total = request.body, len(request.body)
    if total is None or len(content) < total:
        session.resources.put_content(f"{UPLOAD_KIND}/{name}", content)
        return Response(308, b"", {"range": f"bytes=0-{len(content) - 1}"} if content else {})
    media = Media(content, opened["type"] or request.headers.get("content-type", ""))
    _close_upload(session, name)
    return replace(call, params=opened["params"], body=opened["body"], media=media)


def _close_upload(session: StateSession, name: str) -> None:
    session.resources.delete(UPLOAD_KIND, "", name)
    session.resources.delete_content(f"{UPLOAD_KIND}/{name}")


def _upload_error(message: str) -> ApiError:
    return ApiError(400, "INVALID_ARGUMENT", message, reason="badRequest")
