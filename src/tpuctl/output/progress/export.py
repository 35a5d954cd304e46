"""Events for programs, one JSON object on a line, to stdout or a file that may fail to be written."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from typing import TYPE_CHECKING, Final, TextIO

from tpuctl.escaping import json_text

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from tpuctl.events import Event
    from tpuctl.output.terminal import Terminal

# How long to wait for a reader to open a pipe, and at the end for it to read the rest.
_READER_SECONDS: Final = 0.5
_DRAIN_SECONDS: Final = 2.0
# Bytes buffered for a slow reader: about 20,000 events.
_MOST_HELD: Final = 8 * 1024 * 1024


class Shrugging:
    """A context that suppresses `OSError`, except `BrokenPipeError`: the reader of a pipe has closed it."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        """Return whether the error is suppressed."""
        return isinstance(error, OSError) and not isinstance(error, BrokenPipeError)


class EventFile:
    """A file that events are appended to. It never waits for the reader of a pipe: lines are buffered, up to a limit."""

    def __init__(self, path: Path, name: str) -> None:
        """Open the file. Raises `OSError` if it cannot be written; a pipe without a reader is opened later."""
        self.name = name
        self._path = path
        self._buffer = bytearray()
        self._file: int | None = None
        until = time.monotonic() + _READER_SECONDS
        while not self._open() and time.monotonic() < until:
            time.sleep(0.02)

    def isatty(self) -> bool:
        """Return whether the file is a terminal."""
        return self._file is not None and os.isatty(self._file)

    def write(self, line: str) -> None:
        """Append a line, or buffer it for a slow reader. Raises `OSError` if lines are lost or buffered without a reader."""
        content = line.encode("utf-8", "backslashreplace")
        if len(self._buffer) + len(content) > _MOST_HELD:
            raise OSError(errno.ENOBUFS, "its reader does not keep up")
        self._buffer += content
        if not self._open():
            raise OSError(errno.ENXIO, "no program reads this pipe")
        self._send()

    def close(self) -> None:
        """Give a reader a short time to read the rest, and close the file. Raises `OSError` if lines are lost."""
        if self._file is None:
            return
        try:
            until = time.monotonic() + _DRAIN_SECONDS
            while self._buffer and (left := until - time.monotonic()) > 0:
                select.select([], [self._file], [], left)
                self._send()
            if self._buffer:
                raise OSError(errno.ENOBUFS, "its reader did not take all of them")
        finally:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def _open(self) -> bool:
        """Open the file if it is closed. Return False for a pipe without a reader."""
        if self._file is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                self._file = os.open(self._path, flags, 0o666)
            except OSError as error:
                if error.errno == errno.ENXIO and stat.S_ISFIFO(self._path.stat().st_mode):
                    return False
                raise
        return True

    def _send(self) -> None:
        while self._buffer and self._file is not None:
            try:
                del self._buffer[: os.write(self._file, self._buffer)]
            except BlockingIOError:
                return
            except OSError as error:
                self._buffer.clear()
                if isinstance(error, BrokenPipeError):
                    # The next reader of the pipe gets the events from then on.
                    os.close(self._file)
                    self._file = None
                    raise OSError(errno.ENXIO, "the program that read this pipe has ended") from error
                raise


class Export:
    """Writes each event to a stream, at once.

    An event that a file does not accept is dropped, with a warning the first time; later events are written again. With
    `lasting` the same applies to stdout.
    """

    def __init__(self, stream: TextIO | EventFile, terminal: Terminal, *, lasting: bool) -> None:
        self._stream, self._terminal = stream, terminal
        self._lasting = lasting or isinstance(stream, EventFile)
        self._has_failed = False

    @property
    def is_screen(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def write(self, event: Event) -> None:
        """Write an event. Raises `OSError` if stdout cannot be written; with `lasting` only `BrokenPipeError`."""
        try:
            self._stream.write(json_text(self._terminal.masked(event.to_json())) + "\n")
            if not isinstance(self._stream, EventFile):
                self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._lasting:
                raise
            self._warn(error)

    def end(self) -> None:
        """Close a file."""
        if isinstance(self._stream, EventFile):
            try:
                self._stream.close()
            except OSError as error:
                self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            where = self._stream.name if isinstance(self._stream, EventFile) else "stdout"
            with contextlib.suppress(OSError):
                self._terminal.warn(
                    f"cannot write events to {where}: {error.strerror or error}; continuing without them"
                )
