"""A line on a terminal that says how much workers have told, while they do. Elsewhere nothing."""

from __future__ import annotations

from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING

from tpuctl.output.sizes import format_size

if TYPE_CHECKING:
    from types import TracebackType

    from tpuctl.clock import Clock
    from tpuctl.output.terminal import Terminal

_REDRAWN_EVERY = timedelta(milliseconds=200)
# What is over sooner needs no line.
_QUIET_FOR = timedelta(milliseconds=500)


class GatheredLine:
    """The line, as a context: it is taken away at the end. Call it from any thread."""

    def __init__(self, terminal: Terminal, clock: Clock) -> None:
        self._terminal, self._clock = terminal, clock
        self._is_shown = terminal.is_redrawn and not terminal.quiet
        self._due = clock.monotonic() + _QUIET_FOR
        self._lock = Lock()
        self._has_drawn = False

    def __enter__(self) -> GatheredLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_shown = False
            if self._has_drawn:
                self._terminal.redraw()

    def __call__(self, done: int, workers: int, size: int) -> None:
        """Show how many of the workers have told all, and how many bytes have come."""
        with self._lock:
            now = self._clock.monotonic()
            if not self._is_shown or now < self._due:
                return
            self._due, self._has_drawn = now + _REDRAWN_EVERY, True
            told = f"{done} of {workers} workers have told all" if workers > 1 else "the worker is telling"
            self._terminal.redraw(f"gathered {format_size(size)}; {told}")
