"""The progress of copies to workers, on the status line of the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.durations import format_size

if TYPE_CHECKING:
    from tpuctl.clock import Clock
    from tpuctl.output.terminal import StatusLine


class TransferProgress:
    """The bytes sent to all workers so far, on a status line. Any thread may call it."""

    def __init__(self, line: StatusLine, clock: Clock) -> None:
        self._line, self._clock = line, clock
        self._began = clock.monotonic()
        self._workers: dict[str, tuple[int, int]] = {}

    def __call__(self, worker: str, done: int, total: int) -> None:
        """Note how many bytes of the total were sent to a worker."""
        self._workers[worker] = (done, total)

        def describe() -> str:
            sent, size = (sum(column) for column in zip(*list(self._workers.values()), strict=True))
            rate = format_size(sent / (self._clock.monotonic() - self._began).total_seconds())
            return f"sent {format_size(sent)} of {format_size(size)}, {rate}/s"

        self._line.show(describe)
