"""The pipes of an ssh: what is kept of what it prints is bounded, and so is the time that it has."""

from __future__ import annotations

import os
import select
import selectors
import subprocess
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from tpuctl.clock import format_duration
from tpuctl.remote.answers import UnexpectedAnswerError

if TYPE_CHECKING:
    from types import TracebackType

# ssh takes its ProxyCommand down with it when it is asked to end; it has so many seconds.
_FAREWELL = 1.0
_BLOCK = 64 * 1024
# How often the end of ssh is looked for, in seconds; what it prints is noticed at once.
_LOOK_AGAIN, _SOON = 0.25, 0.01
# How long the program of a copy or a sync may take to begin: Python on a busy worker, behind a slow login shell.
START_WITHIN = timedelta(minutes=2)
# What is kept of each end of an ssh's stderr, and how much a pipe can hold of it.
_KEPT = 64 * 1024
_MOST_BLOCKS = 16


class Kept:
    """The beginning and the end of a stream, in bytes; `size` is how long the stream was."""

    def __init__(self, *, head: int, tail: int) -> None:
        self.size = 0
        self._most_head, self._most_tail = head, tail
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Take more of the stream."""
        self.size += len(data)
        room = self._most_head - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: max(0, len(self._tail) - self._most_tail)]

    def __bytes__(self) -> bytes:
        return bytes(self._head + self._tail)


def exchange(
    process: subprocess.Popen[bytes],
    text: bytes,
    output: Kept,
    errors: Kept,
    timeout: timedelta,
    *,
    most: int | None = None,
) -> bool:
    """Give a process its stdin, and keep what it prints until it ends; return whether it did so in time.

    Raises `UnexpectedAnswerError` when it has printed more than `most` bytes. The process is left as it is then.
    """
    until = time.monotonic() + timeout.total_seconds()
    waiting = memoryview(text)
    with selectors.DefaultSelector() as selector:
        for stream, kept in ((process.stdout, output), (process.stderr, errors)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, kept)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while (left := until - time.monotonic()) > 0:
            # Processes that ssh leaves behind may hold its pipes open: its own end counts.
            has_ended = process.poll() is not None
            streams = selector.get_map()
            is_ending = not streams or (process.stdout is not None and process.stdout not in streams)
            ready = selector.select(0 if has_ended else min(left, _SOON if is_ending else _LOOK_AGAIN))
            if has_ended and not ready:
                return True
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    waiting = _written(key.fd, waiting)
                    if not waiting:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                elif data := os.read(key.fd, _BLOCK):
                    key.data.add(data)
                    if most is not None and output.size > most:
                        raise UnexpectedAnswerError(f"more than {most} bytes")
                else:
                    selector.unregister(key.fileobj)
    return process.poll() is not None


def _written(file: int, waiting: memoryview) -> memoryview:
    """Write some of it and return the rest; none where it cannot be read any more."""
    try:
        return waiting[os.write(file, waiting[:_BLOCK]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not ended; it has a second, as ssh takes its ProxyCommand down with it."""
    if process.poll() is not None:
        return
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_FAREWELL)
        return
    process.kill()
    process.wait()


class StartLimit:
    """Ends an ssh whose program on the worker has not begun to answer in time: a worker that hangs lets one in, and is silent.

    `has_passed` tells that it did so. Call `met` once the answer begins, or is no longer waited for.
    """

    def __init__(self, process: subprocess.Popen[bytes], limit: timedelta) -> None:
        self.has_passed = False
        self._process, self._limit = process, limit
        self._timer = threading.Timer(limit.total_seconds(), self._pass)
        self._timer.daemon = True
        self._timer.start()

    def met(self) -> None:
        """Let it take as long as it wants from now on."""
        self._timer.cancel()

    def __str__(self) -> str:
        return f"it let us in, and has not answered for {format_duration(self._limit)}"

    def _pass(self) -> None:
        self.has_passed = True
        self._process.kill()


class Stderr:
    """A pipe of which the first and the last 64 KiB are kept. A context, or with `close`.

    `writer` is for `Popen`. The pipe's end is not waited for: a connection that ssh leaves behind for others holds it open.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._kept = Kept(head=_KEPT, tail=_KEPT)
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
            return bytes(self._kept).decode(errors="replace")

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
            poll.poll(1000)
            with self._lock:
                if self._is_closed:
                    os.close(self._reader)
                    return
                self._take()

    def _take(self) -> bool:
        with suppress(BlockingIOError):
            if data := os.read(self._reader, _BLOCK):
                self._kept.add(data)
                return True
        return False
