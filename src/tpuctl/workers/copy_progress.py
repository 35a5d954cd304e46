"""Show the progress of copies and syncs on a status line."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.clock import Clock
    from tpuctl.output.terminal import StatusLine
    from tpuctl.workers.copying import CopyProgress


def show_copies(line: StatusLine, clock: Clock) -> Callable[[Sequence[CopyProgress]], None]:
    """Return what shows the progress of copies and syncs on a status line."""
    started = clock.monotonic()
    return lambda shares: line.show(lambda: describe_copy(shares, clock.monotonic() - started))


_MAX_SECONDS_LEFT = 10**9


def describe_copy(shares: Sequence[CopyProgress], elapsed: timedelta) -> str:
    """Return the status line: percent, bytes, rate, time left, and how many workers have finished."""
    known = [share.size for share in shares if share.size is not None]
    ended = sum(share.has_ended for share in shares)
    workers = f"{ended} of {len(shares)} workers ended" if len(shares) > 1 else ""
    if not known:
        return "  ".join(filter(None, ("connecting", workers)))
    arrived, moved = sum(one.moved for one in shares), sum(one.total_moved for one in shares)
    # Copies of unknown size are assumed to be as large as the others.
    size = sum(known) * len(shares) // len(known)
    percent = f"{min(100, arrived * 100 // size) if size else 100:>3}%"
    rate = moved / max(elapsed.total_seconds(), 0.001)
    left = ""
    if moved and size > arrived:
        # A worker may announce more bytes than a duration can express.
        seconds = min(elapsed.total_seconds() * (size - arrived) / moved, _MAX_SECONDS_LEFT)
        left = format_duration(timedelta(seconds=seconds)) + " left"
    parts = (percent, f"{format_size(arrived)} of {format_size(size)}", f"{format_size(rate)}/s", left, workers)
    return "  ".join(filter(None, parts))
