"""Remove secrets from text that leaves this machine, and name the kind of each: `[redacted oauth-token]`. Pure.

`Redactor` works on bytes as they arrive, in bounded memory and linear time. The result does not depend on how the pieces are
cut; text without secrets passes unchanged. It searches `PlainText`: without colours, and with the escapes of JSON, HTML, URLs
and shells decoded. Each rule has an anchor, a literal that is fast to find. The rules find private keys (`_key_rules`), tokens
with the form of their issuer (`_token_rules`), secrets in known places, such as headers and command lines (`_place_rules`), and
the values of names (`_name_rules`): `NAME=value`, `"name": "value"`, `--name value`, and similar.

`hide_metadata` is for documents of the API. A secret without a known form, or a name before it, cannot be found: a person must
still review the text.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import ipaddress
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from tpuctl.escaping import mask_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Bytes decided at once, with `_MAX_MATCH` more in view after them and `_CONTEXT_SIZE` before them. No match of a rule is longer
# from its anchor on, or reaches further back, without the part that a `tail` describes.
_WINDOW_SIZE = 256 * 1024
_MAX_MATCH = 24 * 1024
_CONTEXT_SIZE = 2048
# A piece is cut at the end of a line if possible, or of a word.
_MAX_CUT_BACK = 32 * 1024
_BREAKS = (b"\n", b" ")
# Bytes at the beginning that show the encoding.
_SAMPLE_SIZE = 4096
_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


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
    is_long: bool = False  # occurs only in words of at least `_LONG_WORD` characters


class Redactor:
    """Takes a text in pieces and returns it without its secrets. `counts` is the number of secrets by kind.

    Never fails on any bytes. UTF-16 is returned as UTF-8. With `accounts` e-mail and IP addresses are hidden too.
    """

    def __init__(self, accounts: AccountAliases | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._accounts = accounts
        # The last decided bytes, which are the context of later matches, then the bytes to decide.
        self._context, self._waiting = b"", b""
        self._tail: re.Pattern[bytes] | None = None
        self._decode: Callable[[bytes, bool], bytes] | None = None

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return the bytes decided so far."""
        done = []
        for at in range(0, len(data), _WINDOW_SIZE):
            self._take(data[at : at + _WINDOW_SIZE])
            while len(self._waiting) >= _WINDOW_SIZE + _MAX_MATCH:
                done.append(self._decide())
        return b"".join(done)

    def close(self) -> bytes:
        """Return the rest."""
        self._take(b"", is_last=True)
        done = []
        while self._waiting:
            done.append(self._decide())
        return b"".join(done)

    def _take(self, piece: bytes, *, is_last: bool = False) -> None:
        if self._decode is None:
            piece, self._waiting = self._waiting + piece, b""
            if len(piece) < _SAMPLE_SIZE and not is_last:
                self._waiting = piece
                return
            self._decode = _detect_encoding(piece[:_SAMPLE_SIZE])
        self._waiting += self._decode(piece, is_last)

    def _decide(self) -> bytes:
        """Return the next bytes without their secrets; the rest waits."""
        view = self._waiting[: _WINDOW_SIZE + _MAX_MATCH]
        if self._tail is not None:
            found = self._tail.match(view)
            skipped = found.end() if found else 0
            if skipped < len(view):
                self._tail = None
            if skipped:
                self._advance(skipped)
                return b""
        is_last = len(view) < _WINDOW_SIZE + _MAX_MATCH
        cut = len(view)
        if not is_last:
            ends = (view.rfind(mark, _WINDOW_SIZE - _MAX_CUT_BACK, _WINDOW_SIZE) + 1 for mark in _BREAKS)
            cut = next((end for end in ends if end), _WINDOW_SIZE)
        base = len(self._context)
        pieces, at = [], 0
        for span in _merge_spans(self._find_spans(self._context + view), base):
            if span.start - base >= max(cut, at):
                break
            pieces += [view[at : span.start - base], span.text]
            self.counts[span.kind] += 1
            at = span.end - base
            self._tail = span.tail if at == len(view) and not is_last else None
        upto = max(cut, at)
        pieces.append(view[at:upto])
        self._advance(upto)
        return b"".join(pieces)

    def _find_spans(self, data: bytes) -> list[SecretSpan]:
        plain = PlainText(data)
        lowered = plain.text.lower()
        words = LongWords(lowered)
        found = [
            replace(span, start=plain.start(span.start), end=plain.end(span.end))
            for rule in _rules()
            for span in (
                _find_all(rule, plain.text, words.text, words.place)
                if rule.is_long
                else _find_all(rule, plain.text, lowered)
            )
        ]
        return found + (list(self._accounts.spans(data)) if self._accounts else [])

    def _advance(self, size: int) -> None:
        self._context = (self._context + self._waiting[:size])[-_CONTEXT_SIZE:]
        self._waiting = self._waiting[size:]


def redact(data: bytes, accounts: AccountAliases | None = None) -> bytes:
    """Return a text without its secrets."""
    redactor = Redactor(accounts)
    return redactor.feed(data) + redactor.close()


@cache
def _rules() -> tuple[SecretRule, ...]:
    """Return all rules; of two that find the same place, the earlier names it."""
    names = (SecretRule(anchor, partial(_find_value, anchor)) for anchor in _NAME_ANCHORS)
    return (*_key_rules(), *_token_rules(), *_place_rules(), *names)


def _detect_encoding(begin: bytes) -> Callable[[bytes, bool], bytes]:
    """Return the function that turns a piece, which may be the last, into UTF-8; `begin` is the beginning of the text."""
    encoding = next((name for mark, name in _BOMS.items() if begin.startswith(mark)), None)
    if encoding is None and len(begin) >= 32:
        for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
            zeros, others = begin[first::2], begin[1 - first :: 2]
            if zeros.count(0) > 0.9 * len(zeros) and others.count(0) < 0.1 * len(others):
                encoding = name
    if encoding is None:
        return lambda piece, _: piece
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    return lambda piece, is_last: decoder.decode(piece, is_last).encode("utf-8", "replace")


def _find_all(
    rule: SecretRule, data: bytes, searched: bytes, place: Callable[[int], int] = lambda at: at
) -> Iterator[SecretSpan]:
    """Yield the secrets at each anchor in the searched text; `place` returns the position in `data` of one in that text."""
    at, done = searched.find(rule.anchor), 0
    while at >= 0:
        position = place(at)
        # A match inside a secret of the same kind is a part of it.
        for span in rule.find(data, position) if position >= done else ():
            if span.kind:
                yield span
            done = max(done, span.end)
        at = searched.find(rule.anchor, at + 1)


def _merge_spans(spans: Sequence[SecretSpan], base: int) -> list[SecretSpan]:
    """Return the spans in order, merged if they overlap and named by the first rule. Skips bytes decided before `base`."""
    merged: list[SecretSpan] = []
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        start = max(span.start, base)
        if span.end <= start:
            continue
        if not merged or start >= merged[-1].end:
            merged.append(replace(span, start=start))
        elif span.end > merged[-1].end:
            merged[-1] = replace(merged[-1], end=span.end, tail=span.tail)
    return merged


# Words that long hold most tokens: much less to search than the whole text.
_LONG_WORD = 16
_OF_WORDS = bytes(
    ord("a") if char in b"abcdefghijklmnopqrstuvwxyz0123456789_-.~/:+=" else ord(" ") for char in range(256)
)


