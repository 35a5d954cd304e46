"""What signals do at moments at which they must not simply end the run."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tpuctl.cli.main import TerminatedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals for as long as it takes to do, or to say, what must not be cut off."""
    with _handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def hang_up_terminates() -> Iterator[None]:
    """Let SIGHUP end the run as SIGTERM does: what it made must not outlive the terminal, or the CI runner, unnoticed."""

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # a handler's signature
        raise TerminatedError

    # What our parent has us ignore (`nohup`) stays ignored.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    with _handling(end, signal.SIGHUP):
        yield


@contextmanager
def _handling(handler: signal._HANDLER, *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals in this way for a while. In a thread none arrives, and none can be handled."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
