"""The sandbox for Google's own client in the same process: an `httplib2.Http` without sockets."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl, urlsplit

from tpuctl.sandbox.api_calls import DroppedConnection, Request
from tpuctl.sandbox.service import answer_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.sandbox.state import SandboxState


# Those of httplib2, which takes 75 ms and 6 MiB to import.
_REDIRECT_CODES = frozenset({300, 301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5


class SandboxResponse(dict[str, str]):
    """The part of `httplib2.Response` that Google's client uses."""

    def __init__(self, headers: Mapping[str, str], status: int) -> None:
        super().__init__({**headers, "status": str(status)})
        self.status = status
        self.reason = HTTPStatus(status).phrase


class _ReadableBody(Protocol):
    """A body that is not bytes: a file, or the chunk of one that googleapiclient uploads."""

    def read(self) -> bytes:
        """Return the rest of it."""


class SandboxHttp:
    """The part of `httplib2.Http` that googleapiclient and google_auth_httplib2 use, answered by a sandbox.

    The host of the address determines the API (`tpu.googleapis.com`, `compute.googleapis.com`); for any other host
    only the path counts. A bug of the sandbox propagates from `request`.
    """

    def __init__(self, sandbox: SandboxState) -> None:
        self._state = sandbox
        # google_auth_httplib2 exposes these attributes; they have no effect here.
        self.connections: dict[str, object] = {}
        self.follow_redirects = True
        self.redirect_codes = _REDIRECT_CODES
        self.timeout: float | None = None

    def request(  # noqa: PLR0917  # httplib2's signature, by position
        self,
        uri: str,
        method: str = "GET",
        body: bytes | str | _ReadableBody | None = None,
        headers: Mapping[str, str] | None = None,
        redirections: int = _MOST_REDIRECTS,  # noqa: ARG002  # there are no redirects
        connection_type: object = None,  # noqa: ARG002  # there are no connections
    ) -> tuple[SandboxResponse, bytes]:
        """Return the response as httplib2 does. Raises `ConnectionResetError` if a fault drops the connection."""
        parts = urlsplit(uri)
        sent_headers = {name.lower(): str(value) for name, value in (headers or {}).items()}
        match body:
            case None:
                content = b""
            case bytes():
                content = body
            case str():
                content = body.encode()
            case _:
                content = body.read()
        query = tuple(parse_qsl(parts.query, keep_blank_values=True))
        received = {"host": parts.hostname or "", **sent_headers}
        answer = answer_request(self._state, Request(method, parts.path, query, received, content))
        if isinstance(answer, DroppedConnection):
            raise ConnectionResetError("a fault of the sandbox dropped the connection")
        headers = {**answer.headers, "content-length": str(len(answer.body))}
        return SandboxResponse(headers, answer.status), answer.body

    def close(self) -> None:
        """Do nothing: there is no connection."""
