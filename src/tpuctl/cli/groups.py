"""Groups of commands: import a command only when it is called, and suggest the one that was probably meant."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tpuctl.cli.usage import WrongWordError
from tpuctl.names import nearest, printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from click.shell_completion import CompletionItem

# Options of other tools, and what to use in tpuctl, or why there is no such option.
FOREIGN_OPTIONS = {
    "--format": "`-o json`, `-o yaml` or `-o name`",
    "--json": "`-o json`",
    "--filter": "`-o json` and jq",
    "--limit": "`head`",
    "--force": "`--yes`",
    "--yes": "not needed: this command never asks",
    "--quiet-confirm": "`--yes`",
    "--region": "`--zone`",
    "--all-zones": "not needed: all zones are searched unless `--zone` is given",
    "--tpu": "the node's name as an argument",
    "--name": "the node's name as an argument",
    "--tpu-name": "the node's name as an argument",
    "--accelerator": "`--type`",
    "--runtime": "`--version`",
    "--image": "`--version`",
    "--verbosity": "`-v`",
    "--ssh-key-file": "`--ssh-key`",
    "--force-key-file-overwrite": "`tpuctl ssh-key renew`",
    "--output-directory": "`tpuctl run --log-dir`",
    "--strict-host-key-checking": "not needed: host keys are always checked",
    "--compress": "`Compression yes` in `~/.ssh/config`",
}


@contextmanager
def named_options(command: click.Command, ctx: click.Context) -> Iterator[None]:
    """Replace click's error for an unknown option by one that suggests ours. Other usage errors get the context."""
    try:
        yield
    except click.NoSuchOption as error:
        name = error.option_name.split("=")[0]
        params = command.get_params(ctx)
        known = [option for param in params for option in (*param.opts, *param.secondary_opts) if option[:2] == "--"]
        near = name if name in FOREIGN_OPTIONS else nearest(name, known) or nearest(name, FOREIGN_OPTIONS)
        if near and FOREIGN_OPTIONS.get(near) == "`--yes`" and "--yes" not in known:
            near = "--yes"
        if near == "--yes" and isinstance(command, click.Group):
            hint = "put `--yes` after the command"
        elif near in FOREIGN_OPTIONS and near not in known:
            ours = FOREIGN_OPTIONS[near]
            hint = f"use {ours}" if ours.startswith("`") else ours
        else:
            hint = f"did you mean `{near}`?" if near else f"see `{ctx.command_path} --help`"
        raise WrongWordError(f"`{ctx.command_path}` has no option `{name}`", hint=hint, ctx=ctx) from None
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


# Options whose empty value has a meaning: no description, an empty list.
_MAY_BE_EMPTY = frozenset(
    {"description", "prefix", "labels", "tags", "metadata", "metadata_from_file", "skip_checks", "topic"}
    | {"remove_labels", "remove_tags", "remove_metadata"}
)


def check_texts(command: click.Command, ctx: click.Context) -> None:
    """Raise `click.BadParameter` for an empty value (an unset variable), for bytes that are not UTF-8, and for NUL.

    Parameters of the type `click.UNPROCESSED` may be any bytes: names of local files, words of remote commands.
    """
    for param in command.get_params(ctx):
        value = ctx.params.get(param.name or "")
        if param.type is click.UNPROCESSED or value is None:
            continue
        for text in value if isinstance(value, tuple) else (value,):
            if not isinstance(text, str):
                continue
            is_option = isinstance(param, click.Option) and param.name not in _MAY_BE_EMPTY
            if not text and is_option and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
                raise click.BadParameter("`` is empty", ctx=ctx, param=param)
            if printable(text) != text:
                raise click.BadParameter(f"`{printable(text)}` is not UTF-8 text", ctx=ctx, param=param)


class Group(click.Group):
    """A group that lists its commands in the order in which they were added, and suggests the one that was meant."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's own signature
        """Return the commands, in the order in which they were added."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and suggest our option for an unknown one."""
        with named_options(self, ctx):
            left = super().parse_args(ctx, args)
            check_texts(self, ctx)
            return left

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises `WrongWordError` with the command that was probably meant."""
        word = args[0]
        if ctx.resilient_parsing or word.startswith("-") or self.get_command(ctx, word) is not None:
            name, command, rest = super().resolve_command(ctx, args)
            # Messages use the full name of a command, also for an alias such as `ls`.
            return (command.name if command else name), command, rest
        suggestion = self.suggest(ctx, word)
        hint = f"did you mean `{ctx.command_path} {suggestion}`?" if suggestion else f"see `{ctx.command_path} --help`"
        raise WrongWordError(f"there is no command `{ctx.command_path} {word}`", hint=hint, ctx=ctx)

    def suggest(self, ctx: click.Context, word: str) -> str | None:
        """Return the command that was probably meant, None if no name is similar."""
        return nearest(word, self.list_commands(ctx))


class Tree(Group):
    """A group that imports each command when it is called, and knows the words of other tools.

    `commands` has for each name the module that defines `command`, and the line for `--help`.
    """

    def __init__(
        self,
        commands: Mapping[str, tuple[str, str]],
        *args: Any,  # click's own signature
        sections: Mapping[str, Collection[str]] | None = None,
        aliases: Mapping[str, str] | None = None,
        elsewhere: Mapping[str, str] | None = None,
        **kwargs: Any,  # click's own signature
    ) -> None:
        super().__init__(*args, **kwargs)
        self._table, self._aliases, self._elsewhere = commands, aliases or {}, elsewhere or {}
        self._sections = sections or {"Commands": commands}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's own signature
        """Return the commands, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as above
        """Import and return a command, by its name or an alias; None if there is no such command."""
        entry = self._table.get(self._aliases.get(cmd_name, cmd_name))
        if entry is None:
            return None
        # The sandbox's table still has names relative to tpuctl.cli.
        module = entry[0] if entry[0].startswith("tpuctl.") else f"tpuctl.cli.{entry[0]}"
        command = import_module(module).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module} has no command")
        return command

    def suggest(self, ctx: click.Context, word: str) -> str | None:  # noqa: ARG002  # as above
        """Return the command that was probably meant by a word of another tool, or a mistyped one."""
        return self._elsewhere.get(word) or nearest(word, [*self._table, *self._aliases])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing it, or an option."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  # only for completion

        names = [(name, text) for name, (_, text) in self._table.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=text) for name, text in names), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # as above
        """Write the table of commands, section by section, without importing them."""
        width = max(map(len, self._table))
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", self._table[name][1]) for name in names])
