"""Remove secrets from text that leaves this machine, and name the kind of each: `[redacted oauth-token]`. Pure.

Works on bytes as they arrive, in bounded memory and linear time. The result does not depend on how the pieces are cut; text
without secrets passes unchanged. A secret without a known form, or a name before it, cannot be found: a person must still
review the text.
"""

from __future__ import annotations

import codecs
import functools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction import commands, keys, places, tokens, values
from tpuctl.diagnosis.redaction.plain import Plain
from tpuctl.diagnosis.redaction.spans import REACH, Rule, Span, Words

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Sequence

    from tpuctl.diagnosis.redaction.accounts import Accounts

# Bytes decided at once, with `REACH` more in view after them and these before them.
_WINDOW = 256 * 1024
_CONTEXT = 2048
# A piece is cut at the end of a line if possible, or of a word.
_BACKWARDS = 32 * 1024
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

    def __init__(self, accounts: Accounts | None = None) -> None:
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
        for at in range(0, len(data), _WINDOW):
            piece = data[at : at + _WINDOW]
            self._waiting += self._decoded(piece) if self._has_begun else piece
            while len(self._waiting) >= _WINDOW + REACH:
                done.append(self._decide(self._waiting[: _WINDOW + REACH], self._waiting[_WINDOW + REACH :]))
        return b"".join(done)

    def close(self) -> bytes:
        """Return the rest."""
        done = []
        if not self._has_begun:
            self._begin()
        self._waiting += self._decoded(b"", final=True)
        while self._waiting:
            done.append(self._decide(self._waiting[: _WINDOW + REACH], self._waiting[_WINDOW + REACH :]))
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
        is_last = not rest and len(view) < _WINDOW + REACH
        cut = len(view)
        if not is_last:
            ends = (view.rfind(mark, _WINDOW - _BACKWARDS, _WINDOW) + 1 for mark in _BREAKS)
            cut = next((end for end in ends if end), _WINDOW)
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

    def _spans(self, data: bytes) -> list[Span]:
        plain = Plain(data)
        lowered = plain.text.lower()
        words = Words(lowered)
        found = [
            replace(span, start=plain.start(span.start), end=plain.end(span.end))
            for rule in (_rules() if words.text else _of_short_words())
            for span in _find_all(rule, plain.text, words if rule.is_long else lowered)
        ]
        return found + (list(self._accounts.spans(data)) if self._accounts else [])

    def _keep(self, decided: bytes, waiting: bytes) -> None:
        self._context = (self._context + decided)[-_CONTEXT:]
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


def redact(data: bytes, accounts: Accounts | None = None) -> bytes:
    """Return a text without its secrets."""
    redactor = Redactor(accounts)
    return redactor.feed(data) + redactor.close()


@functools.cache
def _rules() -> tuple[Rule, ...]:
    """Return all rules; of two that find the same place, the earlier names it."""
    return (*keys.rules(), *tokens.rules(), *places.rules(), *commands.rules(), *values.rules())


@functools.cache
def _of_short_words() -> tuple[Rule, ...]:
    return tuple(rule for rule in _rules() if not rule.is_long)


def _find_all(rule: Rule, data: bytes, searched: bytes | Words) -> Iterator[Span]:
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


def _merged(spans: Sequence[Span], base: int) -> list[Span]:
    """Return the spans in order, merged if they overlap and named by the first rule. Skips bytes decided before `base`."""
    merged: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        start = max(span.start, base)
        if span.end <= start:
            continue
        if merged and start < merged[-1].end:
            last = merged[-1]
            if span.end > last.end:
                merged[-1] = Span(last.start, span.end, last.kind, span.tail, last.label)
        else:
            merged.append(Span(start, span.end, span.kind, span.tail, span.label))
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
