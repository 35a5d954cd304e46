"""What click finds wrong with a command line, in the words and the form of all other errors."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from tpuctl.errors import InvalidInputError
from tpuctl.names import nearest
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuctl.output.terminal import Terminal


# click's sentence, which repeats them.
_EXTRA = re.compile(r"Got unexpected extra argument")


class CommandLineError(InvalidInputError):
    """The command line cannot be understood; nothing was done."""

    kind = "usage"


class WrongWordError(click.UsageError):
    """A word that is not ours, perhaps another tool's. `hint` names ours."""

    def __init__(self, message: str, *, hint: str, ctx: click.Context) -> None:
        super().__init__(message, ctx)
        self.hint = hint


def show_usage(error: click.ClickException, terminal: Terminal, *, form: Format) -> None:
    """Print what is wrong with the command line. Called without a command, a group prints its help."""
    # click's newer versions raise this, its older ones print the help and end with 0.
    if type(error).__name__ == "NoArgsIsHelpError":
        terminal.help(error.format_message())
        return
    terminal.error(_explained(error), form=form)


def asked_for_json(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Tell whether JSON was asked for, when the command line was not understood as a whole."""
    before = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if any(word in {"-ojson", "--output=json"} for word in before):
        return True
    if any(pair in {("-o", "json"), ("--output", "json")} for pair in pairwise(before)):
        return True
    named = any(word.startswith(("-o", "--output")) for word in before)
    return not named and environ.get("TPUCTL_OUTPUT") == "json"


def _explained(error: click.ClickException) -> CommandLineError:
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "tpuctl"
    match error:
        case WrongWordError():
            return CommandLineError(error.message, hint=error.hint)
        case click.MissingParameter() if error.param is not None:
            is_argument = isinstance(error.param, click.Argument)
            name = error.param.make_metavar(error.ctx) if is_argument and error.ctx else error.param.opts[-1]
            return CommandLineError(f"`{path}` needs {name}", hint=f"see `{path} --help`")
        case click.BadParameter():
            return CommandLineError(_restyled(error.format_message()), hint=_nearest_choice(error, path))
        case click.UsageError() if _EXTRA.match(error.message) and _may_hold_secrets(error.ctx):
            text = "there are more arguments than expected; they are not shown, since they may belong to a secret value"
            return CommandLineError(text, hint="quote a value of `--metadata` or `--env` that holds spaces")
        case _:
            return CommandLineError(_restyled(error.format_message()), hint=f"see `{path} --help`")


def _may_hold_secrets(context: click.Context | None) -> bool:
    return context is not None and any(context.params.get(name) for name in ("metadata", "env"))


def _nearest_choice(error: click.BadParameter, path: str) -> str:
    """Return the choice that was probably meant, or where to read on."""
    if error.param is not None and isinstance(error.param.type, click.Choice):
        wrong = re.match(r"'([^']*)'", error.message)
        near = nearest(wrong[1], map(str, error.param.type.choices)) if wrong else None
        if near:
            return f"did you mean `{near}`?"
    return f"see `{path} --help`"


def _restyled(message: str) -> str:
    """Return click's sentence as ours are written: lower case, backticks, no full stop."""
    text = re.sub(r"'([^']*)'", r"`\1`", message).rstrip(".")
    return text[:1].lower() + text[1:]
