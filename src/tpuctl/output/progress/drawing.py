"""An area at the bottom of a terminal that `rich` redraws several times a second, and permanent lines above it."""

from __future__ import annotations

import threading
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, TextIO

from rich.console import Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType

from tpuctl.output.progress.keys import without_echo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console
    from rich.text import Text

# Seconds between two frames. Real time, not the clock of the run: it is for the eye, and no decision depends on it.
_PERIOD = 0.2


class Drawing:
    """The area from now until `end`. `below` returns its lines, `above` the new permanent lines.

    Without a thread only `draw` redraws it. Raises `OSError` if the screen cannot be written.
    """

    def __init__(
        self,
        console: Console,
        stdin: TextIO | None,
        *,
        above: Callable[[], Sequence[Text]],
        below: Callable[[], Sequence[Text]],
        threaded: bool,
    ) -> None:
        self._console, self._above, self._below = console, above, below
        self._drawn: list[Text] = []
        self._columns = console.width
        self.failure: OSError | None = None
        self._ended = threading.Event()
        self._echo = ExitStack()
        self._echo.enter_context(without_echo(stdin) if stdin else nullcontext())
        self._live = Live(
            self,
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._live.start()
        console.show_cursor()  # a killed process would leave the terminal without a cursor
        self._thread = (
            threading.Thread(target=self._redraw_until_ended, name="progress", daemon=True) if threaded else None
        )
        if self._thread:
            self._thread.start()

    def __rich__(self) -> Group:
        """Return the present area."""
        self._drawn = list(self._below())
        return Group(*self._drawn)

    def draw(self) -> None:
        """Write the permanent lines, and redraw the area."""
        with self._console:
            if not self._write_above():
                self._live.refresh()

    def end(self) -> None:
        """Remove the area; the permanent lines stay. Raises the error of an earlier redraw."""
        self._ended.set()
        if self._thread:
            self._thread.join()
        with self._echo:
            if self.failure is None:
                self._write_above()
            self._live.stop()
        if self.failure:
            raise self.failure

    def _redraw_until_ended(self) -> None:
        while not self._ended.wait(_PERIOD):
            try:
                self.draw()
            except OSError as error:
                self.failure = error
                return

    def _write_above(self) -> bool:
        """Write the permanent lines, and return whether there were any; rich redraws the area with them."""
        columns = self._console.width
        if columns < self._columns:
            # A narrower window has wrapped lines of the area, which rich does not know of: erase them.
            wrapped = sum(max(0, -(-min(line.cell_len, self._columns) // columns) - 1) for line in self._drawn)
            up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * wrapped
            self._console.control(Control(ControlType.CARRIAGE_RETURN, *up))
        self._columns = columns
        lines = self._above()
        if lines:
            self._console.print(*lines, sep="\n", soft_wrap=True)
        return bool(lines)
