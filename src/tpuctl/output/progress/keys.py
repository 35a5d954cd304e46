"""Keys typed while the screen is drawn anew: they wait for who reads them, and are not shown."""

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
    """Show no key meanwhile: an Enter would move the cursor. Does nothing where stdin is not ours to change."""
    try:
        device = stdin.fileno()
        before = termios.tcgetattr(device)
        is_ours = _is_ours(device)
    except (OSError, ValueError, termios.error):
        is_ours = False
    if not is_ours:
        yield
        return
    meanwhile = before.copy()
    meanwhile[_LOCAL_MODES] &= ~termios.ECHO
    termios.tcsetattr(device, termios.TCSANOW, meanwhile)
    try:
        yield
    finally:
        # The terminal may be gone: what ends the run matters more.
        with suppress(OSError, termios.error):
            if _is_ours(device):
                termios.tcsetattr(device, termios.TCSANOW, before)


def _is_ours(device: int) -> bool:
    # A job in the background is stopped when it changes the terminal.
    return os.tcgetpgrp(device) == os.getpgrp()
