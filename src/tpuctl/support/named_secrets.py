"""Secrets recognized by the name before them: `NAME=value`, `"name": "value"`, `--name value`, and similar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from tpuctl.support.secret_forms import SecretRule, SecretSpan, extend_span

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
    if span.end - span.start > _LONG:
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
    if _NOTHING.match(data, name.end):
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
            found = _said(name, data)
    else:
        found, is_named = _said(name, data), False
    if found is None:
        return
    start, quote = found.end(), found["quote"]
    span = extend_span(data, start, start, name.kind, quoted_value(quote) if quote else BARE_VALUE)
    value = data[start : span.end]
    if not value or is_about(name, data, found["rest"]):
        return
    if may_be_secret(name.kind, value, may_be_list=True, is_quoted=True) and (is_named or looks_random(value)):
        yield span


def _said(name: SecretName, data: bytes) -> re.Match[bytes] | None:
    """Return the match for a secret in a sentence."""
    found = _SAID.match(data, name.end) if name.is_sure else None
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


# Names of secrets: which words in which context, and names that are only about a secret. Pure.


# Each name contains one of these; its context decides.
NAME_ANCHORS = (b"pass", b"pwd", b"pswd", b"key", b"secret", b"credential", b"creds", b"token", b"auth")
# The word as a whole.
_PASS = re.compile(rb"(?i)pass(?:word|wd|phrase|code|wort|[ _\-]phrase|[ _\-]word)?")
# Words that make a key a secret, unlike the key of a cache or of a dictionary.
_OPENS = re.compile(
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
# Names about a secret: its location, its name, its length.
_ABOUT = re.compile(
    rb"(?i)s?[_.\-]?(?:names?|manager|version|ref|paths?|files?|dir|urls?|uri|types?|length|len|count|size|ttl|expir\w{0,8}|"
    rb"errors?|exceptions?|providers?|stores?|status|scopes?|attempts|retries|enabled|required|policy|prompt|source)"
    rb"|[\w.\-]{0,60}\.(?:c|cc|h|py|go|js|txt|patch|in|md|html|[0-9])"
)
# Other words begin alike: `secretmem`, `passwordless`, `tokenizer`. These endings do not make another word.
_GOES_ON = re.compile(
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
            return SecretName(at, found.end(), "password") if is_whole_word else _short(data, at, found.end())
        case b"pwd" | b"pswd":
            return _short(data, at, at + len(anchor))
        case b"key":
            back = max(0, at - 24)
            opening = _OPENS.search(data[back:at])
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
    if name.kind == "token" and (rest.lower().startswith(_OF_TEXT) or _NOT_TOKENS.search(before)):
        return True
    return _ABOUT.fullmatch(rest) is not None or _GOES_ON.match(rest) is None


def _short(data: bytes, at: int, end: int) -> SecretName | None:
    """Return an abbreviation that is a word of its own; sure only as an environment variable."""
    if _LETTER.match(data, end) or _continues_word(data, at):
        return None
    return SecretName(at, end, "password", is_sure=data[at:end].isupper() and data[max(0, at - 1) : at] == b"_")


def _continues_word(data: bytes, at: int) -> bool:
    """Tell whether a word is only the end of another: `bypass`, but not `dbPass`."""
    before = data[max(0, at - 1) : at]
    return before.isalpha() and not (before.islower() and data[at : at + 1].isupper())


# The form of values: where they end, and which cannot be secrets. Pure.


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
    while len(spans) < _MOST_LINES and (found := _LINE.match(data, at)) and len(found["indent"]) >= depth:
        is_deeper = len(found["indent"]) > depth
        is_word = b" " not in found["value"] and b":" not in found["value"]
        if not (block and is_deeper) and not (is_word and (is_deeper or found["dash"])):
            break
        start, end = found.span("value")
        marks = len(found["value"]) - len(found["value"].lstrip(b"\"'"))
        spans.append(SecretSpan(start + marks, end - (marks if found["value"].endswith((b'"', b"'")) else 0), "secret"))
        at = found.end()
    return spans
