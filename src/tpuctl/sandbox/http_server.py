"""Serve the sandbox on a loopback port, for clients in other processes: gcloud, Google's Python library, curl.

It never listens beyond this machine, and it rejects requests that a web page could have sent.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import re
import selectors
import socket
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, urlsplit

from tpuctl.sandbox.api_calls import ApiError, DroppedConnection, Request, Response, error_of
from tpuctl.sandbox.request_log import log_call
from tpuctl.sandbox.service import answer_request, dated

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedIOBase
    from typing import Any, Self

    from tpuctl.sandbox.state import SandboxState

MAX_BODY_SIZE = 50 * 1024 * 1024
_SOCKET_TIMEOUT = 5  # seconds for requests in progress when the server is closed
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")


def open_server(sandbox: SandboxState, port: int = 0, *, log: Callable[[str], None] | None = None) -> SandboxServer:
    """Return a server on 127.0.0.1 that already accepts connections; it answers once it runs.

    Port 0 picks a free one. `log` gets a line per request. Raises `OSError` if the port is in use.
    """
    return SandboxServer(sandbox, port, log=log or (lambda _line: None))


class SandboxServer(ThreadingHTTPServer):
    """A listening server. `serve_forever` runs it here, `start` in a thread; `close`, or the end of `with`, stops it."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, sandbox: SandboxState, port: int, *, log: Callable[[str], None]) -> None:
        self.state = sandbox
        self.log = log
        self._open: set[socket.socket] = set()
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._ended.set()
        super().__init__(("127.0.0.1", port), _Handler)
        # Closing one end wakes the loop at once; socketserver's own loop polls.
        self._stop, self._stopped = socket.socketpair()

    @property
    def url(self) -> str:
        """Return the address without a path: `http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, request: Request) -> Response | DroppedConnection:
        """Return the response to a request."""
        return answer_request(self.state, request)

    def serve_forever(self, poll_interval: float = 0) -> None:  # noqa: ARG002  # socketserver's signature
        """Serve until `close` is called from another thread, or an exception such as KeyboardInterrupt ends it."""
        self._ended.clear()
        try:
            with selectors.DefaultSelector() as selector:
                for each in (self, self._stopped):
                    selector.register(each, selectors.EVENT_READ)
                while all(ready.fileobj is self for ready, _ in selector.select()):
                    self._handle_request_noblock()  # type: ignore[attr-defined]  # what socketserver's own loop calls
        finally:
            self._ended.set()

    def start(self) -> Self:
        """Serve from a new thread."""
        self._ended.clear()
        threading.Thread(target=self.serve_forever, name="sandbox", daemon=True).start()
        return self

    def close(self) -> None:
        """Stop serving and cut open connections. A second call does nothing."""
        self._stop.close()
        self._ended.wait()
        with self._changed:
            for connection in self._open:
                with contextlib.suppress(OSError):  # the client was quicker
                    connection.shutdown(socket.SHUT_RDWR)
            # Their threads end first: closing the database during their work crashes the interpreter.
            self._changed.wait_for(lambda: not self._open, _SOCKET_TIMEOUT)
        self.server_close()
        self._stopped.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of its own name, which can take seconds."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, and remember it for `close`."""
        with self._changed:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection at the end of its thread."""
        with self._changed:
            self._open.discard(request)
            self._changed.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # socketserver's signature
        """Log the error: a client that disconnected is normal, and no other error must end the server."""
        self.log(traceback.format_exc(limit=-1).strip())


class _Handler(BaseHTTPRequestHandler):
    server: SandboxServer
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds of silence from a client, also between two requests
    wbufsize = -1  # unbuffered, the answer leaves in two packets and Nagle's algorithm makes it 44 ms
    disable_nagle_algorithm = True

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.removeprefix("do_") in _METHODS and name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def handle_expect_100(self) -> bool:
        proceed = super().handle_expect_100()
        self.wfile.flush()
        return proceed

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # http.server's signature
        self.server.log(format % args)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        # Called by http.server for a request that it cannot parse.
        self._send(dated(self.server.state, error_of(code).response()), close=True)

    def _serve(self) -> None:
        # Reject a page in a browser: by its Origin, or by the name that a rebound DNS entry leaves in Host.
        origin = self.headers.get("origin")
        if not _is_loopback(self.headers.get("host", "")) or (origin and not _is_loopback(_split(origin).netloc)):
            error = ApiError(403, "PERMISSION_DENIED", "The sandbox answers only requests to a loopback address.")
            self._send(self._refusal(error), close=True)
            return
        try:
            encoding = self.headers.get("transfer-encoding", "").strip().lower()
            body = _read_body(self.headers.get_all("content-length", []), encoding, self.rfile)
        except ApiError as error:
            self._send(self._refusal(error), close=True)
            return
        answer: Response | DroppedConnection
        try:
            answer = self.server.answer(self._request(body))
        except Exception:  # noqa: BLE001  # a bug must not end the server: the client gets a 500, the log the trace
            self.server.log(traceback.format_exc())
            answer = self._refusal(error_of(500))
        self.server.log(f"{self.command} {self.path} {answer.status if isinstance(answer, Response) else 'dropped'}")
        if isinstance(answer, DroppedConnection):
            self.close_connection = True
        else:
            self._send(answer)

    def _request(self, body: bytes = b"") -> Request:
        parts = _split(self.path)
        query = tuple(parse_qsl(parts.query, keep_blank_values=True))
        return Request(
            self.command, parts.path, query, {name.lower(): value for name, value in self.headers.items()}, body
        )

    def _refusal(self, error: ApiError) -> Response:
        """Log a request that does not reach the API, and return the response for its error."""
        sandbox = self.server.state
        log_call(sandbox.path, self._request(), error.code, now := sandbox.clock.now())
        return dated(sandbox, error.response(), now)

    def _send(self, answer: Response, *, close: bool = False) -> None:
        self.close_connection = self.close_connection or close
        self.send_response_only(answer.status, http.client.responses.get(answer.status, "Unknown"))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def _split(url: str) -> SplitResult:
    """Return the parts of an URL; all are empty if it is malformed."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult("", "", "", "", "")


def _is_loopback(host: str) -> bool:
    name = re.sub(r":\d*$", "", host).strip("[]").rstrip(".").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _read_body(lengths: list[str], encoding: str, stream: BufferedIOBase) -> bytes:
    if encoding:  # Google's clients and gcloud send a length
        raise ApiError(411, "INVALID_ARGUMENT", "The request's body needs a Content-Length.")
    if len(set(lengths)) > 1 or not all(re.fullmatch(r"\d{1,18}", length) for length in lengths):
        raise ApiError(400, "INVALID_ARGUMENT", "The request's Content-Length is not a number.")
    size = int(lengths[0]) if lengths else 0
    if size > MAX_BODY_SIZE:
        raise ApiError(413, "INVALID_ARGUMENT", "Request payload size exceeds the limit: 52428800 bytes.")
    content = stream.read(size)
    if len(content) < size:
        raise ApiError(400, "INVALID_ARGUMENT", "The request ended before its body did.")
    return content
