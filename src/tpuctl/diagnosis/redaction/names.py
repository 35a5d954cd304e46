"""Names of secrets: which words in which context, and names that are only about a secret. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Each name contains one of these; its context decides.
ANCHORS = (b"pass", b"pwd", b"pswd", b"key", b"secret", b"credential", b"creds", b"token", b"auth")
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
class Named:
    """A name that may have a secret as its value."""

    start: int  # of the word in the text
    end: int
    kind: str  # of the secret
    is_sure: bool = True  # False for an ambiguous word, such as `pass` or `key`: the value must look like a secret

    @property
    def is_password(self) -> bool:
        """Whether a person chose the secret, so that it may look like anything."""
        return self.kind == "password"


def named(anchor: bytes, data: bytes, at: int) -> Named | None:
    """Return the name of a secret at this place, None if there is none."""
    match anchor:
        case b"pass":
            found = _PASS.match(data, at)
            if found is None:
                return None
            is_whole_word = len(found.group()) > len(b"pass")
            return Named(at, found.end(), "password") if is_whole_word else _short(data, at, found.end())
        case b"pwd" | b"pswd":
            return _short(data, at, at + len(anchor))
        case b"key":
            back = max(0, at - 24)
            opening = _OPENS.search(data[back:at])
            if opening is None or _continues_word(data, back + opening.start()):
                return None
            kinds = {"api": "api-key", "private": "private-key", "access": "access-key"}
            kind = next((kinds[group] for group in kinds if opening[group]), "secret")
            return Named(back + opening.start(), at + 3, kind, is_sure=not opening.group().endswith(b" "))
        case b"auth":
            whole = _OF_NAME.match(data, at + 4) is None and not _continues_word(data, at)
            is_variable = data[at : at + 4].isupper() and data[max(0, at - 1) : at] == b"_"
            return Named(at, at + 4, "authorization", is_sure=is_variable) if whole else None
        case b"creds":
            return None if _continues_word(data, at) else Named(at, at + 5, "credential")
        case _:
            return Named(at, at + len(anchor), anchor.decode())


def is_about(name: Named, data: bytes, rest: bytes) -> bool:
    """Tell whether a name is about a secret, about tokens of a text, or another word; `rest` is its end."""
    before = data[max(0, name.start - 16) : name.start]
    if name.kind == "token" and (rest.lower().startswith(_OF_TEXT) or _NOT_TOKENS.search(before)):
        return True
    return _ABOUT.fullmatch(rest) is not None or _GOES_ON.match(rest) is None


def _short(data: bytes, at: int, end: int) -> Named | None:
    """Return an abbreviation that is a word of its own; sure only as an environment variable."""
    if _LETTER.match(data, end) or _continues_word(data, at):
        return None
    return Named(at, end, "password", is_sure=data[at:end].isupper() and data[max(0, at - 1) : at] == b"_")


def _continues_word(data: bytes, at: int) -> bool:
    """Tell whether a word is only the end of another: `bypass`, but not `dbPass`."""
    before = data[max(0, at - 1) : at]
    return before.isalpha() and not (before.islower() and data[at : at + 1].isupper())
