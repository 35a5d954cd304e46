"""Private keys: whole PEM blocks, also with escaped line ends, blocks of which a part was cut off, and base64 of all that."""

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

# What `-----BEGIN` is in base64, wherever it begins among the groups of three bytes.
_ENCODED = (b"LS0tLS1CRUdJT", b"0tLS0tQkVHSU", b"tLS0tLUJFR0lO")
# What is within the first line of a key, whatever its length: PKCS #8 with RSA or EC, PKCS #1, OpenSSH; also of documents that
# hold a key, a refresh token or the secret of a client, wherever the word begins among the groups of three bytes.
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
    """Return the rules."""
    encoded = tuple(Rule(anchor.lower(), _look_encoded, is_long=True) for anchor in _ENCODED)
    return (
        *(Rule(dashes + b"begin ", _look_from_begin) for dashes in (b"-----", b"---- ")),
        *(Rule(dashes + b"end ", _look_back_from_end) for dashes in (b"-----", b"---- ")),
        *encoded,
        *(Rule(begin.lower(), _look_headless, is_long=True) for begin in _HEADLESS),
    )


def _look_from_begin(data: bytes, at: int) -> Iterator[Span]:
    """Yield a block to its end; where that is missing each long word of base64 that follows."""
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


def _look_back_from_end(data: bytes, at: int) -> Iterator[Span]:
    """Yield the end of a block, and the lines of base64 before it: its beginning may have been cut off."""
    end = _END.match(data, at)
    if end is None:
        return
    yield Span(*end.span(), _KIND)
    # An earlier block is not a part of this one.
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


def _look_encoded(data: bytes, at: int) -> Iterator[Span]:
    """Yield a run of base64 in which a private key is, with what of it stands before: a file of a service account, perhaps."""
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


def _look_headless(data: bytes, at: int) -> Iterator[Span]:
    """Yield a run of base64 that begins like a private key, or holds a word that stands beside a secret."""
    floor = max(0, at - 4096)
    start = floor + len(data[floor:at].rstrip(_ALPHABET))
    span = going_on(data, start, at, _KIND, _MORE_LINES)
    if span.end - span.start >= _LEAST_OF_A_LINE:
        yield span
