"""An area at the bottom of a terminal that `rich` draws anew a few times a second, and lines that go above it."""

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

# How often the screen is drawn. Real seconds, whatever the clock of the run: it is the eye that waits, and nothing is
# decided by it.
_PERIOD = 0.2


class Drawing:
    """The area from now until `end`. `below` gives its lines, `above` takes the lines that are to stay.

    Without a thread it is drawn by `draw` only. Raises `OSError` where the screen cannot be written.
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
        self._kept = ExitStack()
        self._kept.enter_context(without_echo(stdin) if stdin else nullcontext())
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
        console.show_cursor()  # a process that is killed or stopped would leave none
        self._thread = threading.Thread(target=self._go_on, name="progress", daemon=True) if threaded else None
        if self._thread:
            self._thread.start()

    def __rich__(self) -> Group:
        """Return the area as it is now."""
        self._drawn = list(self._below())
        return Group(*self._drawn)

    def draw(self) -> None:
        """Write the lines that are to stay, and the area anew."""
        with self._console:
            if not self._write_above():
                self._live.refresh()

    def end(self) -> None:
        """Take the area away; the lines stay. Raises what went wrong while drawing."""
        self._ended.set()
        if self._thread:
            self._thread.join()
        with self._kept:
            if self.failure is None:
                self._write_above()
            self._live.stop()
        if self.failure:
            raise self.failure

    def _go_on(self) -> None:
        while not self._ended.wait(_PERIOD):
            try:
                self.draw()
            except OSError as error:
                self.failure = error
                return

    def _write_above(self) -> bool:
        """Write the lines that are to stay, if there are any; with them rich draws the area."""
        self._mend_width()
        lines = self._above()
        if lines:
            self._console.print(*lines, sep="\n", soft_wrap=True)
        return bool(lines)

    def _mend_width(self) -> None:
        """Go up to where the area began: a window that was made narrower has broken its lines, which rich does not know."""
        columns = self._console.width
        if columns < self._columns:
            broken = sum(max(0, -(-min(line.cell_len, self._columns) // columns) - 1) for line in self._drawn)
            up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * broken
            self._console.control(Control(ControlType.CARRIAGE_RETURN, *up))
        self._columns = columns
