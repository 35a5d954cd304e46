"""Events for programs, one JSON object on a line; and what becomes of work that goes on where nothing can be written."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TextIO

from tpuctl.escaping import json_text

if TYPE_CHECKING:
    from types import TracebackType

    from tpuctl.events import Event
    from tpuctl.output.terminal import Terminal


class Shrugging:
    """A context that swallows the failure to write, but not a closed pipe: whoever reads it has had enough."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        """Tell whether what went wrong is to be passed over."""
        return isinstance(error, OSError) and not isinstance(error, BrokenPipeError)


class Export:
    """Writes each event to a stream, at once.

    With `lasting` what cannot be written is passed over, with a warning the first time; when there is room again it goes on.
    """

    def __init__(self, stream: TextIO, terminal: Terminal, *, lasting: bool) -> None:
        self._stream, self._terminal, self._lasting = stream, terminal, lasting
        self._has_failed = False

    @property
    def is_screen(self) -> bool:
        """Tell whether the events are shown on a terminal."""
        return self._stream.isatty()

    def write(self, event: Event) -> None:
        """Write an event. Raises `OSError`, which names the file; with `lasting` only `BrokenPipeError`."""
        try:
            self._stream.write(json_text(self._terminal.masked(event.to_json())) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._lasting:
                self._warn(error)
                return
            if not self._is_stdout:
                self._close()
                error.filename = self._stream.name
            raise

    def end(self) -> None:
        """Let go of a file that could not be written: closing it would try again, and fail without a name."""
        if self._has_failed and not self._is_stdout:
            self._close()

    @property
    def _is_stdout(self) -> bool:
        return self._stream is self._terminal.streams.stdout

    def _warn(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            where = "stdout" if self._is_stdout else self._stream.name
            self._terminal.warn(f"events cannot be written: {where}: {error.strerror or error}; the work goes on")

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()
