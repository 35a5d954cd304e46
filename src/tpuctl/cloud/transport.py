"""Http objects over `http.client` that never send a change twice. Their time and size limits cover a whole exchange.

httplib2, which Google's library uses, repeats a request, even a POST, if the connection ends without an answer, and limits each
socket operation, so that a server that sends a byte now and then is never timed out. It also takes 75 ms to import.
"""

from __future__ import annotations

import functools
import http.client
import io
import re
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tpuctl import __version__
from tpuctl.clock import SystemClock
from tpuctl.cloud.endpoint import takes_token
from tpuctl.cloud.errors import (
    AnswerLostError,
    GarbledAnswerError,
    NotSentError,
    TransportError,
    UntrustedServerError,
    credential_error,
)
from tpuctl.cloud.sent_secrets import SentSecrets
from tpuctl.errors import SettingError

if TYPE_CHECKING:
    from pathlib import Path

    from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions

# Google compresses only for a user agent that says `gzip`.
_USER_AGENT = f"tpuctl/{__version__} (gzip)"
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_AUTHORITIES_LOCK = threading.Lock()
# The characters that a header can carry, and that no server reads as its end.
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_LARGEST_REFUSAL = 1 << 20
# Larger answers of a success are data.
_QUOTED_SIZE = 64 << 10
_CLOCK = SystemClock()


class HttpResponse(dict[str, str]):
    """The status and the headers of an answer, with lower-case names."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        super().__init__((name.lower(), value) for name, value in response.getheaders())
        self.status = response.status


HttpAnswer = tuple[HttpResponse, bytes]


class Http:
    """An http object for one thread.

    Without an answer, only `NotSentError` or `AnswerLostError` is raised. A request that may change something gets a new
    connection: on a connection that the server has already closed, its outcome would be uncertain. Redirects are not
    followed.

    `timeout` limits the next exchange, in seconds of real time; None or a larger value for the limit of the options.
    """

    def __init__(self, options: TransportOptions, *, hides_in_success: bool = True) -> None:
        """With `hides_in_success`, sent secrets are removed from every answer; else not from a success in JSON."""
        self.timeout: float | None = None
        self._hides_in_success = hides_in_success
        # By scheme and authority.
        self.connections: dict[tuple[str, str], _Connection] = {}
        self._options = options
        self._turn = threading.Lock()
        self._is_closed = False
        self._limit = _ExchangeLimit(options.timeout)
        self._extra = {"x-goog-user-project": options.quota_project} if options.quota_project else {}

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Send one request once and return response and body. A GET on a stale connection is sent once more."""
        self._begin()
        return self._exchange(uri, method, body, headers)

    def close(self) -> None:
        """Close the connections. Those that another thread is using are closed when its exchange ends.

        Closing a stream waits for the thread that reads from it, at most for the duration of an exchange.
        """
        self._is_closed = True
        if self._turn.acquire(blocking=False):
            try:
                self._hang_up()
            finally:
                self._turn.release()

    def _begin(self) -> None:
        longest = self._options.timeout
        self._limit.begin(longest if self.timeout is None else min(longest, timedelta(seconds=self.timeout)))

    def _exchange(
        self, uri: str, method: str, body: str | bytes | None, headers: Mapping[str, str] | None
    ) -> HttpAnswer:
        # The request's own quota project takes precedence.
        sent = {**self._extra, **_lower_names(headers), "accept-encoding": "gzip", "user-agent": _USER_AGENT}
        parts = urlsplit(uri)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        for name, value in sent.items():
            if not _HEADER_VALUE.fullmatch(value):
                # http.client would raise an error that contains the value.
                raise SettingError(
                    f"the header `{name}` cannot carry its value: it has characters that are not ASCII text",
                    hint="check the credentials and the quota project",
                )
        proxy = self._options.proxy
        secrets = SentSecrets({**sent, **(proxy.headers if proxy else {})}, body)
        with self._turn:
            try:
                if method not in _SAFE_METHODS:
                    self._hang_up()
                key = parts.scheme, parts.netloc
                if key not in self.connections:
                    self.connections[key] = _Connection(*key, self._options, self._limit)
                connection = self.connections[key]
                was_open = connection.sock is not None
                try:
                    return self._without_secrets(secrets, *connection.exchange(method, target, body, sent))
                except AnswerLostError as error:
                    if not was_open or isinstance(error.__cause__, TimeoutError):
                        raise
                connection.hang_up()
                return self._without_secrets(secrets, *connection.exchange(method, target, body, sent))
            except TransportError as error:
                self._hang_up()
                error.args = tuple(secrets.hide_in_text(str(text)) for text in error.args)
                raise
            finally:
                if self._is_closed:
                    self._hang_up()

    def _without_secrets(self, secrets: SentSecrets, response: HttpResponse, content: bytes) -> HttpAnswer:
        """Return the answer without the secrets of the request, so that no text that is made from it can show them."""
        # Of a success only a page that is not JSON is quoted. The source of tokens answers with secrets of its own.
        is_success = 200 <= response.status < 300
        is_quoted = not is_success or (len(content) < _QUOTED_SIZE and content.lstrip()[:1] != b"{")
        if is_quoted or (self._hides_in_success and secrets.may_be_in(content)):
            content = secrets.hide(content if is_success else content[:_LARGEST_REFUSAL])
            for name, value in response.items():
                response[name] = secrets.hide_in_text(value)
        return response, content

    def _hang_up(self) -> None:
        for connection in self.connections.values():
            connection.hang_up()
        self.connections.clear()


