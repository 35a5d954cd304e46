"""The status line of a copy on a terminal: bytes over all workers, rate, time left."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, Self

from tpuctl.clock import format_duration
from tpuctl.output.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from tpuctl.clock import Clock
    from tpuctl.output.progress.drawing import Drawing
    from tpuctl.output.terminal import Terminal


_MAX_SECONDS_LEFT = 10**9


class Share(Protocol):
    """The progress of one worker's copy, in bytes."""

    @property
    def size(self) -> int | None:
        """The bytes to copy; None until known."""

    @property
    def arrived(self) -> int:
        """The bytes at the destination."""

    @property
    def total_moved(self) -> int:
        """The bytes sent over the network."""

    @property
    def has_ended(self) -> bool:
        """Whether the copy has ended."""


class CopyLine:
    """The line, as a context manager that removes it at the end. Draws nothing unless stderr is a terminal."""

    def __init__(self, terminal: Terminal, clock: Clock, shares: Sequence[Share]) -> None:
        self._terminal, self._clock, self._shares = terminal, clock, shares
        self._started = clock.monotonic()
        self._drawing: Drawing | None = None

    def __enter__(self) -> Self:
        streams = self._terminal.streams
        with suppress(OSError, ValueError):  # a stream in memory has no descriptor
            if not self._terminal.is_redrawn or self._terminal.quiet or streams.stderr.fileno() < 0:
                return self
            from rich.console import Console  # noqa: PLC0415  # rich costs 40 ms, only for a terminal
            from rich.text import Text  # noqa: PLC0415  # as above

            from tpuctl.output.progress.drawing import Drawing  # noqa: PLC0415  # as above

            console = Console(
                file=streams.stderr,
                force_terminal=True,
                color_system="standard" if self._terminal.colors_err else None,
                legacy_windows=False,
                _environ={},  # `Terminal` knows these; with COLUMNS rich would ignore a new width
            )

            def line() -> Text:
                words = describe(self._shares, self._clock.monotonic() - self._started)
                return Text(words[: max(0, console.width - 1)], no_wrap=True)

            stdin = streams.stdin if streams.stdin_is_terminal else None
            self._drawing = Drawing(console, stdin, above=list, below=lambda: [line()], threaded=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawing:
            with suppress(OSError):
                self._drawing.end()


def describe(shares: Sequence[Share], elapsed: timedelta) -> str:
    """Return the line: percent, bytes, rate, time left, and how many workers have finished."""
    known = [share.size for share in shares if share.size is not None]
    ended = sum(share.has_ended for share in shares)
    workers = f"{ended} of {len(shares)} workers ended" if len(shares) > 1 else ""
    if not known:
        return "  ".join(filter(None, ("connecting", workers)))
    arrived, moved, size = sum(one.arrived for one in shares), sum(one.total_moved for one in shares), sum(known)
    # Copies of unknown size are assumed to be as large as the others.
    size = size * len(shares) // len(known)
    percent = f"{min(100, arrived * 100 // size) if size else 100:>3}%"
    rate = moved / max(elapsed.total_seconds(), 0.001)
    left = ""
    if moved and size > arrived:
        # A worker may announce more bytes than a duration can express.
        seconds = min(elapsed.total_seconds() * (size - arrived) / moved, _MAX_SECONDS_LEFT)
        left = format_duration(timedelta(seconds=seconds)) + " left"
    parts = (percent, f"{format_size(arrived)} of {format_size(size)}", f"{format_size(rate)}/s", left, workers)
    return "  ".join(filter(None, parts))
