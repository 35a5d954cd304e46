"""Errors of the command line that click raises, printed in the same form as all other errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from tpuctl.errors import InvalidInputError
from tpuctl.names import nearest

if TYPE_CHECKING:
    from tpuctl.output.terminal import Format, Terminal


# The beginning of click's message that repeats the extra arguments.
_EXTRA = re.compile(r"Got unexpected extra argument")


class CommandLineError(InvalidInputError):
    """The command line could not be parsed; nothing was done."""

    kind = "usage"


class WrongWordError(click.UsageError):
    """An unknown command or option, perhaps of another tool. `hint` names ours."""

    def __init__(self, message: str, *, hint: str, ctx: click.Context) -> None:
        super().__init__(message, ctx)
        self.hint = hint


def show_usage(error: click.ClickException, terminal: Terminal, *, form: Format) -> None:
    """Print what is wrong with the command line. A group that was called without a command prints its help."""
    # Newer versions of click raise this, older ones print the help and exit with 0.
    if type(error).__name__ == "NoArgsIsHelpError":
        terminal.help(error.format_message())
        return
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "tpuctl"
    hint = f"see `{path} --help`"
    match error:
        case WrongWordError():
            message, hint = error.message, error.hint
        case click.MissingParameter() if error.param is not None:
            is_argument = isinstance(error.param, click.Argument)
            name = error.param.make_metavar(error.ctx) if is_argument and error.ctx else error.param.opts[-1]
            message = f"`{path}` needs {name}"
        case click.BadParameter():
            message = _restyled(error.format_message())
            if error.param is not None and isinstance(error.param.type, click.Choice):
                wrong = re.match(r"'([^']*)'", error.message)
                if choice := nearest(wrong[1], map(str, error.param.type.choices)) if wrong else None:
                    hint = f"did you mean `{choice}`?"
        case click.UsageError() if (
            _EXTRA.match(error.message)
            and error.ctx is not None
            and any(error.ctx.params.get(name) for name in ("metadata", "env"))
        ):
            message = "too many arguments; they are not shown, because they may be part of a secret value"
            hint = "quote a value of `--metadata` or `--env` that contains spaces"
        case _:
            message = _restyled(error.format_message())
    terminal.error(CommandLineError(message, hint=hint), form=form)


def _restyled(message: str) -> str:
    """Return click's message in our style: lower case, backticks, no full stop."""
    text = re.sub(r"'([^']*)'", r"`\1`", message).rstrip(".")
    return text[:1].lower() + text[1:]
