"""Http objects over httplib2 that never send a change twice.

httplib2 0.32 sends a request again by itself, a POST too, when the connection ends without an answer, and has one
time-out for connecting and reading. Both are changed through its own hooks: the classes of connection are ours, and
they raise exceptions that httplib2 does not catch. Importing this costs 95 ms.
"""

from __future__ import annotations

import functools
import http.client
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httplib2

from tpuctl import __version__
from tpuctl.api.endpoint import takes_token
from tpuctl.api.failures import AnswerLostError, NotSentError, TransportError, UntrustedServerError
from tpuctl.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

    from tpuctl.api.endpoint import Endpoint
    from tpuctl.api.transport import TransportOptions

# Google compresses only for a user agent that says `gzip`.
_USER_AGENT = f"tpuctl/{__version__} (gzip)"
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_READING = threading.Lock()
_BROKEN = (OSError, http.client.HTTPException, httplib2.HttpLib2Error)

Answer = tuple[httplib2.Response, bytes]


class Http(httplib2.Http):  # type: ignore[misc]  # httplib2 ships no types
    """An http object for one thread.

    Raises `NotSentError` or `AnswerLostError`, nothing else, when there is no answer. A request that may change
    something gets a connection of its own, since what became of it on a connection that the server had already given
    up would be uncertain. Redirects are answers, not followed.
    """

    def __init__(self, options: TransportOptions) -> None:
        super().__init__(proxy_info=None, ca_certs=str(options.ca_file) if options.ca_file else None)
        self.follow_redirects = False
        self._types = {
            "http": type("Plain", (_PlainConnection,), {"options": options}),
            "https": type("Tls", (_TlsConnection,), {"options": options}),
        }
        self._extra = {"x-goog-user-project": options.quota_project} if options.quota_project else {}

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: object,
    ) -> Answer:
        """Send one request once and return response and body. A GET on a connection gone stale is sent once more."""
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        # A request that names who pays for it is believed.
        lower = {**self._extra, **lower, "user-agent": _USER_AGENT}
        if method not in _SAFE_METHODS:
            self._hang_up()
        was_open = bool(self.connections)
        try:
            return self._once(uri, method, body, lower)
        except AnswerLostError as error:
            if not was_open or isinstance(error.__cause__, TimeoutError):
                raise
        return self._once(uri, method, body, lower)

    def _once(self, uri: str, method: str, body: str | bytes | None, headers: dict[str, str]) -> Answer:
        kind = self._types[uri.partition(":")[0]]
        try:
            answer: Answer = super().request(uri, method=method, body=body, headers=dict(headers), connection_type=kind)
        except TransportError:
            self._hang_up()
            raise
        # Connecting and sending are watched by the connection; what is left is the answer that ends too early.
        except _BROKEN as error:
            self._hang_up()
            raise AnswerLostError(f"the answer ended too early: {_words(error)}") from error
        return answer

    def _hang_up(self) -> None:
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()

    def _auth_from_challenge(self, *_: object) -> tuple[()]:
        # httplib2 would parse WWW-Authenticate, and fail on what it does not know; tokens are renewed below.
        return ()


class AuthorizedHttp(Http):
    """An http object that adds a token, and refreshes it once when the service no longer takes it."""

    def __init__(
        self,
        options: TransportOptions,
        credentials: Callable[[], Any],
        *,
        endpoint: Endpoint | None,
        lock: threading.Lock,
    ) -> None:
        super().__init__(options)
        self._load = credentials
        self._endpoint = endpoint
        self._lock = lock
        self._auth = AuthRequest(options)

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: object,
    ) -> Answer:
        """Send one request with a token; after a 401, which means that nothing was done, once more with a new one."""
        # A token must not leave for a host that nobody named.
        if not takes_token(uri, self._endpoint):
            raise SettingError(f"no token is sent to `{uri.partition('?')[0]}`", hint="check the endpoint")
        used = self._with_token(uri, method, headers)
        response, content = super().request(uri, method, body, used)
        if response.status != 401:
            return response, content
        with self._lock:
            self._load().refresh(self._auth)
        return super().request(uri, method, body, self._with_token(uri, method, headers))

    def close(self) -> None:
        """Close the connections, those to the token's source too."""
        super().close()
        self._auth.close()

    def _with_token(self, uri: str, method: str, headers: Mapping[str, str] | None) -> Mapping[str, str]:
        own = {name.lower(): value for name, value in (headers or {}).items()}
        given: MutableMapping[str, str] = dict(own)
        with self._lock:
            self._load().before_request(self._auth, method, uri, given)
        # The credentials' quota project comes last.
        return {**given, **self._extra, **own}


