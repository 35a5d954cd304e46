"""Numbers of bytes as people read them."""

from __future__ import annotations


def format_size(size: float) -> str:
    """Return a number of bytes in units of a thousand: `512 B`, `1.5 MB`, `20 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            break
        size /= 1000
    else:
        unit = "TB"
    return f"{size:.1f} {unit}" if size < 10 and unit != "B" else f"{size:.0f} {unit}"
