"""Validate labels and network tags before a request is sent. Pure.

Source of the rule for labels: Resource Manager documentation, "Requirements for labels": at most 64; keys of 1 to 63
characters, values of 0 to 63; lower-case letters, digits, `_`, `-` and international characters; a key begins with a letter or
an international character. For tags: Compute API v1, Tags.items: 1 to 63 characters, RFC 1035; their number (64) is from
Compute Engine's documentation. Where these rules are silent, any value is accepted, and the service decides.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST = 64
LONGEST = 63
_TAG = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_RULE = (
    "keys and values have up to 63 lower-case letters, digits, `_` and `-`; letters of other scripts are fine; "
    "a key begins with a letter"
)
_TAG_RULE = (
    "a tag is up to 63 lower-case letters, digits and hyphens, begins with a letter and does not end with a hyphen"
)


def check_labels(labels: Mapping[str, str], *, kept: int = 0) -> dict[str, str]:
    """Return the labels, or raise `InvalidInputError` with the rule and the most similar valid label.

    `kept` is the number of labels that tpuctl adds itself.
    """
    if len(labels) > MOST - kept:
        own = f", {kept} of them tpuctl's own" if kept else ""
        raise InvalidInputError(f"{len(labels)} labels are too many", hint=f"a node has at most {MOST}{own}")
    for key, value in labels.items():
        name = _part(key)
        while name and not name[0].isalpha() and name[0].isascii():
            name = name[1:]
        good = name, _part(value)
        if good != (key, value):
            meant = f"; did you mean `{good[0]}={good[1]}`?" if good[0] else ""
            raise InvalidInputError(f"`{key}={value}` is not a valid label", hint=_LABEL_RULE + meant)
    return dict(labels)


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the network tags, or raise `InvalidInputError` with the rule and the most similar valid tag."""
    if len(set(tags)) > MOST:
        raise InvalidInputError(f"{len(set(tags))} network tags are too many", hint=f"a node has at most {MOST}")
    for tag in tags:
        if not _TAG.fullmatch(tag):
            good = re.sub(r"^[^a-z]+", "", re.sub(r"[^a-z0-9]+", "-", tag.lower()))[:LONGEST].rstrip("-")
            meant = f"; did you mean `{good}`?" if good else ""
            raise InvalidInputError(f"`{tag}` is not a valid network tag", hint=_TAG_RULE + meant)
    return tuple(tags)


def _part(text: str) -> str:
    """Return the most similar valid key or value. Only ASCII, and upper case of any script, is validated."""
    lower = text if text == text.lower() else text.lower()
    return re.sub(r"[\x00-\x2c./:-@\[-^`{-\x7f]+", "-", lower)[:LONGEST]
