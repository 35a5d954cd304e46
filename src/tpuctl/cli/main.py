"""The process: its entry point, its signals, its end. Light to import, so that a signal finds it ready from the start."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

from tpuctl.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from tpuctl.cli.invocation import Invocation

_CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


class TerminatedError(BaseException):
    """SIGTERM arrived. Like KeyboardInterrupt it passes every handler of ordinary errors."""


def entry_point() -> None:
    """Run the program and end the process with its exit code.

    A signal raises KeyboardInterrupt or `TerminatedError` while a command runs, so that it can tell what goes on. Before and
    after, and whenever one arrives where nobody catches it, the process ends at once: 130 or 143, without a word.
    """
    sys.excepthook, sys.unraisablehook = _uncaught, _unraisable
    _on_signals(_end)
    # A short run ends before collecting pays; at Python's own threshold imports and lists are 5 % slower.
    gc.set_threshold(50_000)
    from tpuctl.cli.program import flush, invocation_of_process  # noqa: PLC0415  # 30 ms, in which signals arrive too

    invocation = invocation_of_process()
    _on_signals(_raise)
    code = main(invocation)
    _on_signals(_end)
    flush(invocation)
    # Skips the teardown of modules, which costs 20 ms with Google's libraries loaded.
    os._exit(code)


def main(invocation: Invocation) -> int:
    """Run one command and return its exit code. A bug keeps its traceback."""
    from tpuctl.cli.program import run  # noqa: PLC0415  # as above

    return run(invocation)


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in _CODES:
        # What our parent has us ignore (`nohup`, a job in the background) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _raise(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else TerminatedError


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(_CODES[signal.Signals(number)])


def _end_if_interrupted(kind: type[BaseException] | None) -> None:
    if kind is KeyboardInterrupt:
        os._exit(ExitCode.INTERRUPTED)
    if kind is TerminatedError:
        os._exit(ExitCode.TERMINATED)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End where a second signal came while the first was being answered; a bug is shown."""
    _end_if_interrupted(kind)
    sys.__excepthook__(kind, error, trace)


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """End where a signal came in a callback of the interpreter, which would go on as if there had been none."""
    _end_if_interrupted(unraisable.exc_type)
    sys.__unraisablehook__(unraisable)
