"""Answer a shell that completes a command line. Never with an error: it would appear in the middle of the user's prompt.

The scripts in `data/completion` set `_TPUCTL_COMPLETE=line`, and `COMP_LINE` to the line before the cursor. The answer has a
line for each candidate: its kind (`plain`, or `file` and `dir` for local paths, which the shell completes), the whole value,
and its description, between tabs. The scripts of click know no value that goes on, such as `NODE:` or `KEY=`, and in bash no
`:` and `=` in a word.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from tpuctl.errors import TpuctlError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.app.app import App

# Other characters have a meaning for a shell: bash would run `$(…)` in a value that it inserted.
_SAFE_MARKS: Final = frozenset("_.,:=/@%+-")


def answer_shell(tree: click.Command, app: App, line: str) -> int:
    """Print the candidates for a command line, and return the exit code."""
    for item in _candidates(tree, app, parse_words(line)):
        app.terminal.document(f"{item.type}\t{item.value}\t{' '.join((item.help or '').split())}")
    app.terminal.flush()
    return 0


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
    completion = ShellComplete(tree, {"obj": app}, "tpuctl", "")
    with suppress(click.ClickException, TpuctlError, OSError):
        for item in completion.get_completions(before, incomplete):
            if item.type != "plain" or all(char.isalnum() or char in _SAFE_MARKS for char in item.value):
                yield item
