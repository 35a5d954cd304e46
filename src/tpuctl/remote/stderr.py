"""What an ssh prints on stderr, read as it comes: a worker that prints without end fills neither memory nor a disk."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_KEPT = 64 * 1024
_BLOCK = 64 * 1024
_MOST_BLOCKS = 16
_LOOK_AGAIN = 1000  # milliseconds


class Stderr:
    """A pipe of which the first and the last 64 KiB are kept. A context, or with `close`.

    `writer` is for `Popen`. The pipe's end is not waited for: a connection that ssh leaves behind for others holds it open.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._kept = bytearray()
        self._lock = threading.Lock()
        self._is_closed = False
        threading.Thread(target=self._drain, name="stderr", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def text(self) -> str:
        """Return what was printed by now; all of it once the program has ended."""
        with self._lock:
            # More than that is in no pipe.
            for _ in range(_MOST_BLOCKS):
                if self._is_closed or not self._take():
                    break
            return self._kept.decode(errors="replace")

    def close(self) -> None:
        """Read no more. Without this the thread that reads stays."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self.writer)

    def _drain(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        while True:
            poll.poll(_LOOK_AGAIN)
            with self._lock:
                if self._is_closed:
                    os.close(self._reader)
                    return
                self._take()

    def _take(self) -> bool:
        with suppress(BlockingIOError):
            if data := os.read(self._reader, _BLOCK):
                self._kept += data
                del self._kept[_KEPT : max(_KEPT, len(self._kept) - _KEPT)]
                return True
        return False
