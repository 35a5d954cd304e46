"""Http objects over httplib2 that never send a change twice.

httplib2 0.32 repeats a request, even a POST, if the connection ends without an answer. Its timeout applies to each socket
operation, so that a server that sends a byte now and then is never timed out. Our connection classes change both through
the hooks of httplib2: they raise exceptions that httplib2 does not catch, and each socket operation gets the time left of
one limit for the whole exchange. Importing this module takes 95 ms.
"""

from __future__ import annotations

import functools
import http.client
import io
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httplib2

from tpuctl import __version__
from tpuctl.clock import SystemClock
from tpuctl.cloud.endpoint import takes_token
from tpuctl.cloud.errors import AnswerLostError, GarbledAnswerError, NotSentError, TransportError, UntrustedServerError
from tpuctl.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

    from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions

# Google compresses only for a user agent that says `gzip`.
_USER_AGENT = f"tpuctl/{__version__} (gzip)"
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_AUTHORITIES_LOCK = threading.Lock()
_CONNECTION_ERRORS = (OSError, http.client.HTTPException, httplib2.HttpLib2Error)
_CLOCK = SystemClock()
# Raised by newer versions of httplib2 if a decompressed answer is too large. They are not HttpLib2Errors.
_DECODE_LIMIT_ERRORS: tuple[type[Exception], ...] = (
    (httplib2.decode.DecodeLimitError, httplib2.decode.DecodeRatioError) if hasattr(httplib2, "decode") else ()
)

HttpAnswer = tuple[httplib2.Response, bytes]


class Http(httplib2.Http):  # type: ignore[misc]  # httplib2 ships no types
    """An http object for one thread.

    Without an answer, only `NotSentError` or `AnswerLostError` is raised. A request that may change something gets a new
    connection: on a connection that the server has already closed, its outcome would be uncertain. Redirects are not
    followed.

    `timeout` limits the next exchange, in seconds of real time; None or a larger value for the limit of the options.
    """

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(proxy_info=None, ca_certs=str(options.ca_file) if options.ca_file else None)
        self.follow_redirects = False
        self.limit_kwargs = {"hard_limit": options.largest}
        self._options = options
        self._turn = threading.Lock()
        self._is_closed = False
        self._limit = _ExchangeLimit(options.timeout)
        shared = {"options": options, "limit": self._limit}
        shared["response_class"] = type("Response", (_LimitedResponse,), dict(shared))
        self._types = {
            "http": type("Plain", (_PlainConnection,), shared),
            "https": type("Tls", (_TlsConnection,), shared),
        }
        self._extra = {"x-goog-user-project": options.quota_project} if options.quota_project else {}

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: object,
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
                super().close()
            finally:
                self._turn.release()

    def _begin(self) -> None:
        longest = self._options.timeout
        self._limit.begin(longest if self.timeout is None else min(longest, timedelta(seconds=self.timeout)))

    def _exchange(
        self, uri: str, method: str, body: str | bytes | None, headers: Mapping[str, str] | None
    ) -> HttpAnswer:
        with self._turn:
            try:
                lower = {name.lower(): value for name, value in (headers or {}).items()}
                # The request's own quota project takes precedence.
                lower = {**self._extra, **lower, "user-agent": _USER_AGENT}
                if method not in _SAFE_METHODS:
                    self._hang_up()
                was_open = bool(self.connections)
                try:
                    return self._send_once(uri, method, body, lower)
                except AnswerLostError as error:
                    if not was_open or isinstance(error.__cause__, TimeoutError):
                        raise
                return self._send_once(uri, method, body, lower)
            finally:
                self._limit.give_back()
                if self._is_closed:
                    self._hang_up()

    def _send_once(self, uri: str, method: str, body: str | bytes | None, headers: dict[str, str]) -> HttpAnswer:
        kind = self._types[uri.partition(":")[0]]
        try:
            answer: HttpAnswer = super().request(
                uri, method=method, body=body, headers=dict(headers), connection_type=kind
            )
        except TransportError:
            self._hang_up()
            raise
        # The connection handles failures of connecting and sending. An answer that ends too early is left.
        except TimeoutError as error:
            self._hang_up()
            raise AnswerLostError(f"the answer is incomplete: {_describe_failure(error, self._limit)}") from error
        except _CONNECTION_ERRORS as error:
            self._hang_up()
            raise AnswerLostError(f"the answer ended too early: {_describe_failure(error)}") from error
        except _DECODE_LIMIT_ERRORS as error:
            self._hang_up()
            raise _too_large_error(self._options.largest) from error
        return answer

    def _hang_up(self) -> None:
        if self._limit.response is not None:
            self._limit.response.close()
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()

    def _auth_from_challenge(self, *_: object) -> tuple[()]:
        # httplib2 would parse WWW-Authenticate, and fail on unknown schemes. AuthorizedHttp refreshes tokens.
        return ()


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
        **_: object,
    ) -> HttpAnswer:
        """Send one request with a token. After a 401 it was not carried out, and is sent once more with a new token."""
        self._begin()
        # A token must not be sent to a host that the user did not name.
        if not takes_token(uri, self._endpoint):
            raise SettingError(f"no token is sent to `{uri.partition('?')[0]}`", hint="check the endpoint")
        used = self._with_token(uri, method, headers)
        response, content = self._exchange(uri, method, body, used)
        if response.status != 401:
            return response, content
        with self._credentials() as credentials:
            credentials.refresh(self._auth)
        return self._exchange(uri, method, body, self._with_token(uri, method, headers))

    def close(self) -> None:
        """Close the connections, also those to the source of tokens."""
        super().close()
        self._auth.close()

    def _with_token(self, uri: str, method: str, headers: Mapping[str, str] | None) -> Mapping[str, str]:
        own = {name.lower(): value for name, value in (headers or {}).items()}
        given: MutableMapping[str, str] = dict(own)
        with self._credentials() as credentials:
            credentials.before_request(self._auth, method, uri, given)
        # The quota project of the credentials has the lowest precedence.
        return {**given, **self._extra, **own}

    @contextmanager
    def _credentials(self) -> Iterator[Any]:  # google-auth ships no types
        """Yield the credentials, locked for this thread. Their requests count against the limit of the exchange."""
        if self._limit.is_over or not self._lock.acquire(timeout=self._limit.left):
            raise _no_token_error()
        try:
            yield self._load()
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
        self._http = Http(replace(options, quota_project=None))

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

    def __init__(self, response: httplib2.Response, data: bytes) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response
        self.data = data


