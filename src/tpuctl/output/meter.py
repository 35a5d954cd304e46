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
    """Counts bytes. Call it with each further number of them, from any thread."""

    def __init__(self, terminal: Terminal, clock: Clock, what: str) -> None:
        self._terminal, self._clock, self._what = terminal, clock, what
        self._is_shown = terminal.is_redrawn and not terminal.quiet
        self._due = clock.monotonic() + _QUIET_FOR
        self._began = clock.monotonic()
        self._total = 0
        self._lock = Lock()
        self._has_drawn = False

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_drawn:
            self._write("\r\x1b[K")

    def __call__(self, size: int) -> None:
        """Count so many bytes more."""
        with self._lock:
            self._total += size
            now = self._clock.monotonic()
            if not self._is_shown or now < self._due:
                return
            self._due = now + _REDRAWN_EVERY
            seconds = (now - self._began).total_seconds()
            self._has_drawn = True
            rate = f"{format_size(self._total / seconds)}/s" if seconds else ""
            self._write(f"\r\x1b[K{self._what}: {format_size(self._total)}, {rate}")

    def _write(self, text: str) -> None:
        self._terminal.streams.stderr.write(text)
        self._terminal.streams.stderr.flush()
