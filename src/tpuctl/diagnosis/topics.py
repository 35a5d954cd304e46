"""Advice on training with TPUs that belongs to no single message: speed, memory, accuracy, ways of working.

Package data, `data/topics.yaml`. A message names the topics that say more about it; a topic names its neighbours.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.diagnosis.messages import messages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.diagnosis.messages import Message

# Of the names that come near, so many are offered.
_OFFERED = 5


@dataclass(frozen=True, slots=True)
class Topic:
    """One subject. `words` are other names by which it is found; `text` are paragraphs, `advice` is a list, the best first.

    `commands` are complete but for words in capitals, such as NODE. `see` are ids of topics and of messages. `source` says who
    has said so; "unverified" is our reading alone.
    """

    id: str
    title: str
    words: tuple[str, ...]
    text: tuple[str, ...]
    advice: tuple[str, ...]
    commands: tuple[str, ...]
    see: tuple[str, ...]
    source: str


@functools.cache
def topics() -> tuple[Topic, ...]:
    """Return every topic, in the order in which a reader may want them."""
    from importlib import resources  # noqa: PLC0415  # only who asks for a topic needs it

    import yaml  # noqa: PLC0415  # likewise

    load = functools.partial(yaml.load, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    text = resources.files("tpuctl.data").joinpath("topics.yaml").read_text("utf-8")
    return tuple(_topic(entry) for entry in load(text))


def find_topic(name: str) -> Topic | tuple[str, ...]:
    """Return the topic of that name, or else up to five ids that come near it, the nearest first; none where nothing does.

    Upper and lower case, blanks, `_` and `-` are the same. A name is the id or one of the topic's `words`, or the beginning of
    exactly one topic's names.
    """
    wanted = _squeezed(name)
    known = {_squeezed(word): topic for topic in topics() for word in (*topic.words, topic.id)}
    if wanted in known:
        return known[wanted]
    begun = {topic.id: topic for word, topic in known.items() if wanted and word.startswith(wanted)}
    if len(begun) == 1:
        return next(iter(begun.values()))
    of_id = sorted(begun, key=lambda id_: not id_.startswith(wanted))
    return tuple(dict.fromkeys((*of_id, *_near(wanted, known))))[:_OFFERED]


def messages_about(topic: Topic) -> tuple[Message, ...]:
    """Return the messages that lead to a topic, and those that it names itself."""
    return tuple(message for message in messages() if topic.id in message.topics or message.id in topic.see)


def topics_of(message: Message) -> tuple[Topic, ...]:
    """Return the topics that say more about a message, in the order of the message."""
    by_id = {topic.id: topic for topic in topics()}
    return tuple(by_id[id_] for id_ in message.topics)


def _near(wanted: str, known: Mapping[str, Topic]) -> Iterator[str]:
    import difflib  # noqa: PLC0415  # only a name that is not known needs it

    yield from (known[word].id for word in difflib.get_close_matches(wanted, known, n=5, cutoff=0.7))
    yield from (topic.id for word, topic in known.items() if len(wanted) > 3 and wanted in word)


def _squeezed(name: str) -> str:
    return "-".join(name.replace("_", " ").replace("-", " ").casefold().split())


def _topic(entry: Mapping[str, Any]) -> Topic:
    return Topic(
        id=entry["id"],
        title=entry["title"],
        words=tuple(entry["words"]),
        text=tuple(entry["text"]),
        advice=tuple(entry.get("advice", ())),
        commands=tuple(entry.get("commands", ())),
        see=tuple(entry.get("see", ())),
        source=entry["source"],
    )
