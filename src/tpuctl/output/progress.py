"""Output of events: a live display on a terminal, one line for each change elsewhere, JSON for programs.

A stream of events may fail to be written: the file system is full, or the reader of a pipe is slow or has ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from collections import Counter
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self, TextIO

from tpuctl.durations import format_duration
from tpuctl.errors import NotFoundError
from tpuctl.escaping import dump_printable_json, escape_unprintable
from tpuctl.models.events import EventKind, NodeEvent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import date
    from pathlib import Path
    from types import TracebackType

    from tpuctl.clock import Clock
    from tpuctl.names import NodeName
    from tpuctl.output.live import LiveDisplay
    from tpuctl.output.step_summary import StepSummary
    from tpuctl.output.terminal import Terminal

_STYLES = {
    EventKind.ACTION: "cyan",
    EventKind.NOTE: "yellow",
    EventKind.REACHED: "green",
    EventKind.RECOVERED: "green",
    EventKind.PREEMPTED: "red",
    EventKind.MAINTENANCE: "yellow",
    EventKind.EXPIRED: "red",
    EventKind.GAVE_UP: "red",
}
_WAITS = frozenset({EventKind.WAIT, EventKind.SILENT})
_ENDS = frozenset({EventKind.REACHED, EventKind.RECOVERED})


class Progress:
    """A listener for events, and a context: at its end the live display is removed.

    `events` gets each event at once, as one JSON object on a line. The error that ends a command reports that a node was given
    up; with `lasting` the event is shown instead, also if quiet, for work that continues with other nodes. Work continues if
    the file of events cannot be written, and with `lasting` also if stdout is full: a warning says so once. A closed stdout
    ends the work. With `timestamps` each line that is printed meanwhile begins with the time of day.
    """

    def __init__(
        self,
        terminal: Terminal,
        clock: Clock,
        *,
        events: TextIO | EventFile | None = None,
        lasting: bool = False,
        timestamps: bool = False,
        summary: StepSummary | None = None,
    ) -> None:
        self._terminal, self._clock, self._lasting = terminal, clock, lasting
        self._stamp = LineTime(clock) if timestamps else None
        self._summary = summary
        self._export = EventWriter(events, terminal, lasting=lasting) if events else None
        self._started = clock.monotonic()
        self._changes = ChangeLines(clock)
        self._live: LiveDisplay | None = None
        self._gone: NodeEvent | None = None  # the last event, if it is that a node is gone
        self.last: NodeEvent | None = None

    def __enter__(self) -> Self:
        self._terminal.stamp = self._stamp
        if self._lasting:
            self._terminal.aside = IgnoreWriteErrors()
        if self._terminal.is_redrawn and not self._terminal.quiet:
            from tpuctl.output.live import LiveDisplay  # noqa: PLC0415  # rich costs 40 ms, only for a terminal

            self._live = self._terminal.aside = LiveDisplay(self._terminal, self._clock, lasting=self._lasting)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._export:
            self._export.end()
        with contextlib.suppress(OSError):
            self._show_gone()
        self._terminal.aside, self._terminal.stamp = nullcontext(), None
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
        if self._summary:
            self._summary(event)
        if self._export:
            # The live display must not overwrite events that are printed on the same screen.
            with self._live if self._live and self._export.is_screen else nullcontext():
                self._export.write(event)
        if event.kind is EventKind.HOOK_FAILED:
            lines = (f"  {line}".expandtabs() for line in event.data["output"])
            self._terminal.warn(f"{event.node.node_id}: {event.text}", *lines)
            return
        if event.kind is EventKind.GAVE_UP and self._terminal.quiet and self._lasting:
            self._terminal.warn(f"{event.node.node_id}: {event.text}")
        if self._terminal.quiet:
            return
        # "gone" and "gone after 43s" are one line.
        self._show_gone(but=event.node if event.kind is EventKind.REACHED else None)
        if event.kind is EventKind.STATE and "state" in event.data and event.data["state"] is None:
            self._gone = event
        else:
            self._display(event)

    def _show_gone(self, *, but: NodeName | None = None) -> None:
        """Show that a node is gone, unless its next event says so."""
        gone, self._gone = self._gone, None
        if gone is not None and gone.node != but:
            self._display(gone)

    def _display(self, event: NodeEvent) -> None:
        if self._live:
            self._show(event, self._live)
        elif event.kind is not EventKind.GAVE_UP or self._lasting:
            for line in self._changes.lines(event):
                self._terminal.note(line)

    def rest(self, words: str) -> None:
        """Show on a terminal, while no node waits, that all is well as of now."""
        if self._live:
            self._live.rest(words)

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
        elapsed = f"{format_duration(self._clock.monotonic() - self._started):>7} "
        when = self._stamp() if self._stamp else elapsed
        if event.data.get("took") is not None and self._stamp is None:
            when = " " * len(elapsed)  # the text says how long it took
        style, marks = "cyan" if event.is_step else _STYLES.get(event.kind, ""), live.marks
        words = escape_unprintable(event.text)
        mark = (
            marks.action
            if event.is_step
            else {
                EventKind.STATE: marks.state,
                EventKind.ACTION: marks.action,
                EventKind.REACHED: marks.good,
                EventKind.RECOVERED: marks.good,
                EventKind.GAVE_UP: marks.bad,
            }.get(event.kind, marks.note)
        )
        live.say(
            (when, "dim"),
            (f"{mark} ", style),
            (f"{event.node.node_id} ", "bold"),
            (words, style),
        )
        for line in _hints(event):
            live.say((f"{'':>{len(when)}}{line}", "dim"))


class LineTime:
    """The time of day before a line of a log, in UTC as CI systems have it; the first line after midnight has the date too."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._day: date | None = None

    def __call__(self) -> str:
        """Return the time now, with a space."""
        now = self._clock.now()
        before, self._day = self._day, now.date()
        return f"{now:%H:%M:%SZ} " if before in {None, self._day} else f"{now:%Y-%m-%dT%H:%M:%SZ} "


