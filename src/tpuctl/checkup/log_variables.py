"""Values that libtpu accepts for its log variables.

Source: troubleshooting and debug-log guides of Cloud TPU.
"""

from __future__ import annotations

_LEVELS = frozenset({"0", "1", "2", "3"})
LOG_DIR, LEVEL_NAMES = "TPU_LOG_DIR", ("TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL")
# libtpu's word for no log. Translated guides translate it, and then libtpu takes it for a path.
NO_LOG = "disabled"


def misread(name: str, value: str) -> str | None:
    """Return what is wrong with the value of a log variable of libtpu, None if it is valid."""
    if name == LOG_DIR and value != NO_LOG and not value.startswith("/"):
        return f"libtpu creates a folder of that name in the working directory of a program; its word for no log is `{NO_LOG}`"
    if name in LEVEL_NAMES and value not in _LEVELS:
        return "libtpu's levels are 0 (INFO), 1 (WARNING), 2 (ERROR) and 3 (FATAL)"
    return None
