"""Remove secrets from text that leaves this machine, and name the kind of each: `[redacted oauth-token]`. Pure.

Works on bytes as they arrive, in bounded memory and linear time. The result does not depend on how the pieces are cut; text
without secrets passes unchanged. A secret without a known form, or a name before it, cannot be found: a person must still
review the text.
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
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from tpuctl.support.named_secrets import name_rules
from tpuctl.support.secret_forms import (
    MAX_MATCH,
    LongWords,
    SecretRule,
    SecretSpan,
    command_rules,
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
            self._waiting += self._decoded(piece) if self._has_begun else piece
            while len(self._waiting) >= _WINDOW_SIZE + MAX_MATCH:
                done.append(
                    self._decide(self._waiting[: _WINDOW_SIZE + MAX_MATCH], self._waiting[_WINDOW_SIZE + MAX_MATCH :])
                )
        return b"".join(done)

    def close(self) -> bytes:
        """Return the rest."""
        done = []
        if not self._has_begun:
            self._begin()
        self._waiting += self._decoded(b"", final=True)
        while self._waiting:
            done.append(
                self._decide(self._waiting[: _WINDOW_SIZE + MAX_MATCH], self._waiting[_WINDOW_SIZE + MAX_MATCH :])
            )
        return b"".join(done)

    def _decide(self, view: bytes, rest: bytes) -> bytes:
        """Return the next bytes without their secrets; the rest waits."""
        if not self._has_begun:
            self._begin()
            return b""
        if self._tail is not None:
            found = self._tail.match(view)
            skipped = found.end() if found else 0
            if skipped < len(view):
                self._tail = None
            self._keep(view[:skipped], view[skipped:] + rest)
            if skipped:
                return b""
        is_last = not rest and len(view) < _WINDOW_SIZE + MAX_MATCH
        cut = len(view)
        if not is_last:
            ends = (view.rfind(mark, _WINDOW_SIZE - _MAX_CUT_BACK, _WINDOW_SIZE) + 1 for mark in _BREAKS)
            cut = next((end for end in ends if end), _WINDOW_SIZE)
        base = len(self._context)
        spans = _merged(self._spans(self._context + view), base)
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
        self._keep(view[:upto], view[upto:] + rest)
        return b"".join(pieces)

    def _spans(self, data: bytes) -> list[SecretSpan]:
        plain = PlainText(data)
        lowered = plain.text.lower()
        words = LongWords(lowered)
        found = [
            replace(span, start=plain.start(span.start), end=plain.end(span.end))
            for rule in (_rules() if words.text else _of_short_words())
            for span in _find_all(rule, plain.text, words if rule.is_long else lowered)
        ]
        return found + (list(self._accounts.spans(data)) if self._accounts else [])

    def _keep(self, decided: bytes, waiting: bytes) -> None:
        self._context = (self._context + decided)[-_CONTEXT_SIZE:]
        self._waiting = waiting

    def _begin(self) -> None:
        self._has_begun = True
        encoding = _encoding(self._waiting[:4096])
        if encoding:
            self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._waiting = self._decoded(self._waiting)

    def _decoded(self, data: bytes, *, final: bool = False) -> bytes:
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


@functools.cache
def _of_short_words() -> tuple[SecretRule, ...]:
    return tuple(rule for rule in _rules() if not rule.is_long)


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


def _merged(spans: Sequence[SecretSpan], base: int) -> list[SecretSpan]:
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


def _encoding(begin: bytes) -> str | None:
    """Return the encoding of a text with two or four bytes for each letter, None for others."""
    for mark, name in _BOMS.items():
        if begin.startswith(mark):
            return name
    if len(begin) < 32:
        return None
    for first, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros, others = begin[first::2], begin[1 - first :: 2]
        if zeros.count(0) > 0.9 * len(zeros) and others.count(0) < 0.1 * len(others):
            return name
    return None


# Plain text: without colours, and with the escapes of JSON, HTML, URLs and shells decoded.


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


# Aliases for names that are not secret but private: e-mail and IP addresses.


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


# Documents of the API without the values of metadata, except values known to be harmless.


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
_KEYS = frozenset({"ssh-keys", "sshkeys"})


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
            shown[key] = {name: _shown(name, text) for name, text in value.items()}
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


def _shown(key: str, value: Any) -> Any:  # JSON
    if key.lower() in _HARMLESS_METADATA or key.lower() in _SCRIPTS:
        return value
    if key.lower() in _KEYS and isinstance(value, str):
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
