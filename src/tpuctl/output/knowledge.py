"""Render explanations of ids, and advice on topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.escaping import visible
from tpuctl.output.findings import wrapped
from tpuctl.output.tables import Cell, styled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuctl.diagnosis.messages import Message
    from tpuctl.diagnosis.own_errors import Entry
    from tpuctl.diagnosis.topics import Topic


def entry_page(entry: Entry, *, width: int, colored: bool) -> Iterator[str]:
    """Yield what an id means, its usual causes, and what to do."""
    title = f"  {entry.title}" if entry.title else ""
    yield styled(entry.id, "bold", colored=colored) + title
    yield from wrapped(entry.meaning, first="  ", rest="  ", width=width)
    for cause in entry.causes:
        yield from wrapped(cause, first="  cause: ", rest="         ", width=width)
    for line in entry.remedy:
        yield from wrapped(line, first="  → ", rest="    ", width=width)
    details: list[tuple[str, str]] = []
    message = entry.message
    if message is not None:
        details.append(("kind of remedy", str(message.action)))
        if message.check_first is not None:
            details.append(("check first", str(message.check_first).replace("-", " ")))
        if message.topics:
            details.append(("more", ", ".join(f"`tpuctl explain --topic {topic}`" for topic in message.topics)))
    if entry.exit_code is not None:
        details.append(("exit code", str(entry.exit_code)))
    if entry.related:
        details.append(("see also", _listed(entry.related)))
    if message is not None:
        details.append(("source", message.source))
    for label, text in details:
        yield from wrapped(f"{label}: {text}", first="  ", rest="    ", width=width)


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """Return the explanation of an id for scripts. Every field is always present, null or empty without a value."""
    message = entry.message
    return {
        "id": entry.id,
        "origin": str(entry.origin),
        "title": entry.title,
        "meaning": entry.meaning,
        "causes": list(entry.causes),
        "remedy": list(entry.remedy),
        "exit_code": entry.exit_code,
        "related": list(entry.related),
        "action": str(message.action) if message else None,
        "where": str(message.where) if message else None,
        "check_first": str(message.check_first) if message and message.check_first else None,
        "retriable": message.retriable if message else None,
        "topics": list(message.topics) if message else [],
        "source": message.source if message else None,
    }


def topic_page(topic: Topic, about: Sequence[Message], *, width: int, colored: bool) -> Iterator[str]:
    """Yield the advice on a topic, and the messages that name it."""
    yield styled(topic.id, "bold", colored=colored) + f"  {topic.title}"
    for paragraph in topic.text:
        yield from wrapped(paragraph, first="  ", rest="  ", width=width)
        yield ""
    for line in topic.advice:
        yield from wrapped(line, first="  → ", rest="    ", width=width)
    for command in topic.commands:
        yield "      " + styled(visible(command), "cyan", colored=colored)
    if topic.see:
        yield from wrapped(f"see also: {_listed(topic.see)}", first="  ", rest="    ", width=width)
    if others := [message.id for message in about if message.id not in topic.see]:
        yield from wrapped(f"messages on this topic: {_listed(others)}", first="  ", rest="    ", width=width)
    yield from wrapped(f"source: {topic.source}", first="  ", rest="    ", width=width)


def topic_to_json(topic: Topic, about: Sequence[Message]) -> dict[str, Any]:
    """Return a topic for scripts."""
    return {
        "id": topic.id,
        "title": topic.title,
        "text": list(topic.text),
        "advice": list(topic.advice),
        "commands": list(topic.commands),
        "see": list(topic.see),
        "messages": [message.id for message in about],
        "source": topic.source,
    }


def topic_rows(topics: Sequence[Topic]) -> list[tuple[Cell, ...]]:
    """Return one row for each topic."""
    return [(Cell(topic.id), Cell(topic.title)) for topic in topics]


def _listed(ids: Sequence[str]) -> str:
    return ", ".join(f"`{id_}`" for id_ in ids)
