"""Secrets recognized by their form or place, and the rules that find them.

A span is a secret in a piece of text; its tail describes how it continues if the piece ends inside it.
"""

from __future__ import annotations

import base64
import binascii
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Bytes. The longest match of a rule from its anchor on, or back from it, without the part that a `tail` describes.
MAX_MATCH = 24 * 1024
LONG_WORD_LENGTH = 16
_LONG_WORD = b"a" * LONG_WORD_LENGTH
_OF_WORDS = bytes(
    ord("a") if char in b"abcdefghijklmnopqrstuvwxyz0123456789_-.~/:+=" else ord(" ") for char in range(256)
)


@dataclass(frozen=True, slots=True)
class SecretSpan:
    """A secret in a piece of text."""

    start: int
    end: int
    kind: str  # empty: not a secret, but searched already
    tail: re.Pattern[bytes] | None = None  # matches the rest of a secret that continues in the next piece
    label: bytes | None = None  # replaces the secret; None for `[redacted KIND]`

    @property
    def text(self) -> bytes:
        """The text that replaces the secret."""
        return b"[redacted %s]" % self.kind.encode() if self.label is None else self.label


@dataclass(frozen=True, slots=True)
class SecretRule:
    """How to find secrets of one kind: at each occurrence of the anchor, `find` returns the secrets."""

    anchor: bytes  # in lower case
    find: Callable[[bytes, int], Iterable[SecretSpan]]
    is_long: bool = False  # search only words of at least `LONG` characters


class LongWords:
    """The long words of a text, in lower case: much less to search than the whole text."""

    def __init__(self, lowered: bytes) -> None:
        marked = lowered.translate(_OF_WORDS)
        words, self._starts, self._positions = [], [0], [0]
        at, length = marked.find(_LONG_WORD), 0
        while at >= 0:
            end = marked.find(b" ", at + LONG_WORD_LENGTH)
            words.append(lowered[at : end if end >= 0 else len(lowered)])
            self._starts.append(length)
            self._positions.append(at)
            length += len(words[-1]) + 1
            at = marked.find(_LONG_WORD, end) if end >= 0 else -1
        self.text = b"\n".join(words)

    def place(self, at: int) -> int:
        """Return the position in the text of a position in these words."""
        part = bisect_right(self._starts, at) - 1
        return self._positions[part] + at - self._starts[part]


def run_of(characters: bytes) -> re.Pattern[bytes]:
    """Return the pattern for a run of these characters."""
    return re.compile(rb"[%s]*" % characters)


def extend_span(data: bytes, start: int, at: int, kind: str, tail: re.Pattern[bytes]) -> SecretSpan:
    """Return the secret that begins at `start`, is known up to `at`, and continues as far as `tail` matches."""
    found = tail.match(data, at)
    return SecretSpan(start, found.end() if found else at, kind, tail)


_WORD_CHARACTERS = rb"A-Za-z0-9_\-"
_DOTTED = rb"A-Za-z0-9_.~\-"
_PLAIN = rb"A-Za-z0-9"

