"""The commands that remedies name: tpuctl's own parser takes each as it is printed."""

from __future__ import annotations

import re
import shlex

import click

from tpuctl.cli.tree import command_tree
from tpuctl.explain.messages import known_messages

_COMMANDS = sorted(
    {
        (message.id, command)
        for message in known_messages()
        for sentence in (message.meaning, *message.remedy)
        for command in re.findall(r"`tpuctl ([a-z][^`]*)`", sentence)
    }
)


def _refused(line: str) -> str | None:
    """Return what is wrong with a command; that a node or a file is not named yet is not."""
    words = shlex.split(re.sub(r"\{(\w+)\}", "trainer", line))
    command: click.Command | None = command_tree()
    context = click.Context(command_tree())
    while isinstance(command, click.Group):
        if words and (found := command.get_command(context, words[0])) is not None:
            command, words = found, words[1:]
        else:
            return f"no command `{line}`"
    assert command is not None
    try:
        command.make_context(command.name, words)
    except click.MissingParameter:
        return None
    except click.UsageError as problem:
        return problem.format_message()
    return None


def test_commands_of_remedies_are_valid() -> None:
    assert _COMMANDS
    assert [(id_, command, refused) for id_, command in _COMMANDS if (refused := _refused(command)) is not None] == []


def test_invalid_command_is_detected() -> None:
    assert _refused("reset {node} --mode recreat") is not None
    assert _refused("rset {node}") is not None
    assert _refused("ssh-key {node}") is not None