class AuthorizedHttp(Http):
    """An http object that adds an access token, and refreshes it once if the service rejects it."""

    def __init__(
        self,
        options: TransportOptions,
        credentials: Callable[[], Any],
        *,
        endpoint: ApiEndpoint | None,
        lock: threading.Lock,
    ) -> None:
        super().__init__(options)
        self._load = credentials
        self._endpoint = endpoint
        self._lock = lock
        self._auth = AuthRequest(options, limit=self._limit)

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Send one request with a token. After a 401 it was not carried out, and is sent once more with a new token."""
        self._begin()
        # A token must not be sent to a host that the user did not name.
        if not takes_token(uri, self._endpoint):
            raise SettingError(f"no token is sent to `{uri.partition('?')[0]}`", hint="check the endpoint")
        sent = self._with_token(uri, method, headers)
        response, content = self._exchange(uri, method, body, sent)
        if response.status != 401:
            return response, content
        with self._credentials() as credentials:
            latest: dict[str, str] = {}
            credentials.before_request(self._auth, method, uri, latest)
            # Else another thread has refreshed it since this one sent its request.
            if latest.get("authorization") == sent.get("authorization"):
                credentials.refresh(self._auth)
        return self._exchange(uri, method, body, self._with_token(uri, method, headers))

    def close(self) -> None:
        """Close the connections, also those to the source of tokens."""
        super().close()
        self._auth.close()

    def _with_token(self, uri: str, method: str, headers: Mapping[str, str] | None) -> dict[str, str]:
        own = _lower_names(headers)
        sent = dict(own)
        with self._credentials() as credentials:
            credentials.before_request(self._auth, method, uri, sent)
        # The quota project of the credentials has the lowest precedence.
        return {**sent, **self._extra, **own}

    @contextmanager
    def _credentials(self) -> Iterator[Any]:  # google-auth ships no types
        """Yield the credentials, locked for this thread. Their requests count against the limit of the exchange."""
        if self._limit.is_over or not self._lock.acquire(timeout=self._limit.left):
            raise _no_token_error()
        try:
            yield self._load()
        except Exception as error:
            from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415  # with a cached token, it is not loaded

            if isinstance(error, GoogleAuthError):
                raise credential_error(error) from error
            raise
        finally:
            self._lock.release()


class AuthRequest:
    """The transport of google-auth to the source of tokens: a google.auth.transport.Request.

    It raises google-auth's exceptions: without a token the call itself was not sent. With a `limit`, all its requests
    are a part of one exchange. After the limit it raises `NotSentError`, which google-auth does not catch; after its own
    exceptions google-auth may sleep and retry.
    """

    def __init__(self, options: TransportOptions, *, limit: _ExchangeLimit | None = None) -> None:
        self._limit = limit
        # The quota project is only for the API; the source of tokens may not know it.
        # Its answer may have the refresh token that was sent.
        self._http = Http(replace(options, quota_project=None), hides_in_success=False)

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: object,
    ) -> _AuthResponse:
        """Send a request of google-auth. Its own timeout is ignored: the options and the limit decide."""
        from google.auth.exceptions import TransportError as AuthTransportError  # noqa: PLC0415  # only with credentials

        try:
            self._http.timeout = self._limit.left if self._limit else None
            return _AuthResponse(*self._http.request(url, method, body, headers))
        except TimeoutError as error:
            raise _no_token_error() from error
        except TransportError as error:
            if self._limit and self._limit.is_over:
                raise _no_token_error() from error
            raise AuthTransportError(error) from error  # type: ignore[no-untyped-call]  # google-auth's signature has none

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class _AuthResponse:
    """A google.auth.transport.Response."""

    def __init__(self, response: HttpResponse, data: bytes) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response
        self.data = data


class _ExchangeLimit:
    """The time limit of an exchange, by the real clock, because sockets use no other."""

    def __init__(self, duration: timedelta) -> None:
        self.begin(duration)

    def begin(self, duration: timedelta) -> None:
        """Restart the limit."""
        self.duration, self._ends = duration, _CLOCK.monotonic() + duration

    @property
    def is_over(self) -> bool:
        """Return whether no time is left."""
        return _CLOCK.monotonic() >= self._ends

    @property
    def left(self) -> float:
        """The seconds left. Raises `TimeoutError` if there are none."""
        left = (self._ends - _CLOCK.monotonic()).total_seconds()
        if left <= 0:
            raise TimeoutError
        return left


class _LimitedSocketReader(io.RawIOBase):
    """Reads one response from a socket, within the time and size limits of the exchange."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, limit: _ExchangeLimit, largest: int) -> None:
        self._raw, self._sock, self._limit, self._largest = raw, sock, limit, largest
        self._received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:  # any object with the buffer protocol; a count, or None
        self._sock.settimeout(self._limit.left)
        count = self._raw.readinto(buffer)
        self._received += count or 0
        if self._received > self._largest:
            raise _too_large_error(self._largest)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedReader(io.BufferedReader):
    """Rejects an impossible length before memory is allocated for it."""

    def __init__(self, raw: _LimitedSocketReader, largest: int) -> None:
        super().__init__(raw)
        self._largest = largest

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self._largest:
            raise _too_large_error(self._largest)
        # http.client also accepts a chunk length with a sign. With -1 it requests everything.
        if size is not None and size < -1:
            raise GarbledAnswerError("the length of a chunk is not a number")
        return super().read(size)


