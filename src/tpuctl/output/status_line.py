"""The progress line on stderr of a terminal. Without a terminal it prints nothing."""

from __future__ import annotations

from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Self

from tpuctl.durations import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.clock import Clock
    from tpuctl.output.terminal import Terminal

REDRAW_INTERVAL = timedelta(milliseconds=200)
# Work that ends sooner shows no line.
INITIAL_DELAY = timedelta(milliseconds=500)


class StatusLine:
    """One line that is redrawn in place, and removed at the end of the block. Any thread may call its methods."""

    def __init__(self, terminal: Terminal, clock: Clock, *, delay: timedelta = INITIAL_DELAY) -> None:
        self._terminal, self._clock = terminal, clock
        self._is_shown = terminal.is_redrawn and not terminal.quiet
        self._due = clock.monotonic() + delay
        self._has_drawn = False
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._is_shown = False

    def clear(self) -> None:
        """Remove the line before other text is written; the next `show` draws it again."""
        with self._lock:
            if self._has_drawn:
                self._has_drawn = False
                self._terminal.redraw()

    def show(self, text: Callable[[], str]) -> None:
        """Draw this text, unless the line was drawn within the last moments: then the text is not even made."""
        with self._lock:
            now = self._clock.monotonic()
            if self._is_shown and now >= self._due:
                self._due, self._has_drawn = now + REDRAW_INTERVAL, True
                self._terminal.redraw(text())  # cut at the width of the terminal


class TransferProgress:
    """The bytes sent to all workers so far, on a status line. Any thread may call it."""

    def __init__(self, line: StatusLine, clock: Clock) -> None:
        self._line, self._clock = line, clock
        self._began = clock.monotonic()
        self._workers: dict[str, tuple[int, int]] = {}

    def __call__(self, worker: str, done: int, total: int) -> None:
        """Note how many bytes of the total were sent to a worker."""
        self._workers[worker] = (done, total)
        self._line.show(self._text)

    def _text(self) -> str:
        done, total = (sum(column) for column in zip(*list(self._workers.values()), strict=True))
        rate = format_size(done / (self._clock.monotonic() - self._began).total_seconds())
        return f"sent {format_size(done)} of {format_size(total)}, {rate}/s"
