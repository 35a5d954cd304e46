"""Examples of messages as they were met, and what the entries of TensorFlow and of Cloud Storage make of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpuctl.explain.messages import known_messages


@dataclass(frozen=True)
class Example:
    """A text and what it is known as; all words empty where it is nothing."""

    id: str
    action: str
    role: str
    look_at: str
    facts: Mapping[str, str]
    text: str


def parsed(table: str) -> list[Example]:
    """Read `id | action role look-at | facts` lines, each followed by its text, which is indented."""
    found: list[Example] = []
    for block in re.split(r"\n(?=\S)", table.strip("\n")):
        head, text = block.split("\n", 1)
        id_, words, facts = (part.strip() for part in head.split("|"))
        action, role, look_at = words.split()
        pairs = dict(word.split("=", 1) for word in shlex.split(facts))
        found.append(Example(id_, action, role, look_at, pairs, text))
    return found


def names_of(examples: Sequence[Example]) -> list[str]:
    """Return the ids of examples, for the names of tests."""
    return [example.id for example in examples]


def first_known(text: str) -> Example:
    """Return what the first entry that matches makes of a text, as a log is read: only where the text holds an anchor."""
    collapsed = " ".join(text.split())
    squeezed = "".join(text.split()).lower()
    for message in known_messages():
        if not message.id.startswith(("tf-", "gcs-")):
            continue
        if found := re.search(message.match, collapsed):
            assert any("".join(anchor.split()).lower() in squeezed for anchor in message.anchors), message.id
            facts = {key: value for key, value in found.groupdict().items() if value}
            look_at = message.check_first or "no"
            return Example(message.id, message.action, message.role, look_at, facts, text)
    return Example("", "", "", "", {}, text)


def ids_of_entries(prefix: str) -> list[str]:
    """Return the ids of all entries that begin so, in order."""
    return [one.id for one in known_messages() if one.id.startswith(prefix)]
