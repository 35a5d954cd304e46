"""The sandbox behind Google's own client in the same process: an `httplib2.Http` that opens no socket."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, urlsplit

import httplib2

from tpuctl.sandbox.calls import Dropped, Request
from tpuctl.sandbox.service import respond

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.world import World


class _Readable(Protocol):
    """What a body may be besides bytes: a file, or the piece of one that googleapiclient uploads at a time."""

    def read(self) -> bytes:
        """Return all that is left of it."""


class SandboxHttp:
    """What googleapiclient and google_auth_httplib2 use of `httplib2.Http`, answered by a world.

    The host of the address says which API is meant (`tpu.googleapis.com`, `compute.googleapis.com`); any other host
    goes by path alone. A bug of the sandbox is raised from `request` as it is.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        # google_auth_httplib2 passes these through to whoever asks; nothing here depends on them.
        self.connections: dict[str, object] = {}
        self.follow_redirects = True
        self.redirect_codes = httplib2.Http().redirect_codes
        self.timeout: float | None = None

    def request(  # noqa: PLR0917  # httplib2's signature, by position
        self,
        uri: str,
        method: str = "GET",
        body: bytes | str | _Readable | None = None,
        headers: Mapping[str, str] | None = None,
        redirections: int = httplib2.DEFAULT_MAX_REDIRECTS,  # noqa: ARG002  # nothing here redirects
        connection_type: object = None,  # noqa: ARG002  # nothing here connects
    ) -> tuple[httplib2.Response, bytes]:
        """Return the answer as httplib2 does; `ConnectionResetError` where the connection breaks."""
        parts = urlsplit(uri)
        given = {name.lower(): str(value) for name, value in (headers or {}).items()}
        content = _content(body)
        query = tuple(parse_qsl(parts.query, keep_blank_values=True))
        received = {"host": parts.hostname or "", **given}
        answer = respond(self._world, Request(method, parts.path, query, received, content))
        if isinstance(answer, Dropped):
            raise ConnectionResetError("the sandbox dropped the connection, as a fault told it to")
        response = httplib2.Response({"status": str(answer.status), **answer.headers})
        response["content-length"] = str(len(answer.body))
        response.reason = HTTPStatus(answer.status).phrase
        return response, answer.body

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _content(body: bytes | str | _Readable | None) -> bytes:
    if body is None or isinstance(body, bytes):
        return body or b""
    return body.encode() if isinstance(body, str) else body.read()
