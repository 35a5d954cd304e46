"""Secrets recognized by their place: in headers, URLs, netrc files, command lines of well-known programs."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction.spans import Rule, Span, going_on

if TYPE_CHECKING:
    from collections.abc import Iterator

# These loops end their patterns, so they never backtrack. (CPython 3.11.0 to 3.11.4 compile possessive quantifiers and atomic
# groups wrongly: gh-100061, gh-106052.)
_WORD = re.compile(rb"(?:[^\s\"'\x00\\,]+|\\(?!\\{0,31}[nrt\"']))*")
_REST_OF_LINE = re.compile(rb"(?:[^\r\n\"'\x00\\]+|\\(?!\\{0,31}[nr\"']))*")
_URL_VALUE = re.compile(rb"[^\s\"'<>&\x00\\]*")
_PASSWORD_OF_URL = re.compile(rb"[^\s\"'<>/\x00\\]{1,513}")
_PASSWORD_WITH_SLASH = re.compile(rb"[^\s\"'<>?\x00\\]{1,513}")
_SCHEME = rb"(?:(?P<scheme>bearer|basic|token|oauth|negotiate|apikey|digest|hmac|aws4-hmac-sha256)(?:[ \t]+|\\ |%20))?"
_HEADER = re.compile(
    rb"(?i)(?:\\{0,32}[\"'][ \t]{0,4}(?:->|=>|[:=,])|[ \t]{0,4}(?:->|=>|[:=]))[ \t]{0,4}"
    rb"(?:b?(?P<quote>\\{0,32}[\"']))?" + _SCHEME
)
# Without a scheme only the form of the value separates it from prose.
_UNSCHEMED = re.compile(rb"(?=[^\s\"'\\]{0,64}[0-9])[^\s\"'\\]{6}|[^\s\"'\\]{24}")
_COOKIE = re.compile(rb"[\w.\-%!#$&*+^|~]{1,128}=")
_BEARER = re.compile(rb"(?i)bearer[ \t]{1,4}(?=[A-Za-z0-9._~+/\-]{0,64}[0-9])(?P<token>[A-Za-z0-9._~+/\-]{12})")
_NETRC = re.compile(
    rb"(?:machine|default)(?:\s{1,16}[^\s]{1,255})?(?:\s{1,16}(?:login|account)\s{1,16}[^\s]{1,255}){0,2}"
    rb"\s{1,16}password\s{1,16}"
)
_CREDENTIALS = re.compile(
    rb"(?<![\w\-])(?:-u|--user|--proxy-user)[ =]{0,4}[\"']?(?P<user>[^\s:\"'/@]{1,64}):(?=[^\s\"'])"
)
_WANDB = re.compile(
    rb"wandb[ .'\",]{1,4}login[ (\"',]{1,4}(?:--?[\w=:/.\-]{1,80} ){0,4}(?:key=)?[\"']?(?=[0-9a-f]{40})"
)
_PASTED = re.compile(rb"(?i)api key[^\r\n]{0,160}?(?<![\w])(?=[0-9a-f]{40}(?![\w]))")
_SESSION = re.compile(rb"(?i)sessionid=(?=[A-Za-z0-9_\-]{16})")
_PUTTY = re.compile(rb"(?i)private-lines: [0-9]{1,4}(?P<lines>(?:(?:\\{1,32}[rn]|[\r\n])+[A-Za-z0-9+/=]{2,80}){1,300})")
_KAGGLE = re.compile(rb"\"username\"[ ]?:[ ]?\"[^\"\r\n]{1,128}\"[ ]?,\s{0,16}\"key\"[ ]?:[ ]?\"")
_JWK = re.compile(rb"\"(?:d|p|q|dp|dq|qi|k)\"[ ]?:[ ]?\"(?P<part>[A-Za-z0-9_\-]{16,4096})\"")
# A password with a slash differs from a port by a character that is not a digit.
_USER_OF_URL = re.compile(
    rb"://[^\s/:\[\"'<>\x00\\]{0,128}:(?:(?=[^\s\"'<>/\x00\\]{1,512}@)"
    rb"|(?=[^\s\"'<>/\x00\\]{0,128}[^\s\"'<>/\x00\\0-9][^\s\"'<>?\x00\\]{1,256}@))"
)
# `https://TOKEN@host`: a user without a password may be a token.
_USER_ALONE = re.compile(rb"(?<=http)s?://(?=[^/@\s]{0,64}[0-9])(?=[^/@\s]{0,64}[A-Za-z])(?P<token>[\w\-]{8,256})@")
_DOCKER = re.compile(rb"\\{0,32}\"auth\\{0,32}\"[ \t]{0,8}:[ \t]{0,8}\\{0,32}\"(?=[A-Za-z0-9+/]{8})")
# OAuth's code and a session are long.
_QUERY = re.compile(
    rb"(?i)[?&](?:(?P<sure>x-goog-signature|x-amz-signature|x-amz-security-token|signature|sig|access_token|key|auth|pass|pwd|"
    rb"assertion|sessionid)|code)="
)
_LEAST_OF_A_CODE = 20


def rules() -> tuple[Rule, ...]:
    """Return the rules, one for each kind of place."""
    return (
        Rule(b"authorization", partial(_header, b"authorization")),
        Rule(b"cookie", partial(_header, b"cookie")),
        Rule(b"bearer ", _bearer),
        Rule(b"://", _url),
        Rule(b"machine ", partial(_after, _NETRC, "password")),
        Rule(b"machine\n", partial(_after, _NETRC, "password")),
        Rule(b"-u", partial(_after, _CREDENTIALS, "password")),
        Rule(b"--user", partial(_after, _CREDENTIALS, "password")),
        Rule(b"--proxy-user", partial(_after, _CREDENTIALS, "password")),
        Rule(b"wandb", partial(_after, _WANDB, "wandb-key")),
        Rule(b'"auth', partial(_after, _DOCKER, "password")),
        Rule(b"?", _query),
        Rule(b"&", _query),
        Rule(b"sessionid=", partial(_after, _SESSION, "cookie")),
        Rule(b"private-lines: ", _putty),
        Rule(b'"kty"', _jwk),
        Rule(b'"username"', partial(_after, _KAGGLE, "kaggle-key")),
        Rule(b"api key", partial(_after, _PASTED, "wandb-key")),
    )


def _after(place: re.Pattern[bytes], kind: str, data: bytes, at: int) -> Iterator[Span]:
    found = place.match(data, at)
    if found is None:
        return
    span = going_on(data, found.end(), found.end(), kind, _WORD)
    # `docker run -u 1000:1000` has no password.
    is_number = "user" in place.groupindex and data[span.start : span.end].isdigit() and found["user"].isdigit()
    if span.end > span.start and not is_number:
        yield span


def _header(name: bytes, data: bytes, at: int) -> Iterator[Span]:
    """Yield the value of a header, without its scheme."""
    found = _HEADER.match(data, at + len(name))
    if found is None:
        return
    scheme = (found["scheme"] or b"").lower()
    is_one = _COOKIE.match(data, found.end()) if name == b"cookie" else scheme or _UNSCHEMED.match(data, found.end())
    if not is_one or data.startswith((b"$(", b"${", b"`", b"<"), found.end()):
        return
    tail = _WORD if scheme in {b"bearer", b"basic", b"token", b"oauth", b"negotiate", b"apikey"} else _REST_OF_LINE
    span = going_on(data, found.end(), found.end(), name.decode(), tail)
    if span.end > span.start:
        yield span


def _bearer(data: bytes, at: int) -> Iterator[Span]:
    if found := _BEARER.match(data, at):
        yield going_on(data, found.start("token"), found.end(), "bearer-token", _WORD)


def _url(data: bytes, at: int) -> Iterator[Span]:
    """Yield the password of `scheme://user:password@host`; the password may contain an `@`."""
    if alone := _USER_ALONE.match(data, at - 1 if data[at - 1 : at] == b"s" else at):
        yield Span(*alone.span("token"), "password")
        return
    found = _USER_OF_URL.match(data, at)
    if found is None:
        return
    password = _PASSWORD_OF_URL.match(data, found.end())
    if password is None or b"@" not in password.group():
        password = _PASSWORD_WITH_SLASH.match(data, found.end())
    end = data.rfind(b"@", found.end(), password.end()) if password else -1
    if end > found.end():
        yield Span(found.end(), end, "password")


def _query(data: bytes, at: int) -> Iterator[Span]:
    found = _QUERY.match(data, at)
    if found is None:
        return
    span = going_on(data, found.end(), found.end(), "signature", _URL_VALUE)
    if span.end - span.start >= (8 if found["sure"] else _LEAST_OF_A_CODE):
        yield span


def _putty(data: bytes, at: int) -> Iterator[Span]:
    """Yield the lines of a private key in PuTTY's format."""
    if found := _PUTTY.match(data, at):
        yield Span(*found.span("lines"), "private-key")


def _jwk(data: bytes, at: int) -> Iterator[Span]:
    """Yield the private part of a key in JSON."""
    begin = max(data.rfind(b"{", max(0, at - 4096), at), 0)
    for found in _JWK.finditer(data, begin, at + 8192):
        yield Span(*found.span("part"), "private-key")
    # Search this part only once, even if several keys follow each other.
    yield Span(at, min(len(data), at + 8192), "")
