"""The live display of a terminal: permanent lines, and below them the nodes that have not reached their goal."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.text import Text

from tpuctl.escaping import visible
from tpuctl.events import Event, EventKind
from tpuctl.output.marks import ASCII, Marks
from tpuctl.output.progress.area import Screen, Waiting, area
from tpuctl.output.progress.drawing import Drawing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuctl.clock import Clock
    from tpuctl.names import NodeName
    from tpuctl.output.terminal import Terminal

_ROWS = 24  # of a stream that is not a device


class Live:
    """The lines and the area. As a context it removes the area, so that other text can be written.

    For a stream that is not a device (text in memory) only changes are drawn. Any thread may call. With `lasting` a screen that
    cannot be written is given up without an error, except for a closed pipe.
    """

    def __init__(self, terminal: Terminal, clock: Clock, *, lasting: bool = False) -> None:
        streams = terminal.streams
        try:
            self._is_device = streams.stderr.fileno() >= 0
        except (OSError, ValueError):
            self._is_device = False
        self._console = Console(
            file=streams.stderr,
            force_terminal=True,
            force_interactive=True,
            color_system="standard" if terminal.colors_err else None,
            width=None if self._is_device else streams.width,
            height=None if self._is_device else _ROWS,
            legacy_windows=False,
            _environ={},  # `terminal` has read it, and COLUMNS would fix the initial width
        )
        self.marks = ASCII if self._console.options.ascii_only else Marks()
        self._clock, self._stdin = clock, streams.stdin if streams.stdin_is_terminal else None
        self._lasting, self._is_lost = lasting, False
        self._waiting: dict[NodeName, Waiting] = {}
        self._lines: list[Text] = []
        self._frame = 0
        self._drawing: Drawing | None = None
        self._steering = threading.RLock()  # starts and ends the drawing; the drawing thread never acquires it
        self._holding = threading.Lock()  # guards the nodes and the lines; held for moments only

    def __enter__(self) -> Self:
        self._steering.acquire()
        try:
            self._remove_area()
        except BaseException:
            self._steering.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        try:
            self._show()
        finally:
            self._steering.release()
        return error is not None and self._is_tolerated(error)

    def say(self, *parts: tuple[str, str]) -> None:
        """Show a permanent line, made of texts with their styles."""
        with self._steering:
            with self._holding:
                self._lines.append(Text.assemble(*((visible(text), style) for text, style in parts)))
            self._show()

    def wait(self, event: Event) -> None:
        """Show a node in the area, with its last event."""
        with self._steering:
            with self._holding:
                before = self._waiting.get(event.node)
                left = event.data.get("deadline_in")
                given = max(filter(None, (left, before.given if before else None)), default=None)
                self._waiting[event.node] = Waiting(event, self._clock.monotonic(), given)
            self._show()

    def act(self, event: Event) -> None:
        """Show the action on a node in the area until its next event."""
        with self._holding:
            if before := self._waiting.get(event.node):
                # A node with an action is not given up any more.
                latest = replace(before.event, kind=EventKind.WAIT, text="") if before.is_given_up else before.event
                self._waiting[event.node] = replace(before, event=latest, doing=event.text)

    def give_up(self, event: Event) -> None:
        """Show in the area that a node was given up, and why, until its next event."""
        self.wait(replace(event, data={"state": event.data.get("state"), "health": event.data.get("health")}))

    def change(self, event: Event) -> None:
        """Show the new state of a node in the area until its next event."""
        with self._holding:
            if before := self._waiting.get(event.node):
                known = {**event.data, "in_state": 0, "deadline_in": before.event.data.get("deadline_in")}
                if known.get("state") == before.event.data.get("state"):
                    # Only the health has changed. The result of the workers stays valid until their next check.
                    known["workers"] = before.event.data.get("workers")
                text = before.event.text if before.is_given_up else "" if known.get("state") else event.text
                latest = replace(before.event, text=text, data=known)
                self._waiting[event.node] = Waiting(latest, self._clock.monotonic(), before.given)

    def leave(self, name: NodeName) -> None:
        """Remove a node from the area."""
        with self._steering:
            with self._holding:
                self._waiting.pop(name, None)
            self._show()

    def stop(self) -> None:
        """Remove the area; the permanent lines stay. Raises the error of an earlier redraw."""
        with self._steering:
            with self._holding:
                self._waiting.clear()
            self._remove_area()

    def _show(self) -> None:
        """Draw the area, or remove it if it is empty. Raises the error of an earlier redraw."""
        with self._giving_up_screen():
            if self._is_lost:
                self._above()
            elif not self._waiting:
                self._remove_area()
            elif self._drawing is None:
                self._drawing = Drawing(
                    self._console, self._stdin, above=self._above, below=self._below, threaded=self._is_device
                )
            elif self._drawing.failure:
                raise self._drawing.failure
            if self._drawing and not self._is_device:
                self._drawing.draw()

    def _remove_area(self) -> None:
        with self._giving_up_screen():
            drawing, self._drawing = self._drawing, None
            if drawing:
                drawing.end()
            elif (lines := self._above()) and not self._is_lost:
                self._console.print(*lines, sep="\n", soft_wrap=True)

    @contextlib.contextmanager
    def _giving_up_screen(self) -> Iterator[None]:
        """Give up the screen if it cannot be written and the error is tolerated."""
        try:
            yield
        except OSError as error:
            if not self._is_tolerated(error):
                raise
            self._is_lost = True
            drawing, self._drawing = self._drawing, None
            if drawing:
                with contextlib.suppress(OSError):
                    drawing.end()

    def _is_tolerated(self, error: BaseException) -> bool:
        return self._lasting and isinstance(error, OSError) and not isinstance(error, BrokenPipeError)

    def _above(self) -> Sequence[Text]:
        with self._holding:
            lines, self._lines = self._lines, []
        return lines

    def _below(self) -> Sequence[Text]:
        with self._holding:
            nodes = tuple(self._waiting.values())
        self._frame += 1
        columns, rows = self._console.size
        lines = area(nodes, self._clock.monotonic(), Screen(columns, rows - 1, self.marks, self._frame))
        for line in lines:
            line.no_wrap, line.overflow = True, "crop" if self._console.options.ascii_only else "ellipsis"
        return lines
