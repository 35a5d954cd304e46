"""Secrets recognized by the name before them: `NAME=value`, `"name": "value"`, `--name value`, and similar."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction import shapes
from tpuctl.diagnosis.redaction.names import ANCHORS, Named, is_about, named
from tpuctl.diagnosis.redaction.spans import Rule, Span, going_on

if TYPE_CHECKING:
    from collections.abc import Iterator

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
_SAID = re.compile(
    rb"(?P<rest>)(?:[ \t]{1,4}(?P<verb>is|was|for [\w.@\-]{1,64}|are))?:?[ \t|]{1,4}(?P<quote>[\"'`])?"
    rb"(?=[^a-z\s]{0,60}[a-z])(?=[^A-Z\s]{0,60}[A-Z])(?=[^0-9\s]{0,60}[0-9])(?=[\w.~+/=\-]{8})(?P<long>(?=[\w.~+/=\-]{20}))?"
)
_NETRC = re.compile(rb"(?:login|machine|default)[ \t]{1,8}\S{1,128}[ \t]{1,8}$")
_OF_NAMES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_CLOSING = re.compile(rb"[A-Za-z0-9_.\-]{0,64}\\{0,32}[\"'`\]*]")
_LINE_BEGINS = re.compile(
    rb"(?:^|[\r\n]|\\n)[ \t]{0,64}(?:- )?(?:export |set |ENV )?[\"']?(?!--)[A-Za-z0-9_.\-]{0,64}$"
)
_JOINS = (b"_", b"-")
# `tokens/s`, `(token)`, the end of a sentence.
_NOTHING = re.compile(rb"s?[/().;<>\[{}]")
_LONG = 256


def rules() -> tuple[Rule, ...]:
    """Return the rules, one for each word in names of secrets."""
    return tuple(Rule(anchor, partial(_look, anchor)) for anchor in ANCHORS)


def _look(anchor: bytes, data: bytes, at: int) -> Iterator[Span]:
    """Yield the value of the name at this position, if it may be a secret."""
    name = named(anchor, data, at)
    if name is None:
        return
    found = _AFTER.match(data, name.end)
    if found is None:
        yield from _find_without_sign(name, data)
        return
    if is_about(name, data, found["rest"]) or (
        # `>` is a sign only behind the name of a tag.
        found["sign"] == b">" and not data[max(0, name.start - 65) : name.start].rstrip(_OF_NAMES).endswith(b"<")
    ):
        return
    is_named = name.is_password or _is_named(name, data, found)
    start, quote = found.end(), found["quote"]
    is_key = _CLOSING.match(data, name.end) is not None
    if not quote and is_named and not is_key:
        # `'--name=value'`: the quote, with its backslashes, stands right before the name.
        before = data[max(0, name.start - 100) : name.start].rstrip(_OF_NAMES)
        if before.endswith((b'"', b"'")):
            quote = before[len(before[:-1].rstrip(b"\\")) :]
    is_line = not quote and _begins_line(data, name.start)
    if not quote and (below := shapes.below(data, name.start, start)) and name.kind != "token":
        yield from below
        return
    span = going_on(data, start, start, name.kind, _end_of_value(name, found, quote, is_line=is_line))
    value = data[start : span.end].strip(b" \t")
    if not quote and is_key and value[:1] == b"[":
        yield from shapes.listed(data, start, name.kind)
        return
    may_be_list = not quote and (is_key or not name.is_password)
    may_be = value and shapes.may_be_secret(name.kind, value, may_be_list=may_be_list, is_quoted=bool(quote))
    if may_be and ((name.is_sure and is_named) or shapes.looks_random(value)):
        yield span
        return
    if span.end - span.start > _LONG:
        # Search a long value once, not for each word in it.
        yield Span(start, span.end, "")


def _end_of_value(name: Named, found: re.Match[bytes], quote: bytes | None, *, is_line: bool) -> re.Pattern[bytes]:
    if quote:
        return shapes.quoted(quote)
    if found["sign"] == b">":
        return shapes.TO_TAG
    # Text about credentials is often a sentence.
    is_value = name.is_password or found["sign"] == b"=" or name.kind not in {"secret", "credential", "token"}
    return shapes.TO_LINE_END if is_line and is_value and name.is_sure and name.kind != "token" else shapes.BARE


def _find_without_sign(name: Named, data: bytes) -> Iterator[Span]:
    """Yield the value after a name without a sign: `--name value`, `("name", "value")`, `setenv NAME value`."""
    if _NOTHING.match(data, name.end):
        return
    before = data[max(0, name.start - 140) : name.start]
    if _is_flag(data, name):
        found, is_named = _BLANKS.match(data, name.end), name.is_sure
        if found and shapes.first_word(data, found.end()) in shapes.PROSE:
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
            found = _said(name, data)
    else:
        found, is_named = _said(name, data), False
    if found is None:
        return
    start, quote = found.end(), found["quote"]
    span = going_on(data, start, start, name.kind, shapes.quoted(quote) if quote else shapes.BARE)
    value = data[start : span.end]
    if not value or is_about(name, data, found["rest"]):
        return
    if shapes.may_be_secret(name.kind, value, may_be_list=True, is_quoted=True) and (
        is_named or shapes.looks_random(value)
    ):
        yield span


def _said(name: Named, data: bytes) -> re.Match[bytes] | None:
    """Return the match for a secret in a sentence."""
    found = _SAID.match(data, name.end) if name.is_sure else None
    if found is None or not (
        found["long"] is not None or (name.is_password and (found["verb"] or b"|" in found.group()))
    ):
        return None
    return found


def _begins_line(data: bytes, at: int) -> bool:
    return _LINE_BEGINS.search(data[max(0, at - 140) : at]) is not None


def _is_named(name: Named, data: bytes, found: re.Match[bytes]) -> bool:
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


def _is_flag(data: bytes, name: Named) -> bool:
    """Tell whether a name is an option: `--name value`, also as elements of a list."""
    end = name.end + (data[name.end : name.end + 1] == b"s")
    if data[end : end + 1] not in _FLAG_ENDS:
        return False
    return _FLAG.search(data[max(0, name.start - 70) : name.end]) is not None
