"""The signs of a live display."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Marks:
    """Signs that any encoding of Unicode has."""

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
