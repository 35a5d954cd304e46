"""Lists and pairs in the syntax of gcloud's options."""

from __future__ import annotations

from tpuctl.errors import InvalidInputError
from tpuctl.masking import OTHER_DELIMITER, check_not_hidden


def pairs(flag: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Parse the values of an option `KEY=VALUE,…`, in gcloud's syntax.

    Raises `InvalidInputError`, which names a wrong item by its position if values may be secret.
    """
    found: dict[str, str] = {}
    for place, text in enumerate(texts, start=1):
        match = OTHER_DELIMITER.match(text)
        parts = text[match.end() :].split(match["delimiter"]) if match else text.split(",")
        for number, part in enumerate(filter(None, parts), start=1):
            key, sign, value = part.partition("=")
            if not sign or not key:
                # It may be a part of a secret.
                is_secret = flag.startswith("--metadata")
                given = f"item {number} of `{flag}` number {place}" if is_secret else f"`{flag} {part}`"
                raise InvalidInputError(
                    f"{given} is not KEY=VALUE",
                    hint="for a value with a comma choose another delimiter: `^:^KEY=a,b:OTHER=c`",
                )
            check_not_hidden(f"`{key.strip()}`", value)
            found[key.strip()] = value
    return found


def items(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Parse the values of an option `A,B,…` that may be repeated."""
    return tuple(item.strip() for text in texts for item in text.split(",") if item.strip())
