"""Secrets that have a known place: values of metadata in JSON, values of options in a command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.errors import InvalidInputError

# Options of ours whose values hold `KEY=VALUE` with secrets in VALUE.
_SECRET_OPTIONS = frozenset({"--metadata", "--update-metadata", "--env"})
# Options that name an origin, whose URL may hold a password or a key.
_URL_OPTIONS = frozenset({"--endpoint"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://")
_OPTIONS = _SECRET_OPTIONS | _URL_OPTIONS
_HIDDEN = re.compile(r"<hidden: \d{1,20} bytes?>")
# gcloud takes `key=value,…`, or another delimiter announced as `^:^key=value:…` [gcloud topic escaping].
OTHER_DELIMITER = re.compile(r"\^(?P<delimiter>[^^]+)\^")


def hidden(value: Any) -> str:  # JSON
    """Return what stands for a value that is not shown. The form is documented."""
    text = value if isinstance(value, str) else json.dumps(value)
    size = len(text.encode("utf-8", "surrogatepass"))
    return f"<hidden: {size} byte{'' if size == 1 else 's'}>"


def is_hidden(text: str) -> bool:
    """Tell whether a text holds what stands for a hidden value."""
    return _HIDDEN.search(text) is not None


def check_not_hidden(what: str, value: str) -> None:
    """Raise `InvalidInputError` for what stands for a hidden value: a command that was shown is typed again as it was shown."""
    if _HIDDEN.fullmatch(value):
        raise InvalidInputError(
            f"the value of {what} is `{value}`, which stands for one that was not shown", hint="give the value itself"
        )


def without_metadata_values(value: Any) -> Any:  # JSON
    """Return JSON with the values of each node's metadata hidden, wherever a Node is in it: a list, a request, an operation.

    The metadata of an operation has an `@type` and is no secret.
    """
    if isinstance(value, Mapping):
        return {key: _field(key, entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_metadata_values(entry) for entry in value]
    return value


def _field(key: str, value: Any) -> Any:  # JSON
    if key == "metadata" and isinstance(value, Mapping) and "@type" not in value:
        return {name: hidden(entry) for name, entry in value.items()}
    return without_metadata_values(value)


def public_url(text: str) -> str:
    """Return a URL without what may be secret in it: user name and password, query, fragment. It need not be a right one."""
    scheme = found[0] if (found := _SCHEME.match(text)) else ""
    rest = text[len(scheme) :]
    cut = re.search(r"[?#]", rest)
    if "@" in rest:
        # With both it is not certain where user name and password end.
        return f"{scheme}<hidden>" if cut else f"{scheme}<hidden>@{rest.rpartition('@')[2]}"
    return f"{scheme}{rest[: cut.start() + 1]}<hidden>" if cut else text


def without_secret_values(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return our own command line with the values of `--metadata` and `--env` hidden, and what is secret in an endpoint.

    What follows `--` is kept. `--env NAME` is shown where `environ` has that variable: else it may be a value gone astray.
    """

    def shown_value(option: str, text: str) -> str:
        if option in _URL_OPTIONS:
            return public_url(text)
        return text if option == "--env" and text in environ else _pairs(option, text)

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


def _pairs(option: str, text: str) -> str:
    """Return `KEY=VALUE,…` with hidden values; `--env` takes one pair."""
    start, delimiter = "", "" if option == "--env" else ","
    if delimiter and (match := OTHER_DELIMITER.match(text)):
        start, delimiter = match[0], match["delimiter"]
    parts = text[len(start) :].split(delimiter) if delimiter else [text]
    return start + delimiter.join(map(_pair, parts))


def _pair(text: str) -> str:
    key, equals, value = text.partition("=")
    return f"{key}={hidden(value)}" if equals else hidden(text)
