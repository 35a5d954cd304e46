"""The symbols of the live display."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """Symbols for terminals with an encoding of Unicode; `ASCII` has those for other terminals."""

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


ASCII = Marks("*", ">", "!", "+", "x", ".", "#", "-", "|/-\\", "; ")
