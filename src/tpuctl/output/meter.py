"""A line on a terminal that says how much has been sent, while it is. Elsewhere nothing."""

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


class Meter:
    """Adds up what workers were sent, of how much each. Call it from any thread."""

    def __init__(self, terminal: Terminal, clock: Clock) -> None:
        self._terminal, self._clock = terminal, clock
        self._is_shown = terminal.is_redrawn and not terminal.quiet
        self._began = clock.monotonic()
        self._due = self._began + _QUIET_FOR
        self._workers: dict[str, tuple[int, int]] = {}
        self._lock = Lock()
        self._has_drawn = False

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_drawn:
            self._terminal.redraw()

    def __call__(self, worker: str, done: int, total: int) -> None:
        """Note how many bytes a worker was sent, of how many."""
        with self._lock:
            self._workers[worker] = (done, total)
            now = self._clock.monotonic()
            if not self._is_shown or now < self._due:
                return
            self._due, self._has_drawn = now + _REDRAWN_EVERY, True
            done, total = (sum(column) for column in zip(*self._workers.values(), strict=True))
            rate = format_size(done / (now - self._began).total_seconds())
            self._terminal.redraw(f"sent {format_size(done)} of {format_size(total)}, {rate}/s")