class _Connection(http.client.HTTPConnection):
    """A connection, plain or TLS, through the proxy if it has one. Its exceptions say what is certain."""

    def __init__(self, scheme: str, authority: str, options: TransportOptions, limit: _ExchangeLimit) -> None:
        self.default_port = http.client.HTTPS_PORT if scheme == "https" else http.client.HTTP_PORT
        super().__init__(authority)
        self._options, self._limit, self._server = options, limit, self.host
        self._tls: ssl.SSLContext | None = None
        if scheme == "https":
            # Locked, because threads that begin at the same time would each read the file, which takes 26 ms.
            with _AUTHORITIES_LOCK:
                self._tls = _read_authorities(options.ca_file)
        self._response: http.client.HTTPResponse | None = None
        # Hooks of http.client: it calls the one for a socket, the other for the head of an answer, also of the proxy.
        self._create_connection = self._open
        self.response_class = self._limited_response  # type: ignore[assignment]  # it is only called
        proxy = options.proxy
        if proxy is not None and proxy.applies_to(self.host):
            self.set_tunnel(self.host, self.port, headers=proxy.headers)
            self.host, self.port = proxy.host, proxy.port

    def exchange(self, method: str, target: str, body: str | bytes | None, headers: Mapping[str, str]) -> HttpAnswer:
        """Send a request and return the answer. Raises `NotSentError` and `AnswerLostError`."""
        problem = f"{self._server} did not answer"
        try:
            self.request(method, target, body, headers)
            received = self.getresponse()
            problem = "the answer is incomplete"
            response = HttpResponse(received)
            return response, _decompressed(response, received.read(), self._options.max_response_bytes)
        except (OSError, http.client.HTTPException) as error:
            raise AnswerLostError(f"{problem}: {_describe_failure(error, self._limit)}") from error

    def connect(self) -> None:
        """Open the connection. Raises `NotSentError`."""
        via = f" through the proxy {self._options.proxy}" if self._server != self.host else ""
        try:
            super().connect()
            if self._tls:
                self.sock.settimeout(self._limit.left)  # for the whole handshake
                self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server)
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate of {self._server} is not trusted: {error.verify_message}"
            raise UntrustedServerError(text) from error
        # The resolver raises UnicodeError for an invalid host name; a proxy may send too much.
        except (OSError, UnicodeError, http.client.HTTPException, TransportError) as error:
            raise NotSentError(f"{self._server} cannot be reached{via}: {_describe_failure(error)}") from error

    def send(self, data: Any) -> None:  # bytes, in all our requests
        """Send bytes within the limit. With TLS, `sendall` would restart the limit for each piece."""
        if self.sock is None:
            self.connect()
        rest = memoryview(data)
        while rest:
            self.sock.settimeout(self._limit.left)
            rest = rest[self.sock.send(rest) :]

    def hang_up(self) -> None:
        """Close the connection and its response, which alone has the socket if it is the last on this connection."""
        self.close()
        if self._response is not None:
            self._response.close()

    def _open(self, address: tuple[str, int], *_: object) -> socket.socket:
        """Return a socket that is connected to one of the addresses of a host."""
        failure = OSError("the host name has no address")
        for family, kind, protocol, _name, place in socket.getaddrinfo(*address, 0, socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(min(self._options.connect_timeout.total_seconds(), self._limit.left))
                sock.connect(place)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise failure

    def _limited_response(self, sock: socket.socket, *args: Any, **kwargs: Any) -> http.client.HTTPResponse:
        self._response = response = http.client.HTTPResponse(sock, *args, **kwargs)
        limited = _LimitedSocketReader(response.fp.detach(), sock, self._limit, self._options.max_response_bytes)
        response.fp = _BoundedReader(limited, self._options.max_response_bytes)
        return response


def _decompressed(response: HttpResponse, content: bytes, largest: int) -> bytes:
    if response.get("content-encoding") != "gzip":
        return content
    decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        plain = decoder.decompress(content, largest)
    except zlib.error as error:
        raise GarbledAnswerError(f"the answer cannot be decompressed: {error}") from error
    if decoder.unconsumed_tail:
        raise _too_large_error(largest)
    if not decoder.eof:
        raise GarbledAnswerError("the answer cannot be decompressed: it is incomplete")
    return plain


def _too_large_error(largest: int) -> GarbledAnswerError:
    return GarbledAnswerError(f"the answer is larger than {largest / 2**20:g} MiB")


def _no_token_error() -> NotSentError:
    return NotSentError("cannot fetch an access token: timed out")


def _lower_names(headers: Mapping[str, str] | None) -> dict[str, str]:
    return {name.lower(): value for name, value in (headers or {}).items()}


@functools.cache
def _read_authorities(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        # The authorities that come with Google's library, else those of the system.
        with suppress(ImportError):
            import certifi  # noqa: PLC0415  # only without a file

            context.load_verify_locations(certifi.where())
            return context
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(ca_file)
    except OSError as error:
        raise SettingError(f"cannot read the authorities in `{ca_file}`: {_describe_failure(error)}") from error
    return context


def _describe_failure(error: BaseException, limit: _ExchangeLimit | None = None) -> str:
    if isinstance(error, TimeoutError):
        return "timed out" + (f" ({limit.duration.total_seconds():.3g} s)" if limit else "")
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class HttpFactory:
    """Creates an http object for each thread. That of a thread that has ended is reused, with its open connections."""

    def __init__(
        self,
        options: TransportOptions,
        *,
        credentials: Callable[[], Any] | None = None,
        endpoint: ApiEndpoint | None = None,
    ) -> None:
        """`credentials` is called once, before the first request that needs a token. None: no tokens are sent."""
        self._options = options
        is_loopback = endpoint is not None and endpoint.is_loopback
        self._credentials = functools.cache(credentials) if credentials and not is_loopback else None
        self._endpoint = endpoint
        self._by_thread: dict[threading.Thread, Http] = {}
        self._lock = threading.Lock()
        # For all threads: an expired token is fetched once, not once by each of them.
        self._token_lock = threading.Lock()

    def __call__(self) -> Http:
        """Return this thread's http object."""
        thread = threading.current_thread()
        with self._lock:
            if thread not in self._by_thread:
                ended = next((one for one in self._by_thread if not one.is_alive()), None)
                if ended is not None:
                    http = self._by_thread.pop(ended)
                elif self._credentials is None:
                    http = Http(self._options)
                else:
                    http = AuthorizedHttp(
                        self._options, self._credentials, endpoint=self._endpoint, lock=self._token_lock
                    )
                self._by_thread[thread] = http
            return self._by_thread[thread]

    def close(self) -> None:
        """Close the connections of all threads, also of those that have ended."""
        for opened in tuple(self._by_thread.values()):
            opened.close()
