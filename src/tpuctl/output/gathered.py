"""A status line on a terminal with the amount of data received from workers. Without a terminal it prints nothing."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from tpuctl.output.meter import INITIAL_DELAY, REDRAW_INTERVAL
from tpuctl.output.sizes import format_size

if TYPE_CHECKING:
    from types import TracebackType

    from tpuctl.clock import Clock
    from tpuctl.output.terminal import Terminal


class GatheredLine:
    """The line, as a context: it is removed at the end. Can be called from any thread."""

    def __init__(self, terminal: Terminal, clock: Clock) -> None:
        self._terminal, self._clock = terminal, clock
        self._is_shown = terminal.is_redrawn and not terminal.quiet
        self._due = clock.monotonic() + INITIAL_DELAY
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
        """Show how many workers have finished, and how many bytes have arrived."""
        with self._lock:
            now = self._clock.monotonic()
            if not self._is_shown or now < self._due:
                return
            self._due, self._has_drawn = now + REDRAW_INTERVAL, True
            status = f"{done} of {workers} workers done" if workers > 1 else "receiving from the worker"
            self._terminal.redraw(f"received {format_size(size)}; {status}")
