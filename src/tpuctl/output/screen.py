"""A table that is redrawn on the terminal until the user ends it."""

from __future__ import annotations

import os
import select
import termios
import time
import tty
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.output.tables import Row, TableLayout
    from tpuctl.output.terminal import Terminal

_END_KEYS = b"qQ\x1b"
_POLL = 0.25


class LiveTable:
    """The table on stdout during a block; its last state stays. Keys are read at once, and are not echoed."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        streams = terminal.streams
        self._stdin = streams.stdin.fileno() if streams.stdin_is_terminal and streams.stdin else None
        self._modes: list[Any] | None = None  # of termios
        self._console = Console(
            file=streams.stdout,
            force_terminal=True,
            color_system="standard" if terminal.colors_out else None,
            legacy_windows=False,
            _environ={},  # `terminal` has read it, and COLUMNS would fix the initial width
        )
        self._width = self._console.width
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="ellipsis")

    def __enter__(self) -> Self:
        with suppress(OSError, termios.error):  # the terminal does not control this session
            if self._stdin is not None and os.tcgetpgrp(self._stdin) == os.getpgrp():
                self._modes = termios.tcgetattr(self._stdin)
                tty.setcbreak(self._stdin, termios.TCSANOW)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._live.stop()
        if self._stdin is not None and self._modes is not None:
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._stdin, termios.TCSANOW, self._modes)

    @property
    def width(self) -> int:
        """The width of the window now."""
        return self._console.width

    def wait(self, seconds: float) -> bool:
        """Wait, less if the window gets another width. Return whether the user has ended the display."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self.width == self._width:
            if self._stdin is None or self._modes is None:
                time.sleep(min(left, _POLL))
            else:
                select.select([self._stdin], [], [], min(left, _POLL))
            if self.wants_to_end():
                return True
        return False

    def wants_to_end(self) -> bool:
        """Return whether the user has pressed q or Esc, or the keyboard is gone."""
        if self._stdin is None or self._modes is None or not select.select([self._stdin], [], [], 0)[0]:
            return False
        keys = os.read(self._stdin, 64)
        return not keys or any(key in _END_KEYS for key in keys)

    def show(self, layout: TableLayout, rows: Sequence[Row], summary: str) -> None:
        """Redraw the table and the line below it."""
        self.show_lines(layout.lines(rows, width=self.width, colored=self._terminal.colors_out), summary)

    def show_lines(self, lines: Sequence[str], summary: str) -> None:
        """Redraw these lines and the line below them; the first ones, if the window has no room for all."""
        width, room = self._console.size
        if width < self._width:
            self._console.clear()  # the terminal has wrapped the lines of the last table
        self._width = width
        last = f"{summary}   (q ends)"
        if len(lines) > room - 1:
            last = f"{len(lines) - room + 2} lines more   {last}"
            lines = lines[: room - 2]
        text = Text("\n").join([*map(Text.from_ansi, lines), Text(last, style="dim")])
        text.no_wrap, text.overflow = True, "ellipsis"
        self._live.update(text, refresh=True)