class _ExchangeLimit:
    """The time and size limits of an exchange. The time is that of the real clock, because sockets use no other."""

    # The last response. If the server closes the connection, only the response has the socket.
    response: http.client.HTTPResponse | None = None
    # Bytes of all exchanges of the process: dozens of threads send requests, and each answer is kept in memory.
    _held_by_all = 0
    _counting = threading.Lock()

    def __init__(self, duration: timedelta) -> None:
        self._held = 0
        self.begin(duration)

    def begin(self, duration: timedelta) -> None:
        """Restart the limit."""
        self.duration, self._ends = duration, _CLOCK.monotonic() + duration

    def take(self, count: int, most: int) -> None:
        """Count received bytes. Raises `GarbledAnswerError` if all exchanges together have more than `most`."""
        with _ExchangeLimit._counting:
            self._held += count
            _ExchangeLimit._held_by_all += count
            is_too_much = _ExchangeLimit._held_by_all > most
        if is_too_much:
            raise GarbledAnswerError(f"simultaneous answers are larger than {most / 2**20:g} MiB")

    def give_back(self) -> None:
        """Subtract the bytes of this exchange."""
        with _ExchangeLimit._counting:
            _ExchangeLimit._held_by_all -= self._held
            self._held = 0

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
    """Reads from a socket, within the time and size limits of the exchange."""

    def __init__(
        self, raw: io.RawIOBase, sock: socket.socket, limit: _ExchangeLimit, options: TransportOptions
    ) -> None:
        self._raw, self._sock, self._limit, self._options = raw, sock, limit, options
        self._room = options.largest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:  # any object with the buffer protocol; a count, or None
        self._sock.settimeout(self._limit.left)
        count = self._raw.readinto(buffer)
        self._room -= count or 0
        if self._room < 0:
            raise _too_large_error(self._options.largest)
        self._limit.take(count or 0, self._options.together)
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


class _LimitedResponse(http.client.HTTPResponse):
    """A response that is read within the limits of its connection."""

    options: TransportOptions
    limit: _ExchangeLimit

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:  # http.client's signature, passed on
        super().__init__(sock, *args, **kwargs)
        self.limit.response = self
        self.fp = _BoundedReader(
            _LimitedSocketReader(self.fp.detach(), sock, self.limit, self.options), self.options.largest
        )


