"""HTTP requests to a sandbox; each JSON response is checked against the schema of its method."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from tests.sandbox.response_schema import check_response_body
from tpuctl.sandbox.api_calls import Request, Response
from tpuctl.sandbox.discovery import route_request
from tpuctl.sandbox.service import answer_request
from tpuctl.sandbox.uploads import split_upload_path

if TYPE_CHECKING:
    from tpuctl.sandbox.state import SandboxState


class Wire:
    """A sandbox, called with method, path and body."""

    def __init__(self, sandbox_state: SandboxState) -> None:
        self.state = sandbox_state

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        """Return the raw response. A body that is not bytes is sent as JSON; `content_type` is the header."""
        parts = urlsplit(path)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        query = tuple(parse_qsl(parts.query, keep_blank_values=True))
        answer = answer_request(self.state, Request(method, parts.path, query, named, content))
        assert isinstance(answer, Response)
        return answer

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Return the JSON of the response; for an error its code, reason (or status) and message."""
        answer = self.send(method, path, body, **headers)
        if answer.status >= 400:
            error = json.loads(answer.body)["error"]
            return (
                error["code"],
                error["errors"][0]["reason"] if "errors" in error else error["status"],
                error["message"],
            )
        value = json.loads(answer.body) if answer.body else None
        found = route_request("POST" if "upload_id" in path else method, split_upload_path(urlsplit(path).path)[1])
        assert found is not None
        if found.method.response and value is not None:
            service = found.document.service
            assert check_response_body(service.version, found.method.response, value, api=service.api) == []
        return value
