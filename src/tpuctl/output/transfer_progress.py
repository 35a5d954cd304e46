"""The progress of copies to workers, on the status line of the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        self._line.show(self._text)

    def _text(self) -> str:
        done, total = (sum(column) for column in zip(*list(self._workers.values()), strict=True))
        rate = format_size(done / (self._clock.monotonic() - self._began).total_seconds())
        return f"sent {format_size(done)} of {format_size(total)}, {rate}/s"


_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_size(size: float) -> str:
    """Return a size with a decimal unit: `512 B`, `1.5 MB`, `20 GB`."""
    power = 0
    while size >= 999.5 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if size < 9.95 and power else f"{size:.0f} {_UNITS[power]}"
