"""Parse endpoints, and decide which hosts may receive an access token. Nothing is sent from here."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from tpuctl.errors import InvalidInputError
from tpuctl.masking import public_url

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An origin that serves all APIs under their usual paths: `/v2/…`, `/compute/v1/…`, `/storage/v1/…`."""

    scheme: str
    host: str
    port: int
    # The path before the paths of the APIs, without a slash at its end.
    prefix: str = ""

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse a URL; a bare `HOST:PORT` is https.

        Raises `InvalidInputError` for plain http to anything but this machine, for a bare word, userinfo, a query or a
        fragment.
        """
        parts, port = _split(text)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise _wrong(text, "it is not an http or https URL with a host")
        if "://" not in text and port is None and "." not in parts.hostname and not is_loopback(parts.hostname):
            raise _wrong(text, "it is a single word, not a URL")
        if "@" in parts.netloc:
            raise _wrong(text, "it contains a user name or password")
        if parts.query or parts.fragment:
            raise _wrong(text, "it has a query or a fragment")
        endpoint = cls(parts.scheme, parts.hostname, port or _DEFAULT_PORTS[parts.scheme], parts.path.rstrip("/"))
        if parts.scheme == "http" and not endpoint.is_loopback:
            raise _wrong(text, "plain http is only allowed for this machine (localhost, 127.0.0.0/8, ::1)")
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


def takes_token(url: str, named: Endpoint | None) -> bool:
    """Return whether a token may be sent to a URL: Google's hosts, or the origin that the user named. Only over https."""
    try:
        parts, port = _split(url)
    except InvalidInputError:
        return False
    if parts.scheme != "https" or not parts.hostname:
        return False
    # `*.p.googleapis.com` (Private Service Connect), regional and mTLS hosts are all below googleapis.com.
    if parts.hostname.endswith(".googleapis.com") and (port or 443) == 443:
        return True
    origin = (parts.scheme, parts.hostname, port or 443)
    return named is not None and not named.is_loopback and origin == (named.scheme, named.host, named.port)


def _split(text: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(text.strip() if "://" in text else f"https://{text.strip()}")
        port = parts.port
        # An invalid host name would fail in the middle of a request.
        (parts.hostname or "").encode("idna")
    except ValueError as error:
        # Python's message repeats a part of the URL, which may contain a password.
        raise _wrong(text, "its host or port is invalid") from error
    return parts, port


def _wrong(text: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"invalid endpoint `{public_url(text)}`: {why}",
        hint="write it like `https://HOST` or `http://localhost:PORT`",
    )
