"""Collect the signals sent to this process while commands run on workers: they are forwarded, not obeyed."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_CAUGHT = (signal.SIGINT, signal.SIGTERM)


class PassedOn:
    """SIGINT and SIGTERM, in the order of their arrival.

    Each signal is a byte in a pipe (`signal.set_wakeup_fd`): for several that arrive together Python calls a handler once.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        for end in (self._reader, self.writer):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a signal arrives."""
        return self._reader

    def take(self) -> list[int]:
        """Return the signals that have arrived since the last call."""
        taken = b""
        with suppress(BlockingIOError):
            while data := os.read(self._reader, 64):
                taken += data
        return [number for number in taken if number in _CAUGHT]

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self.writer)


@contextmanager
def passed_on(*, catch: bool = True) -> Iterator[PassedOn]:
    """Collect SIGINT and SIGTERM instead of obeying them; without `catch` they keep their effect.

    Outside the main thread no signal arrives, and none is collected.
    """
    interrupts = PassedOn()
    caught = _CAUGHT if catch and threading.current_thread() is threading.main_thread() else ()
    # A handler that does nothing: without one no byte is written to the pipe.
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in caught}
    woken = signal.set_wakeup_fd(interrupts.writer, warn_on_full_buffer=False) if caught else -1
    try:
        yield interrupts
    finally:
        if caught:
            signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        interrupts.close()
