"""A terminal: lines that stay, and below them an area that is drawn anew, always smaller than the screen.

The cursor is never hidden and waits below the area, so that a process that is killed or stopped leaves nothing to mend.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from tpuctl.output.painting import Line, length, marks_for, paint
from tpuctl.output.progress.area import Screen, Waiting, area

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.clock import Clock
    from tpuctl.events import Event
    from tpuctl.names import NodeName
    from tpuctl.output.terminal import Terminal

# How often the screen is drawn at most, and at least while somebody waits. Real seconds, whatever the clock of the run:
# it is the eye that waits, and nothing is decided by it.
_AT_MOST, _AT_LEAST = 0.05, 0.125
_CLEAR_BELOW, _CLEAR_REST, _UP = "\x1b[J", "\x1b[K", "\x1b[{}A"
_ROWS = 24  # of a screen that does not tell


class Live:
    """The lines and the area. As a context it holds the area back, so that something else can be written.

    A stream that is no device (text in memory) is drawn at each change only.
    """

    def __init__(self, terminal: Terminal, clock: Clock) -> None:
        self._stream, self._colored = terminal.streams.stderr, terminal.colors_err
        self._columns, self._clock = terminal.streams.width, clock
        self.marks = marks_for(getattr(self._stream, "encoding", None))
        self._waiting: dict[NodeName, Waiting] = {}
        self._lines: list[Line] = []
        self._drawn: list[int] = []  # the width of each line of the area that is on the screen
        self._last: list[str] = []
        self._drawn_for = self._columns
        self._frame = 0
        self._lock, self._news, self._end = threading.RLock(), threading.Event(), threading.Event()
        self._failure: OSError | None = None
        self._pulse: threading.Thread | None = None
        try:
            self._device: int | None = self._stream.fileno()
        except (OSError, ValueError):
            self._device = None

    def __enter__(self) -> Self:
        self._lock.acquire()
        self._take_away()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._news.set()

    def say(self, line: Line) -> None:
        """Show a line that stays."""
        with self._lock:
            self._lines.append(line)
        self._touch()

    def wait(self, event: Event) -> None:
        """Show a node in the area, from what was heard of it."""
        with self._lock:
            before = self._waiting.get(event.node)
            left = event.data.get("deadline_in")
            given = max(filter(None, (left, before.given if before else None)), default=None)
            self._waiting[event.node] = Waiting(event, self._clock.monotonic(), given)
        self._touch()

    def act(self, event: Event) -> None:
        """Show in the area what is done to a node, if it is there, until it is heard of again."""
        with self._lock:
            if before := self._waiting.get(event.node):
                self._waiting[event.node] = replace(before, doing=event.text)

    def leave(self, name: NodeName) -> None:
        """Take a node out of the area."""
        with self._lock:
            self._waiting.pop(name, None)
        self._touch()

    def stop(self) -> None:
        """Take the area away; the lines stay. Raises what went wrong while drawing."""
        self._end.set()
        self._news.set()
        if self._pulse:
            self._pulse.join()
        with self._lock:
            self._waiting.clear()
            self._draw()
        if self._failure:
            raise self._failure

    def _touch(self) -> None:
        if self._failure:
            raise self._failure
        if self._device is None:
            self._draw()
            return
        if self._pulse is None:
            self._pulse = threading.Thread(target=self._beat, name="progress", daemon=True)
            self._pulse.start()
        self._news.set()

    def _beat(self) -> None:
        """Draw until the end: soon after news, and now and then while somebody waits."""
        while not self._end.is_set():
            self._news.wait(_AT_LEAST if self._waiting else None)
            self._news.clear()
            try:
                with self._lock:
                    self._draw()
            except OSError as error:
                self._failure = error
                return
            self._end.wait(_AT_MOST)

    def _draw(self) -> None:
        columns, rows = self._size()
        self._frame += 1
        screen = Screen(columns - 1, rows - 1, self.marks, self._frame)
        below = area(tuple(self._waiting.values()), self._clock.monotonic(), screen)
        shown = self._painted(below, screen.columns)
        if not self._lines and shown == self._last and len(self._drawn) == len(below):
            return
        staying = "".join(self._painted(self._lines, None))
        # Terminals join lines that they broke when the window becomes wider again, unless these were erased as a whole.
        is_afresh = bool(staying) or columns != self._drawn_for
        before = self._go_up(columns) + (_CLEAR_BELOW if is_afresh and self._drawn else "")
        text = before + staying + "".join(shown)
        if self._drawn:
            text += _CLEAR_BELOW
        self._lines, self._last, self._drawn_for = [], shown, columns
        self._drawn = [min(length(line), screen.columns) for line in below]
        self._write(text)

    def _painted(self, lines: Iterable[Line], columns: int | None) -> list[str]:
        ends = "\n" if columns is None else _CLEAR_REST + "\n"
        return [paint(line, columns, colored=self._colored, more=self.marks.more) + ends for line in lines]

    def _take_away(self) -> None:
        text = "".join(self._painted(self._lines, None))
        if self._drawn or text:
            columns, _ = self._size()
            erase = self._go_up(columns) + _CLEAR_BELOW if self._drawn else ""
            self._lines, self._drawn, self._last = [], [], []
            self._write(erase + text)

    def _go_up(self, columns: int) -> str:
        # A window that was made narrower has broken the lines that were drawn for the wider one.
        rows = sum(max(1, -(-width // columns)) for width in self._drawn)
        return "\r" + _UP.format(rows) if rows else ""

    def _size(self) -> tuple[int, int]:
        if self._device is not None:
            try:
                size = os.get_terminal_size(self._device)
            except OSError:
                return self._columns, _ROWS
            return size.columns or self._columns, size.lines or _ROWS
        return self._columns, _ROWS

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
