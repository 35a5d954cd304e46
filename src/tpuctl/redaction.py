"""Remove secrets from text that leaves this machine, and name the kind of each: `[redacted oauth-token]`. Pure.

The rules are tokens with the form of their issuer (`_TOKENS`), private keys, places that hold secrets (`_PLACES`: headers,
URLs, command lines), and the values of names (`_NAME`): `NAME=value`, `"name": "value"`, `--name value`. Only a private key has
more than one line. UTF-16, base64, and tokens that a line end splits are not searched, and a secret without a known form, or a
name before it, cannot be found: a person must still review the text.

`hide_metadata` is for documents of the API.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import Any, Final

from tpuctl.escaping import mask_metadata

# Bytes searched at once, up to the end of a line. The rest of a line that is longer than `_MAX_LINE` is left out: a rule could
# not see a name in one part of it and the value in the other.
_CHUNK: Final = 256 * 1024
_MAX_LINE: Final = 1024 * 1024
# An RSA key of 16384 bits has 13 kB.
_MAX_KEY: Final = 16 * 1024


class Redactor:
    """Takes a text in pieces and returns it without its secrets. `counts` is the number of secrets by kind.

    Never fails on any bytes. With `accounts` e-mail and IP addresses are hidden too.
    """

    def __init__(self, accounts: AccountAliases | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._accounts = accounts
        self._waiting = bytearray()
        self._is_in_long_line = False

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return the lines decided so far."""
        done = []
        for at in range(0, len(data), _CHUNK):
            self._waiting += data[at : at + _CHUNK]
            if len(self._waiting) >= _CHUNK:
                done.append(self._decide())
        return b"".join(done)

    def close(self) -> bytes:
        """Return the rest."""
        self._leave_long_line()
        rest, self._waiting = bytes(self._waiting), bytearray()
        return self._redact(rest)

    def _leave_long_line(self) -> None:
        if self._is_in_long_line:
            end = self._waiting.find(b"\n")
            self._is_in_long_line = end < 0
            del self._waiting[: len(self._waiting) if end < 0 else end]

    def _decide(self) -> bytes:
        """Return the complete lines without their secrets; the last line, and a key that has not ended, wait."""
        self._leave_long_line()
        cut = self._waiting.rfind(b"\n") + 1
        begin = self._waiting.rfind(b"-----BEGIN ", max(1, cut - _MAX_KEY), cut)
        if begin > 0 and self._waiting.find(b"-----END ", begin, cut) < 0:
            cut = begin
        lines = bytes(self._waiting[:cut])
        del self._waiting[:cut]
        if len(self._waiting) < _MAX_LINE:
            return self._redact(lines)
        self._is_in_long_line = True
        self.counts["long-line"] += 1
        begun, self._waiting = bytes(self._waiting), bytearray()
        return self._redact(lines) + self._redact(begun) + b"[redacted long-line]"

    def _redact(self, text: bytes) -> bytes:
        """Return lines without their secrets."""
        if b"BEGIN " in text or b"LS0tLS1CRUdJTiB" in text:
            text = _KEY.sub(partial(self._hide, "private-key"), text)
        text = self._hide_headless_keys(text)
        for rule in _rules():
            text = _change_lines(text, rule.anchors, partial(rule.pattern.sub, partial(self._hide, rule.kind)))
        text = _change_lines(text, _NAME_ANCHORS, self._hide_values)
        return self._accounts.replace(text, self.counts) if self._accounts else text

    def _hide(self, kind: str, found: re.Match[bytes]) -> bytes:
        """Return a match without its group `secret`, or without anything if it has no such group."""
        group = "secret" if "secret" in found.re.groupindex else 0
        begin, end = (at - found.start() for at in found.span(group))
        return found[0][:begin] + self._label(kind, found[group]) + found[0][end:]

    def _label(self, kind: str, secret: bytes) -> bytes:
        self.counts[kind] += b"[redacted " not in secret
        return b"[redacted %s]" % kind.encode()

    def _hide_headless_keys(self, text: bytes) -> bytes:
        """Hide the lines of base64 before the end of a private key whose beginning is missing."""
        parts, at = [], 0
        for end in _KEY_END.finditer(text):
            start, below = end.start(), _line_begin(text, end.start(), at)
            is_last = True
            while found := _KEY_LINE.search(text, max(at, below - 200), below):
                if not is_last and len(found["body"]) < _LEAST_OF_A_KEY_LINE:
                    break
                start, is_last = found.start("body"), False
                below = _line_begin(text, start, at)
            parts += [text[at:start], self._label("private-key", text[start : end.end()])]
            at = end.end()
        return b"".join([*parts, text[at:]])

    def _hide_values(self, line: bytes) -> bytes:
        """Return a line without the values of names that are those of secrets."""
        for pattern in (_NAME, _FLAG):
            parts, at = [], 0
            for found in pattern.finditer(line):
                kind = _kind(found["word"])
                if found.start() >= at and (end := _value_end(line, found, kind)):
                    parts += [line[at : found.end()], self._label(kind, line[found.end() : end])]
                    at = end
            line = b"".join([*parts, line[at:]])
        return line


