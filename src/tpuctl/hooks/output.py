"""What hooks write, told line by line with the node's name: where a screen is drawn anew nobody else may write on it.

A hook writes to a file without a name rather than to a pipe: it never waits for us, and outlives us unharmed. What it writes
after our end is seen by nobody.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# How often the files are looked into. Real seconds: nothing is decided by it.
_PERIOD = 0.2
_MOST = 65536  # bytes that are read of one hook at once, and the longest line


@dataclass(slots=True)
class _Source:
    """The file that a hook of a node writes to, and what was read of a line that has not ended."""

    node: str
    device: int
    offset: int = 0
    rest: bytes = b""

    def read(self, *, has_ended: bool) -> list[str]:
        """Return the lines that are new."""
        found = []
        while chunk := os.pread(self.device, _MOST, self.offset):
            self.offset += len(chunk)
            *whole, self.rest = (self.rest + chunk).split(b"\n")
            found += whole
            if len(self.rest) >= _MOST or not has_ended:
                break
        if self.rest and (has_ended or len(self.rest) >= _MOST):
            found.append(self.rest)
            self.rest = b""
        return [f"{self.node}: {line.decode(errors='replace')}" for line in found]


class HookOutput:
    """Tells what hooks write, soon after they wrote it. A thread of its own calls `tell` with whole lines, each an argument."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._sources: dict[int, _Source] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, node: str) -> int:
        """Return a descriptor for the output of a hook. Raises `OSError` if there is no room for a file."""
        with tempfile.TemporaryFile(buffering=0) as file:
            device = os.dup(file.fileno())
        with self._lock:
            self._sources[device] = _Source(node, device)
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="hook-output", daemon=True)
            self._thread.start()
            atexit.register(self._end)  # a thread that writes while Python ends would bring it down
        return device

    def close(self, device: int) -> None:
        """Tell the rest of what a hook wrote, now that it has ended."""
        with self._lock:
            source = self._sources.pop(device)
        try:
            self._say(source.read(has_ended=True))
        finally:
            os.close(device)

    def _follow(self) -> None:
        while not self._ended.wait(_PERIOD):
            with self._lock:
                lines = [line for source in self._sources.values() for line in source.read(has_ended=False)]
            try:
                self._say(lines)
            except OSError:
                return  # the screen is gone; who else writes on it says so

    def _end(self) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join(1)

    def _say(self, lines: list[str]) -> None:
        if lines:
            self._tell(*lines)
