"""The pipes of an ssh process. Output is kept up to a limit, and every wait has a timeout."""

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

# Seconds for ssh to end after SIGTERM: it terminates its ProxyCommand first.
_TERMINATE_TIMEOUT = 1.0
_BLOCK = 64 * 1024
# Seconds between checks whether ssh has ended; output is noticed at once.
_POLL, _FAST_POLL = 0.25, 0.01
# How long the program of a copy or a sync may take to start: Python on a busy worker, after a slow login shell.
START_WITHIN = timedelta(minutes=2)
# How many bytes of the start and of the end of stderr are kept, and how many blocks a pipe can hold.
_KEPT_STDERR = 64 * 1024
_MAX_BLOCKS = 16


class Kept:
    """The first and the last bytes of a stream. `size` is the length of the whole stream."""

    def __init__(self, *, head: int, tail: int) -> None:
        self.size = 0
        self._max_head, self._max_tail = head, tail
        self._head, self._tail = bytearray(), bytearray()

    def add(self, data: bytes) -> None:
        """Append bytes of the stream."""
        self.size += len(data)
        room = self._max_head - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: max(0, len(self._tail) - self._max_tail)]

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
    """Write stdin of a process and keep its output until it ends. Return False if it is still running after the timeout.

    Raises `UnexpectedAnswerError` if it prints more than `most` bytes; the process is not terminated then.
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
            # Child processes of ssh may keep its pipes open, so the end of ssh itself counts.
            has_ended = process.poll() is not None
            streams = selector.get_map()
            is_ending = not streams or (process.stdout is not None and process.stdout not in streams)
            ready = selector.select(0 if has_ended else min(left, _FAST_POLL if is_ending else _POLL))
            if has_ended and not ready:
                return True
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    waiting = _write_some(key.fd, waiting)
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


def _write_some(file: int, waiting: memoryview) -> memoryview:
    """Write a part and return the rest, which is empty if the reader is gone."""
    try:
        return waiting[os.write(file, waiting[:_BLOCK]) :]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a running process, and kill it after a second. ssh needs that time to terminate its ProxyCommand."""
    if process.poll() is not None:
        return
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_TERMINATE_TIMEOUT)
        return
    process.kill()
    process.wait()


class StartLimit:
    """Kills an ssh if the program on the worker does not answer in time. A hanging worker accepts logins and stays silent.

    `has_passed` is True after it killed ssh. Call `cancel` when the answer starts or is no longer needed.
    """

    def __init__(self, process: subprocess.Popen[bytes], limit: timedelta) -> None:
        self.has_passed = False
        self._process, self._limit = process, limit
        self._timer = threading.Timer(limit.total_seconds(), self._kill)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Cancel the deadline."""
        self._timer.cancel()

    def __str__(self) -> str:
        return f"it accepted the login, but did not answer within {format_duration(self._limit)}"

    def _kill(self) -> None:
        self.has_passed = True
        self._process.kill()


class Stderr:
    """A pipe that keeps the first and the last 64 KiB. Use it as a context manager, or call `close`.

    `writer` is for `Popen`. A ControlMaster that ssh leaves behind keeps the pipe open, so do not wait for its end.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._kept = Kept(head=_KEPT_STDERR, tail=_KEPT_STDERR)
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
        """Return the output so far; all of it after the program has ended."""
        with self._lock:
            # A pipe holds no more than this.
            for _ in range(_MAX_BLOCKS):
                if self._is_closed or not self._take():
                    break
            return bytes(self._kept).decode(errors="replace")

    def close(self) -> None:
        """Stop reading. Without this call the reading thread stays."""
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
