"""`tpuctl help` and `tpuctl options`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import group_of, write_options
from tpuctl.app.options import CLOUD_OPTIONS, UnknownWordError, cli_command, shared_options
from tpuctl.cli.help_topics import load_topic, topic_names
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App


_OTHERS = {
    "tpuctl help COMMAND": "How a command is used, as with `tpuctl COMMAND --help`",
    "tpuctl --help": "All commands",
    "tpuctl options": "The options of every command",
    "tpuctl explain": "The cause of a failure, and its fix",
}


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001  # click's own signature
    """Complete a topic or a command; after a group, its commands."""
    root, words = ctx.find_root(), ctx.params.get("words") or ()
    found = root.command
    for word in words:
        below = found.get_command(root, word) if isinstance(found, click.Group) else None
        if below is None:
            return []
        found = below
    names = found.list_commands(root) if isinstance(found, click.Group) else []
    return [name for name in ([] if words else topic_names()) + names if name.startswith(incomplete)]


@cli_command("help", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
@click.argument("words", metavar="[TOPIC|COMMAND...]", nargs=-1, shell_complete=_complete)
def help_command(app: App, *, words: tuple[str, ...]) -> None:
    """Explain a topic or a command; without either, list the topics. `tpuctl help COMMAND` is `tpuctl COMMAND --help`.

    \b
    Examples:
      tpuctl help
      tpuctl help exit-codes
      tpuctl help queue retry
    """
    context = click.get_current_context()
    formatter = context.make_formatter()
    topic = "-".join(words).lower()
    if not words:
        _write_index(formatter)
    elif topic in topic_names():
        load_topic(topic).write(formatter)
    else:
        app.terminal.document(_command_context(context, words).get_help())
        return
    app.terminal.document(formatter.getvalue())


@cli_command("options", asks_trust=False, without=(*CLOUD_OPTIONS, "output"))
def options_command(app: App) -> None:
    """Show the options that every command accepts. Most are settings too: see `tpuctl help settings`.

    \b
    Examples:
      tpuctl options
    """
    context = click.get_current_context()
    formatter = context.make_formatter()
    formatter.write_text(
        "Commands accept these where they apply, before or after the command. Most are settings: see `tpuctl help settings`."
    )
    write_options([(group_of(option), option) for option in shared_options()], context, formatter)
    app.terminal.document(formatter.getvalue())


def _write_index(formatter: click.HelpFormatter) -> None:
    width = max(map(len, _OTHERS))
    with formatter.section("Topics, for `tpuctl help TOPIC`"):
        formatter.write_dl([(f"{name:<{width}}", load_topic(name).title) for name in topic_names()])
    with formatter.section("Other help"):
        formatter.write_dl([*_OTHERS.items()])


def _command_context(context: click.Context, words: Sequence[str]) -> click.Context:
    """Return the context of the command that the words name. Raises `UnknownWordError` with a similar topic or command."""
    found = context.find_root()
    for word in words:
        group = found.command
        command = group.get_command(found, word) if isinstance(group, click.Group) else None
        if command is None:
            known = topic_names() if found.parent is None else []
            names = group.list_commands(found) if isinstance(group, click.Group) else []
            near = closest_match(word.lower(), [*known, *names])
            path = " ".join(found.command_path.split()[1:])
            hint = f"did you mean `tpuctl help {f'{path} ' if path else ''}{near}`?" if near else "see `tpuctl help`"
            raise UnknownWordError(f"there is no topic or command `{' '.join(words)}`", hint=hint, ctx=context)
        found = command.context_class(command, info_name=command.name, parent=found)
    return found