def _line_begin(text: bytes, at: int, least: int) -> int:
    """Return where the line begins, also after an escaped line end."""
    ends = [text.rfind(mark, least, at) + len(mark) for mark in (b"\n", b"\\n") if text.find(mark, least, at) >= 0]
    return max([least, *ends])


def _change_lines(text: bytes, anchors: re.Pattern[bytes], change: Callable[[bytes], bytes]) -> bytes:
    """Return a text with each line changed that has an anchor: most lines have none, and a search for it is fast."""
    lowered = text.lower()
    parts, at = [], 0
    while found := anchors.search(lowered, at):
        start = max(at, lowered.rfind(b"\n", at, found.start()) + 1)
        end = lowered.find(b"\n", found.end()) + 1 or len(text)
        parts += [text[at:start], change(text[start:end])]
        at = end
    return b"".join([*parts, text[at:]]) if parts else text


def redact(data: bytes, accounts: AccountAliases | None = None) -> bytes:
    """Return a text without its secrets."""
    redactor = Redactor(accounts)
    return redactor.feed(data) + redactor.close()


# Short forms occur within words, base64 or paths too. A word begins after an escape such as `\n` in JSON, or `%3D` in a URL.
_AFTER_ESCAPE = rb"|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2}))"
_WORD = rb"(?:(?<![\w\-])" + _AFTER_ESCAPE
_PART = rb"(?:(?<![A-Za-z0-9/+])" + _AFTER_ESCAPE
_PATH_PART = rb"(?:(?<![\w/.:+\-])" + _AFTER_ESCAPE
# Kind; the anchors, of which one is in each match, in lower case; the pattern. Sources: the documentation of the issuers.
_TOKENS = (
    ("oauth-token", b"ya29.", rb"ya29\.[\w.~\-]{8,}"),
    ("refresh-token", b"1//", _PATH_PART + rb"1//(?:0[\w\-]{16,}|[\w\-]{24,})"),
    ("oauth-code", b"4/0a", _PATH_PART + rb"4/0A[\w\-]{20,}"),
    ("client-secret", b"gocspx-", rb"GOCSPX-[\w\-]{16,}"),
    ("api-key", b"aiza", _PART + rb"AIza[\w\-]{30,}"),
    ("github-token", b"ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", rb"(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,})"),
    ("gitlab-token", b"gl", rb"gl(?:pat|dt|rt|cbt|ptt|oas|soat|ft|imt|agent|ffct|wt)-[\w.~\-]{16,}"),
    ("hugging-face-token", b"hf_ api_org_", _WORD + rb"(?:hf_(?:oauth|jwt)_[\w.\-]{20,}|(?:hf|api_org)_[A-Za-z0-9]{20,})"),
    ("wandb-key", b"wandb_v1_ local-", rb"(?:wandb_v1_[\w\-]{20,}|local-[0-9a-f]{40})"),
    ("kaggle-key", b"kgat_", rb"KGAT_[0-9A-Za-z]{20,}"),
    ("aws-access-key", b"akia asia", _PART + rb"A(?:KI|SI)A[A-Z0-9]{16,}"),
    ("azure-secret", b"q~", _PART + rb"[\w.~\-]{3}[0-9]Q~[\w.~\-]{30,}"),
    ("slack-token", b"xox xapp-", rb"(?:xox[a-eoprs]-|xoxe\.xox[a-z]-|xapp-)[A-Za-z0-9.%\-]{10,}"),
    ("webhook", b"hooks.slack.com/", rb"hooks\.slack\.com/(?:services|workflows|triggers)/[\w/\-]{8,}"),
    ("webhook", b"/api/webhooks/", rb"/api/webhooks/[0-9]{4,24}/[\w\-]{20,}"),
    ("webhook", b"webhook.office.com/", rb"webhook\.office\.com/[\w/@\-]{16,}"),
    ("telegram-token", b":aa", rb"(?<![0-9])[0-9]{8,10}:AA[\w\-]{33,}"),
    ("anthropic-key", b"sk-ant-", rb"sk-ant-[\w\-]{16,}"),
    # A key has no hyphen so soon, unlike `sk-learn-contrib-…`.
    ("openai-key", b"sk-", _WORD + rb"sk-(?:[A-Za-z0-9]{20}|(?:proj|svcacct|admin|or|None)-[\w\-]{16})[\w\-]*"),
    ("model-api-key", b"gsk_ xai- r8_ pplx- nvapi-", _WORD + rb"(?:gsk_|xai-|r8_|pplx-|nvapi-)[\w\-]{30,}"),
    ("stripe-key", b"k_live_ k_test_ whsec_", rb"(?:[sr]k_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/=]{24,})"),
    ("registry-token", b"npm_ pypi-age dckr_", _WORD + rb"(?:npm_|pypi-AgE|dckr_[po]at_)(?=[^\s]{0,64}[0-9])[\w\-]{20,}"),
    ("databricks-token", b"dapi", _WORD + rb"dapi[0-9a-f]{32}[0-9a-f\-]*"),
    ("vault-token", b"hvs. hvb. hvr.", rb"hv[sbr]\.[\w\-]{20,}"),
    ("grafana-token", b"glsa_ glc_", _WORD + rb"(?:glsa_[\w]{30,}|glc_[A-Za-z0-9+/=]{30,})"),
    ("sendgrid-key", b"sg.", _PART + rb"SG\.[\w\-]{20,24}\.[\w\-]{30,}"),
    ("service-token", b"rubygems_ dop_v1_ doo_v1_ lin_api_ ntn_ secret_ pul- fm2_ tskey- .atlasv1. shpat_",
     _PATH_PART + rb"(?:rubygems_|do[po]_v1_|lin_api_|ntn_|secret_|pul-|fm2_|tskey-|[A-Za-z0-9]{14}\.atlasv1\.|shpat_)"
     rb"(?=[^\s_]{0,64}[0-9])[\w\-]{32,}"),
    # Header and payload; an encrypted one has more parts, a detached one no payload.
    ("jwt", b"eyj", _WORD + rb"eyJ[\w\-]{6,4096}\.(?:[\w\-]{8}|\.[\w\-]{8})[\w.~=\-]*"),
)  # fmt: skip