class LongWords:
    """The long words of a text in lower case."""

    def __init__(self, lowered: bytes) -> None:
        marked = lowered.translate(_OF_WORDS)
        words, self._starts, self._positions = [], [0], [0]
        at, length = marked.find(b"a" * _LONG_WORD), 0
        while at >= 0:
            end = marked.find(b" ", at + _LONG_WORD)
            words.append(lowered[at : end if end >= 0 else len(lowered)])
            self._starts.append(length)
            self._positions.append(at)
            length += len(words[-1]) + 1
            at = marked.find(b"a" * _LONG_WORD, end) if end >= 0 else -1
        self.text = b"\n".join(words)

    def place(self, at: int) -> int:
        """Return the position in the text of a position in these words."""
        part = bisect_right(self._starts, at) - 1
        return self._positions[part] + at - self._starts[part]


_ESCAPES = re.compile(
    # Colours and cursor moves, also as programs write them into JSON.
    rb"(?P<colour>(?:\x1b|\\{1,32}(?:u001[bB]|x1[bB]|033|e))\[[0-9;:?]{0,24}[A-Za-z])"
    rb"|\\{1,32}u00(?P<code>[2-7][0-9A-Fa-f])"
    rb"|\\{1,32}(?P<slash>/)"
    rb"|%(?P<percent>3[dD]|26|3[fF]|2[eE]|22)"
    rb"|&(?P<entity>amp|quot|#39|#x27|#34);"
    # A quote within quotes, for a shell.
    rb"|(?P<shell>'\"'\"'|'\\'')"
)
_ENTITIES = {b"amp": b"&", b"quot": b'"', b"#39": b"'", b"#x27": b"'", b"#34": b'"'}
_SIGNS = (b"\x1b[", b"\\", b"%", b"&", b"'\"'")


class PlainText:
    """A text with its escapes decoded, and the positions of its parts in the original text."""

    def __init__(self, written: bytes) -> None:
        # Of each escape: its start and end in the decoded text, and in the original.
        self._escapes = [(0, 0, 0, 0)]
        pieces, at, length = [], 0, 0
        for found in _ESCAPES.finditer(written) if any(sign in written for sign in _SIGNS) else ():
            decoded = _decode(found)
            pieces += [written[at : found.start()], decoded]
            length += found.start() - at
            self._escapes.append((length, length + len(decoded), *found.span()))
            length += len(decoded)
            at = found.end()
        self.text = b"".join([*pieces, written[at:]]) if pieces else written
        self._starts = [escape[0] for escape in self._escapes]

    def start(self, at: int) -> int:
        """Return the start in the original text of a part that starts here."""
        _, decoded_end, start, end = self._escapes[bisect_right(self._starts, at) - 1]
        return start if at < decoded_end else end + at - decoded_end

    def end(self, at: int) -> int:
        """Return the end in the original text of a part that ends here, which is not empty."""
        _, decoded_end, _, end = self._escapes[bisect_right(self._starts, at - 1) - 1]
        return end + max(0, at - decoded_end)


def _decode(found: re.Match[bytes]) -> bytes:
    match found.lastgroup:
        case "code" | "percent":
            char = bytes([int(found[found.lastgroup], 16)])
            return b"\\" + char if char in b"\"'\\" else char
        case "slash":
            return b"/"
        case "entity":
            return _ENTITIES[found["entity"]]
        case "shell":
            return b"\\'"
        case _:
            return b""


_EMAIL = re.compile(
    rb"(?<![A-Za-z0-9._%+\-])[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){0,8}\.[A-Za-z]{2,24}"
)
_ADDRESSES = (
    re.compile(rb"(?<![\w.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w]|\.[0-9])"),
    re.compile(
        rb"(?<![\w:.])(?:(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}"
        rb"|(?:[0-9A-Fa-f]{1,4}:){1,6}(?::[0-9A-Fa-f]{1,4}){1,6})(?![\w:])"
    ),
)


class AccountAliases:
    """Gives each address an alias: `account-1`, `address-2`. The same in all files of a bundle; safe for several threads."""

    def __init__(self) -> None:
        self._aliases: dict[bytes, bytes] = {}
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    def spans(self, data: bytes) -> Iterator[SecretSpan]:
        """Yield the addresses in a piece of text, except those that are the same on every machine."""
        for found in _EMAIL.finditer(data) if b"@" in data else ():
            yield self._span("account", found)
        for pattern in _ADDRESSES:
            for found in pattern.finditer(data):
                try:
                    ip = ipaddress.ip_address(found.group().decode("ascii"))
                except ValueError:
                    continue
                if not (ip.is_loopback or ip.is_unspecified or ip.is_link_local or ip.is_multicast):
                    yield self._span("address", found)

    def _span(self, kind: str, found: re.Match[bytes]) -> SecretSpan:
        name = found.group().lower()
        with self._lock:
            if name not in self._aliases:
                self._counts[kind] += 1
                self._aliases[name] = f"{kind}-{self._counts[kind]}".encode()
            return SecretSpan(*found.span(), kind, label=self._aliases[name])


# Switches of the guest and of tpuctl [documentation of metadata; gcloud 528 source].
_HARMLESS_METADATA = frozenset(
    {
        *("enable-oslogin", "enable-oslogin-2fa", "enable-oslogin-sk", "enable-guest-attributes", "enable-osconfig"),
        *("block-project-ssh-keys", "serial-port-enable", "serial-port-logging-enable", "disable-legacy-endpoints"),
        *("google-logging-enabled", "google-monitoring-enabled", "vmdnssetting", "agent-node-id", "accelerator-type"),
        *("framework", "tpu-env-version", "physical-topology", "agent-worker-number"),
        # Treated like a log: text redaction removes the secrets in them.
        *("startup-script", "shutdown-script", "startup-script-url", "shutdown-script-url"),
    }
)
_SUSPECT = re.compile(r"(?i)passw(?:or)?d|passphrase|secret|credential|token|[-_]?key|_pass|auth|cookie")
_SSH_KEY_NAMES = frozenset({"ssh-keys", "sshkeys"})


def hide_metadata(document: Any) -> Any:  # JSON
    """Return a document of the API, or a line of the journal, whose metadata values are hidden unless they are harmless.

    Keeps the logins and fingerprints of ssh keys, and scripts.
    """

    def shown(key: str, value: Any) -> Any:  # JSON
        if key.lower() in _HARMLESS_METADATA:
            return value
        if key.lower() in _SSH_KEY_NAMES and isinstance(value, str):
            return "\n".join(_fingerprint(line) for line in value.splitlines() if line.strip())
        return f"[hidden: {len(str(value))} characters]"

    return mask_metadata(document, shown)


def hide_suspicious_values(document: Any) -> Any:  # JSON
    """Return a document with every value hidden whose name may be that of a secret; the structure stays."""
    if isinstance(document, list):
        return [hide_suspicious_values(one) for one in document]
    if not isinstance(document, dict):
        return document
    return {
        key: "[hidden]"
        if _SUSPECT.search(str(key)) and not isinstance(value, dict | list)
        else hide_suspicious_values(value)
        for key, value in document.items()
    }


def _fingerprint(line: str) -> str:
    """Return the login, the type and the fingerprint of a line `LOGIN:TYPE BASE64 COMMENT`, as ssh prints them."""
    login, _, key = line.strip().partition(":")
    words = key.split()
    try:
        digest = hashlib.sha256(base64.b64decode(words[1], validate=True)).digest()
    except (IndexError, binascii.Error):
        return "[hidden: not a key]"
    return f"{login}:{words[0]} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