# Kind; the anchor; the part before it, if any; the part after it; the characters that may continue it.
_TOKEN_FORMS = (
    ("oauth-token", rb"ya29.", rb"", rb"[A-Za-z0-9._~\-]{8}", _DOTTED),
    ("refresh-token", rb"1//", rb"", rb"(?:0[A-Za-z0-9_\-]{16}|[A-Za-z0-9_\-]{24})", _WORD_CHARACTERS),
    ("oauth-code", rb"4/0A", rb"", rb"[A-Za-z0-9_\-]{20}", _WORD_CHARACTERS),
    ("client-secret", rb"GOCSPX-", rb"", rb"[A-Za-z0-9_\-]{16}", _WORD_CHARACTERS),
    ("api-key", rb"AIza", rb"", rb"[A-Za-z0-9_\-]{30}", _WORD_CHARACTERS),
    *(("github-token", rb"gh%c_" % kind, rb"", rb"[A-Za-z0-9]{16}", _PLAIN) for kind in b"pousr"),
    ("github-token", rb"github_pat_", rb"", rb"[A-Za-z0-9_]{16}", _WORD_CHARACTERS),
    *(
        ("gitlab-token", rb"gl%s-" % kind, rb"", rb"[A-Za-z0-9_\-]{16}", _DOTTED)
        for kind in (b"pat", b"dt", b"rt", b"cbt", b"ptt", b"oas", b"soat", b"ft", b"imt", b"agent", b"ffct", b"wt")
    ),
    ("gitlab-token", rb"GR1348941", rb"", rb"[A-Za-z0-9_\-]{16}", _WORD_CHARACTERS),
    ("hugging-face-token", rb"hf_", rb"", rb"(?:(?:oauth|jwt)_[A-Za-z0-9_.\-]{20}|[A-Za-z0-9]{20})", _DOTTED),
    ("hugging-face-token", rb"api_org_", rb"", rb"[A-Za-z0-9]{20}", _PLAIN),
    ("wandb-key", rb"local-", rb"", rb"[0-9a-f]{40}", _PLAIN),
    ("wandb-key", rb"wandb_v1_", rb"", rb"[A-Za-z0-9_\-]{20}", _WORD_CHARACTERS),
    ("kaggle-key", rb"KGAT_", rb"", rb"[0-9A-Za-z]{20}", _PLAIN),
    ("aws-access-key", rb"AKIA", rb"", rb"[A-Z0-9]{16}", _PLAIN),
    ("aws-access-key", rb"ASIA", rb"", rb"[A-Z0-9]{16}", _PLAIN),
    ("azure-secret", rb"Q~", rb"(?<![A-Za-z0-9])[A-Za-z0-9_.~\-]{3}[0-9]", rb"[A-Za-z0-9_.~\-]{30}", _DOTTED),
    ("slack-token", rb"xox", rb"", rb"[a-eoprs]-[A-Za-z0-9\-]{10}", rb"A-Za-z0-9.%\-"),
    ("slack-token", rb"xoxe.xox", rb"", rb"[a-eoprs]-[A-Za-z0-9\-]{10}", rb"A-Za-z0-9.%\-"),
    ("slack-token", rb"xapp-", rb"", rb"[A-Za-z0-9\-]{10}", rb"A-Za-z0-9.\-"),
    ("webhook", rb"hooks.slack.com/", rb"", rb"(?:services|workflows|triggers)/[A-Za-z0-9/_\-]{8}", rb"A-Za-z0-9/_\-"),
    ("webhook", rb"/api/webhooks/", rb"", rb"[0-9]{4,24}/[A-Za-z0-9_\-]{20}", _WORD_CHARACTERS),
    ("webhook", rb"webhook.office.com/", rb"", rb"[A-Za-z0-9/_@\-]{16}", rb"A-Za-z0-9/_@\-"),
    ("telegram-token", rb":AA", rb"(?<![0-9])[0-9]{8,10}", rb"[A-Za-z0-9_\-]{33}", _WORD_CHARACTERS),
    # A key of one of these has no hyphen so soon, unlike `sk-learn-contrib-…`.
    (
        "openai-key",
        rb"sk-",
        rb"",
        rb"(?:[A-Za-z0-9]{20}|(?:proj|svcacct|admin|or|None)-[A-Za-z0-9_\-]{16})",
        _WORD_CHARACTERS,
    ),
    ("anthropic-key", rb"sk-ant-", rb"", rb"[A-Za-z0-9_\-]{16}", _WORD_CHARACTERS),
    *(
        ("model-api-key", begin, rb"", rb"[A-Za-z0-9_\-]{30}", _WORD_CHARACTERS)
        for begin in (b"gsk_", b"xai-", b"r8_", b"pplx-", b"nvapi-")
    ),
    ("stripe-key", rb"k_live_", rb"[sr]", rb"[A-Za-z0-9]{16}", _PLAIN),
    ("stripe-key", rb"k_test_", rb"[sr]", rb"[A-Za-z0-9]{16}", _PLAIN),
    ("stripe-key", rb"whsec_", rb"", rb"[A-Za-z0-9+/=]{24}", _PLAIN),
    ("npm-token", rb"npm_", rb"", rb"[A-Za-z0-9]{30}", _PLAIN),
    ("pypi-token", rb"pypi-AgE", rb"", rb"[A-Za-z0-9_\-]{20}", _WORD_CHARACTERS),
    ("rubygems-key", rb"rubygems_", rb"", rb"[0-9a-f]{40}", _PLAIN),
    ("docker-token", rb"dckr_", rb"", rb"(?:pat|oat)_[A-Za-z0-9_\-]{20}", _WORD_CHARACTERS),
    ("databricks-token", rb"dapi", rb"", rb"[0-9a-f]{32}", rb"0-9a-f\-"),
    ("digitalocean-token", rb"_v1_", rb"do[opr]", rb"[0-9a-f]{40}", _PLAIN),
    *(("vault-token", rb"hv%c." % kind, rb"", rb"[A-Za-z0-9_\-]{20}", _WORD_CHARACTERS) for kind in b"sbr"),
    ("terraform-token", rb".atlasv1.", rb"[A-Za-z0-9]{14}", rb"[A-Za-z0-9_\-]{20}", _WORD_CHARACTERS),
    ("pulumi-token", rb"pul-", rb"", rb"[0-9a-f]{40}", _PLAIN),
    ("grafana-token", rb"glsa_", rb"", rb"[A-Za-z0-9]{30}", _WORD_CHARACTERS),
    ("grafana-token", rb"glc_", rb"", rb"[A-Za-z0-9+/=]{30}", rb"A-Za-z0-9+/="),
    ("linear-key", rb"lin_api_", rb"", rb"[A-Za-z0-9]{30}", _PLAIN),
    ("notion-token", rb"ntn_", rb"", rb"[A-Za-z0-9]{40}", _PLAIN),
    ("notion-token", rb"secret_", rb"", rb"[A-Za-z0-9]{43}", _PLAIN),
    ("doppler-token", rb"dp.", rb"", rb"(?:pt|st|sa|ct|scim|audit)\.[A-Za-z0-9._\-]{30}", _DOTTED),
    ("fly-token", rb"fm2_", rb"", rb"[A-Za-z0-9+/=_\-]{30}", rb"A-Za-z0-9+/=_\-,"),
    ("shopify-token", rb"shp", rb"", rb"(?:at|ca|pa|ss)_[0-9a-fA-F]{32}", _PLAIN),
    ("tailscale-key", rb"tskey-", rb"", rb"[A-Za-z0-9\-]{16}", _WORD_CHARACTERS),
    ("sendgrid-key", rb"SG.", rb"", rb"[A-Za-z0-9_\-]{20,24}\.[A-Za-z0-9_\-]{30}", _WORD_CHARACTERS),
    ("age-key", rb"AGE-SECRET-KEY-1", rb"", rb"[A-Z0-9]{20}", _PLAIN),
    ("sentry-token", rb"sntry", rb"", rb"[su]_[A-Za-z0-9+/=_\-]{30}", rb"A-Za-z0-9+/=_\-"),
    # Header and payload; an encrypted one has more parts, a detached one no payload.
    ("jwt", rb"eyJ", rb"", rb"[A-Za-z0-9_\-]{6,4096}\.(?:[A-Za-z0-9_\-]{8}|\.[A-Za-z0-9_\-]{8})", _DOTTED + rb"="),
)
# Short anchors occur within words too, or within base64. After an escape such as `\n` in JSON, or `%3D` in a URL, a word always
# begins; `1//` occurs in many paths, after a word, a slash or a dot.
_ESCAPED = rb"(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})"
_NO_WORD = rb"(?:(?<![A-Za-z0-9_\-])|" + _ESCAPED + rb")"
_NO_PATH = rb"(?:(?<![\w/.:\-])|" + _ESCAPED + rb")"
_NO_BASE64 = rb"(?:(?<![A-Za-z0-9/+])|" + _ESCAPED + rb")"
_BEFORE = {
    **dict.fromkeys((b"1//", b"4/0A"), _NO_PATH),
    **dict.fromkeys((b"AIza", b"AKIA", b"ASIA", b"SG.", b"dp."), _NO_BASE64),
    **dict.fromkeys(
        (
            b"eyJ",
            b"hf_",
            b"npm_",
            b"sk-",
            b"dapi",
            b"gsk_",
            b"xai-",
            b"r8_",
            b"ntn_",
            b"glc_",
            b"pul-",
            b"shp",
            b"secret_",
        ),
        _NO_WORD,
    ),
}
# Anchors of tokens that may be as short as a short word.
_SHORT = frozenset({b"ya29.", b"xox", b"xapp-", b"hooks.slack.com/", b"eyJ"})
_FARTHEST_BACK = 16
# Text copied from a terminal has long words cut. The header of a log line does not continue a word.
_MIN_WRAP_COLUMN = 72
_REST = re.compile(
    rb"\n(?![IWEF][0-9]{4}\b|[0-9]{4}-[0-9]{2})(?=[A-Za-z_\-]{0,40}[0-9])(?=[^A-Za-z]{0,40}[A-Za-z])[A-Za-z0-9._~+/=\-]{4,4096}"
)