# How often an outage of the API is reported again.
_OUTAGE_REPEAT = timedelta(minutes=1)
# A step that is further ahead is not reported yet.
_SOON = timedelta(minutes=5)
# How often a wait is reported again while nothing changes.
_WAIT_REPEAT = timedelta(minutes=5)
# More nodes than this that have waited for nearly as long share a line.
_MOST_WAIT_LINES = 3
_NEARLY = timedelta(seconds=30)
_GOOD_HEALTH = frozenset({None, "HEALTHY", "HEALTH_UNSPECIFIED"})


def _hints(event: NodeEvent) -> Iterator[str]:
    """Yield the hints of a node that was given up, in the form of an error's hints."""
    for line in str(event.data.get("hint") or "").splitlines():
        yield f"  hint: {line}"


class ChangeLines:
    """Selects the events that are reported, and formats their lines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reported: dict[NodeName, tuple[str, str | None]] = {}  # reason and next step in the last line
        self._silent: dict[str, set[NodeName]] = {}  # by zone: the nodes without an answer
        self._outages: dict[str, timedelta] = {}  # by zone: when its outage was last reported
        self._waits: dict[NodeName, NodeEvent] = {}  # the last event of each node that waits
        self._printed: dict[NodeName, timedelta] = {}  # when a line about that node was last printed

    def lines(self, event: NodeEvent) -> Iterator[str]:
        """Yield the lines for an event, often none; a node that waits gets a line every five minutes."""
        name, now = event.node, self._clock.monotonic()
        lines = list(self._news(event))
        if event.kind in _WAITS:
            self._waits[name] = event
        else:
            self._waits.pop(name, None)
        if lines:
            self._printed[name] = now
            yield from lines
        elif now - self._printed.setdefault(name, now) >= _WAIT_REPEAT:
            due = [other for other in self._waits if now - self._printed.get(other, now) >= _WAIT_REPEAT - _NEARLY]
            together = due if len(due) > _MOST_WAIT_LINES else [name]
            self._printed |= dict.fromkeys(together, now)
            yield _describe_waits([self._waits[other] for other in together])

    def _news(self, event: NodeEvent) -> Iterator[str]:
        """Yield the lines about what has changed."""
        name = event.node
        if event.kind is EventKind.SILENT:
            now, reported = self._clock.monotonic(), self._outages.get(name.zone)
            self._silent.setdefault(name.zone, set()).add(name)
            if reported is None or now - reported >= _OUTAGE_REPEAT:
                self._outages[name.zone] = now
                yield f"{self._subject(event)}: {event.text}"
            return
        silent = self._silent.get(name.zone)
        if silent and name in silent:
            subject = self._subject(event)
            silent.discard(name)
            if not silent and self._outages.pop(name.zone, None) is not None:
                yield f"{subject}: the API answers again"
        if event.kind is not EventKind.WAIT:
            self._reported[name] = "", None
            yield f"{name.node_id}: {event.text}"
            yield from _hints(event)
            return
        reason, following, after = event.wait_reason, event.data.get("next"), event.data.get("next_in")
        if after is not None and timedelta(seconds=after) > _SOON:
            following = None
        if _repeats_action(event):
            reason = ""
        before = self._reported.get(name, ("", None))
        self._reported[name] = reason, following
        news = reason if reason != before[0] else ""
        if following and following != before[1]:
            when = f" in {format_duration(timedelta(seconds=max(after, 0)))}" if after is not None else ""
            news = f"{news}; if nothing changes: {following}{when}".removeprefix("; ")
        if news:
            yield f"{name.node_id}: {news}"

    def _subject(self, event: NodeEvent) -> str:
        # An outage concerns all nodes of a zone: one line for the zone replaces the same line for each node.
        several = len(self._reported) > 1 or len(self._silent.get(event.node.zone, ())) > 1
        return event.node.zone if several else event.node.node_id


def _describe_waits(events: Collection[NodeEvent]) -> str:
    """Return a line that says how long nodes have been waiting, and how long that usually takes."""
    longest = max(events, key=lambda event: event.data.get("in_state") or 0)
    so_far, usual = longest.data.get("in_state"), longest.data.get("usual")
    parts = [] if so_far is None else [_in_minutes(so_far)]
    parts += [f"usually {_in_minutes(usual)}"] if usual else []
    if len(events) > 1:
        states = Counter(str(event.data.get("state") or event.data.get("request") or "waiting") for event in events)
        counted = ", ".join(f"{count} {state}" for state, count in states.most_common())
        node_ids = {event.node.node_id for event in events}  # a race waits for one node in several zones
        subject = f"{len(node_ids)} nodes" if len(node_ids) > 1 else longest.node.node_id
        return f"{subject}: still {counted}" + (f"; the longest for {', '.join(parts)}" if parts else "")
    state = longest.data.get("state") or longest.data.get("request")
    health = longest.data.get("health")
    reason = "" if _repeats_action(longest) else longest.wait_reason
    if state and reason.startswith(f"it is {state}"):
        words = reason.removeprefix("it is ")
    elif reason:
        words = f"{state or 'waiting'} ({reason})"
    else:
        words = f"{state or 'waiting'}" + ("" if health in _GOOD_HEALTH else f" but {health}")
    return f"{longest.node.node_id}: still {', '.join((words, *parts))}"


def _in_minutes(seconds: float) -> str:
    return format_duration(timedelta(minutes=round(seconds / 60)) if seconds >= 60 else timedelta(seconds=seconds))


def _repeats_action(event: NodeEvent) -> bool:
    """Return whether the reason of a wait says what the line about the action before it has said."""
    reason = event.wait_reason
    return bool(event.data.get("state")) and (reason == "it is being deleted" or reason.endswith(" requested"))


# How long to wait for a reader to open a pipe, and at the end for it to read the rest.
_READER_SECONDS: Final = 0.5
_DRAIN_SECONDS: Final = 2.0
# Bytes buffered for a slow reader: about 20,000 events.
_MAX_BUFFERED: Final = 8 * 1024 * 1024


class IgnoreWriteErrors:
    """A context that suppresses `OSError`, except `BrokenPipeError`: the reader of a pipe has closed it."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        """Return whether the error is suppressed."""
        return isinstance(error, OSError) and not isinstance(error, BrokenPipeError)


class EventFile:
    """A file that events are appended to. It never waits for the reader of a pipe: lines are buffered, up to a limit."""

    def __init__(self, path: Path, name: str) -> None:
        """Open the file. Raises `OSError` if it cannot be written; a pipe without a reader is opened later."""
        self.name = name
        self._path = path
        self._buffer = bytearray()
        self._file: int | None = None
        until = time.monotonic() + _READER_SECONDS
        while not self._open() and time.monotonic() < until:
            time.sleep(0.02)

    def isatty(self) -> bool:
        """Return whether the file is a terminal."""
        return self._file is not None and os.isatty(self._file)

    def write(self, line: str) -> None:
        """Append a line, or buffer it for a slow reader. Raises `OSError` if lines are lost or buffered without a reader."""
        content = line.encode("utf-8", "backslashreplace")
        if len(self._buffer) + len(content) > _MAX_BUFFERED:
            raise OSError(errno.ENOBUFS, "its reader does not keep up")
        self._buffer += content
        if not self._open():
            raise OSError(errno.ENXIO, "no program reads this pipe")
        self._send()

    def close(self) -> None:
        """Give a reader a short time to read the rest, and close the file. Raises `OSError` if lines are lost."""
        if self._file is None:
            return
        try:
            until = time.monotonic() + _DRAIN_SECONDS
            while self._buffer and (left := until - time.monotonic()) > 0:
                select.select([], [self._file], [], left)
                self._send()
            if self._buffer:
                raise OSError(errno.ENOBUFS, "its reader did not take all of them")
        finally:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def _open(self) -> bool:
        """Open the file if it is closed. Return False for a pipe without a reader."""
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
        while self._buffer and self._file is not None:
            try:
                del self._buffer[: os.write(self._file, self._buffer)]
            except BlockingIOError:
                return
            except OSError as error:
                self._buffer.clear()
                if isinstance(error, BrokenPipeError):
                    # The next reader of the pipe gets the events from then on.
                    os.close(self._file)
                    self._file = None
                    raise OSError(errno.ENXIO, "the program that read this pipe has ended") from error
                raise


class EventWriter:
    """Writes each event to a stream, at once.

    An event that a file does not accept is dropped, with a warning the first time; later events are written again. With
    `lasting` the same applies to stdout.
    """

    def __init__(self, stream: TextIO | EventFile, terminal: Terminal, *, lasting: bool) -> None:
        self._stream, self._terminal = stream, terminal
        self._lasting = lasting or isinstance(stream, EventFile)
        self._has_failed = False

    @property
    def is_screen(self) -> bool:
        """Return whether the stream is a terminal."""
        return self._stream.isatty()

    def write(self, event: NodeEvent) -> None:
        """Write an event. Raises `OSError` if stdout cannot be written; with `lasting` only `BrokenPipeError`."""
        try:
            self._stream.write(dump_printable_json(self._terminal.masked(event.to_json())) + "\n")
            if not isinstance(self._stream, EventFile):
                self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._lasting:
                raise
            self._warn(error)

    def end(self) -> None:
        """Close a file."""
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
                self._terminal.warn(
                    f"cannot write events to {where}: {error.strerror or error}; continuing without them"
                )
