"""Escape text from outside for terminals, tables, JSON and YAML, and mask secrets whose place is known.

States, descriptions, labels, messages, paths and log lines are untrusted. A control character in them moves the cursor, a
line end adds a forged line, a bidirectional mark reorders the text. `Terminal` passes everything that it writes through these
functions; the output of remote commands, which is written raw on purpose, does not go through `Terminal`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from tpuctl.errors import InvalidInputError

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Exactly the codes that `styled` of `output/terminal.py` writes: they can neither hide text nor move the cursor.
_OWN_STYLE = re.compile(r"(\x1b\[(?:0|1|2|3[1-6])m)")
_UNUSUAL = re.compile(r"[^ -~]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def escape_unprintable(text: str) -> str:
    """Return the text on one line, with unprintable characters escaped: `\\x1b`, `\\n`, `\\u202e`."""

    def escape(found: re.Match[str]) -> str:
        char, code = found[0], ord(found[0])
        if char.isprintable():
            return char
        if char in _SHORT:
            return _SHORT[char]
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return text if text.isprintable() else _UNUSUAL.sub(escape, text)


def escape_except_colors(line: str) -> str:
    """Return a line with everything escaped but tpuctl's own color codes."""
    if line.isprintable():
        return line
    return "".join(part if index % 2 else escape_unprintable(part) for index, part in enumerate(_OWN_STYLE.split(line)))


def dump_printable_json(value: Any, *, indent: int | None = None) -> str:  # JSON
    """Return a value as JSON without unprintable characters. It decodes to the same value."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    # Unprintable characters occur in strings only, where JSON allows an escape for each.
    return "\n".join(map(_json_escaped, text.split("\n")))


def dump_printable_yaml(value: Any) -> str:  # JSON
    """Return a value as YAML without unprintable characters. A lone surrogate, which YAML does not allow, becomes U+FFFD."""
    import yaml  # noqa: PLC0415  # 12 ms

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # chosen at run time
        """Quotes texts with unprintable characters, so that those can be escaped afterwards."""

    def represent(dumper: Any, text: str) -> Any:  # PyYAML's own
        # Quoted, since the escapes of workflow commands (`output/github.py`) are valid in quotes only.
        is_plain = text.replace("\n", "").isprintable() and "##[" not in text and "::" not in text
        style = None if is_plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", _SURROGATE.sub("\ufffd", text), style=style)

    Dumper.add_representer(str, represent)
    text = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return "\n".join(map(_json_escaped, text.split("\n")))


def _json_escaped(line: str) -> str:
    """Return a line of JSON, or of YAML whose unprintable strings are quoted, with escapes that both formats have."""

    def escape(found: re.Match[str]) -> str:
        return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]

    return line if line.isprintable() else _UNUSUAL.sub(escape, line)


_LONGEST_PREVIEW = 80


def one_line(text: str, *, longest: int = 1000) -> str:
    """Return text from outside as one line, cut to `longest` characters; control characters are escaped."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: longest + 1])
    return plain if len(plain) <= longest else plain[: longest - 1] + "…"


def preview(value: object) -> str:
    """Return a short form of a value for an error message: the start of a text, a number, or only the type."""
    match value:
        case bytes():
            text = value[: 2 * _LONGEST_PREVIEW].decode(errors="backslashreplace")
        case str():
            text = value[: 2 * _LONGEST_PREVIEW]
        case None | bool() | float():
            return str(value)
        case int():
            # str() refuses an integer of more than 4,300 digits.
            return str(value) if value.bit_length() < 4 * _LONGEST_PREVIEW else f"a number of {value.bit_length()} bits"
        case list():
            return "a list"
        case _:
            return "an object"
    return f"`{one_line(text, longest=_LONGEST_PREVIEW)}`"


