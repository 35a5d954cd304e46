"""Examples of messages: the second document of each file in `data/messages`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import yaml

from tpuctl.explain.messages import Message, known_messages


class Match(NamedTuple):
    """What a text is recognized as, and the facts in it."""

    id: str
    facts: Mapping[str, str]


class Example(NamedTuple):
    """A text as it was met, and what it must be recognized as."""

    text: str
    match: Match


def examples_of(*files: str) -> list[Example]:
    """Return the examples of message files, in order."""
    return [
        Example(one["text"], Match(id_, one.get("facts", {})))
        for name in files
        for id_, examples in _documents(name)[1].items()
        for one in examples
    ]


def ids_of(examples: Sequence[Example]) -> list[str]:
    """Return the ids of examples, for the names of tests."""
    return [example.match.id for example in examples]


def messages_of(*files: str) -> list[Message]:
    """Return the known messages of files, in the order in which they are tried."""
    ids = {entry["id"] for name in files for entry in _documents(name)[0]}
    return [message for message in known_messages() if message.id in ids]


def match_as_in_log(text: str, messages: Sequence[Message]) -> Match | None:
    """Return the first match, None if there is none. Fail if a pattern matches a text without its anchors."""
    collapsed, squeezed = " ".join(text.split()), "".join(text.split()).lower()
    for message in messages:
        found = re.search(message.match, collapsed)
        if not any("".join(anchor.split()).lower() in squeezed for anchor in message.anchors):
            assert not found, f"{message.id} matches without an anchor"
        elif found:
            return Match(message.id, {name: value for name, value in found.groupdict().items() if value})
    return None


def _documents(name: str) -> list[Any]:
    text = resources.files("tpuctl.data").joinpath(f"messages/{name}.yaml").read_text("utf-8")
    return list(yaml.load_all(text, yaml.CSafeLoader))
