"""The way to the APIs: endpoint, hosts that may receive an access token, proxy, options and factory of http objects.

Nothing is sent from here. The http objects are in `transport.py`, which the factory imports with the first of them.
"""

from __future__ import annotations

import base64
import functools
import ipaddress
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from tpuctl.clock import CLOUD_CALL_TIMEOUT
from tpuctl.errors import InvalidInputError, SettingError
from tpuctl.escaping import mask_url

if TYPE_CHECKING:
    from tpuctl.cloud.transport import Http

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """An origin that serves all APIs under their usual paths: `/v2/…`, `/compute/v1/…`, `/storage/v1/…`."""

    scheme: str
    host: str
    port: int
    # The path before the paths of the APIs, without a slash at its end.
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> ApiEndpoint:
        """Parse a URL; a bare `HOST:PORT` is https.

        Raises `InvalidInputError` for plain http to anything but this machine, for a bare word, userinfo, a query or a
        fragment.
        """
        parts, port = _split_url(text)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise _invalid_endpoint_error(text, "it is not an http or https URL with a host")
        if "://" not in text and port is None and "." not in parts.hostname and not is_loopback(parts.hostname):
            raise _invalid_endpoint_error(text, "it is a single word, not a URL")
        if "@" in parts.netloc:
            raise _invalid_endpoint_error(text, "it contains a user name or password")
        if parts.query or parts.fragment:
            raise _invalid_endpoint_error(text, "it has a query or a fragment")
        endpoint = cls(parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme], parts.path.rstrip("/"))
        if parts.scheme == "http" and not endpoint.is_loopback:
            raise _invalid_endpoint_error(
                text, "plain http is only allowed for this machine (localhost, 127.0.0.0/8, ::1)"
            )
        return endpoint

    @property
    def is_loopback(self) -> bool:
        """Return whether the endpoint is on this machine, where no credentials are used."""
        return is_loopback(self.host)

    def url(self, path: str = "") -> str:
        """Return the URL of an API's base path, such as `compute/v1/`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.prefix}/{path.lstrip('/')}"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine, without a DNS lookup."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def takes_token(url: str, named: ApiEndpoint | None) -> bool:
    """Return whether a token may be sent to a URL: Google's hosts, or the origin that the user named. Only over https."""
    try:
        parts, port = _split_url(url)
    except InvalidInputError:
        return False
    if parts.scheme != "https" or not parts.hostname:
        return False
    # `*.p.googleapis.com` (Private Service Connect), regional and mTLS hosts are all below googleapis.com.
    if parts.hostname.endswith(".googleapis.com") and (port or 443) == 443:
        return True
    origin = (parts.scheme, parts.hostname, port or 443)
    return named is not None and not named.is_loopback and origin == (named.scheme, named.host, named.port)


def _split_url(text: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(text.strip() if "://" in text else f"https://{text.strip()}")
        port = parts.port
        # An invalid host name would fail in the middle of a request.
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        # Python's message repeats a part of the URL, which may contain a password.
        raise _invalid_endpoint_error(text, "its host or port is invalid") from error
    return parts, port


def _invalid_endpoint_error(text: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"invalid endpoint `{mask_url(text)}`: {why}",
        hint="write it like `https://HOST` or `http://localhost:PORT`",
    )


# The metadata server is on the machine's own link; no proxy can reach it [google-auth source: compute_engine/_metadata].
_NEVER_BY_PROXY = frozenset({"metadata.google.internal", "169.254.169.254"})


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """An HTTP proxy that supports CONNECT. `bypass` has the hosts and domain suffixes that are reached directly."""

    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    bypass: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, *, no_proxy: str = "") -> HttpProxy:
        """Parse the URL of `HTTPS_PROXY` and the comma-separated list of `NO_PROXY`.

        Raises `SettingError` for an unsupported kind of proxy; its message never contains a password.
        """
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            port = parts.port
        except ValueError as error:
            # Python's message repeats a part of the URL, which may contain the password.
            raise SettingError(
                "the URL of the proxy is invalid", hint="percent-encode special characters in user name and password"
            ) from error
        if parts.scheme != "http" or not parts.hostname:
            raise SettingError(
                f"unsupported proxy scheme `{parts.scheme}`",
                hint="set the proxy like `http://HOST:PORT` (HTTP CONNECT)",
            )
        user, password = (unquote(part) if part else None for part in (parts.username, parts.password))
        bypass = tuple(entry.strip().lower() for entry in no_proxy.split(",") if entry.strip())
        return cls(parts.hostname, port or 80, user, password, bypass)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> HttpProxy | None:
        """Return the proxy of `HTTPS_PROXY` (or `ALL_PROXY`), or None; lower-case names win, as in curl."""
        names = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
        url = next((environ[name] for name in names if environ.get(name)), None)
        no_proxy = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
        return cls.parse(url, no_proxy=no_proxy) if url else None

    def applies_to(self, host: str) -> bool:
        """Return whether the proxy is used for a host; never for this machine and the metadata server."""
        host = host.lower()
        if is_loopback(host) or host in _NEVER_BY_PROXY:
            return False
        suffixes = (entry.removeprefix("*").lstrip(".") for entry in self.bypass)
        return "*" not in self.bypass and not any(host == end or host.endswith(f".{end}") for end in suffixes)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that identify the user to the proxy."""
        if self.user is None:
            return {}
        pair = f"{self.user}:{self.password or ''}".encode()
        return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"}

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """The options of HTTP connections."""

    # The limit for connecting to one address of the server.
    connect_timeout: timedelta = timedelta(seconds=10)
    # The limit for a whole exchange, from the DNS lookup to the last byte, in real time.
    timeout: timedelta = CLOUD_CALL_TIMEOUT
    # The maximum size of a response, head and body, in bytes.
    max_response_bytes: int = 65 * 2**20
    proxy: HttpProxy | None = None
    # The authorities to trust instead of the default ones.
    ca_file: Path | None = None
    quota_project: str | None = None


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
        from tpuctl.cloud.transport import AuthorizedHttp, Http  # noqa: PLC0415  # 25 ms, which the sandbox does not need

        thread = threading.current_thread()
        with self._lock:
            if thread not in self._by_thread:
                ended = next((thread_before for thread_before in self._by_thread if not thread_before.is_alive()), None)
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
        for http in tuple(self._by_thread.values()):
            http.close()
