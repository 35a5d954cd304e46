"""Google's upload protocol: bytes in one body, or together with JSON.

`uploadType=media`: the body is the object. `multipart`: JSON and object in one `multipart/related` body. Source: the API's
documentation. Resumable uploads are not served.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.sandbox.api_calls import ApiError, Media
from tpuctl.sandbox.discovery import check_request, decode_json

if TYPE_CHECKING:
    from tpuctl.sandbox.api_calls import Call, Request
    from tpuctl.sandbox.discovery import ApiRoute

_PREFIX = re.compile(r"/(?:resumable/)?(upload|download)(?=/)")


def split_upload_path(path: str) -> tuple[str, str]:
    """Return `upload`, `download` or an empty string, and the path of the API after it."""
    match = _PREFIX.match(path)
    return (match.group(1), path[match.end() :]) if match else ("", path)


def read_upload(route: ApiRoute, request: Request) -> Call:
    """Return the call that an upload means. Raises `ApiError` 400 if it does not follow the protocol."""
    query = request.query
    kind = dict(query).get("uploadType")
    content_type = request.headers.get("content-type", "")
    if kind == "media":
        return replace(check_request(route, query), media=Media(request.body, content_type))
    if kind == "multipart":
        metadata, media = multipart_parts(request.body, content_type)
        return replace(check_request(route, query, decode_json(metadata)), media=media)
    raise _upload_error(f"Invalid upload request: the upload type {kind or ''!r} is not known.")  # unverified words


def multipart_parts(body: bytes, content_type: str) -> tuple[bytes, Media]:
    """Return the JSON and the media of a `multipart/related` body. Raises `ApiError` 400 for an invalid body."""
    match = re.search(r"boundary=(\"[^\"]+\"|'[^']+'|[^;\s]+)", content_type)
    boundary = b"--" + match.group(1).strip("\"'").encode() if match else b"--"
    start = body.find(boundary)
    if not match or start < 0:
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


def _upload_error(message: str) -> ApiError:
    return ApiError(400, "INVALID_ARGUMENT", message, reason="badRequest")
