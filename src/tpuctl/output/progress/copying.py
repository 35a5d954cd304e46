"""One line on a terminal that says how far a copy is: bytes over all workers, rate, time that is left."""

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


_LONGEST = 10**9  # seconds


class Share(Protocol):
    """How far one worker's copy is, in bytes; `ever` is what has gone over the line."""

    @property
    def size(self) -> int | None:
        """What there is to copy; nothing until it is known."""

    @property
    def arrived(self) -> int:
        """What is there."""

    @property
    def ever(self) -> int:
        """What has gone over the line."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""


class CopyLine:
    """The line, as a context: it is taken away at the end. Nothing is drawn where nobody looks."""

    def __init__(self, terminal: Terminal, clock: Clock, shares: Sequence[Share]) -> None:
        self._terminal, self._clock, self._shares = terminal, clock, shares
        self._began = clock.monotonic()
        self._drawing: Drawing | None = None

    def __enter__(self) -> Self:
        streams = self._terminal.streams
        with suppress(OSError, ValueError):  # text in memory has no descriptor: it is no screen
            if self._terminal.is_redrawn and not self._terminal.quiet and streams.stderr.fileno() >= 0:
                self._drawing = self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawing:
            with suppress(OSError):
                self._drawing.end()

    def _draw(self) -> Drawing:
        from rich.console import Console  # noqa: PLC0415  # rich costs 40 ms, only for a terminal

        from tpuctl.output.progress.drawing import Drawing  # noqa: PLC0415  # as above

        streams = self._terminal.streams
        console = Console(
            file=streams.stderr,
            force_terminal=True,
            color_system="standard" if self._terminal.colors_err else None,
            legacy_windows=False,
            _environ={},  # `Terminal` knows what it says, and COLUMNS would hold on to the width of once
        )
        stdin = streams.stdin if streams.stdin_is_terminal else None
        return Drawing(console, stdin, above=list, below=lambda: [self._line(console.width)], threaded=True)

    def _line(self, width: int) -> Text:
        from rich.text import Text  # noqa: PLC0415  # as above

        words = describe(self._shares, self._clock.monotonic() - self._began)
        return Text(words[: max(0, width - 1)], no_wrap=True)


def describe(shares: Sequence[Share], elapsed: timedelta) -> str:
    """Return the line: how much of how much, how quick, how long still, how many workers' copies have ended."""
    known = [share.size for share in shares if share.size is not None]
    ended = sum(share.has_ended for share in shares)
    workers = f"{ended} of {len(shares)} workers ended" if len(shares) > 1 else ""
    if not known:
        return "  ".join(filter(None, ("connecting", workers)))
    arrived, moved, size = sum(one.arrived for one in shares), sum(one.ever for one in shares), sum(known)
    # Those that have not said what they send are taken for as large as the others.
    size = size * len(shares) // len(known)
    percent = f"{min(100, arrived * 100 // size) if size else 100:>3}%"
    rate = moved / max(elapsed.total_seconds(), 0.001)
    left = ""
    if moved and size > arrived:
        # What a worker says that it will send may be more than a duration can hold.
        seconds = min(elapsed.total_seconds() * (size - arrived) / moved, _LONGEST)
        left = format_duration(timedelta(seconds=seconds)) + " left"
    parts = (percent, f"{format_size(arrived)} of {format_size(size)}", f"{format_size(rate)}/s", left, workers)
    return "  ".join(filter(None, parts))
