"""Lists and pairs as gcloud's options take them."""

from __future__ import annotations

import re

from tpuctl.errors import InvalidInputError

# gcloud takes `key=value,…`, or another delimiter announced as `^:^key=value:…` [gcloud topic escaping].
_OTHER_DELIMITER = re.compile(r"\^(?P<delimiter>[^^]+)\^")


def pairs(flag: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Return the pairs of `KEY=VALUE,…` options, in gcloud's notation."""
    found: dict[str, str] = {}
    for text in texts:
        match = _OTHER_DELIMITER.match(text)
        parts = text[match.end() :].split(match["delimiter"]) if match else text.split(",")
        for part in filter(None, parts):
            key, sign, value = part.partition("=")
            if not sign or not key:
                raise InvalidInputError(
                    f"`{flag} {part}` is not KEY=VALUE",
                    hint="a value that holds a comma is written with another delimiter: `^:^KEY=a,b:OTHER=c`",
                )
            found[key.strip()] = value
    return found


def items(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the items of options that take `A,B,…` and may be repeated."""
    return tuple(item.strip() for text in texts for item in text.split(",") if item.strip())
