"""Lines of styled parts: cut to the width of a terminal, and painted, with the marks that its encoding can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpuctl.output.tables import styled, text_width

Part = tuple[str, str]  # text, style
Line = Sequence[Part]


@dataclass(frozen=True, slots=True)
class Marks:
    """The signs of a display."""

    state: str = "•"
    action: str = "→"
    note: str = "!"
    good: str = "✓"
    bad: str = "✗"
    unknown: str = "·"
    filled: str = "━"
    empty: str = "─"
    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    between: str = " · "
    more: str = "…"


_ASCII = Marks("*", ">", "!", "+", "x", ".", "#", "-", "|/-\\", "; ", "~")


def marks_for(encoding: str | None) -> Marks:
    """Return the marks that an encoding has; without an encoding (text in memory) all."""
    marks = Marks()
    signs = (marks.state, marks.action, marks.good, marks.bad, marks.filled, marks.spinner, marks.between, marks.more)
    try:
        "".join(signs).encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return marks


def length(line: Line) -> int:
    """Return how many columns a line takes."""
    return sum(text_width(text) for text, _ in line)


def paint(line: Line, width: int | None, *, colored: bool, more: str) -> str:
    """Return a line with its colours, cut at `width` columns and ended with `more` then."""
    if width is None or length(line) <= width:
        return "".join(styled(text, style, colored=colored) for text, style in line)
    room, painted = width - text_width(more), ""
    for text, style in line:
        kept = text
        while text_width(kept) > room:
            kept = kept[:-1]
        painted += styled(kept, style, colored=colored)
        room -= text_width(kept)
        if kept != text:
            break
    return painted + more
