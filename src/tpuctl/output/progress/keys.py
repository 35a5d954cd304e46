"""Keys typed during a live display: they are not echoed, and stay in the input buffer."""

from __future__ import annotations

import os
import termios
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCAL_MODES = 3  # of the attributes of a terminal, termios(3)


@contextmanager
def without_echo(stdin: TextIO) -> Iterator[None]:
    """Disable echo during a block: an Enter would move the cursor. Does nothing if stdin is not a terminal in our control."""
    try:
        device = stdin.fileno()
        before = termios.tcgetattr(device)
        in_foreground = _in_foreground(device)
    except (OSError, ValueError, termios.error):
        in_foreground = False
    if not in_foreground:
        yield
        return
    meanwhile = before.copy()
    meanwhile[_LOCAL_MODES] &= ~termios.ECHO
    termios.tcsetattr(device, termios.TCSANOW, meanwhile)
    try:
        yield
    finally:
        # The terminal may be gone: the error that ends the run matters more.
        with suppress(OSError, termios.error):
            if _in_foreground(device):
                termios.tcsetattr(device, termios.TCSANOW, before)


def _in_foreground(device: int) -> bool:
    # A background job is stopped if it changes the terminal.
    return os.tcgetpgrp(device) == os.getpgrp()
