"""Text for people in lines that fit a screen: broken between words only, and never inside a command. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpuctl.output.column_widths import text_width

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_WIDTH, MIN_WIDTH = 100, 40
# What is quoted, with the punctuation at it, is one word.
_WORDS_AND_COMMANDS = re.compile(r"(?:`[^`]*`|\S)+")
# A line of a foreign text must not look as if tpuctl began it.
_LABELS = frozenset({"error:", "warning:", "hint:", "more:", "resume:", "undo:", "sandbox:"})
# Labels before a command without backticks, which fills the rest of its line.
_COMMAND_LINE = re.compile(r"\s*(?:resume|undo|more): ")


def wrap_text(text: str, *, first: str, rest: str, width: int) -> Iterator[str]:
    """Yield the text in lines of at most this width. A word or a command that is longer has a line of its own."""
    line, is_begun = first, False
    for word in _WORDS_AND_COMMANDS.findall(text):
        if is_begun and word not in _LABELS and text_width(line) + text_width(word) > width:
            yield line.rstrip()
            line = rest
        line, is_begun = f"{line}{word} ", True
    yield line.rstrip()


def wrap_line(line: str, *, width: int, label: str = "") -> list[str]:
    """Return a line of a message in lines that fit, the further ones indented.

    `label` stands before the first, and is not returned.
    """
    if text_width(label + line) <= width or _COMMAND_LINE.match(label + line):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    rest = indent + " " * (len(label) or 2)
    first, *others = wrap_text(line, first=label + indent, rest=rest, width=max(width, MIN_WIDTH))
    return [first[len(label) :], *others]
