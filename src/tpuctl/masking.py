"""Mask secrets whose place is known: metadata values in JSON, option values in a command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.errors import InvalidInputError

# Options whose value is `KEY=VALUE` with a secret in VALUE.
_SECRET_OPTIONS = frozenset({"--metadata", "--update-metadata", "--env"})
# Options whose value is a URL, which may contain a password or a key.
_URL_OPTIONS = frozenset({"--endpoint"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://")
_OPTIONS = _SECRET_OPTIONS | _URL_OPTIONS
_HIDDEN = re.compile(r"<hidden: \d{1,20} bytes?>")
# gcloud takes `key=value,…`, or another delimiter announced as `^:^key=value:…` [gcloud topic escaping].
OTHER_DELIMITER = re.compile(r"\^(?P<delimiter>[^^]+)\^")


def hidden(value: Any) -> str:  # JSON
    """Return the mask that replaces a value. The form is documented."""
    text = value if isinstance(value, str) else json.dumps(value)
    size = len(text.encode("utf-8", "surrogatepass"))
    return f"<hidden: {size} byte{'' if size == 1 else 's'}>"


def is_hidden(text: str) -> bool:
    """Return whether a text contains a mask."""
    return _HIDDEN.search(text) is not None


def check_not_hidden(what: str, value: str) -> None:
    """Raise `InvalidInputError` if a value is a mask, as in a command that was copied from masked output."""
    if _HIDDEN.fullmatch(value):
        raise InvalidInputError(
            f"the value of {what} is `{value}`, which replaces a hidden value", hint="give the value itself"
        )


def without_metadata_values(value: Any) -> Any:  # JSON
    """Return JSON with the metadata values of all nodes masked: in a list, a request, an operation.

    The metadata of an operation has an `@type` and is not a secret.
    """
    if isinstance(value, (list, tuple)):
        return [without_metadata_values(entry) for entry in value]
    if not isinstance(value, Mapping):
        return value
    masked = {}
    for key, entry in value.items():
        if key == "metadata" and isinstance(entry, Mapping) and "@type" not in entry:
            masked[key] = {name: hidden(text) for name, text in entry.items()}
        else:
            masked[key] = without_metadata_values(entry)
    return masked


def public_url(text: str) -> str:
    """Return a URL with user name, password, query and fragment masked. It need not be a valid URL."""
    scheme = found[0] if (found := _SCHEME.match(text)) else ""
    rest = text[len(scheme) :]
    cut = re.search(r"[?#]", rest)
    if "@" in rest:
        # With both, the end of user name and password is ambiguous.
        return f"{scheme}<hidden>" if cut else f"{scheme}<hidden>@{rest.rpartition('@')[2]}"
    return f"{scheme}{rest[: cut.start() + 1]}<hidden>" if cut else text


def without_secret_values(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return a tpuctl command line with the values of `--metadata`, `--env` and `--endpoint` masked.

    Words after `--` are kept. `--env NAME` is kept if `environ` has that variable; otherwise NAME may be a misplaced value.
    """

    def shown_value(option: str, text: str) -> str:
        if option in _URL_OPTIONS:
            return public_url(text)
        if option == "--env" and text in environ:
            return text
        # `KEY=VALUE,…`; `--env` takes one pair.
        start, delimiter = "", "" if option == "--env" else ","
        if delimiter and (match := OTHER_DELIMITER.match(text)):
            start, delimiter = match[0], match["delimiter"]
        masked = []
        for part in text[len(start) :].split(delimiter) if delimiter else [text]:
            key, equals, value = part.partition("=")
            masked.append(f"{key}={hidden(value)}" if equals else hidden(part))
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
