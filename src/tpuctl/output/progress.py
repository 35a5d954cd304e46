"""How the events of long work are shown: a live line on a terminal, one line per change elsewhere, JSON for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, Self, TextIO

from tpuctl.clock import format_duration
from tpuctl.events import Event, EventKind
from tpuctl.output.tables import flat

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from rich.console import Console
    from rich.status import Status

    from tpuctl.clock import Clock
    from tpuctl.output.terminal import Terminal

_STYLES = {
    EventKind.STATE: "bold",
    EventKind.ACTION: "cyan",
    EventKind.NOTE: "yellow",
    EventKind.REACHED: "bold green",
}
_MARKS = {EventKind.STATE: "•", EventKind.ACTION: "→", EventKind.NOTE: "!", EventKind.REACHED: "✓"}


class Progress:
    """A listener for events, and a context: on leaving it the live line is taken away.

    `events` gets each event as one JSON object on a line.
    """

    def __init__(self, terminal: Terminal, clock: Clock, *, events: TextIO | None = None) -> None:
        self._terminal = terminal
        self._clock = clock
        self._events = events
        self._started = clock.monotonic()
        self._last_wait = ""
        self._live: _Live | None = None
        self.last: Event | None = None

    def __enter__(self) -> Self:
        streams = self._terminal.streams
        if streams.stderr_is_terminal and not self._terminal.quiet:
            self._live = _Live(streams.stderr, colored=self._terminal.colors_err, elapsed=self._elapsed)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def __call__(self, event: Event) -> None:
        """Show an event."""
        self.last = event
        if self._events:
            self._events.write(json.dumps(event.to_json(), ensure_ascii=False) + "\n")
            self._events.flush()
        if self._terminal.quiet:
            return
        if self._live:
            self._live.show(event)
        else:
            self._line(event)

    def _line(self, event: Event) -> None:
        if event.kind is EventKind.WAIT:
            # A wait is worth a line only when its reason is news; durations within it are not.
            reason = event.text.split(" for ", 1)[0]
            state = event.data.get("state")
            # The line before has told the state, or what was requested.
            told = (f"it is {state}", "it is being deleted", f"it is {state} but {event.data.get('health')}")
            if reason == self._last_wait or (state and (reason in told or reason.endswith(" requested"))):
                return
            self._last_wait = reason
        else:
            self._last_wait = ""
        self._terminal.note(f"{event.node.node_id}: {event.text}")

    def _elapsed(self) -> timedelta:
        return self._clock.monotonic() - self._started


class _Live:
    """Lines that stay, and below them one that moves until there is news."""

    def __init__(self, stream: TextIO, *, colored: bool, elapsed: Callable[[], timedelta]) -> None:
        from rich.console import Console  # noqa: PLC0415  # 40 ms, only for long work on a terminal

        system: Literal["auto"] | None = "auto" if colored else None
        self._console: Console = Console(file=stream, force_terminal=True, color_system=system, highlight=False)
        self._status: Status | None = None
        self._elapsed = elapsed

    def show(self, event: Event) -> None:
        from rich.text import Text  # noqa: PLC0415  # as above

        elapsed, words = format_duration(self._elapsed()), flat(event.text)
        if event.kind is EventKind.WAIT:
            text = Text(f"{event.node.node_id}: {words} ({elapsed})")
            if self._status is None:
                self._status = self._console.status(text, spinner_style="cyan")
                self._status.start()
            else:
                self._status.update(text)
            return
        line = Text()
        line.append(f"{elapsed:>7} ", "dim")
        line.append(f"{_MARKS[event.kind]} ", _STYLES[event.kind])
        line.append(f"{event.node.node_id} ", "bold")
        line.append(words, _STYLES[event.kind] if event.kind is not EventKind.STATE else "")
        self._console.print(line, soft_wrap=True)

    def stop(self) -> None:
        if self._status:
            self._status.stop()
            self._status = None
