"""Forward the output of hooks line by line, with the name of the node: hooks must not write to a screen that is redrawn.

A hook writes to an unnamed file, not to a pipe: it never blocks on us, and can outlive us. Its later output is lost.
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

# How often the files are read, in real seconds: no decision depends on it.
_PERIOD = 0.2
_MOST = 65536  # the maximum number of bytes of one read, and of a line


@dataclass(slots=True)
class _Source:
    """The file that a hook writes to, and the part of an unfinished line that was read."""

    node: str
    device: int
    offset: int = 0
    rest: bytes = b""

    def read(self, *, has_ended: bool) -> list[str]:
        """Return the new lines."""
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
    """Forwards the output of hooks. A thread calls `tell` with whole lines, each as an argument."""

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
            atexit.register(self._end)  # a thread that writes while Python exits would crash it
        return device

    def close(self, device: int) -> None:
        """Forward the remaining output of a hook that has ended."""
        with self._lock:
            source = self._sources.pop(device)
        try:
            self._forward(source.read(has_ended=True))
        finally:
            os.close(device)

    def _follow(self) -> None:
        while not self._ended.wait(_PERIOD):
            with self._lock:
                lines = [line for source in self._sources.values() for line in source.read(has_ended=False)]
            try:
                self._forward(lines)
            except OSError:
                return  # the screen is gone; other writers report that

    def _end(self) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join(1)

    def _forward(self, lines: list[str]) -> None:
        if lines:
            self._tell(*lines)
