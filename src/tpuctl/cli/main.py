"""The process: entry point, signals, exit code. Its top imports are light, so that signals are handled from the start."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from tpuctl.app.signals import TerminatedError
from tpuctl.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from tpuctl.app.app import Invocation

_CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


def entry_point() -> None:
    """Run the program and end the process with its exit code.

    While a command runs, a signal raises KeyboardInterrupt or `TerminatedError`, so that the command can report what is in
    flight. Before and after, and when no handler catches the exception, the process exits at once with 130 or 143 and prints
    no message.
    """
    sys.excepthook, sys.unraisablehook = _uncaught, _unraisable
    _set_handlers(_exit_now)
    # A short run ends before garbage collection pays; with Python's own threshold imports and lists are 5 % slower.
    gc.set_threshold(50_000)
    from tpuctl.cli.program import invocation_of_process  # noqa: PLC0415  # 30 ms, in which signals arrive too

    invocation = invocation_of_process()
    _set_handlers(_raise)
    code = main(invocation)
    _set_handlers(_exit_now)
    for stream in (invocation.streams.stdout, invocation.streams.stderr):
        with suppress(OSError, ValueError):  # closed
            stream.flush()
    # Skips the teardown of modules, which costs 20 ms with Google's libraries loaded.
    os._exit(code)


def main(invocation: Invocation) -> int:
    """Run one command and return its exit code. A bug keeps its traceback."""
    from tpuctl.cli.program import run  # noqa: PLC0415  # after the signal handlers are set

    return run(invocation)


def _set_handlers(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in _CODES:
        # A signal that the parent process ignores (`nohup`, a background job) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _raise(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else TerminatedError


def _exit_now(number: int, _frame: FrameType | None) -> None:
    os._exit(_CODES[signal.Signals(number)])


def _exit_if_interrupted(kind: type[BaseException] | None) -> None:
    if kind is KeyboardInterrupt:
        os._exit(ExitCode.INTERRUPTED)
    if kind is TerminatedError:
        os._exit(ExitCode.TERMINATED)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Exit if a second signal arrived while the first was handled; print the traceback of a bug."""
    _exit_if_interrupted(kind)
    sys.__excepthook__(kind, error, trace)


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Exit if a signal arrived in a callback of the interpreter, which would otherwise ignore it."""
    _exit_if_interrupted(unraisable.exc_type)
    sys.__unraisablehook__(unraisable)
