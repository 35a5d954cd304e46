"""Lists and pairs as gcloud's options take them."""

from __future__ import annotations

from tpuctl.errors import InvalidInputError
from tpuctl.masking import OTHER_DELIMITER, check_not_hidden


def pairs(flag: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Return the pairs of `KEY=VALUE,…` options, in gcloud's notation.

    Raises `InvalidInputError`, which names what is no pair by its position where values may be secret.
    """
    found: dict[str, str] = {}
    for place, text in enumerate(texts, start=1):
        match = OTHER_DELIMITER.match(text)
        parts = text[match.end() :].split(match["delimiter"]) if match else text.split(",")
        for number, part in enumerate(filter(None, parts), start=1):
            key, sign, value = part.partition("=")
            if not sign or not key:
                # It may be a secret gone astray.
                is_secret = flag.startswith("--metadata")
                given = f"item {number} of `{flag}` number {place}" if is_secret else f"`{flag} {part}`"
                raise InvalidInputError(
                    f"{given} is not KEY=VALUE",
                    hint="a value that holds a comma is written with another delimiter: `^:^KEY=a,b:OTHER=c`",
                )
            check_not_hidden(f"`{key.strip()}`", value)
            found[key.strip()] = value
    return found


def items(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the items of options that take `A,B,…` and may be repeated."""
    return tuple(item.strip() for text in texts for item in text.split(",") if item.strip())
