"""The signals that this process is sent while commands run on workers: they are passed on, not obeyed."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_CAUGHT = (signal.SIGINT, signal.SIGTERM)


class PassedOn:
    """SIGINT and SIGTERM, in the order in which they came.

    Each that arrives is a byte in a pipe (`signal.set_wakeup_fd`): Python calls a handler once for several that come together.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        for end in (self._reader, self.writer):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        """Return what becomes readable when there is one."""
        return self._reader

    def take(self) -> list[int]:
        """Return those that have come since the last call."""
        taken = b""
        with suppress(BlockingIOError):
            while data := os.read(self._reader, 64):
                taken += data
        return [number for number in taken if number in _CAUGHT]

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._reader)
        os.close(self.writer)


@contextmanager
def passed_on(*, catch: bool = True) -> Iterator[PassedOn]:
    """Collect SIGINT and SIGTERM instead of being ended by them; without `catch` they do what they did before.

    In a thread no signal arrives, and none is collected.
    """
    interrupts = PassedOn()
    caught = _CAUGHT if catch and threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, _take) for number in caught}
    woken = signal.set_wakeup_fd(interrupts.writer, warn_on_full_buffer=False) if caught else -1
    try:
        yield interrupts
    finally:
        if caught:
            signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        interrupts.close()


def _take(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal is in the pipe. Without a handler it would not get there."""