# These loops end their patterns, so they never backtrack. (CPython 3.11.0 to 3.11.4 compile possessive quantifiers and atomic
# groups wrongly: gh-100061, gh-106052.)
_REST_OF_WORD = re.compile(rb"(?:[^\s\"'\x00\\,]+|\\(?!\\{0,31}[nrt\"']))*")
_REST_OF_HEADER = re.compile(rb"(?:[^\r\n\"'\x00\\]+|\\(?!\\{0,31}[nr\"']))*")
_REST_OF_QUERY = re.compile(rb"[^\s\"'<>&\x00\\]*")

_W = rb"A-Za-z0-9_\-"
_D = rb"A-Za-z0-9_.~\-"
_P = rb"A-Za-z0-9"
_SLACK = rb"[a-eoprs]-[A-Za-z0-9\-]{10}"
# Short anchors occur within words too, or within base64. After an escape such as `\n` in JSON, or `%3D` in a URL, a word always
# begins; `1//` occurs in many paths, after a word, a slash or a dot.
_NEW_WORD = rb"(?:(?<![A-Za-z0-9_\-])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2}))"
_NO_PATH = rb"(?:(?<![\w/.:\-])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2}))"
_NO_BASE64 = rb"(?:(?<![A-Za-z0-9/+])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2}))"

# Kind; what is before the anchor; the anchors, literals; what is behind it at least; the characters that may continue it.
# Sources: the documentation of the issuers.
_TOKENS = (
    ("oauth-token", b"", b"ya29.", rb"[A-Za-z0-9._~\-]{8}", _D),
    ("refresh-token", _NO_PATH, b"1//", rb"(?:0[A-Za-z0-9_\-]{16}|[A-Za-z0-9_\-]{24})", _W),
    ("oauth-code", _NO_PATH, b"4/0A", rb"[A-Za-z0-9_\-]{20}", _W),
    ("client-secret", b"", b"GOCSPX-", rb"[A-Za-z0-9_\-]{16}", _W),
    ("api-key", _NO_BASE64, b"AIza", rb"[A-Za-z0-9_\-]{30}", _W),
    ("github-token", b"", b"ghp_ gho_ ghu_ ghs_ ghr_", rb"[A-Za-z0-9]{16}", _P),
    ("github-token", b"", b"github_pat_", rb"[A-Za-z0-9_]{16}", _W),
    ("gitlab-token", b"", b"glpat- gldt- glrt- glcbt- glptt- gloas-", rb"[A-Za-z0-9_\-]{16}", _D),
    ("gitlab-token", b"", b"glsoat- glft- glimt- glagent- glffct- glwt-", rb"[A-Za-z0-9_\-]{16}", _D),
    ("gitlab-token", b"", b"GR1348941", rb"[A-Za-z0-9_\-]{16}", _W),
    ("hugging-face-token", _NEW_WORD, b"hf_", rb"(?:(?:oauth|jwt)_[A-Za-z0-9_.\-]{20}|[A-Za-z0-9]{20})", _D),
    ("hugging-face-token", b"", b"api_org_", rb"[A-Za-z0-9]{20}", _P),
    ("wandb-key", b"", b"local-", rb"[0-9a-f]{40}", _P),
    ("wandb-key", b"", b"wandb_v1_", rb"[A-Za-z0-9_\-]{20}", _W),
    ("kaggle-key", b"", b"KGAT_", rb"[0-9A-Za-z]{20}", _P),
    ("aws-access-key", _NO_BASE64, b"AKIA ASIA", rb"[A-Z0-9]{16}", _P),
    ("azure-secret", rb"(?<![A-Za-z0-9])[A-Za-z0-9_.~\-]{3}[0-9]", b"Q~", rb"[A-Za-z0-9_.~\-]{30}", _D),
    ("slack-token", b"", b"xox xoxe.xox", _SLACK, rb"A-Za-z0-9.%\-"),
    ("slack-token", b"", b"xapp-", rb"[A-Za-z0-9\-]{10}", rb"A-Za-z0-9.\-"),
    ("webhook", b"", b"hooks.slack.com/", rb"(?:services|workflows|triggers)/[A-Za-z0-9/_\-]{8}", rb"A-Za-z0-9/_\-"),
    ("webhook", b"", b"/api/webhooks/", rb"[0-9]{4,24}/[A-Za-z0-9_\-]{20}", _W),
    ("webhook", b"", b"webhook.office.com/", rb"[A-Za-z0-9/_@\-]{16}", rb"A-Za-z0-9/_@\-"),
    ("telegram-token", rb"(?<![0-9])[0-9]{8,10}", b":AA", rb"[A-Za-z0-9_\-]{33}", _W),
    # A key of one of these has no hyphen so soon, unlike `sk-learn-contrib-…`.
    ("openai-key", _NEW_WORD, b"sk-", rb"(?:[%s]{20}|(?:proj|svcacct|admin|or|None)-[%s]{16})" % (_P, _W), _W),
    ("anthropic-key", b"", b"sk-ant-", rb"[A-Za-z0-9_\-]{16}", _W),
    ("model-api-key", _NEW_WORD, b"gsk_ xai- r8_", rb"[A-Za-z0-9_\-]{30}", _W),
    ("model-api-key", b"", b"pplx- nvapi-", rb"[A-Za-z0-9_\-]{30}", _W),
    ("stripe-key", b"", b"sk_live_ rk_live_ sk_test_ rk_test_", rb"[A-Za-z0-9]{16}", _P),
    ("stripe-key", b"", b"whsec_", rb"[A-Za-z0-9+/=]{24}", _P),
    ("npm-token", _NEW_WORD, b"npm_", rb"[A-Za-z0-9]{30}", _P),
    ("pypi-token", b"", b"pypi-AgE", rb"[A-Za-z0-9_\-]{20}", _W),
    ("rubygems-key", b"", b"rubygems_", rb"[0-9a-f]{40}", _P),
    ("docker-token", b"", b"dckr_", rb"(?:pat|oat)_[A-Za-z0-9_\-]{20}", _W),
    ("databricks-token", _NEW_WORD, b"dapi", rb"[0-9a-f]{32}", rb"0-9a-f\-"),
    ("digitalocean-token", b"", b"dop_v1_ doo_v1_ dor_v1_", rb"[0-9a-f]{40}", _P),
    ("vault-token", b"", b"hvs. hvb. hvr.", rb"[A-Za-z0-9_\-]{20}", _W),
    ("terraform-token", rb"[A-Za-z0-9]{14}", b".atlasv1.", rb"[A-Za-z0-9_\-]{20}", _W),
    ("pulumi-token", _NEW_WORD, b"pul-", rb"[0-9a-f]{40}", _P),
    ("grafana-token", b"", b"glsa_", rb"[A-Za-z0-9]{30}", _W),
    ("grafana-token", _NEW_WORD, b"glc_", rb"[A-Za-z0-9+/=]{30}", rb"A-Za-z0-9+/="),
    ("linear-key", b"", b"lin_api_", rb"[A-Za-z0-9]{30}", _P),
    ("notion-token", _NEW_WORD, b"ntn_", rb"[A-Za-z0-9]{40}", _P),
    ("notion-token", _NEW_WORD, b"secret_", rb"[A-Za-z0-9]{43}", _P),
    ("doppler-token", _NO_BASE64, b"dp.", rb"(?:pt|st|sa|ct|scim|audit)\.[A-Za-z0-9._\-]{30}", _D),
    ("fly-token", b"", b"fm2_", rb"[A-Za-z0-9+/=_\-]{30}", rb"A-Za-z0-9+/=_\-,"),
    ("shopify-token", _NEW_WORD, b"shp", rb"(?:at|ca|pa|ss)_[0-9a-fA-F]{32}", _P),
    ("tailscale-key", b"", b"tskey-", rb"[A-Za-z0-9\-]{16}", _W),
    ("sendgrid-key", _NO_BASE64, b"SG.", rb"[A-Za-z0-9_\-]{20,24}\.[A-Za-z0-9_\-]{30}", _W),
    ("age-key", b"", b"AGE-SECRET-KEY-1", rb"[A-Z0-9]{20}", _P),
    ("sentry-token", b"", b"sntry", rb"[su]_[A-Za-z0-9+/=_\-]{30}", rb"A-Za-z0-9+/=_\-"),
    # Header and payload; an encrypted one has more parts, a detached one no payload.
    ("jwt", _NEW_WORD, b"eyJ", rb"[A-Za-z0-9_\-]{6,4096}\.(?:[A-Za-z0-9_\-]{8}|\.[A-Za-z0-9_\-]{8})", _D + rb"="),
)
# Anchors of tokens that may be as short as a short word.
_IN_SHORT_WORDS = frozenset({b"ya29.", b"xox", b"xapp-", b"hooks.slack.com/", b"eyJ"})
_FARTHEST_BACK = 16

