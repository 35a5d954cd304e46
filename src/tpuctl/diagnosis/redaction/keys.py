"""Private keys: PEM blocks, also with escaped line ends or truncated, and base64 of these."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction.spans import Rule, Span, going_on

if TYPE_CHECKING:
    from collections.abc import Iterator

_KIND = "private-key"
# An RSA key of 16384 bits has 13 kB.
_LONGEST = 16 * 1024
_BEGIN = re.compile(rb"----[ -]BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?[ -]----")
_END = re.compile(rb"----[ -]END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?[ -]----")
_BODY = re.compile(rb"[A-Za-z0-9+/]{16,}={0,2}")
_LINE_END = re.compile(rb"(?:\\{1,32}[rn]|[\r\n])+")
_LAST_WORD = re.compile(rb"[A-Za-z0-9+/]{1,}={0,2}$")
_LEAST_OF_A_LINE = 40

# `-----BEGIN` in base64, at each offset in the groups of three bytes.
_ENCODED = (b"LS0tLS1CRUdJT", b"0tLS0tQkVHSU", b"tLS0tLUJFR0lO")
# Parts of the first line of a key of any length: PKCS #8 with RSA or EC, PKCS #1, OpenSSH; and of documents that hold a key, a
# refresh token or the secret of a client, at each offset in the groups of three bytes.
_HEADLESS = (
    *(
        b"IBADANBgkqhkiG9w0BAQEFAASC",
        b"AgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0w",
        b"IBAAKCAQEA",
        b"IBAAKCAgEA",
        b"IBAAKBgQ",
    ),
    b"b3BlbnNzaC1rZXktdjEAAAAA",
    *(b"UFJJVkFURSBLRV", b"BSSVZBVEUgS0VZ", b"QUklWQVRFIEtFW", b"cHJpdmF0ZV9rZX", b"ByaXZhdGVfa2V5", b"wcml2YXRlX2tle"),
    *(b"cmVmcmVzaF90b2tlb", b"JlZnJlc2hfdG9rZW", b"yZWZyZXNoX3Rva2Vu"),
    *(b"Y2xpZW50X3NlY3Jld", b"NsaWVudF9zZWNyZX", b"jbGllbnRfc2VjcmV0"),
)
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_MORE_LINES = re.compile(
    rb"(?:[A-Za-z0-9+/=]+|(?:\\{1,32}[rn]|[\r\n\t ])+(?=[A-Za-z0-9+/]{16}|[A-Za-z0-9+/]{1,15}\Z))*"
)


def rules() -> tuple[Rule, ...]:
    """Return the rules for private keys."""
    encoded = tuple(Rule(anchor.lower(), _find_encoded, is_long=True) for anchor in _ENCODED)
    return (
        *(Rule(dashes + b"begin ", _find_block) for dashes in (b"-----", b"---- ")),
        *(Rule(dashes + b"end ", _find_block_end) for dashes in (b"-----", b"---- ")),
        *encoded,
        *(Rule(begin.lower(), _find_headless, is_long=True) for begin in _HEADLESS),
    )


def _find_block(data: bytes, at: int) -> Iterator[Span]:
    """Yield a block to its end; without an end, each long word of base64 that follows."""
    begin = _BEGIN.match(data, at)
    if begin is None:
        return
    until = min(len(data), begin.end() + _LONGEST)
    another = data.find(b"BEGIN ", begin.end(), until)
    end = data.find(begin.group()[:5] + b"END", begin.end(), until if another < 0 else another)
    if end >= 0:
        closed = _END.match(data, end)
        yield Span(at, closed.end() if closed else end, _KIND)
        return
    yield Span(at, begin.end(), _KIND)
    for body in _BODY.finditer(data, begin.end(), until if another < 0 else another):
        yield Span(*body.span(), _KIND)


def _find_block_end(data: bytes, at: int) -> Iterator[Span]:
    """Yield the end of a block, and the lines of base64 before it: the beginning may be missing."""
    end = _END.match(data, at)
    if end is None:
        return
    yield Span(*end.span(), _KIND)
    # An earlier block does not belong to this one.
    floor = max(0, at - _LONGEST, data.rfind(b"-----", max(0, at - _LONGEST), at))
    before = data[floor:at]
    breaks = [*_LINE_END.finditer(before)]
    is_last = True
    for index in range(len(breaks) - 1, -1, -1):
        begin = breaks[index - 1].end() if index else 0
        line = before[begin : breaks[index].start()]
        word = _LAST_WORD.search(line[-200:])
        if word is None or (len(word.group()) < _LEAST_OF_A_LINE and not is_last):
            return
        start = floor + begin + max(0, len(line) - 200) + word.start()
        yield Span(start, floor + breaks[index].start(), _KIND)
        is_last = False


def _find_encoded(data: bytes, at: int) -> Iterator[Span]:
    """Yield a run of base64 that contains a private key, such as the key file of a service account."""
    if not data.startswith(_ENCODED, at):
        return
    floor = max(0, at - 4096)
    start = floor + len(data[floor:at].rstrip(_ALPHABET))
    for skipped in range(4):
        try:
            text = base64.b64decode(data[at + skipped : at + skipped + 64], validate=True)
        except binascii.Error:
            break
        if b"CERTIFICATE" in text or b"PUBLIC KEY" in text:
            return
    yield going_on(data, start, at, _KIND, _MORE_LINES)


def _find_headless(data: bytes, at: int) -> Iterator[Span]:
    """Yield a run of base64 that begins like a private key, or holds a word found next to secrets."""
    floor = max(0, at - 4096)
    start = floor + len(data[floor:at].rstrip(_ALPHABET))
    span = going_on(data, start, at, _KIND, _MORE_LINES)
    if span.end - span.start >= _LEAST_OF_A_LINE:
        yield span
