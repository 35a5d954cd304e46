"""One ssh session with a command, what it reads and an end: nothing in it waits longer than it may, or asks anything.

Of what a worker sends no more is kept than a limit, however much and however long it sends.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.remote.answers import UnexpectedAnswerError
from tpuctl.remote.keys import SshProgramMissingError
from tpuctl.remote.ssh import FRESH, argv

if TYPE_CHECKING:
    from tpuctl.remote.ssh import Connection

SSH_FAILED = 255
_FAREWELL = timedelta(seconds=1)
# Of what a long command prints, and of ssh's stderr, so much of the beginning and of the end is kept.
_KEPT = 64 * 1024
# The longest answer, with all that a login prints before it.
_LONGEST_ANSWER = 4 << 20
_BLOCK = 64 * 1024
# How often the end of ssh is looked for, in seconds; what it prints is noticed at once.
_LOOK_AGAIN, _SOON = 0.25, 0.01


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended. `code` is ssh's, nothing where the time was up; 255 is ssh's own failure."""

    code: int | None
    output: str
    errors: str


def run(connection: Connection, command: str, *, text: str = "", timeout: timedelta) -> Ended:
    """Run a shell line that reads `text`, and return all that it printed, also when the time is up.

    Raises `SshProgramMissingError`, and `UnexpectedAnswerError` as soon as it has printed more than 4 MiB.
    """
    process = _start(connection, command, timeout)
    output = Kept(head=_LONGEST_ANSWER, tail=0)
    return _end_of(process, text, output, timeout, most=_LONGEST_ANSWER)


def run_long(connection: Connection, command: str, *, text: str, timeout: timedelta) -> Ended:
    """Do as `run` does for what may print much: of stdout the first and the last 64 KiB are kept. stderr is ssh's alone.

    Raises `SshProgramMissingError`.
    """
    return _end_of(_start(connection, command), text, Kept(head=_KEPT, tail=_KEPT), timeout)


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
            is_ending = process.stdout not in selector.get_map()
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


def _end_of(
    process: subprocess.Popen[bytes], text: str, output: Kept, timeout: timedelta, *, most: int | None = None
) -> Ended:
    errors = Kept(head=_KEPT, tail=_KEPT)
    with process:
        try:
            has_ended = exchange(process, text.encode(), output, errors, timeout, most=most)
        finally:
            end(process)
    code = _code(process.returncode) if has_ended else None
    return Ended(code, _text(output), _text(errors))


def _start(connection: Connection, command: str, patience: timedelta | None = None) -> subprocess.Popen[bytes]:
    connecting = ("-o", f"ConnectTimeout={max(1, round(patience.total_seconds()))}") if patience else ()
    words = argv(connection, (command,), options=(*FRESH, "-o", "BatchMode=yes", *connecting))
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(words, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)
    except FileNotFoundError as error:
        raise SshProgramMissingError("ssh") from error


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has not ended; it has a second, as ssh takes its ProxyCommand down with it."""
    if process.poll() is not None:
        return
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_FAREWELL.total_seconds())
        return
    process.kill()
    process.wait()


def _code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _text(kept: Kept) -> str:
    return bytes(kept).decode(errors="replace")
