"""Output of events: a live display on a terminal, one line for each change elsewhere, JSON for programs."""

from __future__ import annotations

import contextlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Self, TextIO

from tpuctl.durations import format_duration
from tpuctl.errors import NotFoundError
from tpuctl.escaping import escape_unprintable
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.output.event_lines import ChangeLines, EventFile, EventWriter, IgnoreWriteErrors, hints

if TYPE_CHECKING:
    from tpuctl.clock import Clock
    from tpuctl.output.live import LiveDisplay
    from tpuctl.output.terminal import Terminal

_STYLES = {
    EventKind.ACTION: "cyan",
    EventKind.NOTE: "yellow",
    EventKind.REACHED: "green",
    EventKind.RECOVERED: "green",
    EventKind.PREEMPTED: "red",
    EventKind.MAINTENANCE: "yellow",
    EventKind.GAVE_UP: "red",
}
_WAITS = frozenset({EventKind.WAIT, EventKind.SILENT})
_ENDS = frozenset({EventKind.REACHED, EventKind.RECOVERED})


class Progress:
    """A listener for events, and a context: at its end the live display is removed.

    `events` gets each event at once, as one JSON object on a line. The error that ends a command reports that a node was given
    up; with `lasting` the event is shown instead, also if quiet, for work that continues with other nodes. Work continues if
    the file of events cannot be written, and with `lasting` also if stdout is full: a warning says so once. A closed stdout
    ends the work.
    """

    def __init__(
        self, terminal: Terminal, clock: Clock, *, events: TextIO | EventFile | None = None, lasting: bool = False
    ) -> None:
        self._terminal, self._clock, self._lasting = terminal, clock, lasting
        self._export = EventWriter(events, terminal, lasting=lasting) if events else None
        self._started = clock.monotonic()
        self._changes = ChangeLines(clock)
        self._live: LiveDisplay | None = None
        self.last: NodeEvent | None = None

    def __enter__(self) -> Self:
        if self._lasting:
            self._terminal.aside = IgnoreWriteErrors()
        if self._terminal.is_redrawn and not self._terminal.quiet:
            from tpuctl.output.live import LiveDisplay  # noqa: PLC0415  # rich costs 40 ms, only for a terminal

            self._live = self._terminal.aside = LiveDisplay(self._terminal, self._clock, lasting=self._lasting)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._export:
            self._export.end()
        self._terminal.aside = nullcontext()
        if self._live:
            live, self._live = self._live, None
            # The error that ends the run matters more than one of the screen.
            with contextlib.suppress(OSError) if kind else nullcontext():
                live.stop()
            if kind is KeyboardInterrupt:
                with contextlib.suppress(OSError):
                    self._terminal.streams.stderr.write("^C")  # the terminal's own was removed with the display

    def __call__(self, event: NodeEvent) -> None:
        """Show an event. Raises `OSError` if it cannot be written, with `lasting` only `BrokenPipeError`."""
        self.last = event
        if self._export:
            # The live display must not overwrite events that are printed on the same screen.
            with self._live if self._live and self._export.is_screen else nullcontext():
                self._export.write(event)
        if event.kind is EventKind.GAVE_UP and self._terminal.quiet and self._lasting:
            self._terminal.warn(f"{event.node.node_id}: {event.text}")
        if self._terminal.quiet:
            return
        if self._live:
            self._show(event, self._live)
        elif event.kind is not EventKind.GAVE_UP or self._lasting:
            for line in self._changes.lines(event):
                self._terminal.note(line)

    def _show(self, event: NodeEvent, live: LiveDisplay) -> None:
        if event.kind in _WAITS:
            live.wait(event)
            return
        if event.kind is EventKind.ACTION:
            live.act(event)
        elif event.kind is EventKind.STATE:
            live.change(event)
        elif event.kind in _ENDS:
            live.leave(event.node)
        elif event.kind is EventKind.GAVE_UP and not self._lasting:
            live.leave(event.node)
            return
        elif event.kind is EventKind.GAVE_UP and event.data.get("error") != NotFoundError.kind:
            live.give_up(event)  # it is still polled: a user may fix it. A deleted node is not.
        elif event.kind is EventKind.GAVE_UP:
            live.leave(event.node)
        elapsed = format_duration(self._clock.monotonic() - self._started)
        style, words, marks = _STYLES.get(event.kind, ""), escape_unprintable(event.text), live.marks
        mark = {
            EventKind.STATE: marks.state,
            EventKind.ACTION: marks.action,
            EventKind.REACHED: marks.good,
            EventKind.RECOVERED: marks.good,
            EventKind.GAVE_UP: marks.bad,
        }.get(event.kind, marks.note)
        live.say(
            (f"{elapsed:>7} ", "dim"),
            (f"{mark} ", style),
            (f"{event.node.node_id} ", "bold"),
            (words, style),
        )
        for line in hints(event):
            live.say((f"{'':>7} {line}", "dim"))
