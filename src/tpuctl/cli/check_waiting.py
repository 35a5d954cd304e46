"""A sign of life on a terminal while a cloud takes long to answer a check. Elsewhere nothing."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.output.terminal import Terminal

# What is over sooner needs no word.
_AFTER = timedelta(seconds=2)


@contextmanager
def sign_of_life(terminal: Terminal, *, after: timedelta = _AFTER) -> Iterator[None]:
    """Say once on stderr that the cloud is waited for, if what is done meanwhile takes longer, in real time, than `after`."""
    if not terminal.is_redrawn or terminal.quiet:
        yield
        return
    is_over = threading.Event()

    def tell() -> None:
        if not is_over.wait(after.total_seconds()):
            terminal.note("still waiting for the cloud …")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        # So that it never speaks into what is shown next.
        thread.join()
