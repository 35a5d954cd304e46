"""Signals: the error that SIGTERM raises, and blocks in which a signal must not end the run."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class TerminatedError(BaseException):
    """SIGTERM arrived. Like KeyboardInterrupt it passes every handler of ordinary errors."""


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP during a block that must not be cut off."""
    with _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def sighup_terminates() -> Iterator[None]:
    """Make SIGHUP raise `TerminatedError`, so that a node of this run does not outlive its terminal or CI job unnoticed."""

    def terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # a handler's signature
        raise TerminatedError

    # A signal that the parent process ignores (`nohup`) stays ignored.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    with _handled(terminate, signal.SIGHUP):
        yield


@contextmanager
def _handled(handler: signal._HANDLER, *numbers: signal.Signals) -> Iterator[None]:
    """Install a handler for the block. Outside the main thread do nothing: no signal arrives there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
