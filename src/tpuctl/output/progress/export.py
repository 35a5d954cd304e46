"""Events for programs, one JSON object on a line; and what becomes of work that goes on where nothing can be written."""

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

# How long a pipe is given for a reader to open it, and at the end for its reader to take what is left.
_READER_SECONDS: Final = 0.5
_DRAIN_SECONDS: Final = 2.0
# What is held for a reader that does not keep up: some 20,000 events.
_MOST_HELD: Final = 8 * 1024 * 1024


class Shrugging:
    """A context that swallows the failure to write, but not a closed pipe: whoever reads it has had enough."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        """Tell whether what went wrong is to be passed over."""
        return isinstance(error, OSError) and not isinstance(error, BrokenPipeError)


class EventFile:
    """A file that events are appended to. It never waits for the reader of a pipe: lines are held for it, within a bound."""

    def __init__(self, path: Path, name: str) -> None:
        """Open the file. Raises `OSError` where it cannot be written; a pipe without a reader is opened later."""
        self.name = name
        self._path = path
        self._held = bytearray()
        self._file: int | None = None
        until = time.monotonic() + _READER_SECONDS
        while not self._opens() and time.monotonic() < until:
            time.sleep(0.02)

    def isatty(self) -> bool:
        """Tell whether it is a terminal."""
        return self._file is not None and os.isatty(self._file)

    def write(self, line: str) -> None:
        """Append a line, or hold it while a reader does not take it. Raises `OSError` where lines are lost or held."""
        content = line.encode("utf-8", "backslashreplace")
        if len(self._held) + len(content) > _MOST_HELD:
            raise OSError(errno.ENOBUFS, "its reader does not keep up")
        self._held += content
        if not self._opens():
            raise OSError(errno.ENXIO, "no program reads this pipe")
        self._send()

    def close(self) -> None:
        """Give a reader a short time to take what is left, and close the file. Raises `OSError` for what is lost."""
        if self._file is None:
            return
        try:
            until = time.monotonic() + _DRAIN_SECONDS
            while self._held and (left := until - time.monotonic()) > 0:
                select.select([], [self._file], [], left)
                self._send()
            if self._held:
                raise OSError(errno.ENOBUFS, "its reader did not take all of them")
        finally:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def _opens(self) -> bool:
        """Tell whether the file is open, or opens now."""
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
        while self._held and self._file is not None:
            try:
                del self._held[: os.write(self._file, self._held)]
            except BlockingIOError:
                return
            except OSError as error:
                self._held.clear()
                if isinstance(error, BrokenPipeError):
                    # The next reader of the pipe gets what comes then.
                    os.close(self._file)
                    self._file = None
                    raise OSError(errno.ENXIO, "the program that read this pipe has ended") from error
                raise


class Export:
    """Writes each event to a stream, at once.

    What a file does not take is passed over, with a warning the first time; when there is room again it goes on. So it is
    with stdout, if `lasting`.
    """

    def __init__(self, stream: TextIO | EventFile, terminal: Terminal, *, lasting: bool) -> None:
        self._stream, self._terminal = stream, terminal
        self._lasting = lasting or isinstance(stream, EventFile)
        self._has_failed = False

    @property
    def is_screen(self) -> bool:
        """Tell whether the events are shown on a terminal."""
        return self._stream.isatty()

    def write(self, event: Event) -> None:
        """Write an event. Raises `OSError` where stdout does not take it; with `lasting` only `BrokenPipeError`."""
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
        """Let go of a file."""
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
                self._terminal.warn(f"events cannot be written: {where}: {error.strerror or error}; the work goes on")