_BREAK = rb"(?:\\{1,32}[rn]|\s)"
_KEY_NAME = rb"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?[ -]----"
# Between the first and the last, which may be shorter.
_LEAST_OF_A_KEY_LINE: Final = 40
_KEY_END = re.compile(rb"----[ -]END " + _KEY_NAME)
_KEY_LINE = re.compile(
    rb"(?:(?<![A-Za-z0-9+/=])|(?<=\\[rn]))(?P<body>[A-Za-z0-9+/]{2,}={0,2})" + _BREAK + rb"{1,32}-?\Z"
)
_KEY_WORDS = rb"(?:" + _BREAK + rb"{1,64}[A-Za-z0-9+/]{16,}={0,2})*"
_KEY = re.compile(
    # To its end; without one, the words of base64 that follow.
    rb"----[ -]BEGIN " + _KEY_NAME + rb"(?:(?:(?!-----)[^\0]){0,%d}?" % _MAX_KEY + _KEY_END.pattern + rb"|" + _KEY_WORDS + rb")"
    # The same in base64, where it begins on a multiple of three bytes: not a certificate, not a public key.
    rb"|LS0tLS1CRUdJTiB(?!D|QVUJM)[A-Za-z0-9+/]{30,}={0,2}" + _KEY_WORDS
)  # fmt: skip