def token_rules() -> tuple[SecretRule, ...]:
    """Return the rules for tokens, one for each prefix of an issuer. Sources: the documentation of the issuers."""
    found: list[SecretRule] = []
    for kind, anchor, back, following, characters in _TOKEN_FORMS:
        whole = re.compile(_BEFORE.get(anchor, rb"") + re.escape(anchor) + following)
        form = _TokenForm(kind, re.compile(back + rb"$") if back else None, whole, run_of(characters))
        found.append(SecretRule(anchor.lower(), partial(_find_token, form), is_long=anchor not in _SHORT))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _TokenForm:
    """The form of a token."""

    kind: str
    back: re.Pattern[bytes] | None  # the part before the anchor, if any
    whole: re.Pattern[bytes]  # the anchor and the part after it
    tail: re.Pattern[bytes]


def _find_token(form: _TokenForm, data: bytes, at: int) -> Iterator[SecretSpan]:
    found = form.whole.match(data, at)
    if found is None:
        return
    start = at
    if form.back is not None:
        floor = max(0, at - _FARTHEST_BACK)
        before = form.back.search(data[floor:at])
        if before is None:
            return
        start = floor + before.start()
    span = extend_span(data, start, found.end(), form.kind, form.tail)
    # The bytes of the line before the end of the token, up to the width that matters.
    column = span.end - data.rfind(b"\n", max(0, span.end - _MIN_WRAP_COLUMN - 1), span.end) - 1
    rest = _REST.match(data, span.end) if column >= _MIN_WRAP_COLUMN else None
    yield replace(span, end=rest.end()) if rest else span


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