_VALUE = rb"(?:'(?P<single>[^'\r\n]{1,512})'|\"(?P<double>[^\"\r\n]{1,512})\"|(?P<bare>[^\s\"'|;&\x00\\]{1,512}))"
_UPTO = rb"(?:[^\r\n;|&]{0,400}?[ \t\"',])?"
_LOGIN = rb"(?:docker|podman|az|helm|oras|crane|skopeo|nerdctl) login[ \t]"
_SIGNED = (
    rb"x-(?:goog|amz)-signature|x-amz-security-token|signature|sig|access_token|key|auth|pass|pwd|assertion|sessionid"
)
# Kind; the anchors; how far before one the pattern begins, on the same line; the pattern, with the secret in a group; what may
# continue it. Sources: the manuals of the programs.
_PLACES = (
    ("bearer-token", (b"bearer ",), 0,
     rb"(?i)bearer[ \t]{1,4}(?=[A-Za-z0-9._~+/\-]{0,64}[0-9])(?P<secret>[A-Za-z0-9._~+/\-]{12})", _REST_OF_WORD),
    ("password", (b"machine ", b"machine\n"), 0,
     (rb"(?:machine|default)(?:\s{1,16}[^\s]{1,255})?(?:\s{1,16}(?:login|account)\s{1,16}[^\s]{1,255}){0,2}"
      rb"\s{1,16}password\s{1,16}(?P<secret>)"), _REST_OF_WORD),
    # `docker run -u 1000:1000` has no password.
    ("password", (b"-u", b"--user", b"--proxy-user"), 0,
     (rb"(?<![\w\-])(?:-u|--user|--proxy-user)(?![ =]{0,4}[\"']?[0-9]{1,64}:[0-9]{1,512}(?:[\s\"'\x00\\,]|\Z))"
      rb"[ =]{0,4}[\"']?[^\s:\"'/@]{1,64}:(?=[^\s\"'])(?P<secret>)"), _REST_OF_WORD),
    ("wandb-key", (b"wandb",), 0,
     rb"wandb[ .'\",]{1,4}login[ (\"',]{1,4}(?:--?[\w=:/.\-]{1,80} ){0,4}(?:key=)?[\"']?(?=[0-9a-f]{40})(?P<secret>)",
     _REST_OF_WORD),
    ("password", (b'"auth',), 0,
     rb"\\{0,32}\"auth\\{0,32}\"[ \t]{0,8}:[ \t]{0,8}\\{0,32}\"(?=[A-Za-z0-9+/]{8})(?P<secret>)", _REST_OF_WORD),
    ("signature", (b"?", b"&"), 0, rb"(?i)[?&](?:" + _SIGNED + rb")=(?P<secret>[^\s\"'<>&\x00\\]{8})", _REST_OF_QUERY),
    # OAuth's code is long.
    ("signature", (b"?", b"&"), 0, rb"(?i)[?&]code=(?P<secret>[^\s\"'<>&\x00\\]{20})", _REST_OF_QUERY),
    ("cookie", (b"sessionid=",), 0, rb"(?i)sessionid=(?=[A-Za-z0-9_\-]{16})(?P<secret>)", _REST_OF_WORD),
    ("private-key", (b"private-lines: ",), 0,  # PuTTY
     rb"(?i)private-lines: [0-9]{1,4}(?P<secret>(?:(?:\\{1,32}[rn]|[\r\n])+[A-Za-z0-9+/=]{2,80}){1,300})", None),
    ("kaggle-key", (b'"username"',), 0,
     rb"\"username\"[ ]?:[ ]?\"[^\"\r\n]{1,128}\"[ ]?,\s{0,16}\"key\"[ ]?:[ ]?\"(?P<secret>)", _REST_OF_WORD),
    ("wandb-key", (b"api key",), 0,
     rb"(?i)api key[^\r\n]{0,160}?(?<![\w])(?=[0-9a-f]{40}(?![\w]))(?P<secret>)", _REST_OF_WORD),
    ("password", (b"mysql",), 0, rb"mysql\w{0,10}[ \t]" + _UPTO + rb"-p(?=[^\s])" + _VALUE, None),
    ("password", (b"mariadb",), 0, rb"mariadb[\w\-]{0,10}[ \t]" + _UPTO + rb"-p(?=[^\s])" + _VALUE, None),
    ("password", (b" login ",), 10, rb"[^\r\n]{0,10}?" + _LOGIN + _UPTO + rb"-p[ =]" + _VALUE, None),
    ("password", (b"redis-cli",), 0, rb"redis-cli[ \t]" + _UPTO + rb"-a[ ]" + _VALUE, None),
    ("password", (b"sshpass",), 0, rb"sshpass[ \t]{1,4}-p[ ]?" + _VALUE, None),
    ("password", (b"unzip ",), 0, rb"unzip[ \t]" + _UPTO + rb"-P[ ]" + _VALUE, None),
    ("password", (b"zip ",), 0, rb"zip[ \t]" + _UPTO + rb"-P[ ]" + _VALUE, None),
    ("password", (b"7z",), 0, rb"7z[a-z]?[ \t]" + _UPTO + rb"-p" + _VALUE, None),
    ("password", (b" pass:",), 12, rb"[^\r\n]{0,12}?-pass(?:in|out)?[ ]pass:" + _VALUE, None),
    ("password", (b"chpasswd",), 200,
     rb"[^\r\n]{0,200}?[\"' \t][\w.\-]{1,64}:(?P<secret>[^\s\"'|]{1,256})[\"']?[ \t]{0,4}\|[ \t]{0,4}(?:sudo )?chpasswd", None),
    ("password", (b"| sudo -",), 200,
     rb"[^\r\n]{0,200}?echo[ \t]{1,4}(?:-\w{1,3}[ \t]{1,4})?" + _VALUE + rb"[ \t]{0,4}\| sudo -\w{0,4}S", None),
    ("password", (b"basicauth(",), 0, rb"(?i:basicauth)\([^)\r\n]{0,200}?,[ \t]?" + _VALUE, None),
    ("password", (b"auth=(",), 0, rb"auth=\([^)\r\n]{0,200}?,[ \t]?" + _VALUE, None),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _SecretForm:
    """The form of a secret, or of the place where it stands."""

    kind: str
    pattern: re.Pattern[bytes]  # the secret is its last group that matched, or else the whole match
    tail: re.Pattern[bytes] | None  # continues the secret
    back: int = 0  # how far before the anchor the pattern begins, on the same line


def _token_rules() -> Iterator[SecretRule]:
    for kind, before, anchors, behind, characters in _TOKENS:
        # What is before an anchor is only a condition, or a part of the token.
        back = 0 if before in {b"", _NEW_WORD, _NO_PATH, _NO_BASE64} else _FARTHEST_BACK
        skipped = rb"[^\n]{0,%d}?" % back if back else b""
        tail = re.compile(rb"[%s]*" % characters)
        for anchor in anchors.split():
            pattern = re.compile(skipped + rb"(?P<secret>" + before + re.escape(anchor) + behind + rb")")
            form = _SecretForm(kind, pattern, tail, back)
            yield SecretRule(anchor.lower(), partial(_find_token, form), is_long=anchor not in _IN_SHORT_WORDS)


def _place_rules() -> Iterator[SecretRule]:
    yield SecretRule(b"authorization", partial(_find_header, b"authorization"))
    yield SecretRule(b"cookie", partial(_find_header, b"cookie"))
    yield SecretRule(b"://", _find_in_url)
    yield SecretRule(b'"kty"', _find_json_web_key)
    for kind, anchors, back, pattern, tail in _PLACES:
        form = _SecretForm(kind, re.compile(pattern), tail, back)
        yield from (SecretRule(anchor, partial(_find_form, form)) for anchor in anchors)


def _find_form(form: _SecretForm, data: bytes, at: int) -> Iterator[SecretSpan]:
    floor = max(0, at - form.back)
    if found := form.pattern.match(data, max(floor, data.rfind(b"\n", floor, at) + 1)):
        start, end = found.span(found.lastgroup or 0)
        span = _extend(data, start, end, form.kind, form.tail) if form.tail else SecretSpan(start, end, form.kind)
        if span.end > span.start:
            yield span


# Text copied from a terminal has long words cut. The header of a log line does not continue a word.
_MIN_WRAP_COLUMN = 72
_WRAPPED_REST = re.compile(
    rb"\n(?![IWEF][0-9]{4}\b|[0-9]{4}-[0-9]{2})(?=[A-Za-z_\-]{0,40}[0-9])(?=[^A-Za-z]{0,40}[A-Za-z])[A-Za-z0-9._~+/=\-]{4,4096}"
)


def _find_token(form: _SecretForm, data: bytes, at: int) -> Iterator[SecretSpan]:
    for span in _find_form(form, data, at):
        # The bytes of the line before the end of the token, up to the width that matters.
        column = span.end - data.rfind(b"\n", max(0, span.end - _MIN_WRAP_COLUMN - 1), span.end) - 1
        rest = _WRAPPED_REST.match(data, span.end) if column >= _MIN_WRAP_COLUMN else None
        yield replace(span, end=rest.end()) if rest else span


def _extend(data: bytes, start: int, at: int, kind: str, tail: re.Pattern[bytes]) -> SecretSpan:
    """Return the secret that begins at `start`, is known up to `at`, and continues as far as `tail` matches."""
    found = tail.match(data, at)
    return SecretSpan(start, found.end() if found else at, kind, tail)


_HEADER = re.compile(
    rb"(?i)(?:\\{0,32}[\"'][ \t]{0,4}(?:->|=>|[:=,])|[ \t]{0,4}(?:->|=>|[:=]))[ \t]{0,4}(?:b?\\{0,32}[\"'])?"
    rb"(?:(?P<scheme>bearer|basic|token|oauth|negotiate|apikey|digest|hmac|aws4-hmac-sha256)(?:[ \t]+|\\ |%20))?"
)
_ONE_WORD_SCHEMES = frozenset({b"bearer", b"basic", b"token", b"oauth", b"negotiate", b"apikey"})
# Without a scheme only the form of the value separates it from prose.
_UNSCHEMED = re.compile(rb"(?=[^\s\"'\\]{0,64}[0-9])[^\s\"'\\]{6}|[^\s\"'\\]{24}")
_COOKIE = re.compile(rb"[\w.\-%!#$&*+^|~]{1,128}=")


def _find_header(name: bytes, data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield the value of a header, without its scheme."""
    found = _HEADER.match(data, at + len(name))
    if found is None:
        return
    start, scheme = found.end(), (found["scheme"] or b"").lower()
    is_value = _COOKIE.match(data, start) if name == b"cookie" else scheme or _UNSCHEMED.match(data, start)
    if not is_value or data.startswith((b"$(", b"${", b"`", b"<"), start):
        return
    span = _extend(data, start, start, name.decode(), _REST_OF_WORD if scheme in _ONE_WORD_SCHEMES else _REST_OF_HEADER)
    if span.end > start:
        yield span


_PASSWORD_OF_URL = re.compile(rb"[^\s\"'<>/\x00\\]{1,513}")
_PASSWORD_WITH_SLASH = re.compile(rb"[^\s\"'<>?\x00\\]{1,513}")
# A password with a slash differs from a port by a character that is not a digit.
_USER_OF_URL = re.compile(
    rb"://[^\s/:\[\"'<>\x00\\]{0,128}:(?:(?=[^\s\"'<>/\x00\\]{1,512}@)"
    rb"|(?=[^\s\"'<>/\x00\\]{0,128}[^\s\"'<>/\x00\\0-9][^\s\"'<>?\x00\\]{1,256}@))"
)
# `https://TOKEN@host`: a user without a password may be a token.
_USER_ALONE = re.compile(rb"(?<=http)s?://(?=[^/@\s]{0,64}[0-9])(?=[^/@\s]{0,64}[A-Za-z])(?P<token>[\w\-]{8,256})@")


def _find_in_url(data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield the password of `scheme://user:password@host`; the password may contain an `@`."""
    if alone := _USER_ALONE.match(data, at - 1 if data[at - 1 : at] == b"s" else at):
        yield SecretSpan(*alone.span("token"), "password")
    elif found := _USER_OF_URL.match(data, at):
        password = _PASSWORD_OF_URL.match(data, found.end())
        if password is None or b"@" not in password.group():
            password = _PASSWORD_WITH_SLASH.match(data, found.end())
        end = data.rfind(b"@", found.end(), password.end()) if password else -1
        if end > found.end():
            yield SecretSpan(found.end(), end, "password")


_JWK = re.compile(rb"\"(?:d|p|q|dp|dq|qi|k)\"[ ]?:[ ]?\"(?P<part>[A-Za-z0-9_\-]{16,4096})\"")


def _find_json_web_key(data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield the private parts of a key in JSON."""
    begin = max(data.rfind(b"{", max(0, at - 4096), at), 0)
    for found in _JWK.finditer(data, begin, at + 8192):
        yield SecretSpan(*found.span("part"), "private-key")
    # Search this part only once, even if several keys follow each other.
    yield SecretSpan(at, min(len(data), at + 8192), "")


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


def _key_rules() -> Iterator[SecretRule]:
    """Yield the rules for private keys: PEM blocks, also with escaped line ends or truncated, and base64 of these."""
    for dashes in (b"-----", b"---- "):
        yield SecretRule(dashes + b"begin ", _find_block)
        yield SecretRule(dashes + b"end ", _find_block_end)
    for anchor in (*_ENCODED, *_HEADLESS):
        yield SecretRule(anchor.lower(), _find_encoded, is_long=True)


def _find_block(data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield a block to its end; without an end, each long word of base64 that follows."""
    begin = _BEGIN.match(data, at)
    if begin is None:
        return
    until = min(len(data), begin.end() + _LONGEST)
    another = data.find(b"BEGIN ", begin.end(), until)
    until = until if another < 0 else another
    end = data.find(begin.group()[:5] + b"END", begin.end(), until)
    if end >= 0:
        closed = _END.match(data, end)
        yield SecretSpan(at, closed.end() if closed else end, _KIND)
        return
    yield SecretSpan(at, begin.end(), _KIND)
    for body in _BODY.finditer(data, begin.end(), until):
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
    for index in range(len(breaks) - 1, -1, -1):
        begin = breaks[index - 1].end() if index else 0
        line = before[begin : breaks[index].start()]
        word = _LAST_WORD.search(line[-200:])
        is_last = index == len(breaks) - 1
        if word is None or (len(word.group()) < _LEAST_OF_A_LINE and not is_last):
            return
        start = floor + begin + max(0, len(line) - 200) + word.start()
        yield SecretSpan(start, floor + breaks[index].start(), _KIND)


def _find_encoded(data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield a run of base64 that holds a private key, begins like one, or holds a word found next to secrets."""
    has_header = data.startswith(_ENCODED, at)
    for skipped in range(4) if has_header else ():
        try:
            text = base64.b64decode(data[at + skipped : at + skipped + 64], validate=True)
        except binascii.Error:
            break
        if b"CERTIFICATE" in text or b"PUBLIC KEY" in text:
            return
    floor = max(0, at - 4096)
    start = floor + len(data[floor:at].rstrip(_ALPHABET))
    span = _extend(data, start, at, _KIND, _MORE_LINES)
    if has_header or span.end - span.start >= _LEAST_OF_A_LINE:
        yield span


# The text between a name and its value: the rest of the name, its closing quote, `=`, `:` or `=>`, a quote.
_AFTER = re.compile(
    rb"(?P<rest>[A-Za-z0-9_.\-]{0,64})(?P<closing>\\{0,32}[\"'`]?[\]*]{0,2})[ \t]{0,8}(?P<sign>=>|:=|->|(?<=[\w`\"'])>|[:=])"
    # `NAME= OTHER=value` has no value. Takes all blanks, up to eight.
    rb"(?:(?:[ \t]{8}|[ \t]{1,7}(?![ \t]))(?![A-Z_][A-Z0-9_]{0,64}=[^=\s])|(?![ \t]))(?:Secret(?:Str|Bytes)?\()?"
    rb"(?:[bfruBFRU]{1,2}(?=\\{0,32}[\"']))?(?P<quote>\"\"\"|'''|\\{0,32}[\"']|`)?"
)
# `("NAME", "value")`
_PAIRED = re.compile(rb"(?P<rest>[A-Za-z0-9_\-]{0,64})[\"'],[ \t]?b?(?P<quote>[\"'])(?=[^\"'\r\n]{1,512}[\"'][)\]])")
# `{"name": "NAME", "value": "…"}`, as in Kubernetes, also in YAML, and similar in XML.
_APART = re.compile(
    rb"(?P<rest>[A-Za-z0-9_\-]{0,64})(?:\\{0,32}[\"'])?,?(?:[ \t\r\n]|\\{1,32}[nrt]){0,64}\\{0,32}[\"']?[Vv]alue\\{0,32}[\"']?"
    rb"[ \t]{0,4}[:=][ \t]{0,4}(?P<quote>\\{0,32}[\"'])?"
)
# `--name value`: only blanks between them.
_FLAG = re.compile(rb"(?:\A|(?<=[\s\"'=,\[]))--?[A-Za-z0-9][A-Za-z0-9_\-]{0,64}$")
_FLAG_ENDS = (b" ", b"\t", b"=", b'"', b"'", b",")
_BLANKS = re.compile(rb"(?P<rest>s?)[\"']?,?[ \t]{1,8}(?P<quote>\\{0,32}[\"'])?")
# `setenv NAME value`, and a table with tabs.
_SET = re.compile(rb"(?P<rest>[A-Z0-9_]{0,64})(?:[ \t]+|\t)(?P<quote>[\"'])?(?=\S)")
_SETS = re.compile(rb"(?:^|[\s;&|])(?:setenv|ENV|set -\w{1,4}|export)[ \t]{1,4}[A-Z0-9_]{0,64}$")
# `the token is VALUE`, `password for ada: VALUE`: only values that no word looks like.
_IN_SENTENCE = re.compile(
    rb"(?P<rest>)(?:[ \t]{1,4}(?P<verb>is|was|for [\w.@\-]{1,64}|are))?:?[ \t|]{1,4}(?P<quote>[\"'`])?"
    rb"(?=[^a-z\s]{0,60}[a-z])(?=[^A-Z\s]{0,60}[A-Z])(?=[^0-9\s]{0,60}[0-9])(?=[\w.~+/=\-]{8})(?P<long>(?=[\w.~+/=\-]{20}))?"
)
_NETRC = re.compile(rb"(?:login|machine|default)[ \t]{1,8}\S{1,128}[ \t]{1,8}$")
_NAME_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_CLOSING = re.compile(rb"[A-Za-z0-9_.\-]{0,64}\\{0,32}[\"'`\]*]")
_LINE_BEGINS = re.compile(
    rb"(?:^|[\r\n]|\\n)[ \t]{0,64}(?:- )?(?:export |set |ENV )?[\"']?(?!--)[A-Za-z0-9_.\-]{0,64}$"
)
_JOINS = (b"_", b"-")
# `tokens/s`, `(token)`, the end of a sentence.
_NO_VALUE = re.compile(rb"s?[/().;<>\[{}]")
_LONG_VALUE = 256


def _find_value(anchor: bytes, data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield the value of the name at this position, if it may be a secret."""
    name = _find_secret_name(anchor, data, at)
    found = _AFTER.match(data, name.end) if name else None
    if name is None:
        return
    if found is None:
        yield from _find_without_sign(name)
        return
    word_begin = name.before(100).rstrip(_NAME_CHARACTERS)
    # `>` is a sign only behind the name of a tag.
    if name.is_about(found["rest"]) or (found["sign"] == b">" and not word_begin.endswith(b"<")):
        return
    is_named = name.is_password or _is_named(name, found)
    start, quote = found.end(), found["quote"]
    is_key = _CLOSING.match(data, name.end) is not None
    if not quote and is_named and not is_key and word_begin.endswith((b'"', b"'")):
        # `'--name=value'`: the quote, with its backslashes, stands right before the name.
        quote = word_begin[len(word_begin[:-1].rstrip(b"\\")) :]
    if not quote and (below := _values_below(data, name.start, start)) and name.kind != "token":
        yield from below
        return
    if quote:
        tail = _quoted_value(quote)
    elif found["sign"] == b">":
        tail = _UP_TO_TAG
    else:
        # Text about credentials is often a sentence.
        is_value = name.is_password or found["sign"] == b"=" or name.kind not in {"secret", "credential"}
        has_line = is_value and name.is_sure and name.kind != "token" and name.begins_line
        tail = _REST_OF_LINE if has_line else _BARE_VALUE
    span = _extend(data, start, start, name.kind, tail)
    value = data[start : span.end].strip(b" \t")
    if not quote and is_key and value[:1] == b"[":
        yield from _listed_values(data, start, name.kind)
        return
    may_be_list = not quote and (is_key or not name.is_password)
    may_be = value and _may_be_secret(name.kind, value, may_be_list=may_be_list, is_quoted=bool(quote))
    if may_be and ((name.is_sure and is_named) or _looks_random(value)):
        yield span
    elif span.end - span.start > _LONG_VALUE:
        # Search a long value once, not for each word in it.
        yield SecretSpan(start, span.end, "")


def _is_named(name: SecretName, found: re.Match[bytes]) -> bool:
    """Tell whether a name is that of a variable, a JSON key or an option: then its value is a secret in any form."""
    if name.kind not in {"token", "secret", "credential"} or name.is_flag or found["sign"] == b">":
        return True
    is_assigned = found["sign"] == b"="
    if (is_assigned and name.text.isupper()) or (name.kind == "secret" and name.begins_line):
        return True
    if name.kind != "token" and is_assigned:
        return True
    is_quoted = found["quote"] and (found["sign"] != b":" or name.begins_line)
    is_several = name.kind == "token" and found["rest"].lower().startswith(b"s")
    return bool(found["closing"] or is_quoted or name.before(1) in _JOINS) and not is_several


def _find_without_sign(name: SecretName) -> Iterator[SecretSpan]:
    """Yield the value after a name without a sign: `--name value`, `("name", "value")`, `setenv NAME value`."""
    data, is_named = name.data, False
    if _NO_VALUE.match(data, name.end):
        return
    if name.is_flag:
        found, is_named = _BLANKS.match(data, name.end), name.is_sure
        word = _WORD.match(data, found.end()) if found else None
        if word and word.group().lower() in _PROSE_WORDS:
            return
    elif found := _PAIRED.match(data, name.end):
        is_named = name.text.isupper()
    elif found := _APART.match(data, name.end):
        is_named = name.is_sure
    elif found := _SET.match(data, name.end):
        is_set = _SETS.search(name.before(140)) and name.text.isupper()
        is_named = bool(is_set or (name.is_password and _NETRC.search(name.before(140))))
        is_table = b"\t" in data[name.end : found.end()] and name.begins_line
        if not is_named and not is_table:
            found = None
    if found is None and not is_named and name.is_sure and (said := _IN_SENTENCE.match(data, name.end)):
        is_told = name.is_password and (said["verb"] or b"|" in said.group())
        found = said if said["long"] is not None or is_told else None
    if found is None:
        return
    start, quote = found.end(), found["quote"]
    span = _extend(data, start, start, name.kind, _quoted_value(quote) if quote else _BARE_VALUE)
    value = data[start : span.end]
    if not value or name.is_about(found["rest"]):
        return
    if _may_be_secret(name.kind, value, may_be_list=True, is_quoted=True) and (is_named or _looks_random(value)):
        yield span


# Each name contains one of these; its context decides.
_NAME_ANCHORS = (b"pass", b"pwd", b"pswd", b"key", b"secret", b"credential", b"creds", b"token", b"auth")
_PASS_WORD = re.compile(rb"(?i)pass(?:word|wd|phrase|code|wort|[ _\-]phrase|[ _\-]word)")
_LETTER = re.compile(rb"[A-Za-z]")
# Words of their own: the kind of secret, and what would continue a longer word.
_ABBREVIATIONS = {
    **dict.fromkeys((b"pass", b"pwd", b"pswd"), ("password", _LETTER)),
    b"auth": ("authorization", re.compile(rb"[A-Za-z0-9_\-.]")),
    b"creds": ("credential", re.compile(rb"(?!)")),
}
# Words that make a key a secret, unlike the key of a cache or of a dictionary.
_KEY_PREFIX = re.compile(
    rb"(?i)(?:(?P<api>api|kaggle|wandb|openai|anthropic|gemini|hf|comet|neptune|google|azure|subscription|functions?|license)"
    rb"|(?P<private>private)|(?P<access>access|account|storage|shared)"
    rb"|secret|auth|signing|encrypt(?:ion)?|master|session|client|hmac|aes|jwt|deploy|consumer|webhook|admin|service|sas)"
    rb"[_\-. ]?$"
)
# Tokens of a text, and page tokens.
_NOT_TOKENS = re.compile(
    rb"(?i)(?<![A-Za-z])(?:pad|eos|bos|unk|sep|cls|mask|special|next|last|first|per|stop|end|start|image|prompt|page|nextpage|"
    rb"num|n|max|min|total|unexpected|invalid|each|this|new|input|output|target|decoder|encoder|pre|post|every)[_\- ]?$"
)
_TEXT_TOKEN_ENDINGS = tuple(b"iz s_per _per s/ _id _type _len _count _limit -per _index _num".split())
# Names about a secret: its location, its name, its length.
_ABOUT = re.compile(
    rb"(?i)s?[_.\-]?(?:names?|manager|version|ref|paths?|files?|dir|urls?|uri|types?|length|len|count|size|ttl|expir\w{0,8}|"
    rb"errors?|exceptions?|providers?|stores?|status|scopes?|attempts|retries|enabled|required|policy|prompt|source)"
    rb"|[\w.\-]{0,60}\.(?:c|cc|h|py|go|js|txt|patch|in|md|html|[0-9])"
)
# Other words begin alike: `secretmem`, `passwordless`, `tokenizer`. These endings do not make another word.
_NAME_ENDINGS = re.compile(
    rb"s?(?![a-z])|(?:key|id|value|hash|str|string|data|b?64|base64|raw|text|env|var|json|s3|manager|version|file|path|name)"
)


@dataclass(frozen=True, slots=True)
class SecretName:
    """A name in a text that may have a secret as its value."""

    data: bytes
    start: int  # of the word in the text
    end: int
    kind: str  # of the secret
    is_sure: bool = True  # False for an ambiguous word, such as `pass` or `key`: the value must look like a secret

    @property
    def is_password(self) -> bool:
        """Whether a person chose the secret, so that it may look like anything."""
        return self.kind == "password"

    @property
    def text(self) -> bytes:
        """The word itself."""
        return self.data[self.start : self.end]

    def before(self, size: int) -> bytes:
        """Return the bytes before the word."""
        return self.data[max(0, self.start - size) : self.start]

    @property
    def begins_line(self) -> bool:
        """Whether the name is the first on its line."""
        return _LINE_BEGINS.search(self.before(140)) is not None

    @property
    def is_flag(self) -> bool:
        """Whether the name is an option: `--name value`, also as elements of a list."""
        end = self.end + (self.data[self.end : self.end + 1] == b"s")
        return self.data[end : end + 1] in _FLAG_ENDS and _FLAG.search(self.before(70) + self.text) is not None

    def is_about(self, rest: bytes) -> bool:
        """Tell whether the name is about a secret, about tokens of a text, or another word; `rest` is its end."""
        if self.kind == "token" and (
            rest.lower().startswith(_TEXT_TOKEN_ENDINGS) or _NOT_TOKENS.search(self.before(16))
        ):
            return True
        return _ABOUT.fullmatch(rest) is not None or _NAME_ENDINGS.match(rest) is None


def _find_secret_name(anchor: bytes, data: bytes, at: int) -> SecretName | None:
    """Return the name of a secret at this place, None if there is none."""
    end = at + len(anchor)
    if anchor == b"key":
        back = max(0, at - 24)
        opening = _KEY_PREFIX.search(data[back:at])
        if opening is None or _continues_word(data, back + opening.start()):
            return None
        kinds = {"api": "api-key", "private": "private-key", "access": "access-key"}
        kind = next((kinds[group] for group in kinds if opening[group]), "secret")
        return SecretName(data, back + opening.start(), end, kind, is_sure=not opening.group().endswith(b" "))
    if anchor == b"pass" and (word := _PASS_WORD.match(data, at)):
        return SecretName(data, at, word.end(), "password")
    if anchor not in _ABBREVIATIONS:
        return SecretName(data, at, end, anchor.decode())
    kind, continuation = _ABBREVIATIONS[anchor]
    if _continues_word(data, at) or continuation.match(data, end):
        return None
    # The most ambiguous ones are sure only as an environment variable.
    is_variable = data[at:end].isupper() and data[max(0, at - 1) : at] == b"_"
    return SecretName(data, at, end, kind, is_sure=is_variable or kind == "credential")


def _continues_word(data: bytes, at: int) -> bool:
    """Tell whether a word is only the end of another: `bypass`, but not `dbPass`."""
    before = data[max(0, at - 1) : at]
    return before.isalpha() and not (before.islower() and data[at : at + 1].isupper())


# A value without quotes: up to a blank, a quote, an escaped line end, or the next pair.
_BARE_VALUE = re.compile(rb"(?:[^\s\"'`\x00\\,&;]+|[,&;](?![\w.\-]{1,64}[\"']?[=:])(?!\s|\Z)|\\(?!\\{0,31}[nrt\"']))*")
_REST_OF_LINE = re.compile(rb"(?:[^\s\x00\\]+|[ \t\v\f](?![A-Z_][A-Z0-9_]{0,64}=[^=\s])|\\(?!\\{0,31}[nr]))*")
_UP_TO_TAG = re.compile(rb"[^<>\r\n]*")
# Words that follow an option in prose.
_PROSE_WORDS = frozenset(
    b"to or and option options flag is for must from as instead with in was if can the a on not".split()
)
# Values that are not secret: none, a placeholder, a variable, an earlier redaction.
_EMPTY = re.compile(
    rb"(?i:none|null|nil|true|false|yes|no|undefined|unset|redacted|hidden|\*+|x+|\.{3}|<[\w .\-]{0,40}>"
    rb"|\(set, not shown\)|\[(?:redacted|hidden)[^\]]{0,40}\]?)[,);]{0,3}|\$\{?[A-Z_][A-Z0-9_]{0,64}\}?|\$\([^)]{0,80}\)?"
    rb"|\{[\w.]{0,40}\}|\$?\{\{.{0,80}"
)
_NUMBER = re.compile(rb"[<>~]{0,2}[+\-]?[0-9][0-9.,_eE+\-]{0,30}[A-Za-z/%]{0,12}")
_MIN_KEY_LENGTH = 3
_SHORT_NUMBER = re.compile(rb"[0-9]{1,6}[,;)]?")
_PATH = re.compile(rb"(?:[~.]?/|[A-Za-z]:\\)[\w./\\@ \-]{1,200}\.(?:json|ya?ml|pem|txt|key|cfg|ini|toml)")
_FOLDER = re.compile(rb"[~.]{0,2}/")
# Source code, as a traceback shows it: a call, or a lookup.
_CODE = re.compile(
    rb"(?:await )?[A-Za-z_]\w{0,63}(?:\.[A-Za-z_]\w{0,63}){0,8}\("
    rb"|(?:self|cls|args|config|cfg|os|settings|flags|FLAGS|opts|options|request|ctx|environ|env|kwargs|params|secrets)"
    rb"(?:\.\w{1,64}|\[[^\]]{0,80}\]?){1,8}[,)\]]{0,4}"
    rb"|(?:password|passwd|passphrase|token|secret|credentials?|api_key|key|auth)[,)\]]{0,4}$"
)
_RANDOM = re.compile(rb"(?=[^0-9]{0,80}[0-9])(?=[^A-Za-z]{0,80}[A-Za-z])[A-Za-z0-9._~+/=\-]+")
_WORD = re.compile(rb"[A-Za-z]{1,16}(?=[\s.,;:)]|$)")
_ITEM = re.compile(rb"\"(?P<double>[^\"\\\r\n]{1,4096})\\{0,32}\"|'(?P<single>[^'\r\n]{1,4096})'")
_LIST = re.compile(rb"\[[^\]\[]{0,4096}\]?")
_BLOCK = re.compile(rb"[|>][+\-]?[0-9]?[ \t]*\r?\n")
_LINE = re.compile(rb"(?P<indent>[ \t]+)(?P<dash>- )?(?P<value>[^\s:][^\r\n]{0,4096})\r?(?:\n|\Z)")
_MAX_BLOCK_LINES = 200


@cache
def _quoted_value(quote: bytes) -> re.Pattern[bytes]:
    """Return the pattern for a value in these quotes; a line end ends it too, except with triple quotes."""
    mark, escapes = quote[-1:], len(quote) - 1
    if quote in {b'"""', b"'''"}:
        return re.compile(rb"(?:[^%s]+|%s(?!%s))*" % (mark, mark, mark * 2))
    if escapes == 0:
        return re.compile(rb"(?:[^\\\r\n%s]+|\\[^\r\n])*" % mark)
    # A quote in the value has more backslashes than the quotes around it.
    return re.compile(rb"(?:[^\\\r\n%s]+|\\{%d,}%s|\\+(?![\\%s]))*" % (mark, escapes + 1, mark, mark))


def _may_be_secret(kind: str, value: bytes, *, may_be_list: bool, is_quoted: bool) -> bool:
    """Tell whether a value could be a secret, not an empty value, a number, a path, or source code."""
    if _EMPTY.fullmatch(value) or (may_be_list and value[:1] in b"[{("):
        return False
    if kind in {"token", "secret", "credential", "authorization"} and (_NUMBER.fullmatch(value) or value[:1] == b"<"):
        return False
    if kind.endswith("key") and (len(value) < _MIN_KEY_LENGTH or _SHORT_NUMBER.fullmatch(value)):
        return False
    if not is_quoted and _CODE.match(value):
        return False
    return kind == "password" or not _PATH.fullmatch(value)


def _looks_random(value: bytes) -> bool:
    """Tell whether a word looks random: not of a language or a program, not a number with a unit, not a path."""
    return (
        len(value) >= 6
        and _RANDOM.fullmatch(value) is not None
        and _NUMBER.fullmatch(value) is None
        and _FOLDER.match(value) is None
    )


def _listed_values(data: bytes, at: int, kind: str) -> Iterator[SecretSpan]:
    """Yield the quoted values in a list. Tokens of a text are not secrets."""
    found = _LIST.match(data, at)
    if found is None or kind == "token":
        return
    for item in _ITEM.finditer(data, at, found.end()):
        value = item[item.lastgroup or 0]
        if _may_be_secret(kind, value, may_be_list=False, is_quoted=True) and value.strip() not in {b"", b","}:
            yield SecretSpan(*item.span(item.lastgroup or 0), kind)


def _values_below(data: bytes, name: int, at: int) -> list[SecretSpan]:
    """Return the lines of a YAML value: of a block, or single words with more indentation than the name."""
    block = _BLOCK.match(data, at)
    first = block.end() if block else at + 1 if data[at : at + 1] == b"\n" else 0
    if not first or data[name - 1 : name] in (b"-", b"/"):
        return []
    line = data[data.rfind(b"\n", max(0, name - 200), name) + 1 : name]
    depth = len(line) - len(line.lstrip(b" \t"))
    spans: list[SecretSpan] = []
    at = first
    while len(spans) < _MAX_BLOCK_LINES and (found := _LINE.match(data, at)) and len(found["indent"]) >= depth:
        is_deeper = len(found["indent"]) > depth
        is_word = b" " not in found["value"] and b":" not in found["value"]
        if not (block and is_deeper) and not (is_word and (is_deeper or found["dash"])):
            break
        start, end = found.span("value")
        marks = len(found["value"]) - len(found["value"].lstrip(b"\"'"))
        spans.append(SecretSpan(start + marks, end - (marks if found["value"].endswith((b'"', b"'")) else 0), "secret"))
        at = found.end()
    return spans
