"""Secrets that are known by where they stand: headers, URLs, netrc files, command lines of well-known programs."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction.spans import Rule, Span, going_on

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORD = re.compile(rb"(?:[^\s\"'\x00\\,]|\\(?!\\{0,15}[nrt\"']))*+")
_REST_OF_LINE = re.compile(rb"(?:[^\r\n\"'\x00\\]|\\(?!\\{0,15}[nr\"']))*+")
_URL_VALUE = re.compile(rb"[^\s\"'<>&\x00\\]*+")
_PASSWORD_OF_URL = re.compile(rb"[^\s\"'<>/\x00\\]{1,513}+")
_SCHEME = rb"(?:(?P<scheme>bearer|basic|token|oauth|negotiate|apikey|digest|hmac|aws4-hmac-sha256)[ \t]+)?"
_HEADER = re.compile(rb"(?i)\\{0,16}[\"']?[ \t]{0,4}[:=,][ \t]{0,4}\\{0,16}[\"']?" + _SCHEME)
_BEARER = re.compile(rb"(?i)bearer[ \t]{1,4}(?=[A-Za-z0-9._~+/\-]{0,64}[0-9])(?P<token>[A-Za-z0-9._~+/\-]{12})")
_NETRC = re.compile(
    rb"(?:machine|default)(?:\s{1,16}[^\s]{1,255})?(?:\s{1,16}(?:login|account)\s{1,16}[^\s]{1,255}){0,2}"
    rb"\s{1,16}password\s{1,16}"
)
_CREDENTIALS = re.compile(
    rb"(?<![\w\-])(?:-u|--user|--proxy-user)[ =]{1,4}[\"']?(?P<user>[^\s:\"'/@]{1,64}):(?=[^\s\"'])"
)
_WANDB = re.compile(rb"wandb login (?:--?[\w=:/.\-]{1,80} ){0,4}(?=[0-9a-f]{40})")
_SSHPASS = re.compile(rb"sshpass -p ?[\"']?")
_USER_OF_URL = re.compile(rb"://[^\s/:@\"'<>\x00\\]{0,128}:(?=[^\s\"'<>/\x00\\]{1,512}@)")
_DOCKER = re.compile(rb"\\{0,16}\"auth\\{0,16}\"[ \t]{0,8}:[ \t]{0,8}\\{0,16}\"(?=[A-Za-z0-9+/]{8})")
_SIGNATURES = (
    b"x-goog-signature",
    b"x-amz-signature",
    b"x-amz-security-token",
    b"signature",
    b"sig",
    b"access_token",
    b"key",
)


def rules() -> tuple[Rule, ...]:
    """Return the rules, one for each place."""
    queries = tuple(Rule(sign + name + b"=", _query) for name in _SIGNATURES for sign in (b"?", b"&"))
    return (
        Rule(b"authorization", partial(_header, b"authorization")),
        Rule(b"cookie", partial(_header, b"cookie")),
        Rule(b"bearer ", _bearer),
        Rule(b"://", _url),
        Rule(b"machine ", partial(_after, _NETRC, "password")),
        Rule(b"machine\n", partial(_after, _NETRC, "password")),
        Rule(b"-u ", partial(_after, _CREDENTIALS, "password")),
        Rule(b"--user", partial(_after, _CREDENTIALS, "password")),
        Rule(b"--proxy-user", partial(_after, _CREDENTIALS, "password")),
        Rule(b"wandb login ", partial(_after, _WANDB, "wandb-key")),
        Rule(b'"auth', partial(_after, _DOCKER, "password")),
        Rule(b"sshpass -p", partial(_after, _SSHPASS, "password")),
        *queries,
    )


def _after(place: re.Pattern[bytes], kind: str, data: bytes, at: int) -> Iterator[Span]:
    found = place.match(data, at)
    if found is None:
        return
    span = going_on(data, found.end(), found.end(), kind, _WORD)
    # `docker run -u 1000:1000` names no password.
    is_number = "user" in place.groupindex and data[span.start : span.end].isdigit() and found["user"].isdigit()
    if span.end > span.start and not is_number:
        yield span


def _header(name: bytes, data: bytes, at: int) -> Iterator[Span]:
    """Yield the value of a header, without the word for its scheme."""
    found = _HEADER.match(data, at + len(name))
    if found is None:
        return
    scheme = (found["scheme"] or b"").lower()
    tail = _WORD if scheme in {b"bearer", b"basic", b"token", b"oauth", b"negotiate", b"apikey"} else _REST_OF_LINE
    span = going_on(data, found.end(), found.end(), name.decode(), tail)
    if span.end > span.start:
        yield span


def _bearer(data: bytes, at: int) -> Iterator[Span]:
    if found := _BEARER.match(data, at):
        yield going_on(data, found.start("token"), found.end(), "bearer-token", _WORD)


def _url(data: bytes, at: int) -> Iterator[Span]:
    """Yield the password of `scheme://user:password@host`; it may hold an `@` itself."""
    found = _USER_OF_URL.match(data, at)
    if found is None:
        return
    password = _PASSWORD_OF_URL.match(data, found.end())
    end = data.rfind(b"@", found.end(), password.end()) if password else -1
    if end > found.end():
        yield Span(found.end(), end, "password")


def _query(data: bytes, at: int) -> Iterator[Span]:
    start = data.index(b"=", at) + 1
    span = going_on(data, start, start, "signature", _URL_VALUE)
    if span.end - span.start >= 8:
        yield span
