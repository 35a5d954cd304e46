"""The form of values: where they end, and which cannot be secrets. Pure."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from tpuctl.diagnosis.redaction.spans import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

# A value without quotes: up to a blank, a quote, an escaped line end, or the next pair.
BARE = re.compile(rb"(?:[^\s\"'`\x00\\,&;]+|[,&;](?![\w.\-]{1,64}[\"']?[=:])(?!\s|\Z)|\\(?!\\{0,31}[nrt\"']))*")
TO_LINE_END = re.compile(rb"(?:[^\s\x00\\]+|[ \t\v\f](?![A-Z_][A-Z0-9_]{0,64}=[^=\s])|\\(?!\\{0,31}[nr]))*")
TO_TAG = re.compile(rb"[^<>\r\n]*")
# Words that follow an option in prose.
PROSE = frozenset(b"to or and option options flag is for must from as instead with in was if can the a on not".split())
# Values that are not secret: none, a placeholder, a variable, an earlier redaction.
_EMPTY = re.compile(
    rb"(?i:none|null|nil|true|false|yes|no|undefined|unset|redacted|hidden|\*+|x+|\.{3}|<[\w .\-]{0,40}>"
    rb"|\(set, not shown\)|\[(?:redacted|hidden)[^\]]{0,40}\]?)[,);]{0,3}|\$\{?[A-Z_][A-Z0-9_]{0,64}\}?|\$\([^)]{0,80}\)?"
    rb"|\{[\w.]{0,40}\}|\$?\{\{.{0,80}"
)
_NUMBER = re.compile(rb"[<>~]{0,2}[+\-]?[0-9][0-9.,_eE+\-]{0,30}[A-Za-z/%]{0,12}")
_SHORTEST_KEY = 3
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
_MOST_LINES = 200


@cache
def quoted(quote: bytes) -> re.Pattern[bytes]:
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
    if kind.endswith("key") and (len(value) < _SHORTEST_KEY or _SHORT_NUMBER.fullmatch(value)):
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


def listed(data: bytes, at: int, kind: str) -> Iterator[Span]:
    """Yield the quoted values in a list. Tokens of a text are not secrets."""
    found = _LIST.match(data, at)
    if found is None or kind == "token":
        return
    for item in _ITEM.finditer(data, at, found.end()):
        value = item[item.lastgroup or 0]
        if may_be_secret(kind, value, may_be_list=False, is_quoted=True) and value.strip() not in {b"", b","}:
            yield Span(*item.span(item.lastgroup or 0), kind)


def below(data: bytes, name: int, at: int) -> list[Span]:
    """Return the lines of a YAML value: of a block, or single words with more indentation than the name."""
    block = _BLOCK.match(data, at)
    first = block.end() if block else at + 1 if data[at : at + 1] == b"\n" else 0
    if not first or data[name - 1 : name] in (b"-", b"/"):
        return []
    line = data[data.rfind(b"\n", max(0, name - 200), name) + 1 : name]
    depth = len(line) - len(line.lstrip(b" \t"))
    spans: list[Span] = []
    at = first
    while len(spans) < _MOST_LINES and (found := _LINE.match(data, at)) and len(found["indent"]) >= depth:
        is_deeper = len(found["indent"]) > depth
        is_word = b" " not in found["value"] and b":" not in found["value"]
        if not (block and is_deeper) and not (is_word and (is_deeper or found["dash"])):
            break
        start, end = found.span("value")
        marks = len(found["value"]) - len(found["value"].lstrip(b"\"'"))
        spans.append(Span(start + marks, end - (marks if found["value"].endswith((b'"', b"'")) else 0), "secret"))
        at = found.end()
    return spans
