"""Topics: found by any of their names, tied to messages both ways, and with commands that tpuctl takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

import click
import pytest

from tpuctl.cli.tree import command_tree
from tpuctl.explain.lookup import Topic, find_topic, known_topics, messages_about
from tpuctl.explain.messages import known_messages, message_by_id

TOPICS = known_topics()
IDS = {topic.id for topic in TOPICS}


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("padding", "padding"),
        ("batch-size", "batch-size"),
        # Case, blanks, `_` and `-` are the same; other names lead there too.
        ("Batch_Size", "batch-size"),
        ("  batch   size ", "batch-size"),
        ("OOM", "memory"),
        ("steps_per_execution", "steps-per-execution"),
        ("drop_remainder", "dynamic-shapes"),
        ("TPU_LOG_DIR", "logging"),
        ("tmux", "ssh-lost"),
        ("sigquit", "hanging"),
        # The beginning of one topic's names is enough.
        ("bfl", "bfloat16"),
        ("determ", "determinism"),
        ("prof", "profiling"),
    ],
)
def test_find_topic_by_any_name(name: str, found: str) -> None:
    topic = find_topic(name)

    assert isinstance(topic, Topic)
    assert topic.id == found


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("accurcy", ("accuracy",)),
        ("stepsperexecution", ("steps-per-execution",)),
        ("padd", ("padding", "dynamic-shapes")),
        ("xyzzy", ()),
        ("", ()),
    ],
)
def test_find_topic_unknown_name_suggests_similar(name: str, near: tuple[str, ...]) -> None:
    assert find_topic(name) == near


def test_find_topic_suggests_at_most_five() -> None:
    near = find_topic("s")

    assert isinstance(near, tuple)
    assert len(near) == 5


def test_topic_names_are_unique() -> None:
    names = [name.replace("_", "-").replace(" ", "-").lower() for one in TOPICS for name in {one.id, *one.words}]

    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("topic", TOPICS, ids=[topic.id for topic in TOPICS])
def test_topic_references_exist(topic: Topic) -> None:
    """What it names exists, and it has words to be found by, text, and where it is from."""
    assert [id_ for id_ in topic.see if id_ not in IDS and message_by_id(id_) is None] == []
    assert all((topic.title, topic.words, topic.text, topic.advice, topic.see, topic.source))
    assert not re.search(r"\.$", "\n".join((topic.title, *topic.advice)), re.MULTILINE)


def test_topics_of_messages_exist() -> None:
    assert {message.id: set(message.topics) - IDS for message in known_messages() if set(message.topics) - IDS} == {}


def test_messages_and_topics_reference_each_other() -> None:
    message = message_by_id("tf-dynamic-shape")
    topic = find_topic("dynamic-shapes")

    assert message is not None
    assert isinstance(topic, Topic)
    assert message.topics == (topic.id,)
    assert message in messages_about(topic)


def test_commands_of_topics_are_valid() -> None:
    """Names and options; nothing is run."""
    lines = sorted({line for topic in TOPICS for line in topic.commands if line.startswith("tpuctl ")})
    tree = command_tree()
    unknown = {line: _unknown(tree, shlex.split(line)[1:]) for line in lines}

    assert len(lines) > 20
    assert {line: words for line, words in unknown.items() if words} == {}


def _unknown(tree: click.Group, words: Sequence[str]) -> list[str]:
    own = list(words[: words.index("--")] if "--" in words else words)
    command: click.Command | None = tree
    context = click.Context(tree)
    while isinstance(command, click.Group) and own:
        command = command.get_command(context, own.pop(0))
    if command is None:
        return list(words)
    known = {option for parameter in command.params for option in parameter.opts}
    return [word for word in own if word.startswith("--") and word not in known]
