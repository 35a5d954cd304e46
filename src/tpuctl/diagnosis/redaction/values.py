"""Secrets that are known by the name before them: `NAME=value`, `"name": "value"`, `--name value`, headers, URLs."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction.spans import Rule, Span, going_on

if TYPE_CHECKING:
    from collections.abc import Iterator

# What follows a name up to its value: the rest of the name, the quote or bracket that closes it, `=`, `:` or `=>`, a quote.
_AFTER = re.compile(
    rb"(?P<rest>[A-Za-z0-9_.\-]{0,64})(?P<closing>\\{0,16}[\"']?\]?)[ \t]{0,8}(?P<sign>=>|:=|[:=])"
    # `NAME= OTHER=value` has no value.
    rb"(?:[ \t]{1,8}+(?![A-Z_][A-Z0-9_]{0,64}=[^=\s])|(?![ \t]))"
    rb"(?:[bruBRU]{1,2}(?=\\{0,16}[\"']))?(?P<quote>\\{0,16}[\"'])?"
)
# `--name value`: nothing but blanks between them.
_FLAG = re.compile(rb"(?<=[\s\"'=,\[])--?[A-Za-z0-9][A-Za-z0-9_\-]{0,64}$")
_OF_NAMES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_CLOSING = re.compile(rb"[A-Za-z0-9_.\-]{0,64}\\{0,16}[\"'\]]")
_FLAG_ENDS = (b" ", b"\t", b"=", b'"', b"'", b",")
_BLANKS = re.compile(rb"[\"']?,?[ \t]{1,8}(?P<quote>\\{0,16}[\"'])?")
# Words that such a flag is followed by in prose.
_PROSE = frozenset(b"to or and option options flag is for must from as instead with in was if can the a on not".split())
# A value without quotes: to a blank, a quote, an escaped line end, or where the next pair begins.
_BARE = re.compile(rb"(?:[^\s\"'\x00\\,&;]|[,&;](?![\w.\-]{1,64}[\"']?[=:])(?!\s|\Z)|\\(?!\\{0,15}[nrt\"']))*+")
_TO_LINE_END = re.compile(rb"(?:[^\s\x00\\]|[ \t\v\f](?![A-Z_][A-Z0-9_]{0,64}=[^=\s])|\\(?!\\{0,15}[nr]))*+")
_LINE_BEGINS = re.compile(rb"(?:^|[\r\n])[ \t]{0,64}(?:- )?(?:export |set |ENV )?[\"']?[A-Za-z0-9_.\-]{0,64}$")
# Values that tell nothing: none, a placeholder, a variable, what was hidden before.
_EMPTY = re.compile(
    rb"(?i:none|null|nil|true|false|yes|no|undefined|unset|redacted|hidden|\*+|x+|\.{3}|<[\w .\-]{0,40}>"
    rb"|\(set, not shown\)|\[(?:redacted|hidden)[^\]]{0,40}\]?)|\$\{?[A-Z_][A-Z0-9_]{0,64}\}?|\$\([^)]{0,80}\)?|\{[\w.]{0,40}\}"
)
_NUMBER = re.compile(rb"[<>~]{0,2}[+\-]?[0-9][0-9.,_eE+\-]{0,30}[A-Za-z/%]{0,12}")
_PATH = re.compile(rb"(?:[~.]?/|[A-Za-z]:\\)[\w./\\@ \-]{1,200}\.(?:json|ya?ml|pem|txt|key|cfg|ini|toml)")
# What is about a secret without being one: where it lies, what it is called, how long it is.
_ABOUT = re.compile(
    rb"(?i)[_.\-]?(?:names?|manager|version|ref|paths?|files?|dir|urls?|uri|types?|length|len|count|size)"
)
_OF_TEXT = (
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
# A person chooses it: it may begin with anything.
_WHATEVER = frozenset({b"password", b"passwd", b"passphrase", b"_pass"})
_JOINS = (b"_", b"-")
_RANDOM = re.compile(rb"(?=[^0-9]{0,80}[0-9])(?=[^A-Za-z]{0,80}[A-Za-z])[A-Za-z0-9._~+/=\-]+")
_LONG = 256
_WORD = re.compile(rb"[A-Za-z]{1,16}(?=[\s.,;:)]|$)")
_NOT_TOKENS = re.compile(
    rb"(?i)(?:pad|eos|bos|unk|sep|cls|mask|special|next|last|first|per|stop|end|start|image|prompt|page|nextpage|num|n|max|"
    rb"min|total|unexpected|invalid|each|this|new|input|output|target|decoder|encoder|pre|post|every)[_\- ]?$"
)
# What is looked for in names, and what is said of the value. A longer word counts before one that is part of it.
_WORDS = {
    **dict.fromkeys((b"password", b"passwd", b"passphrase", b"_pass"), "password"),
    **dict.fromkeys((b"api_key", b"apikey", b"api-key", b"kaggle_key"), "api-key"),
    **dict.fromkeys((b"private_key", b"privatekey", b"private-key"), "private-key"),
    **dict.fromkeys((b"access_key", b"accesskey", b"access-key", b"account_key", b"accountkey"), "access-key"),
    **dict.fromkeys((b"auth_key", b"authkey", b"signing_key", b"encryption_key", b"secret"), "secret"),
    b"credential": "credential",
    b"token": "token",
}


def rules() -> tuple[Rule, ...]:
    """Return the rules, one for each word that names of secrets contain."""
    return tuple(Rule(word, partial(_look, word)) for word in _WORDS)


def _look(word: bytes, data: bytes, at: int) -> Iterator[Span]:
    """Yield the value of the name that holds the word at this place, if it has one and that may be a secret."""
    end = at + len(word)
    found = _AFTER.match(data, end)
    if found is None:
        found = _BLANKS.match(data, end) if _is_flag(data, at, end) else None
        if found is None or _first_word(data, found.end()) in _PROSE:
            return
        is_named = True
    elif _is_about(word, data, at, found["rest"].lower()):
        return
    else:
        is_named = word != b"token" or _is_named(data, at, end, found)
    start, quote = found.end(), found["quote"]
    is_key = _CLOSING.match(data, end) is not None
    if not quote and is_named and not is_key:
        # `'--name=value'`: the quotes are those of the word.
        quote = _quote_before(data, at)
    tail = _quoted(quote[-1:], len(quote) - 1) if quote else _BARE
    if not quote and word != b"token" and _LINE_BEGINS.search(data[max(0, at - 140) : at]):
        tail = _TO_LINE_END
    span = going_on(data, start, start, _WORDS[word], tail)
    value = data[start : span.end].strip(b" \t")
    if (
        value
        and _is_secret(word, value, may_be_list=not quote and (is_key or word not in _WHATEVER))
        and (is_named or _looks_random(value))
    ):
        yield span
    elif span.end - start > _LONG:
        # Looked at once, not anew for each word in it.
        yield Span(start, span.end, "")


def _quote_before(data: bytes, at: int) -> bytes | None:
    """Return the quote, with its backslashes, that stands right before the name which ends at this place, if one does."""
    before = data[max(0, at - 100) : at].rstrip(_OF_NAMES)
    if not before.endswith((b'"', b"'")):
        return None
    return before[len(before[:-1].rstrip(b"\\")) :]


def _first_word(data: bytes, at: int) -> bytes:
    found = _WORD.match(data, at)
    return found.group().lower() if found else b""


@cache
def _quoted(mark: bytes, escapes: int) -> re.Pattern[bytes]:
    """Return the pattern of what stands in quotes, which so many backslashes escape; a line's end ends it too."""
    if escapes == 0:
        return re.compile(rb"(?:[^\\\r\n%s]|\\[^\r\n])*+" % mark)
    # A quote within it has more backslashes before it than those around it.
    return re.compile(rb"(?:[^\\\r\n%s]|\\{%d,}+%s|\\++(?!%s))*+" % (mark, escapes + 1, mark, mark))


