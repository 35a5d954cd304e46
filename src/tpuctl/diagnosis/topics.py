"""Advice on training with TPUs that belongs to no single message: speed, memory, accuracy, ways of working.

Package data, `data/topics.yaml`. A message names the topics that say more about it; a topic names related topics.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.diagnosis.messages import messages

if TYPE_CHECKING:
    from tpuctl.diagnosis.messages import Message

# The number of similar names that are suggested.
_OFFERED = 5


@dataclass(frozen=True, slots=True)
class Topic:
    """Advice on one subject."""

    id: str
    title: str
    words: tuple[str, ...]  # other names by which the topic is found
    text: tuple[str, ...]  # paragraphs
    advice: tuple[str, ...]  # the best first
    commands: tuple[str, ...]  # complete but for words in capitals, such as NODE
    see: tuple[str, ...]  # ids of topics and of messages
    source: str  # who has said so; "unverified" is our reading alone


@functools.cache
def topics() -> tuple[Topic, ...]:
    """Return every topic, in reading order."""
    from importlib import resources  # noqa: PLC0415  # needed only to look up a topic

    import yaml  # noqa: PLC0415  # as above

    load = functools.partial(yaml.load, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    entries = load(resources.files("tpuctl.data").joinpath("topics.yaml").read_text("utf-8"))
    return tuple(
        Topic(
            id=entry["id"],
            title=entry["title"],
            words=tuple(entry["words"]),
            text=tuple(entry["text"]),
            advice=tuple(entry.get("advice", ())),
            commands=tuple(entry.get("commands", ())),
            see=tuple(entry.get("see", ())),
            source=entry["source"],
        )
        for entry in entries
    )


def find_topic(name: str) -> Topic | tuple[str, ...]:
    """Return the topic with that name, else up to five similar ids, the most similar first.

    Ignores case, and the difference between blanks, `_` and `-`. A name is the id or one of the topic's `words`, or the
    beginning of the names of exactly one topic.
    """
    wanted = _squeezed(name)
    known = {_squeezed(word): topic for topic in topics() for word in (*topic.words, topic.id)}
    if wanted in known:
        return known[wanted]
    begun = {topic.id: topic for word, topic in known.items() if wanted and word.startswith(wanted)}
    if len(begun) == 1:
        return next(iter(begun.values()))
    from difflib import get_close_matches  # noqa: PLC0415  # needed only for an unknown name

    starting = sorted(begun, key=lambda id_: not id_.startswith(wanted))
    similar = [known[word].id for word in get_close_matches(wanted, known, n=5, cutoff=0.7)]
    containing = [topic.id for word, topic in known.items() if len(wanted) > 3 and wanted in word]
    return tuple(dict.fromkeys((*starting, *similar, *containing)))[:_OFFERED]


def messages_about(topic: Topic) -> tuple[Message, ...]:
    """Return the messages that name a topic, and those that the topic names."""
    return tuple(message for message in messages() if topic.id in message.topics or message.id in topic.see)


def topics_of(message: Message) -> tuple[Topic, ...]:
    """Return the topics that say more about a message, in the order of the message."""
    by_id = {topic.id: topic for topic in topics()}
    return tuple(by_id[id_] for id_ in message.topics)


def _squeezed(name: str) -> str:
    return "-".join(name.replace("_", " ").replace("-", " ").casefold().split())
