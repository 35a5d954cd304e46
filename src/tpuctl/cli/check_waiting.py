"""A notice on a terminal while the cloud takes long to answer a check. Elsewhere none."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.output.terminal import Terminal

# Shorter waits need no notice.
_AFTER = timedelta(seconds=2)


@contextmanager
def sign_of_life(terminal: Terminal, *, after: timedelta = _AFTER) -> Iterator[None]:
    """Show one notice on stderr if the block takes longer, in real time, than `after`."""
    if not terminal.is_redrawn or terminal.quiet:
        yield
        return
    is_over = threading.Event()

    def notify() -> None:
        if not is_over.wait(after.total_seconds()):
            terminal.note("still waiting for the cloud …")

    thread = threading.Thread(target=notify, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        # So that the notice never interleaves with later output.
        thread.join()