def key_rules() -> tuple[SecretRule, ...]:
    """Return the rules for private keys: PEM blocks, also with escaped line ends or truncated, and base64 of these."""
    encoded = tuple(SecretRule(anchor.lower(), _find_encoded, is_long=True) for anchor in _ENCODED)
    return (
        *(SecretRule(dashes + b"begin ", _find_block) for dashes in (b"-----", b"---- ")),
        *(SecretRule(dashes + b"end ", _find_block_end) for dashes in (b"-----", b"---- ")),
        *encoded,
        *(SecretRule(begin.lower(), _find_headless, is_long=True) for begin in _HEADLESS),
    )


def _find_block(data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield a block to its end; without an end, each long word of base64 that follows."""
    begin = _BEGIN.match(data, at)
    if begin is None:
        return
    until = min(len(data), begin.end() + _LONGEST)
    another = data.find(b"BEGIN ", begin.end(), until)
    end = data.find(begin.group()[:5] + b"END", begin.end(), until if another < 0 else another)
    if end >= 0:
        closed = _END.match(data, end)
        yield SecretSpan(at, closed.end() if closed else end, _KIND)
        return
    yield SecretSpan(at, begin.end(), _KIND)
    for body in _BODY.finditer(data, begin.end(), until if another < 0 else another):
        yield SecretSpan(*body.span(), _KIND)


def _find_block_end(data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield the end of a block, and the lines of base64 before it: the beginning may be missing."""
    end = _END.match(data, at)
    if end is None:
        return
    yield SecretSpan(*end.span(), _KIND)
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
        yield SecretSpan(start, floor + breaks[index].start(), _KIND)
        is_last = False


def _find_encoded(data: bytes, at: int) -> Iterator[SecretSpan]:
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
    yield extend_span(data, start, at, _KIND, _MORE_LINES)


def _find_headless(data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield a run of base64 that begins like a private key, or holds a word found next to secrets."""
    floor = max(0, at - 4096)
    start = floor + len(data[floor:at].rstrip(_ALPHABET))
    span = extend_span(data, start, at, _KIND, _MORE_LINES)
    if span.end - span.start >= _LEAST_OF_A_LINE:
        yield span


# These loops end their patterns, so they never backtrack. (CPython 3.11.0 to 3.11.4 compile possessive quantifiers and atomic
# groups wrongly: gh-100061, gh-106052.)
_REST_OF_WORD = re.compile(rb"(?:[^\s\"'\x00\\,]+|\\(?!\\{0,31}[nrt\"']))*")
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


def place_rules() -> tuple[SecretRule, ...]:
    """Return the rules for secrets in headers, URLs, netrc files and similar places, one for each kind of place."""
    return (
        SecretRule(b"authorization", partial(_header, b"authorization")),
        SecretRule(b"cookie", partial(_header, b"cookie")),
        SecretRule(b"bearer ", _bearer),
        SecretRule(b"://", _url),
        SecretRule(b"machine ", partial(_after, _NETRC, "password")),
        SecretRule(b"machine\n", partial(_after, _NETRC, "password")),
        SecretRule(b"-u", partial(_after, _CREDENTIALS, "password")),
        SecretRule(b"--user", partial(_after, _CREDENTIALS, "password")),
        SecretRule(b"--proxy-user", partial(_after, _CREDENTIALS, "password")),
        SecretRule(b"wandb", partial(_after, _WANDB, "wandb-key")),
        SecretRule(b'"auth', partial(_after, _DOCKER, "password")),
        SecretRule(b"?", _query),
        SecretRule(b"&", _query),
        SecretRule(b"sessionid=", partial(_after, _SESSION, "cookie")),
        SecretRule(b"private-lines: ", _putty),
        SecretRule(b'"kty"', _jwk),
        SecretRule(b'"username"', partial(_after, _KAGGLE, "kaggle-key")),
        SecretRule(b"api key", partial(_after, _PASTED, "wandb-key")),
    )


def _after(place: re.Pattern[bytes], kind: str, data: bytes, at: int) -> Iterator[SecretSpan]:
    found = place.match(data, at)
    if found is None:
        return
    span = extend_span(data, found.end(), found.end(), kind, _REST_OF_WORD)
    # `docker run -u 1000:1000` has no password.
    is_number = "user" in place.groupindex and data[span.start : span.end].isdigit() and found["user"].isdigit()
    if span.end > span.start and not is_number:
        yield span


def _header(name: bytes, data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield the value of a header, without its scheme."""
    found = _HEADER.match(data, at + len(name))
    if found is None:
        return
    scheme = (found["scheme"] or b"").lower()
    is_one = _COOKIE.match(data, found.end()) if name == b"cookie" else scheme or _UNSCHEMED.match(data, found.end())
    if not is_one or data.startswith((b"$(", b"${", b"`", b"<"), found.end()):
        return
    tail = (
        _REST_OF_WORD if scheme in {b"bearer", b"basic", b"token", b"oauth", b"negotiate", b"apikey"} else _REST_OF_LINE
    )
    span = extend_span(data, found.end(), found.end(), name.decode(), tail)
    if span.end > span.start:
        yield span


def _bearer(data: bytes, at: int) -> Iterator[SecretSpan]:
    if found := _BEARER.match(data, at):
        yield extend_span(data, found.start("token"), found.end(), "bearer-token", _REST_OF_WORD)


def _url(data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield the password of `scheme://user:password@host`; the password may contain an `@`."""
    if alone := _USER_ALONE.match(data, at - 1 if data[at - 1 : at] == b"s" else at):
        yield SecretSpan(*alone.span("token"), "password")
        return
    found = _USER_OF_URL.match(data, at)
    if found is None:
        return
    password = _PASSWORD_OF_URL.match(data, found.end())
    if password is None or b"@" not in password.group():
        password = _PASSWORD_WITH_SLASH.match(data, found.end())
    end = data.rfind(b"@", found.end(), password.end()) if password else -1
    if end > found.end():
        yield SecretSpan(found.end(), end, "password")


def _query(data: bytes, at: int) -> Iterator[SecretSpan]:
    found = _QUERY.match(data, at)
    if found is None:
        return
    span = extend_span(data, found.end(), found.end(), "signature", _URL_VALUE)
    if span.end - span.start >= (8 if found["sure"] else _LEAST_OF_A_CODE):
        yield span


def _putty(data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield the lines of a private key in PuTTY's format."""
    if found := _PUTTY.match(data, at):
        yield SecretSpan(*found.span("lines"), "private-key")


def _jwk(data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield the private part of a key in JSON."""
    begin = max(data.rfind(b"{", max(0, at - 4096), at), 0)
    for found in _JWK.finditer(data, begin, at + 8192):
        yield SecretSpan(*found.span("part"), "private-key")
    # Search this part only once, even if several keys follow each other.
    yield SecretSpan(at, min(len(data), at + 8192), "")


_VALUE = rb"(?P<secret>'[^'\r\n]{1,512}'|\"[^\"\r\n]{1,512}\"|[^\s\"'|;&\x00\\]{1,512})"
_LOGINS = rb"[^\r\n]{0,10}?(?:docker|podman|az|helm|oras|crane|skopeo|nerdctl) login[ \t]"
_LOGIN = rb"[^\r\n]{0,200}?[\"' \t][\w.\-]{1,64}"
_PIPED = rb"[ \t]{0,4}\|[ \t]{0,4}"
_UPTO = rb"(?:[^\r\n;|&]{0,400}?[ \t\"',])?"
# An anchor, how far before it the command may begin, and the pattern with the secret.
_COMMANDS = (
    (b"mysql", 0, rb"mysql\w{0,10}[ \t]" + _UPTO + rb"-p(?=[^\s])" + _VALUE),
    (b"mariadb", 0, rb"mariadb[\w\-]{0,10}[ \t]" + _UPTO + rb"-p(?=[^\s])" + _VALUE),
    (b" login ", 10, _LOGINS + _UPTO + rb"-p[ =]" + _VALUE),
    (b"redis-cli", 0, rb"redis-cli[ \t]" + _UPTO + rb"-a[ ]" + _VALUE),
    (b"sshpass", 0, rb"sshpass[ \t]{1,4}-p[ ]?" + _VALUE),
    (b"unzip ", 0, rb"unzip[ \t]" + _UPTO + rb"-P[ ]" + _VALUE),
    (b"zip ", 0, rb"zip[ \t]" + _UPTO + rb"-P[ ]" + _VALUE),
    (b"7z", 0, rb"7z[a-z]?[ \t]" + _UPTO + rb"-p" + _VALUE),
    (b" pass:", 12, rb"[^\r\n]{0,12}?-pass(?:in|out)?[ ]pass:" + _VALUE),
    (b"chpasswd", 200, _LOGIN + rb":(?P<secret>[^\s\"'|]{1,256})[\"']?" + _PIPED + rb"(?:sudo )?chpasswd"),
    (b"| sudo -", 200, rb"[^\r\n]{0,200}?echo[ \t]{1,4}(?:-\w{1,3}[ \t]{1,4})?" + _VALUE + rb"[ \t]{0,4}\| sudo -\w{0,4}S"),
    (b"basicauth(", 0, rb"(?i:basicauth)\([^)\r\n]{0,200}?,[ \t]?" + _VALUE),
    (b"auth=(", 0, rb"auth=\([^)\r\n]{0,200}?,[ \t]?" + _VALUE),
)  # fmt: skip


def command_rules() -> tuple[SecretRule, ...]:
    """Return the rules for command lines of well-known programs. Sources: the manuals of the programs."""
    return tuple(
        SecretRule(anchor, partial(_find_in_command, back, re.compile(pattern))) for anchor, back, pattern in _COMMANDS
    )


def _find_in_command(back: int, place: re.Pattern[bytes], data: bytes, at: int) -> Iterator[SecretSpan]:
    begin = max(0, at - back)
    begin = max(begin, data.rfind(b"\n", begin, at) + 1)
    found = place.match(data, begin)
    if found is None:
        return
    start, end = found.span("secret")
    if data[start : start + 1] in (b"'", b'"'):
        start, end = start + 1, end - 1
    yield SecretSpan(start, end, "password")
