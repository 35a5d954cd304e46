"""What libtpu understands of the variables that steer its log, wherever they are set.

Source: troubleshooting and debug-log guides of Cloud TPU.
"""

from __future__ import annotations

_LEVELS = frozenset({"0", "1", "2", "3"})
LOG_DIR, LEVEL_NAMES = "TPU_LOG_DIR", ("TPU_MIN_LOG_LEVEL", "TPU_STDERR_LOG_LEVEL")
# Its word for no log. Translated guides have translated it too, and then it is a path.
NO_LOG = "disabled"


def misread(name: str, value: str) -> str | None:
    """Return what becomes of a value that libtpu does not understand; nothing where it does."""
    if name == LOG_DIR and value != NO_LOG and not value.startswith("/"):
        return f"libtpu makes a folder of that name wherever a program starts; its word for no log is `{NO_LOG}`"
    if name in LEVEL_NAMES and value not in _LEVELS:
        return "libtpu's levels are 0 (INFO), 1 (WARNING), 2 (ERROR) and 3 (FATAL)"
    return None
