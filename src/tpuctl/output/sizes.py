"""Sizes in bytes with units."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_size(size: float) -> str:
    """Return a size with a decimal unit: `512 B`, `1.5 MB`, `20 GB`."""
    power = 0
    while size >= 999.5 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if size < 9.95 and power else f"{size:.0f} {_UNITS[power]}"