# Options whose value is `KEY=VALUE` with a secret in VALUE.
_SECRET_OPTIONS = frozenset({"--metadata", "--update-metadata", "--env"})
# Options whose value is a URL, which may contain a password or a key.
_URL_OPTIONS = frozenset({"--endpoint"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://")
_OPTIONS = _SECRET_OPTIONS | _URL_OPTIONS
_MASK = re.compile(r"<hidden: \d{1,20} bytes?>")
# gcloud takes `key=value,…`, or another delimiter announced as `^:^key=value:…` [gcloud topic escaping].
GCLOUD_DELIMITER = re.compile(r"\^(?P<delimiter>[^^]+)\^")


def gcloud_pairs(values: Mapping[str, str]) -> str:
    """Return `KEY=VALUE,…`, with another delimiter if a value has a comma."""
    pairs = [f"{key}={value}" for key, value in values.items()]
    everything = "".join(pairs)
    delimiter = next(mark for mark in chain(",:;|#~@%", map(chr, range(0x2500, 0x10000))) if mark not in everything)
    return ("" if delimiter == "," else f"^{delimiter}^") + delimiter.join(pairs)


def mask_value(value: Any) -> str:  # JSON
    """Return the mask that replaces a value. The form is documented."""
    text = value if isinstance(value, str) else json.dumps(value)
    size = len(text.encode("utf-8", "surrogatepass"))
    return f"<hidden: {size} byte{'' if size == 1 else 's'}>"


def contains_mask(text: str) -> bool:
    """Return whether a text contains a mask."""
    return _MASK.search(text) is not None


def check_not_masked(what: str, value: str) -> None:
    """Raise `InvalidInputError` if a value is a mask, as in a command that was copied from masked output."""
    if _MASK.fullmatch(value):
        raise InvalidInputError(
            f"the value of {what} is `{value}`, which replaces a hidden value", hint="give the value itself"
        )


def mask_metadata(value: Any, show: Callable[[str, Any], Any] = lambda _, text: mask_value(text)) -> Any:  # JSON
    """Return JSON with the metadata values of all nodes masked: in a list, a request, an operation.

    `show` returns what to show for a name and its value. The metadata of an operation has an `@type` and is not a secret.
    """
    if isinstance(value, (str, int, float, type(None))):  # most values of a long list
        return value
    if isinstance(value, (list, tuple)):
        return [mask_metadata(entry, show) for entry in value]
    if not isinstance(value, Mapping):
        return value
    masked = {}
    for key, entry in value.items():
        if key == "metadata" and isinstance(entry, Mapping) and "@type" not in entry:
            masked[key] = {name: show(name, text) for name, text in entry.items()}
        else:
            masked[key] = mask_metadata(entry, show)
    return masked


def mask_url(text: str) -> str:
    """Return a URL with user name, password, query and fragment masked. It need not be a valid URL."""
    scheme = found[0] if (found := _SCHEME.match(text)) else ""
    rest = text[len(scheme) :]
    cut = re.search(r"[?#]", rest)
    if "@" in rest:
        # With both, the end of user name and password is ambiguous.
        return f"{scheme}<hidden>" if cut else f"{scheme}<hidden>@{rest.rpartition('@')[2]}"
    return f"{scheme}{rest[: cut.start() + 1]}<hidden>" if cut else text


def mask_command_line(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return a tpuctl command line with the values of `--metadata`, `--env` and `--endpoint` masked.

    Words after `--` are kept. `--env NAME` is kept if `environ` has that variable; otherwise NAME may be a misplaced value.
    """

    def shown_value(option: str, text: str) -> str:
        if option in _URL_OPTIONS:
            return mask_url(text)
        if option == "--env" and text in environ:
            return text
        # `KEY=VALUE,…`; `--env` takes one pair.
        start, delimiter = "", "" if option == "--env" else ","
        if delimiter and (match := GCLOUD_DELIMITER.match(text)):
            start, delimiter = match[0], match["delimiter"]
        masked = []
        for part in text[len(start) :].split(delimiter) if delimiter else [text]:
            key, equals, value = part.partition("=")
            masked.append(f"{key}={mask_value(value)}" if equals else mask_value(part))
        return start + delimiter.join(masked)

    shown: list[str] = []
    pending = ""
    for number, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if pending:
            shown.append(shown_value(pending, word))
            pending = ""
        elif word == "--":
            return [*shown, *arguments[number:]]
        elif option in _OPTIONS and equals:
            shown.append(f"{option}={shown_value(option, value)}")
        else:
            shown.append(word)
            pending = word if word in _OPTIONS else ""
    return shown
