"""Remove secrets from text that leaves this machine, and name the kind of each: `[redacted oauth-token]`. Pure.

`Redactor` works on bytes as they arrive, in bounded memory and linear time. The result does not depend on how the pieces are
cut; text without secrets passes unchanged. It searches `PlainText` (without colours, and with the escapes of JSON, HTML, URLs
and shells decoded) with the rules of `secret_forms` and with `name_rules`: `NAME=value`, `"name": "value"`, `--name value`, and
similar. `hide_metadata` is for documents of the API. A secret without a known form, or a name before it, cannot be found: a
person must still review the text.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import functools
import hashlib
import ipaddress
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from tpuctl.support.secret_forms import (
    MAX_MATCH,
    LongWords,
    SecretRule,
    SecretSpan,
    command_rules,
    extend_span,
    key_rules,
    place_rules,
    token_rules,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Bytes decided at once, with `REACH` more in view after them and these before them.
_WINDOW_SIZE = 256 * 1024
_CONTEXT_SIZE = 2048
# A piece is cut at the end of a line if possible, or of a word.
_MAX_CUT_BACK = 32 * 1024
_BREAKS = (b"\n", b" ")
_BOMS = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


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
        self._decoder: codecs.IncrementalDecoder | None = None
        self._has_begun = False

    def feed(self, data: bytes) -> bytes:
        """Take the next piece and return the bytes decided so far."""
        done = []
        for at in range(0, len(data), _WINDOW_SIZE):
            piece = data[at : at + _WINDOW_SIZE]
            self._waiting += self._decode_piece(piece) if self._has_begun else piece
            while len(self._waiting) >= _WINDOW_SIZE + MAX_MATCH:
                done.append(
                    self._decide(self._waiting[: _WINDOW_SIZE + MAX_MATCH], self._waiting[_WINDOW_SIZE + MAX_MATCH :])
                )
        return b"".join(done)

    def close(self) -> bytes:
        """Return the rest."""
        done = []
        if not self._has_begun:
            self._detect_encoding()
        self._waiting += self._decode_piece(b"", final=True)
        while self._waiting:
            done.append(
                self._decide(self._waiting[: _WINDOW_SIZE + MAX_MATCH], self._waiting[_WINDOW_SIZE + MAX_MATCH :])
            )
        return b"".join(done)

    def _decide(self, view: bytes, rest: bytes) -> bytes:
        """Return the next bytes without their secrets; the rest waits."""
        if not self._has_begun:
            self._detect_encoding()
            return b""
        if self._tail is not None:
            found = self._tail.match(view)
            skipped = found.end() if found else 0
            if skipped < len(view):
                self._tail = None
            self._advance(view[:skipped], view[skipped:] + rest)
            if skipped:
                return b""
        is_last = not rest and len(view) < _WINDOW_SIZE + MAX_MATCH
        cut = len(view)
        if not is_last:
            ends = (view.rfind(mark, _WINDOW_SIZE - _MAX_CUT_BACK, _WINDOW_SIZE) + 1 for mark in _BREAKS)
            cut = next((end for end in ends if end), _WINDOW_SIZE)
        base = len(self._context)
        spans = _merge_spans(self._find_spans(self._context + view), base)
        pieces, at = [], 0
        for span in spans:
            if span.start - base >= max(cut, at):
                break
            pieces += [view[at : span.start - base], span.text]
            self.counts[span.kind] += 1
            at = span.end - base
            self._tail = span.tail if at == len(view) and not is_last else None
        upto = max(cut, at)
        pieces.append(view[at:upto])
        self._advance(view[:upto], view[upto:] + rest)
        return b"".join(pieces)

    def _find_spans(self, data: bytes) -> list[SecretSpan]:
        plain = PlainText(data)
        lowered = plain.text.lower()
        words = LongWords(lowered)
        found = [
            replace(span, start=plain.start(span.start), end=plain.end(span.end))
            for rule in (_rules() if words.text else [rule for rule in _rules() if not rule.is_long])
            for span in _find_all(rule, plain.text, words if rule.is_long else lowered)
        ]
        return found + (list(self._accounts.spans(data)) if self._accounts else [])

    def _advance(self, decided: bytes, waiting: bytes) -> None:
        self._context = (self._context + decided)[-_CONTEXT_SIZE:]
        self._waiting = waiting

    def _detect_encoding(self) -> None:
        self._has_begun = True
        begin = self._waiting[:4096]
        encoding = next((name for mark, name in _BOMS.items() if begin.startswith(mark)), None)
        if encoding is None and len(begin) >= 32:
            for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
                zeros, others = begin[first::2], begin[1 - first :: 2]
                if zeros.count(0) > 0.9 * len(zeros) and others.count(0) < 0.1 * len(others):
                    encoding = name
        if encoding:
            self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._waiting = self._decode_piece(self._waiting)

    def _decode_piece(self, data: bytes, *, final: bool = False) -> bytes:
        if self._decoder is None:
            return data
        return self._decoder.decode(data, final).encode("utf-8", "replace")


def redact(data: bytes, accounts: AccountAliases | None = None) -> bytes:
    """Return a text without its secrets."""
    redactor = Redactor(accounts)
    return redactor.feed(data) + redactor.close()


@functools.cache
def _rules() -> tuple[SecretRule, ...]:
    """Return all rules; of two that find the same place, the earlier names it."""
    return (*key_rules(), *token_rules(), *place_rules(), *command_rules(), *name_rules())


def _find_all(rule: SecretRule, data: bytes, searched: bytes | LongWords) -> Iterator[SecretSpan]:
    text = searched if isinstance(searched, bytes) else searched.text
    at, done = text.find(rule.anchor), 0
    while at >= 0:
        place = at if isinstance(searched, bytes) else searched.place(at)
        after = at + 1
        for span in rule.find(data, place) if place >= done else ():
            if span.kind:
                yield span
            # A match inside a secret of the same kind is a part of it.
            done = max(done, span.end)
        if isinstance(searched, bytes):
            after = max(after, done)
        at = text.find(rule.anchor, after)


def _merge_spans(spans: Sequence[SecretSpan], base: int) -> list[SecretSpan]:
    """Return the spans in order, merged if they overlap and named by the first rule. Skips bytes decided before `base`."""
    merged: list[SecretSpan] = []
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        start = max(span.start, base)
        if span.end <= start:
            continue
        if merged and start < merged[-1].end:
            last = merged[-1]
            if span.end > last.end:
                merged[-1] = SecretSpan(last.start, span.end, last.kind, span.tail, last.label)
        else:
            merged.append(SecretSpan(start, span.end, span.kind, span.tail, span.label))
    return merged


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
    """A decoded text, and the positions of its parts in the original text."""

    def __init__(self, written: bytes) -> None:
        self.text = written
        # The start of each part in the decoded text, and in the original.
        self._decoded_starts: list[int] = []
        self._original_starts: list[int] = []
        if not any(sign in written for sign in _SIGNS):
            return
        pieces, at, length = [], 0, 0
        for found in _ESCAPES.finditer(written):
            decoded = _decode(found)
            self._decoded_starts += [length, length + found.start() - at]
            self._original_starts += [at, found.start()]
            pieces += [written[at : found.start()], decoded]
            length += found.start() - at + len(decoded)
            at = found.end()
        if pieces:
            self._decoded_starts.append(length)
            self._original_starts.append(at)
            self.text = b"".join([*pieces, written[at:]])

    def start(self, at: int) -> int:
        """Return the start in the original text of a part that starts here."""
        if not self._decoded_starts:
            return at
        part = bisect_right(self._decoded_starts, at) - 1
        # Parts with an even index are unchanged.
        return self._original_starts[part] + (0 if part % 2 else at - self._decoded_starts[part])

    def end(self, at: int) -> int:
        """Return the end in the original text of a part that ends here."""
        if not self._decoded_starts or not at:
            return at
        part = bisect_right(self._decoded_starts, at - 1) - 1
        return (
            self._original_starts[part + 1]
            if part % 2
            else self._original_starts[part] + at - self._decoded_starts[part]
        )


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
_IPV4 = re.compile(rb"(?<![\w.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w]|\.[0-9])")
_IPV6 = re.compile(
    rb"(?<![\w:.])(?:(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|(?:[0-9A-Fa-f]{1,4}:){1,6}(?::[0-9A-Fa-f]{1,4}){1,6})(?![\w:])"
)


class AccountAliases:
    """Gives each address an alias: `account-1`, `address-2`. The same in all files of a bundle; safe for several threads."""

    def __init__(self) -> None:
        self._aliases: dict[bytes, bytes] = {}
        self._counts: dict[str, int] = {}
        self._lock = Lock()

    def spans(self, data: bytes) -> Iterator[SecretSpan]:
        """Yield the addresses in a piece of text, except those that are the same on every machine."""
        if b"@" in data:
            for found in _EMAIL.finditer(data):
                yield SecretSpan(*found.span(), "account", label=self._alias("account", found.group().lower()))
        for pattern in (_IPV4, _IPV6):
            for found in pattern.finditer(data):
                try:
                    address = ipaddress.ip_address(found.group().decode("ascii"))
                except ValueError:
                    continue
                is_common = (
                    address.is_loopback or address.is_unspecified or address.is_link_local or address.is_multicast
                )
                if not is_common:
                    yield SecretSpan(*found.span(), "address", label=self._alias("address", found.group().lower()))

    def _alias(self, kind: str, name: bytes) -> bytes:
        with self._lock:
            if name not in self._aliases:
                self._counts[kind] = self._counts.get(kind, 0) + 1
                self._aliases[name] = f"{kind}-{self._counts[kind]}".encode()
            return self._aliases[name]


# Switches of the guest and of tpuctl [documentation of metadata; gcloud 528 source].
_HARMLESS_METADATA = frozenset(
    {
        *("enable-oslogin", "enable-oslogin-2fa", "enable-oslogin-sk", "enable-guest-attributes", "enable-osconfig"),
        *("block-project-ssh-keys", "serial-port-enable", "serial-port-logging-enable", "disable-legacy-endpoints"),
        *("google-logging-enabled", "google-monitoring-enabled", "vmdnssetting", "agent-node-id", "accelerator-type"),
        *("framework", "tpu-env-version", "physical-topology", "agent-worker-number"),
    }
)
# Treated like a log: text redaction removes the secrets in them.
_SCRIPTS = frozenset({"startup-script", "shutdown-script", "startup-script-url", "shutdown-script-url"})
_SUSPECT = re.compile(r"(?i)passw(?:or)?d|passphrase|secret|credential|token|[-_]?key|_pass|auth|cookie")
_SSH_KEY_NAMES = frozenset({"ssh-keys", "sshkeys"})


def hide_metadata(document: Any) -> Any:  # JSON
    """Return a document of the API, or a line of the journal, whose metadata values are hidden unless they are harmless.

    Keeps the logins and fingerprints of ssh keys, and scripts. The metadata of an operation is not metadata of a node.
    """
    if isinstance(document, list | tuple):
        return [hide_metadata(one) for one in document]
    if not isinstance(document, dict):
        return document
    shown: dict[str, Any] = {}
    for key, value in document.items():
        if key == "metadata" and isinstance(value, dict) and "@type" not in value:
            shown[key] = {name: _hide_value(name, text) for name, text in value.items()}
        else:
            shown[key] = hide_metadata(value)
    return shown


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


def _hide_value(key: str, value: Any) -> Any:  # JSON
    if key.lower() in _HARMLESS_METADATA or key.lower() in _SCRIPTS:
        return value
    if key.lower() in _SSH_KEY_NAMES and isinstance(value, str):
        return "\n".join(_fingerprint(line) for line in value.splitlines() if line.strip())
    return f"[hidden: {len(str(value))} characters]"


def _fingerprint(line: str) -> str:
    """Return the login, the type and the fingerprint of a line `LOGIN:TYPE BASE64 COMMENT`, as ssh prints them."""
    login, _, key = line.strip().partition(":")
    words = key.split()
    try:
        digest = hashlib.sha256(base64.b64decode(words[1], validate=True)).digest()
    except (IndexError, binascii.Error):
        return "[hidden: not a key]"
    return f"{login}:{words[0]} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


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


def name_rules() -> tuple[SecretRule, ...]:
    """Return the rules, one for each word in names of secrets."""
    return tuple(SecretRule(anchor, partial(_find_value, anchor)) for anchor in NAME_ANCHORS)


def _find_value(anchor: bytes, data: bytes, at: int) -> Iterator[SecretSpan]:
    """Yield the value of the name at this position, if it may be a secret."""
    name = find_secret_name(anchor, data, at)
    if name is None:
        return
    found = _AFTER.match(data, name.end)
    if found is None:
        yield from _find_without_sign(name, data)
        return
    if is_about(name, data, found["rest"]) or (
        # `>` is a sign only behind the name of a tag.
        found["sign"] == b">" and not data[max(0, name.start - 65) : name.start].rstrip(_NAME_CHARACTERS).endswith(b"<")
    ):
        return
    is_named = name.is_password or _is_named(name, data, found)
    start, quote = found.end(), found["quote"]
    is_key = _CLOSING.match(data, name.end) is not None
    if not quote and is_named and not is_key:
        # `'--name=value'`: the quote, with its backslashes, stands right before the name.
        before = data[max(0, name.start - 100) : name.start].rstrip(_NAME_CHARACTERS)
        if before.endswith((b'"', b"'")):
            quote = before[len(before[:-1].rstrip(b"\\")) :]
    is_line = not quote and _begins_line(data, name.start)
    if not quote and (below := values_below(data, name.start, start)) and name.kind != "token":
        yield from below
        return
    span = extend_span(data, start, start, name.kind, _end_of_value(name, found, quote, is_line=is_line))
    value = data[start : span.end].strip(b" \t")
    if not quote and is_key and value[:1] == b"[":
        yield from listed_values(data, start, name.kind)
        return
    may_be_list = not quote and (is_key or not name.is_password)
    may_be = value and may_be_secret(name.kind, value, may_be_list=may_be_list, is_quoted=bool(quote))
    if may_be and ((name.is_sure and is_named) or looks_random(value)):
        yield span
        return
    if span.end - span.start > _LONG_VALUE:
        # Search a long value once, not for each word in it.
        yield SecretSpan(start, span.end, "")


def _end_of_value(name: SecretName, found: re.Match[bytes], quote: bytes | None, *, is_line: bool) -> re.Pattern[bytes]:
    if quote:
        return quoted_value(quote)
    if found["sign"] == b">":
        return UP_TO_TAG
    # Text about credentials is often a sentence.
    is_value = name.is_password or found["sign"] == b"=" or name.kind not in {"secret", "credential", "token"}
    return REST_OF_LINE if is_line and is_value and name.is_sure and name.kind != "token" else BARE_VALUE


def _find_without_sign(name: SecretName, data: bytes) -> Iterator[SecretSpan]:
    """Yield the value after a name without a sign: `--name value`, `("name", "value")`, `setenv NAME value`."""
    if _NO_VALUE.match(data, name.end):
        return
    before = data[max(0, name.start - 140) : name.start]
    if _is_flag(data, name):
        found, is_named = _BLANKS.match(data, name.end), name.is_sure
        if found and first_word(data, found.end()) in PROSE_WORDS:
            return
    elif found := _PAIRED.match(data, name.end):
        is_named = data[name.start : name.end].isupper()
    elif found := _APART.match(data, name.end):
        is_named = name.is_sure
    elif found := _SET.match(data, name.end):
        is_named = _SETS.search(before) is not None and data[name.start : name.end].isupper()
        is_named = is_named or (name.is_password and _NETRC.search(before) is not None)
        is_table = b"\t" in data[name.end : found.end()] and _begins_line(data, name.start)
        if not is_named and not is_table:
            found = _match_in_sentence(name, data)
    else:
        found, is_named = _match_in_sentence(name, data), False
    if found is None:
        return
    start, quote = found.end(), found["quote"]
    span = extend_span(data, start, start, name.kind, quoted_value(quote) if quote else BARE_VALUE)
    value = data[start : span.end]
    if not value or is_about(name, data, found["rest"]):
        return
    if may_be_secret(name.kind, value, may_be_list=True, is_quoted=True) and (is_named or looks_random(value)):
        yield span


def _match_in_sentence(name: SecretName, data: bytes) -> re.Match[bytes] | None:
    """Return the match for a secret in a sentence."""
    found = _IN_SENTENCE.match(data, name.end) if name.is_sure else None
    if found is None or not (
        found["long"] is not None or (name.is_password and (found["verb"] or b"|" in found.group()))
    ):
        return None
    return found


def _begins_line(data: bytes, at: int) -> bool:
    return _LINE_BEGINS.search(data[max(0, at - 140) : at]) is not None


def _is_named(name: SecretName, data: bytes, found: re.Match[bytes]) -> bool:
    """Tell whether a name is that of a variable, a JSON key or an option: then its value is a secret in any form."""
    if name.kind not in {"token", "secret", "credential"}:
        return True
    is_variable = data[name.start : name.end].isupper() and found["sign"] == b"="
    is_several = name.kind == "token" and found["rest"].lower().startswith(b"s")
    is_joined = data[max(0, name.start - 1) : name.start] in _JOINS
    is_quoted = found["quote"] and (found["sign"] != b":" or _begins_line(data, name.start))
    is_key = bool(found["closing"] or is_quoted or is_joined) and not is_several
    is_line = name.kind != "token" and (
        found["sign"] == b"=" or (name.kind == "secret" and _begins_line(data, name.start))
    )
    return is_variable or is_key or is_line or found["sign"] == b">" or _is_flag(data, name)


def _is_flag(data: bytes, name: SecretName) -> bool:
    """Tell whether a name is an option: `--name value`, also as elements of a list."""
    end = name.end + (data[name.end : name.end + 1] == b"s")
    if data[end : end + 1] not in _FLAG_ENDS:
        return False
    return _FLAG.search(data[max(0, name.start - 70) : name.end]) is not None


# Each name contains one of these; its context decides.
NAME_ANCHORS = (b"pass", b"pwd", b"pswd", b"key", b"secret", b"credential", b"creds", b"token", b"auth")
# The word as a whole.
_PASS = re.compile(rb"(?i)pass(?:word|wd|phrase|code|wort|[ _\-]phrase|[ _\-]word)?")
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
_TEXT_TOKEN_ENDINGS = (
    b"iz",
    b"s_per",
    b"_per",
    b"s/",
    b"_id",
    b"_type",
    b"_len",
    b"_count",
    b"_limit",
    b"-per",
    b"_index",
    b"_num",
)
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
_OF_NAME = re.compile(rb"[A-Za-z0-9_\-.]")
_LETTER = re.compile(rb"[A-Za-z]")


@dataclass(frozen=True, slots=True)
class SecretName:
    """A name that may have a secret as its value."""

    start: int  # of the word in the text
    end: int
    kind: str  # of the secret
    is_sure: bool = True  # False for an ambiguous word, such as `pass` or `key`: the value must look like a secret

    @property
    def is_password(self) -> bool:
        """Whether a person chose the secret, so that it may look like anything."""
        return self.kind == "password"


def find_secret_name(anchor: bytes, data: bytes, at: int) -> SecretName | None:
    """Return the name of a secret at this place, None if there is none."""
    match anchor:
        case b"pass":
            found = _PASS.match(data, at)
            if found is None:
                return None
            is_whole_word = len(found.group()) > len(b"pass")
            return (
                SecretName(at, found.end(), "password") if is_whole_word else _find_abbreviation(data, at, found.end())
            )
        case b"pwd" | b"pswd":
            return _find_abbreviation(data, at, at + len(anchor))
        case b"key":
            back = max(0, at - 24)
            opening = _KEY_PREFIX.search(data[back:at])
            if opening is None or _continues_word(data, back + opening.start()):
                return None
            kinds = {"api": "api-key", "private": "private-key", "access": "access-key"}
            kind = next((kinds[group] for group in kinds if opening[group]), "secret")
            return SecretName(back + opening.start(), at + 3, kind, is_sure=not opening.group().endswith(b" "))
        case b"auth":
            whole = _OF_NAME.match(data, at + 4) is None and not _continues_word(data, at)
            is_variable = data[at : at + 4].isupper() and data[max(0, at - 1) : at] == b"_"
            return SecretName(at, at + 4, "authorization", is_sure=is_variable) if whole else None
        case b"creds":
            return None if _continues_word(data, at) else SecretName(at, at + 5, "credential")
        case _:
            return SecretName(at, at + len(anchor), anchor.decode())


def is_about(name: SecretName, data: bytes, rest: bytes) -> bool:
    """Tell whether a name is about a secret, about tokens of a text, or another word; `rest` is its end."""
    before = data[max(0, name.start - 16) : name.start]
    if name.kind == "token" and (rest.lower().startswith(_TEXT_TOKEN_ENDINGS) or _NOT_TOKENS.search(before)):
        return True
    return _ABOUT.fullmatch(rest) is not None or _NAME_ENDINGS.match(rest) is None


def _find_abbreviation(data: bytes, at: int, end: int) -> SecretName | None:
    """Return an abbreviation that is a word of its own; sure only as an environment variable."""
    if _LETTER.match(data, end) or _continues_word(data, at):
        return None
    return SecretName(at, end, "password", is_sure=data[at:end].isupper() and data[max(0, at - 1) : at] == b"_")


def _continues_word(data: bytes, at: int) -> bool:
    """Tell whether a word is only the end of another: `bypass`, but not `dbPass`."""
    before = data[max(0, at - 1) : at]
    return before.isalpha() and not (before.islower() and data[at : at + 1].isupper())


# A value without quotes: up to a blank, a quote, an escaped line end, or the next pair.
BARE_VALUE = re.compile(rb"(?:[^\s\"'`\x00\\,&;]+|[,&;](?![\w.\-]{1,64}[\"']?[=:])(?!\s|\Z)|\\(?!\\{0,31}[nrt\"']))*")
REST_OF_LINE = re.compile(rb"(?:[^\s\x00\\]+|[ \t\v\f](?![A-Z_][A-Z0-9_]{0,64}=[^=\s])|\\(?!\\{0,31}[nr]))*")
UP_TO_TAG = re.compile(rb"[^<>\r\n]*")
# Words that follow an option in prose.
PROSE_WORDS = frozenset(
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
def quoted_value(quote: bytes) -> re.Pattern[bytes]:
    """Return the pattern for a value in these quotes; a line end ends it too, except with triple quotes."""
    mark, escapes = quote[-1:], len(quote) - 1
    if quote in {b'"""', b"'''"}:
        return re.compile(rb"(?:[^%s]+|%s(?!%s))*" % (mark, mark, mark * 2))
    if escapes == 0:
        return re.compile(rb"(?:[^\\\r\n%s]+|\\[^\r\n])*" % mark)
    # A quote in the value has more backslashes than the quotes around it.
    return re.compile(rb"(?:[^\\\r\n%s]+|\\{%d,}%s|\\+(?![\\%s]))*" % (mark, escapes + 1, mark, mark))


def first_word(data: bytes, at: int) -> bytes:
    """Return the word at this position, in lower case."""
    found = _WORD.match(data, at)
    return found.group().lower() if found else b""


def may_be_secret(kind: str, value: bytes, *, may_be_list: bool, is_quoted: bool) -> bool:
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


def looks_random(value: bytes) -> bool:
    """Tell whether a word looks random: not of a language or a program, not a number with a unit, not a path."""
    return (
        len(value) >= 6
        and _RANDOM.fullmatch(value) is not None
        and _NUMBER.fullmatch(value) is None
        and _FOLDER.match(value) is None
    )


def listed_values(data: bytes, at: int, kind: str) -> Iterator[SecretSpan]:
    """Yield the quoted values in a list. Tokens of a text are not secrets."""
    found = _LIST.match(data, at)
    if found is None or kind == "token":
        return
    for item in _ITEM.finditer(data, at, found.end()):
        value = item[item.lastgroup or 0]
        if may_be_secret(kind, value, may_be_list=False, is_quoted=True) and value.strip() not in {b"", b","}:
            yield SecretSpan(*item.span(item.lastgroup or 0), kind)


def values_below(data: bytes, name: int, at: int) -> list[SecretSpan]:
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
