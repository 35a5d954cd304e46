"""Status lines on a terminal with the bytes sent or received so far. Without a terminal they print nothing."""

from __future__ import annotations

from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from tpuctl.clock import Clock
    from tpuctl.output.terminal import Terminal

REDRAW_INTERVAL = timedelta(milliseconds=200)
# Work that ends sooner shows no line.
INITIAL_DELAY = timedelta(milliseconds=500)


class TransferLine:
    """Adds up the bytes sent to all workers. Can be called from any thread."""

    def __init__(self, terminal: Terminal, clock: Clock) -> None:
        self._terminal, self._clock = terminal, clock
        self._is_shown = terminal.is_redrawn and not terminal.quiet
        self._began = clock.monotonic()
        self._due = self._began + INITIAL_DELAY
        self._workers: dict[str, tuple[int, int]] = {}
        self._lock = Lock()
        self._has_drawn = False

    def __enter__(self) -> TransferLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_drawn:
            self._terminal.redraw()

    def __call__(self, worker: str, done: int, total: int) -> None:
        """Note how many bytes of the total were sent to a worker."""
        with self._lock:
            self._workers[worker] = (done, total)
            now = self._clock.monotonic()
            if not self._is_shown or now < self._due:
                return
            self._due, self._has_drawn = now + REDRAW_INTERVAL, True
            done, total = (sum(column) for column in zip(*self._workers.values(), strict=True))
            rate = format_size(done / (now - self._began).total_seconds())
            self._terminal.redraw(f"sent {format_size(done)} of {format_size(total)}, {rate}/s")


class GatherLine:
    """The line, as a context: it is removed at the end. Can be called from any thread."""

    def __init__(self, terminal: Terminal, clock: Clock) -> None:
        self._terminal, self._clock = terminal, clock
        self._is_shown = terminal.is_redrawn and not terminal.quiet
        self._due = clock.monotonic() + INITIAL_DELAY
        self._lock = Lock()
        self._has_drawn = False

    def __enter__(self) -> GatherLine:
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


_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_size(size: float) -> str:
    """Return a size with a decimal unit: `512 B`, `1.5 MB`, `20 GB`."""
    power = 0
    while size >= 999.5 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if size < 9.95 and power else f"{size:.0f} {_UNITS[power]}"
