"""The secrets of one request, and their removal from its answer: an error that quotes the answer can then show none.

A proxy, a gateway or a debugging page may repeat the headers that it got.
"""

from __future__ import annotations

import base64
import re
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_HEADERS = frozenset({"authorization", "proxy-authorization", "x-goog-iam-authorization-token", "x-goog-api-key"})
_FORM = "application/x-www-form-urlencoded"
# OAuth's [RFC 6749, RFC 7523, RFC 8693].
_FIELDS = frozenset({"refresh_token", "client_secret", "assertion", "subject_token", "actor_token", "password", "code"})
_ESCAPES = re.compile(
    rb"\\{1,8}u(?P<u>[0-9A-Fa-f]{4})|\\{1,8}x(?P<x>[0-9A-Fa-f]{2})|%(?P<percent>[0-9A-Fa-f]{2})"
    rb"|&#[xX](?P<hex>[0-9A-Fa-f]{1,4});|&#(?P<decimal>[0-9]{1,4});|&(?P<entity>amp|lt|gt|quot|apos);|\\{1,8}(?P<sign>[/\"'])"
)
_ENTITIES = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}
# A piece of a secret is found from twice this size on, wherever it begins.
_CHUNK_SIZE = 8
# Shorter values occur in ordinary words.
_SHORTEST = 4


class SentSecrets:
    """The secrets in the headers of a request, and in its body if that is a form, as sources of tokens get."""

    def __init__(self, headers: Mapping[str, str], body: str | bytes | None) -> None:
        values = dict.fromkeys(value.encode() for value in _secret_values(headers, body))
        self._values = [value for value in values if len(value) >= _SHORTEST]

    def may_be_in(self, data: bytes) -> bool:
        """Return quickly whether the beginning of a secret, as it was sent, is in a large text."""
        return any(value[: 2 * _CHUNK_SIZE] in data for value in self._values)

    def hide(self, data: bytes) -> bytes:
        """Return the text without the secrets, and without long pieces: plain, escaped, in base64 or in hexadecimal."""
        for value in self._values:
            for form in _encoded_forms(value):
                data = _hide_form(data, form)
        return data

    def hide_in_text(self, text: str) -> str:
        """Return the text without the secrets."""
        return self.hide(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _secret_values(headers: Mapping[str, str], body: str | bytes | None) -> Iterator[str]:
    lower = {name.lower(): value for name, value in headers.items()}
    for name in lower.keys() & _HEADERS:
        scheme, _, rest = lower[name].partition(" ")
        secret = rest.strip() or scheme
        yield secret
        if scheme.lower() == "basic":
            with suppress(ValueError):
                yield base64.b64decode(secret).decode().partition(":")[2]
    if body and lower.get("content-type", "").startswith(_FORM):
        text = body if isinstance(body, str) else body.decode("utf-8", "replace")
        yield from (value for name, value in parse_qsl(text) if name in _FIELDS)


def _encoded_forms(value: bytes) -> Iterator[bytes]:
    yield value
    # In base64 of a longer text, such as `user:value`, a value begins at one of three places in a group.
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + value).rstrip(b"=")
        # The first and the last character depend on what stands beside the value.
        form = encoded[before + 1 if before else 0 : len(encoded) - bool((before + len(value)) % 3)]
        yield form
        yield form.translate(bytes.maketrans(b"+/", b"-_"))
    yield value.hex().encode()
    yield value.hex().upper().encode()


def _hide_form(data: bytes, form: bytes) -> bytes:
    text, places = _decoded(data)
    size, spans = min(_CHUNK_SIZE, len(form)), []
    for begin in range(0, len(form) - size + 1, size):
        at = text.find(form[begin : begin + size])
        while at >= 0:
            start, end = _extend(text, at, at + size, form, begin)
            if end - start >= min(2 * size - 1, len(form)):
                spans.append((places[start], places[end]))
            at = text.find(form[begin : begin + size], at + size)
    pieces, done = [], 0
    for start, end in sorted(spans):
        if start >= done:
            pieces += [data[done:start], b"[redacted]"]
        done = max(done, end)
    return b"".join([*pieces, data[done:]])


def _decoded(data: bytes) -> tuple[bytes, Sequence[int]]:
    """Return a text without the escapes of JSON, HTML and URLs, and where each of its bytes, and its end, stands in `data`."""
    text, places, at = bytearray(), array("L"), 0
    for escape in _ESCAPES.finditer(data):
        text += data[at : escape.start()]
        places.extend(range(at, escape.start()))
        kind, value = escape.lastgroup, escape[escape.lastgroup or 0]
        if kind in {"entity", "sign"}:
            text += _ENTITIES.get(value, value)
        else:
            # Secrets in headers are ASCII.
            text.append(min(int(value, 10 if kind == "decimal" else 16), 255))
        places.append(escape.start())
        at = escape.end()
    text += data[at:]
    places.extend(range(at, len(data) + 1))
    return bytes(text), places


def _extend(text: bytes, start: int, end: int, form: bytes, begin: int) -> tuple[int, int]:
    """Return the piece of the text around a match that continues like the form, which matches from `begin` on."""
    last = begin + end - start
    while start and begin and text[start - 1] == form[begin - 1]:
        start, begin = start - 1, begin - 1
    while end < len(text) and last < len(form) and text[end] == form[last]:
        end, last = end + 1, last + 1
    return start, end
