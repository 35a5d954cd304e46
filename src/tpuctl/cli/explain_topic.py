"""`tpuctl explain` for an id, and for a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.diagnosis.own_errors import look_up, near
from tpuctl.diagnosis.topics import Topic, find_topic, messages_about, topics
from tpuctl.errors import ExitCode, NotFoundError
from tpuctl.output import knowledge
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tpuctl.cli.app import App


def show_entry(app: App, id_: str, known: Mapping[str, str]) -> int:
    """Show what an id, or a topic, means; `known` fills in names, such as that of the node.

    Raises `NotFoundError` for an unknown id.
    """
    entry = look_up(id_, known)
    if entry is None and isinstance(topic := find_topic(id_), Topic):
        return show_topic(app, topic.id)
    if entry is None:
        likely = ", ".join(f"`{one}`" for one in near(id_))
        hint = f"did you mean {likely}?" if likely else "put a message into quotes: `tpuctl explain 'MESSAGE'`"
        raise NotFoundError(f"no error, message or finding has the id `{id_}`", hint=hint)
    return _show(app, entry.id, knowledge.entry_to_json(entry), lambda **form: knowledge.entry_page(entry, **form))


def show_topic(app: App, name: str) -> int:
    """Show the advice on a topic. Raises `NotFoundError` if there is no such topic."""
    topic = find_topic(name)
    if not isinstance(topic, Topic):
        likely = ", ".join(f"`{one}`" for one in topic)
        hint = f"did you mean {likely}?" if likely else "`tpuctl explain --topic` lists them"
        raise NotFoundError(f"no topic `{name}`", hint=hint)
    about = messages_about(topic)
    return _show(
        app, topic.id, knowledge.topic_to_json(topic, about), lambda **form: knowledge.topic_page(topic, about, **form)
    )


def show_topics(app: App) -> int:
    """List the topics."""
    if app.format in {Format.JSON, Format.YAML}:
        app.terminal.data([knowledge.topic_to_json(topic, messages_about(topic)) for topic in topics()], app.format)
    elif app.format is Format.NAME:
        app.terminal.names(topic.id for topic in topics())
    else:
        app.terminal.table(("TOPIC", "ABOUT"), knowledge.topic_rows(topics()))
    return ExitCode.OK


def _show(app: App, name: str, data: Any, page: Callable[..., Iterator[str]]) -> int:  # JSON; what a page needs
    terminal, form = app.terminal, app.format
    if form in {Format.JSON, Format.YAML}:
        terminal.data(data, form)
    elif form is Format.NAME:
        terminal.names([name])
    else:
        terminal.page(page(width=terminal.streams.width, colored=terminal.colors_out))
    return ExitCode.OK