class AuthRequest:
    """How google-auth reaches the source of tokens: a google.auth.transport.Request.

    Its failures are google-auth's own, since a token that could not be fetched means that the call itself was not sent.
    """

    def __init__(self, options: TransportOptions) -> None:
        # The quota project is for the API alone; the source of tokens may not know it.
        self._http = Http(replace(options, quota_project=None))

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **_: object,
    ) -> _AuthResponse:
        """Send a request of google-auth's; a time-out that it asks for is ignored in favour of the options'."""
        from google.auth.exceptions import TransportError as AuthTransportError  # noqa: PLC0415  # only with credentials

        try:
            return _AuthResponse(*self._http.request(url, method, body, headers))
        except TransportError as error:
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


class _Watched(http.client.HTTPConnection):
    """What both kinds of connection share: time-outs, the proxy, and exceptions by what is certain.

    A mix-in before one of httplib2's classes.
    """

    options: TransportOptions
    _target: str

    def _prepare(self) -> None:
        self._target = self.host
        self.timeout = self.options.connect_timeout.total_seconds()
        proxy = self.options.proxy
        if proxy is not None and proxy.applies_to(self.host):
            self.set_tunnel(self.host, self.port, headers=proxy.headers)
            self.host, self.port = proxy.host, proxy.port

    def _reach(self, connect: Callable[[], None]) -> None:
        try:
            connect()
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise UntrustedServerError(
                f"the certificate of {self._target} is not trusted: {error.verify_message}"
            ) from error
        # A host name that cannot be one is a UnicodeError of the resolver's.
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            self.close()
            via = f" through the proxy {self.options.proxy}" if self._target != self.host else ""
            raise NotSentError(f"{self._target} cannot be reached{via}: {_words(error)}") from error
        self.sock.settimeout(self.options.read_timeout.total_seconds())

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise AnswerLostError(f"{self._target} gave no answer: {_words(error)}") from error

    def request(self, *args: Any, **kwargs: Any) -> None:  # http.client's signature, passed on
        """Send the request."""
        with self._under_way():
            super().request(*args, **kwargs)

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the head of the answer."""
        with self._under_way():
            return super().getresponse()


class _PlainConnection(_Watched, httplib2.HTTPConnectionWithTimeout):  # type: ignore[misc]  # httplib2 ships no types
    def __init__(self, *args: Any, **kwargs: Any) -> None:  # httplib2's signature, passed on
        httplib2.HTTPConnectionWithTimeout.__init__(self, *args, **kwargs)
        self._prepare()

    def connect(self) -> None:
        self._reach(lambda: http.client.HTTPConnection.connect(self))


class _TlsConnection(_Watched, http.client.HTTPSConnection):
    # Not httplib2's class of this: it reads the authorities anew for each connection, which takes 26 ms.
    def __init__(self, authority: str, **_: object) -> None:  # httplib2 passes its own time-out and proxy
        super().__init__(authority, context=_tls(self.options.ca_file))
        self._prepare()

    def connect(self) -> None:
        self._reach(lambda: http.client.HTTPSConnection.connect(self))


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    # The lock, since threads that all begin at once would each read them.
    with _READING:
        return _read_authorities(ca_file)


@functools.cache
def _read_authorities(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca_file or httplib2.CA_CERTS)
    except OSError as error:
        raise SettingError(f"the authorities in `{ca_file}` cannot be read: {_words(error)}") from error
    return context


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