# A space between a name and its value; terminals color both. What may stand between a header and its value.
_SPACE = rb"(?:[ \t]|\x1b\[[0-9;]{0,24}m)"
_COLON = rb"\\{0,32}[\"']?" + _SPACE + rb"{0,4}(?:->|=>|[:=,])" + _SPACE + rb"{0,4}b?\\{0,32}[\"']?"
# Not a variable of a shell, a placeholder, or a secret that an earlier rule has hidden.
_NOT_HIDDEN = rb"(?!\$[({]|`|<|\[redacted )"
_SIGNED = (
    rb"x-(?:goog|amz)-signature|x-amz-security-token|signature|sig|access_token|key|auth|pass|pwd|assertion|sessionid"
)
_VALUE = rb"[\"']?(?P<secret>(?<=\")[^\"\r\n]+|(?<=')[^'\r\n]+|[^\s\"'|;&\x00\\]+)"
_UPTO = rb"[ \t](?:[^\r\n;|&]{0,400}?[ \t\"',])?"
# As above; the secret is the group of that name. Sources: the manuals of the programs.
_PLACES = (
    ("authorization", b"authorization", rb"(?i)authorization" + _COLON
     # The scheme; without one only the form of the value separates it from prose.
     + rb"(?:(?:bearer|basic|token|oauth|negotiate|apikey)(?:" + _SPACE + rb"{1,4}|\\ |%20)|(?:digest|hmac|aws4-hmac-sha256)[ ]"
     rb"|(?=[^\s\"'\\]{0,64}[0-9][^\s\"'\\]{5}|[^\s\"'\\]{24}))" + _NOT_HIDDEN + rb"(?P<secret>[^\s\"'\x00\\,]+)"),
    ("cookie", b"cookie", rb"(?i)cookie" + _COLON + rb"(?P<secret>[\w.\-%!#$&*+^|~]{1,128}=[^\r\n\"'\x00\\]*)"),
    ("bearer-token", b"bearer",
     rb"(?i)bearer[ \t]{1,4}(?=[\w.~+/\-]{0,64}[0-9])" + _NOT_HIDDEN + rb"(?P<secret>[\w.~+/\-]{12}[^\s\"'\x00\\,]*)"),
    ("signature", b"=", rb"(?i)(?:[?&]|&amp;|\\u0026|%3F|%26)(?:(?:" + _SIGNED + rb")(?:=|%3D)|code=(?=[^\s&]{20}))"
     rb"(?P<secret>[^\s\"'<>&\x00\\]{8,})"),
    # The password of a URL; one with a slash differs from a port by a character that is not a digit.
    ("password", rb":// :\/\/", (rb":\\{0,4}/\\{0,4}/[^\s/:\[\"'<>\x00\\]{0,128}:(?P<secret>[^\s\"'<>/\x00\\]{1,512}"
      rb"|[^\s\"'<>/\x00\\]{0,128}[^\s\"'<>/\x00\\0-9][^\s\"'<>?\x00\\]{1,256})@")),
    # A user without a password may be a token.
    ("password", b"http", rb"https?://(?=[^/@\s]{0,64}[0-9])(?=[^/@\s]{0,64}[A-Za-z])(?P<secret>[\w\-]{8,256})@"),
    # `netrc`.
    ("password", b"password", rb"(?m)(?:^\s{0,16}|(?:login|account|machine|default)[ \t]+\S{1,255}[ \t]+)password[ \t]+"
     + _NOT_HIDDEN + rb"(?P<secret>\S+)[ \t\r]*(?:(?:login|account) .*)?$"),
    # `docker run -u 1000:1000` has no password.
    ("password", b"-u --user --proxy-user", (rb"(?<![\w\-])(?:-u|--user|--proxy-user)"
     rb"(?![ =]{0,4}[\"']?[0-9]{1,64}:[0-9]{1,512}(?:[\s\"'\x00\\,]|\Z))"
     rb"[ =]{0,4}[\"']?[^\s:\"'/@]{1,64}:(?P<secret>[^\s\"'\x00\\,]+)")),
    ("password", b'"auth', rb"\"auth\\{0,32}\"[ \t]{0,8}:[ \t]{0,8}\\{0,32}\"(?P<secret>[A-Za-z0-9+/]{8,}={0,2})"),
    # `("NAME", "value")`, `{"name": "NAME", "value": "…"}`.
    ("password", b"pass secret token key", (rb"(?i)(?:password|passwd|secret|token|api_?key)\\{0,32}[\"'],[ \t]?"
     rb"(?:\\{0,32}\"value\\{0,32}\"[ \t]?:[ \t]?)?b?\\{0,32}[\"'](?P<secret>[^\"'\\\r\n]{1,512})\\{0,32}[\"'][)\]}]")),
    ("password", b"mysql mariadb", rb"(?:mysql|mariadb)[\w\-]{0,10}" + _UPTO + rb"-p" + _VALUE),
    ("password", b"login", rb"(?:docker|podman|az|helm) login" + _UPTO + rb"-p[ =]" + _VALUE),
    ("password", b"redis-cli", rb"redis-cli" + _UPTO + rb"-a[ ]" + _VALUE),
    ("wandb-key", b"wandb api",
     rb"(?i)(?:wandb[ .'\",]{1,4}login|api key)[^\r\n]{0,160}?(?<![\w])(?P<secret>[0-9a-f]{40})(?!\w)"),
    ("kaggle-key", b'"key"', rb"\"username\"[ ]?:[ ]?\"[^\"\r\n]{1,128}\"[ ]?,[ ]?\"key\"[ ]?:[ ]?\"(?P<secret>[^\"\r\n]+)"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Rule:
    """How to find secrets of one kind; a line without one of the anchors has none."""

    kind: str
    anchors: re.Pattern[bytes]  # in lower case
    pattern: re.Pattern[bytes]


@cache
def _rules() -> tuple[_Rule, ...]:
    """Return the rules for lines; of two that find the same place, the earlier names it."""
    return tuple(
        _Rule(kind, re.compile(b"|".join(map(re.escape, anchors.split()))), re.compile(pattern))
        for kind, anchors, pattern in (*_TOKENS, *_PLACES)
    )


_NAME_ANCHORS = re.compile(rb"pass|pwd|pswd|key|secret|cred|token|auth")
# A name, up to what may end it: `TOKEN_2`, but not `token_count`, `secret_name` or `tokenizer`. A key needs a word before it,
# unlike the key of a cache or of a dictionary.
_WORDS = (
    rb"(?P<word>passw(?:or)?[dt]|pass[ _\-]?(?:phrase|word|code)|(?:(?<![A-Za-z])|(?<=\\[nrt]))(?:pass|pwd|pswd)|secret"
    rb"|credential|(?<![A-Za-z])creds|token|(?<![A-Za-z0-9])auth"
    rb"|(?:api|secret|access|account|private|license|functions?|subscription|kaggle|wandb|openai|anthropic|gemini|hf|comet|neptune"
    rb"|google|azure|storage|shared|auth|sign(?:ing)?|encrypt(?:ion)?|master|session|client|hmac|aes|jwt|deploy|webhook|admin"
    rb"|service|sas)[_\-. ]?key)"
    rb"(?P<end>s?(?:[_.\-]?(?:id|value|hash|str|string|data|b?64|base64|raw|text|env|var|json|[0-9]{1,4})){0,2}(?![A-Za-z0-9_.\-]))"
)
_NAME = re.compile(
    rb"(?i)" + _WORDS + rb"(?P<closing>\\{0,32}[\"'`]?[\]*]{0,2})" + _SPACE + rb"{0,8}(?P<sign>=>|:=|->|[:=]|%3D)"
    rb"(?!"
    + _SPACE
    + rb"{1,8}[A-Z_][A-Z0-9_]{0,64}=[^=\s])"
    + _SPACE
    + rb"{0,8}(?:[bfru]{1,2}(?=\\{0,32}[\"']))?(?P<quote>\\{0,32}[\"']|`)?"
)
_FLAG = re.compile(
    rb"(?i)(?:(?<=[\s\"'=,\[])|(?<![^\n]))--?(?:[a-z0-9][\w.\-]{0,40}?[_\-])??"
    + _WORDS
    + rb"(?P<closing>[\"']?,?)[ \t]{1,8}(?P<sign>)(?P<quote>\\{0,32}[\"'])?"
)
# Tokens of a text, and page tokens.
_NOT_TOKENS = re.compile(
    rb"(?i)(?<![A-Za-z])(?:pad|eos|bos|unk|sep|cls|mask|special|next|last|first|per|stop|end|start|image|audio|prompt|page|num|n|max|min"
    rb"|total|unexpected|invalid|each|this|new|input|output|target|decoder|encoder|pre|post|every)[_\- ]?$"
)
_NAME_CHARACTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_LINE_BEGINS = re.compile(
    rb"(?:^|[\r\n]|\\n)[ \t]{0,64}(?:- )?(?:export |set |ENV )?[\"']?(?!--)[A-Za-z0-9_.\-]{0,64}$"
)
# A value without quotes: up to a blank, a quote, an escaped line end, or the next pair.
_BARE = re.compile(rb"(?:[^\s\"'`\x00\x1b\\,&;]+|[,&;](?![\w.\-]{1,64}[\"']?[=:])(?!\s|\Z)|\\(?!\\{0,31}[nrt\"']))*")
_REST_OF_LINE = re.compile(rb"(?:[^\s\x00\x1b\\]+|[ \t](?![A-Z_][A-Z0-9_]{0,64}=[^=\s])|\\(?!\\{0,31}[nr\"]))*")
# Words that follow an option in prose.
_PROSE = re.compile(
    rb"(?i)(?:to|or|and|options?|flag|is|for|must|from|as|instead|with|in|was|if|can|the|a|on|not)(?![\w-])"
)
# Values that are not secret: none, a placeholder, a variable, an earlier redaction.
_EMPTY = re.compile(
    rb"(?i)(?:none|null|nil|true|false|yes|no|undefined|unset|\*+|x+|\.{3}|<[\w .\-]{0,40}>|\(set, not shown\)"
    rb"|\[(?:redacted|hidden)[^\]]{0,40}\]?)[,);]{0,3}|\$\{?[A-Z_][A-Z0-9_]{0,64}\}?|\$\([^)]{0,80}\)?|\{[\w.]{0,40}\}|\$?\{\{.{0,80}"
)
_NUMBER = re.compile(rb"[<>~]{0,2}[+\-]?[0-9][0-9.,_eE+\-]{0,30}[A-Za-z/%]{0,12}")
_PATH = re.compile(rb"(?:[~.]?/|[A-Za-z]:\\)[\w./\\@ \-]{1,200}\.(?:json|ya?ml|pem|txt|key|cfg|ini|toml)")
# Source code, as a traceback shows it: a call, or a lookup.
_CODE = re.compile(
    rb"(?:await )?[A-Za-z_]\w{0,63}(?:\.[A-Za-z_]\w{0,63}){0,8}\("
    rb"|(?:self|cls|args|config|cfg|os|settings|flags|options|request|ctx|env(?:iron)?|kwargs|params|secrets)(?:\.\w{1,64}|\[[^\]]{0,80}\]?){1,8}[,)\]]{0,4}"
    rb"|(?:password|passwd|passphrase|token|secret|credentials?|api_key|key|auth)[,)\]]{0,4}$"
)
_RANDOM = re.compile(rb"(?=[^0-9]{0,80}[0-9])(?=[^A-Za-z]{0,80}[A-Za-z])(?![~.]{0,2}/)[A-Za-z0-9._~+/=\-]{6,}")


_UNSURE_WORDS = frozenset({b"pass", b"pwd", b"pswd", b"auth"})


def _kind(word: bytes) -> str:
    """Return the kind of secret that a word names."""
    word = word.lower()
    if word.endswith(b"key"):
        return {b"private": "private-key", b"access": "access-key"}.get(word[:-3].rstrip(b"_-. "), "api-key")
    kinds = {b"p": "password", b"c": "credential", b"s": "secret", b"t": "token", b"a": "authorization"}
    return kinds[word[:1]]


def _value_end(line: bytes, name: re.Match[bytes], kind: str) -> int | None:
    """Return where the value after a name ends, None if it is not a secret."""
    word, quote, is_flag = name["word"], name["quote"], not name["sign"]
    before = line[max(0, name.start() - 140) : name.start()]
    if kind == "token" and _NOT_TOKENS.search(before[-16:]):
        return None
    word_begin = before.rstrip(_NAME_CHARACTERS)
    if not quote and not name["closing"] and word_begin.endswith((b'"', b"'")):
        # `'--name=value'`: the quote, with its backslashes, stands right before the name.
        quote = word_begin[len(word_begin[:-1].rstrip(b"\\")) :]
    is_joined = before[-1:] in (b"_", b"-")
    is_variable = name["sign"] == b"=" and (word.isupper() or kind in {"secret", "credential"})
    is_sure = (b" " not in word or kind == "password") and (
        word.lower() not in _UNSURE_WORDS or (word.isupper() and is_joined)
    )
    # A password of a person, or the value of a variable, an option or a key of JSON, may look like anything.
    is_named = is_sure and (
        kind == "password"
        or kind.endswith("key")
        or is_flag
        or is_variable
        or (
            (is_joined or name["closing"].endswith((b'"', b"'")))
            and not (kind == "token" and name["end"].lower().startswith(b"s"))
        )
    )
    is_sentence = name["sign"] == b":" and kind in {"secret", "credential"}
    if quote:
        pattern = _quoted(quote)
    elif is_named and kind != "token" and not is_sentence and _LINE_BEGINS.search(before):
        pattern = _REST_OF_LINE
    else:
        pattern = _BARE
    value = pattern.match(line, name.end())
    secret = value[0].strip(b" \t") if value else b""
    if value is None or not secret or _EMPTY.fullmatch(secret) or (is_flag and _PROSE.match(secret)):
        return None
    if not quote and ((secret[:1] in b"[{(" and (kind != "password" or name["closing"])) or _CODE.match(secret)):
        return None
    if kind != "password" and (_NUMBER.fullmatch(secret) or secret[:1] == b"<" or _PATH.fullmatch(secret)):
        return None
    return value.end() if is_named or (_RANDOM.fullmatch(secret) and not _NUMBER.fullmatch(secret)) else None


@cache
def _quoted(quote: bytes) -> re.Pattern[bytes]:
    """Return the pattern for a value in these quotes; a line end ends it too."""
    mark, escapes = quote[-1:], len(quote) - 1
    if escapes == 0:
        return re.compile(rb"(?:[^\\\r\n%s]+|\\[^\r\n])*" % mark)
    # A quote in the value has more backslashes than the quotes around it.
    return re.compile(rb"(?:[^\\\r\n%s]+|\\{%d,}%s|\\+(?![\\%s]))*" % (mark, escapes + 1, mark, mark))


_EMAIL = re.compile(
    rb"(?<![A-Za-z0-9._%+\-])[A-Za-z0-9._%+\-]{1,64}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){0,8}\.[A-Za-z]{2,24}"
)
_ADDRESS = re.compile(
    rb"(?<![\w.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w]|\.[0-9])"
    rb"|(?<![\w:.])(?:(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|(?:[0-9A-Fa-f]{1,4}:){1,6}(?::[0-9A-Fa-f]{1,4}){1,6})(?![\w:])"
)


class AccountAliases:
    """Gives each address an alias: `account-1`, `address-2`. The same in all files of a bundle; safe for several threads."""

    def __init__(self) -> None:
        self._aliases: dict[bytes, bytes] = {}
        self._numbers: Counter[str] = Counter()
        self._lock = Lock()

    def replace(self, text: bytes, counts: Counter[str]) -> bytes:
        """Return a text with aliases instead of addresses, except those that are the same on every machine; count them."""

        def alias(found: re.Match[bytes], kind: str) -> bytes:
            if kind == "address" and not _is_of_one_machine(found[0]):
                return found[0]
            counts[kind] += 1
            return self._alias(kind, found[0].lower())

        return _ADDRESS.sub(
            lambda found: alias(found, "address"), _EMAIL.sub(lambda found: alias(found, "account"), text)
        )

    def _alias(self, kind: str, name: bytes) -> bytes:
        with self._lock:
            if name not in self._aliases:
                self._numbers[kind] += 1
                self._aliases[name] = f"{kind}-{self._numbers[kind]}".encode()
            return self._aliases[name]


def _is_of_one_machine(address: bytes) -> bool:
    try:
        ip = ipaddress.ip_address(address.decode("ascii"))
    except ValueError:
        return False
    return not (ip.is_loopback or ip.is_unspecified or ip.is_link_local or ip.is_multicast)


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