class _GuardedConnection(http.client.HTTPConnection):
    """A mix-in for both kinds of connection: limits, the proxy, and exceptions that say what is certain."""

    options: TransportOptions
    limit: _ExchangeLimit
    _target: str

    def _prepare(self) -> None:
        self._target = self.host
        self._create_connection = self._open
        proxy = self.options.proxy
        if proxy is not None and proxy.applies_to(self.host):
            self.set_tunnel(self.host, self.port, headers=proxy.headers)
            self.host, self.port = proxy.host, proxy.port

    def _open(self, address: tuple[str, int], *_: object) -> socket.socket:
        """Return a socket that is connected to one of the addresses of a host."""
        failure = OSError("the host name has no address")
        for family, kind, protocol, _name, place in _addresses(*address, seconds=self.limit.left):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(min(self.options.connect_timeout.total_seconds(), self.limit.left))
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

    def _reach(self, connect: Callable[[], None]) -> None:
        via = f" through the proxy {self.options.proxy}" if self._target != self.host else ""
        try:
            connect()
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise UntrustedServerError(
                f"the certificate of {self._target} is not trusted: {error.verify_message}"
            ) from error
        # The resolver raises UnicodeError for an invalid host name; a proxy may send too much.
        except (OSError, UnicodeError, http.client.HTTPException, TransportError) as error:
            self.close()
            raise NotSentError(f"{self._target} cannot be reached{via}: {_describe_failure(error)}") from error

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise AnswerLostError(f"{self._target} did not answer: {_describe_failure(error, self.limit)}") from error

    def request(self, *args: Any, **kwargs: Any) -> None:  # http.client's signature, passed on
        """Send the request."""
        with self._under_way():
            super().request(*args, **kwargs)

    def send(self, data: Any) -> None:  # bytes, in all our requests
        """Send bytes within the limit. With TLS, `sendall` would restart the limit for each piece."""
        rest = memoryview(data)
        while rest:
            self.sock.settimeout(self.limit.left)
            rest = rest[self.sock.send(rest) :]

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the head of the answer."""
        with self._under_way():
            return super().getresponse()


class _PlainConnection(_GuardedConnection, httplib2.HTTPConnectionWithTimeout):  # type: ignore[misc]  # httplib2 ships no types
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # httplib2's signature, passed on
        httplib2.HTTPConnectionWithTimeout.__init__(self, *args, **kwargs)
        self._prepare()

    def connect(self) -> None:
        self._reach(lambda: http.client.HTTPConnection.connect(self))


class _TlsConnection(_GuardedConnection, http.client.HTTPSConnection):
    # Not the class of httplib2, which reads the authorities for each connection. That takes 26 ms.
    def __init__(self, authority: str, **_: object) -> None:  # httplib2 passes its own time-out and proxy
        super().__init__(authority, context=_tls_context(self.options.ca_file))
        self._prepare()

    def connect(self) -> None:
        def connect() -> None:
            http.client.HTTPConnection.connect(self)
            self.sock.settimeout(self.limit.left)  # for the whole handshake
            self.sock = _tls_context(self.options.ca_file).wrap_socket(self.sock, server_hostname=self._target)

        self._reach(connect)


def _addresses(host: str, port: int, *, seconds: float) -> list[tuple[Any, ...]]:
    """Return the addresses of a host. Raises what the resolver raises, and `TimeoutError`.

    Neither a timeout nor Ctrl-C can interrupt the resolver, so that a separate thread waits for it.
    """
    found: list[list[tuple[Any, ...]] | Exception] = []
    has_ended = threading.Event()

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found.append(error)
        has_ended.set()

    threading.Thread(target=look_up, name="resolver", daemon=True).start()
    if not has_ended.wait(seconds):
        raise TimeoutError
    (answer,) = found
    if isinstance(answer, Exception):
        raise answer
    return answer


def _too_large_error(largest: int) -> GarbledAnswerError:
    return GarbledAnswerError(f"the answer is larger than {largest / 2**20:g} MiB")


def _no_token_error() -> NotSentError:
    return NotSentError("cannot fetch an access token: timed out")


def _tls_context(ca_file: Path | None) -> ssl.SSLContext:
    # Locked, because threads that begin at the same time would each read the file.
    with _AUTHORITIES_LOCK:
        return _read_authorities(ca_file)


@functools.cache
def _read_authorities(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca_file or httplib2.CA_CERTS)
    except OSError as error:
        raise SettingError(f"cannot read the authorities in `{ca_file}`: {_describe_failure(error)}") from error
    return context


def _describe_failure(error: BaseException, limit: _ExchangeLimit | None = None) -> str:
    if isinstance(error, TimeoutError):
        return "timed out" + (f" ({limit.duration.total_seconds():.3g} s)" if limit else "")
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