def _is_about(word: bytes, data: bytes, at: int, rest: bytes) -> bool:
    """Tell whether a name is about a secret, or about the tokens that a text is made of."""
    if word != b"token":
        return _ABOUT.fullmatch(rest) is not None
    return rest.startswith(_OF_TEXT) or _NOT_TOKENS.search(data[max(0, at - 16) : at]) is not None


def _is_named(data: bytes, at: int, end: int, found: re.Match[bytes]) -> bool:
    """Tell whether a token is named as a variable, a key of JSON or an option is: then it is one, whatever it looks like."""
    is_variable = data.startswith(b"TOKEN", at) and found["sign"] == b"="
    is_several = found["rest"].lower().startswith(b"s")
    is_key = bool(found["closing"] or found["quote"] or data[max(0, at - 1) : at] in _JOINS) and not is_several
    return is_variable or is_key or _is_flag(data, at, end)


def _is_flag(data: bytes, at: int, end: int) -> bool:
    """Tell whether a name is an option: `--name value`, also as words of a list."""
    return data[end : end + 1] in _FLAG_ENDS and _FLAG.search(data[max(0, at - 70) : end]) is not None


def _is_secret(word: bytes, value: bytes, *, may_be_list: bool) -> bool:
    if _EMPTY.fullmatch(value) or (may_be_list and value[:1] in b"[{("):
        return False
    if word in {b"token", b"secret", b"credential"} and (_NUMBER.fullmatch(value) or value[:1] == b"<"):
        return False
    return not (word == b"credential" and _PATH.fullmatch(value))


def _looks_random(value: bytes) -> bool:
    """Tell whether a word is none of a language, nor of a program."""
    return len(value) >= 6 and _RANDOM.fullmatch(value) is not None
