"""What is on a terminal while nodes are waited for: lines that stay, and below them the nodes that are not done yet."""

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

_ROWS = 24  # of a stream that is no device


class Live:
    """The lines and the area. As a context it holds the area back, so that something else can be written.

    A stream that is no device (text in memory) is drawn at each change only. Any thread may call. With `lasting` a screen
    that cannot be written, other than a closed pipe, is given up and no error is raised.
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
            _environ={},  # `terminal` knows what it says, and COLUMNS would hold on to the width of once
        )
        self.marks = ASCII if self._console.options.ascii_only else Marks()
        self._clock, self._stdin = clock, streams.stdin if streams.stdin_is_terminal else None
        self._lasting, self._is_lost = lasting, False
        self._waiting: dict[NodeName, Waiting] = {}
        self._lines: list[Text] = []
        self._frame = 0
        self._drawing: Drawing | None = None
        self._steering = threading.RLock()  # begins and ends the drawing; the thread that draws never takes it
        self._holding = threading.Lock()  # the nodes and the lines; held for moments only

    def __enter__(self) -> Self:
        self._steering.acquire()
        try:
            self._take_away()
        except BaseException:
            self._steering.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        try:
            self._show()
        finally:
            self._steering.release()
        return error is not None and self._may_pass_over(error)

    def say(self, *parts: tuple[str, str]) -> None:
        """Show a line that stays, of texts with their styles."""
        with self._steering:
            with self._holding:
                self._lines.append(Text.assemble(*((visible(text), style) for text, style in parts)))
            self._show()

    def wait(self, event: Event) -> None:
        """Show a node in the area, from what was heard of it."""
        with self._steering:
            with self._holding:
                before = self._waiting.get(event.node)
                left = event.data.get("deadline_in")
                given = max(filter(None, (left, before.given if before else None)), default=None)
                self._waiting[event.node] = Waiting(event, self._clock.monotonic(), given)
            self._show()

    def act(self, event: Event) -> None:
        """Show in the area what is done to a node, if it is there, until it is heard of again."""
        with self._holding:
            if before := self._waiting.get(event.node):
                # What was given up is not any more.
                heard = replace(before.event, kind=EventKind.WAIT, text="") if before.is_given_up else before.event
                self._waiting[event.node] = replace(before, event=heard, doing=event.text)

    def give_up(self, event: Event) -> None:
        """Show in the area that nothing more is done for a node, and why, until it is heard of again."""
        self.wait(replace(event, data={"state": event.data.get("state"), "health": event.data.get("health")}))

    def change(self, event: Event) -> None:
        """Show in the area the state that a node has come to, if it is there, until it is heard of again."""
        with self._holding:
            if before := self._waiting.get(event.node):
                known = {**event.data, "in_state": 0, "deadline_in": before.event.data.get("deadline_in")}
                if known.get("state") == before.event.data.get("state"):
                    # Its health is another. What its workers said stays true until they are asked again.
                    known["workers"] = before.event.data.get("workers")
                text = before.event.text if before.is_given_up else "" if known.get("state") else event.text
                heard = replace(before.event, text=text, data=known)
                self._waiting[event.node] = Waiting(heard, self._clock.monotonic(), before.given)

    def leave(self, name: NodeName) -> None:
        """Take a node out of the area."""
        with self._steering:
            with self._holding:
                self._waiting.pop(name, None)
            self._show()

    def stop(self) -> None:
        """Take the area away; the lines stay. Raises what went wrong while drawing."""
        with self._steering:
            with self._holding:
                self._waiting.clear()
            self._take_away()

    def _show(self) -> None:
        """Have the area on the screen while there is one; raises what went wrong while drawing."""
        with self._as_far_as_can_be():
            self._draw()

    def _draw(self) -> None:
        if self._is_lost:
            self._above()
        elif not self._waiting:
            self._take_away()
        elif self._drawing is None:
            self._drawing = Drawing(
                self._console, self._stdin, above=self._above, below=self._below, threaded=self._is_device
            )
        elif self._drawing.failure:
            raise self._drawing.failure
        if self._drawing and not self._is_device:
            self._drawing.draw()

    def _take_away(self) -> None:
        with self._as_far_as_can_be():
            drawing, self._drawing = self._drawing, None
            if drawing:
                drawing.end()
            elif (lines := self._above()) and not self._is_lost:
                self._console.print(*lines, sep="\n", soft_wrap=True)

    @contextlib.contextmanager
    def _as_far_as_can_be(self) -> Iterator[None]:
        """Give up the screen where it cannot be written and that may be passed over."""
        try:
            yield
        except OSError as error:
            if not self._may_pass_over(error):
                raise
            self._is_lost = True
            drawing, self._drawing = self._drawing, None
            if drawing:
                with contextlib.suppress(OSError):
                    drawing.end()

    def _may_pass_over(self, error: BaseException) -> bool:
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
