"""Answer a shell that completes a command line. Never with an error: it would appear in the middle of the user's prompt.

The scripts in `data/completion` set `_TPUCTL_COMPLETE=line`, and `COMP_LINE` to the line before the cursor. The answer has a
line for each candidate: its kind (`plain`, or `file` and `dir` for local paths, which the shell completes), the whole value,
and its description, between tabs. Scripts of older versions, which click wrote, get the answers of click.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import (
    CompletionItem,
    ShellComplete,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from tpuctl.cli.program import COMPLETION_VARIABLE
from tpuctl.errors import InvalidInputError, TpuctlError
from tpuctl.names import escape_undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.app.app import App

_LINE: Final = "line"
# Other characters have a meaning for a shell: bash would run `$(…)` in a value that it inserted.
_SAFE_MARKS: Final = frozenset("_.,:=/@%+-")


def answer_shell(tree: click.Command, app: App, instruction: str) -> int:
    """Print the candidates for a command line. Raises `InvalidInputError` if no shell is completing one."""
    line = app.invocation.environ.get("COMP_LINE")
    if instruction == _LINE and line is not None:
        for item in _candidates(tree, app, parse_words(line)):
            app.terminal.document(f"{item.type}\t{item.value}\t{' '.join((item.help or '').split())}")
        app.terminal.flush()
        return 0
    shell, _, action = instruction.partition("_")
    number = os.environ.get("COMP_CWORD", "")
    is_from_shell = action == "source" or (
        action == "complete" and "COMP_WORDS" in os.environ and (number.isdecimal() or shell == "fish")
    )
    if get_completion_class(shell) is None or not is_from_shell:
        raise InvalidInputError(
            f"`{COMPLETION_VARIABLE}` is `{escape_undecodable(instruction)}`, but no shell is completing a command line",
            hint=f"unset it: only the scripts of `tpuctl completion SHELL` set `{COMPLETION_VARIABLE}`",
        )
    return shell_complete(tree, {"obj": app}, "tpuctl", COMPLETION_VARIABLE, instruction)


def parse_words(line: str) -> tuple[str, ...]:
    """Return the words of a line after the program's name, without quotes; the last is the one before the cursor."""
    # A mark shows whether the cursor is in a word or after a space.
    *words, last = split_arg_string(f"{line}x")
    return (*words[1:], last[:-1])


def _candidates(tree: click.Command, app: App, words: tuple[str, ...]) -> Iterator[CompletionItem[str]]:
    """Yield the candidates for the last word; none if the words before it, a file or a setting are wrong."""
    *before, incomplete = words
    if "--" in before:
        # A command for workers.
        yield CompletionItem(incomplete, type="file")
        return
    completion = ShellComplete(tree, {"obj": app}, "tpuctl", COMPLETION_VARIABLE)
    with suppress(click.ClickException, TpuctlError, OSError):
        for item in completion.get_completions(before, incomplete):
            if item.type != "plain" or all(char.isalnum() or char in _SAFE_MARKS for char in item.value):
                yield item
