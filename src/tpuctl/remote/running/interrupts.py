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


class PassedOn:
    """SIGINT and SIGTERM, in the order in which they came."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._signals: list[int] = []

    def fileno(self) -> int:
        """Return what becomes readable when there is one."""
        return self._reader

    def note(self, number: int) -> None:
        """Take a signal."""
        self._signals.append(number)
        os.write(self._writer, b"!")

    def take(self) -> list[int]:
        """Return those that have come since the last call."""
        with suppress(BlockingIOError):
            while os.read(self._reader, 64):
                pass
        taken, self._signals = self._signals, []
        return taken

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._reader)
        os.close(self._writer)


@contextmanager
def passed_on(*, catch: bool = True) -> Iterator[PassedOn]:
    """Collect SIGINT and SIGTERM instead of being ended by them; without `catch` they do what they did before.

    In a thread no signal arrives, and none is collected.
    """
    interrupts = PassedOn()

    def take(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signature of a handler
        interrupts.note(number)

    catch = catch and threading.current_thread() is threading.main_thread()
    caught = (signal.SIGINT, signal.SIGTERM) if catch else ()
    before = {number: signal.signal(number, take) for number in caught}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        interrupts.close()
