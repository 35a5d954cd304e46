"""The live display of a terminal: permanent lines, and below them the nodes that have not reached their goal.

`render_area` and `worker_matrix` are pure: from the last event of each node to lines that fit a screen. `LiveArea` has `rich`
redraw them several times a second. Only runs on a terminal import this module, because `rich` takes 40 ms.
"""

from __future__ import annotations

import contextlib
import os
import termios
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from rich.console import Console, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from tpuctl.durations import format_duration
from tpuctl.escaping import escape_unprintable
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.output.prose import wrap_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tpuctl.clock import Clock
    from tpuctl.names import NodeName
    from tpuctl.output.terminal import Terminal

_DEFAULT_ROWS = 24  # of a stream that is not a device


class LiveDisplay:
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
            height=None if self._is_device else _DEFAULT_ROWS,
            legacy_windows=False,
            _environ={},  # `terminal` has read it, and COLUMNS would fix the initial width
        )
        self.marks = ASCII_MARKS if self._console.options.ascii_only else Marks()
        self._clock, self._stdin = clock, streams.stdin if streams.stdin_is_terminal else None
        self._lasting, self._is_lost = lasting, False
        self._waiting: dict[NodeName, PendingNode] = {}
        self._lines: list[Text] = []
        # What is shown while no node waits, and its time.
        self._rest: tuple[str, timedelta] | None = None
        self._frame = 0
        self._drawing: LiveArea | None = None
        self._drawing_lock = threading.RLock()  # starts and ends the drawing; the drawing thread never acquires it
        self._state_lock = threading.Lock()  # guards the nodes and the lines, for moments only

    def __enter__(self) -> Self:
        self._drawing_lock.acquire()
        try:
            self._remove_area()
        except BaseException:
            self._drawing_lock.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        try:
            self._show()
        finally:
            self._drawing_lock.release()
        return error is not None and self._is_tolerated(error)

    def say(self, *parts: tuple[str, str]) -> None:
        """Show a permanent line, made of texts with their styles. One that is too long continues below its last text."""
        *before, (last, style) = [(escape_unprintable(text), style) for text, style in parts]
        head = Text.assemble(*before)
        indent = " " * min(head.cell_len, 10)
        first, *others = wrap_text(last, first=head.plain, rest=indent, width=self._console.width)
        lines = [
            Text.assemble(*before, (first.removeprefix(head.plain), style)),
            *(Text(line, style) for line in others),
        ]
        with self._drawing_lock:
            with self._state_lock:
                self._lines += lines
            self._show()

    def wait(self, event: NodeEvent) -> None:
        """Show a node in the area, with its last event."""
        with self._drawing_lock:
            with self._state_lock:
                before = self._waiting.get(event.node)
                left = event.data.get("deadline_in")
                given = max(filter(None, (left, before.given if before else None)), default=None)
                self._waiting[event.node] = PendingNode(event, self._clock.monotonic(), given)
            self._show()

    def act(self, event: NodeEvent) -> None:
        """Show the action on a node in the area until its next event."""
        with self._state_lock:
            if before := self._waiting.get(event.node):
                # A node with an action is not given up any more.
                latest = replace(before.event, kind=EventKind.WAIT, text="") if before.is_given_up else before.event
                self._waiting[event.node] = replace(before, event=latest, doing=event.text)

    def give_up(self, event: NodeEvent) -> None:
        """Show in the area that a node was given up, and why, until its next event."""
        self.wait(replace(event, data={"state": event.data.get("state"), "health": event.data.get("health")}))

    def change(self, event: NodeEvent) -> None:
        """Show the new state of a node in the area until its next event."""
        with self._state_lock:
            if before := self._waiting.get(event.node):
                known = {**event.data, "in_state": 0, "deadline_in": before.event.data.get("deadline_in")}
                if known.get("state") == before.event.data.get("state"):
                    # Only the health has changed. The result of the workers stays valid until their next check.
                    known["workers"] = before.event.data.get("workers")
                text = before.event.text if before.is_given_up else "" if known.get("state") else event.text
                latest = replace(before.event, text=text, data=known)
                self._waiting[event.node] = PendingNode(latest, self._clock.monotonic(), before.given)

    def leave(self, name: NodeName) -> None:
        """Remove a node from the area."""
        with self._drawing_lock:
            with self._state_lock:
                self._waiting.pop(name, None)
            self._show()

    def rest(self, words: str) -> None:
        """Show these words, and how long ago this was, while no node waits; on a device only, where lines can be replaced."""
        if self._is_device:
            with self._drawing_lock:
                with self._state_lock:
                    self._rest = words, self._clock.monotonic()
                self._show()

    def stop(self) -> None:
        """Remove the area; the permanent lines stay. Raises the error of an earlier redraw."""
        with self._drawing_lock:
            with self._state_lock:
                self._rest = None
                self._waiting.clear()
            self._remove_area()

    def _show(self) -> None:
        """Draw the area, or remove it if it is empty. Raises the error of an earlier redraw."""
        with self._giving_up_screen():
            if self._is_lost:
                self._above()
            elif not self._waiting and self._rest is None:
                self._remove_area()
            elif self._drawing is None:
                self._drawing = LiveArea(
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
        with self._state_lock:
            lines, self._lines = self._lines, []
        return lines

    def _below(self) -> Sequence[Text]:
        with self._state_lock:
            nodes, rest = tuple(self._waiting.values()), self._rest
        self._frame += 1
        columns, rows = self._console.size
        now = self._clock.monotonic()
        lines = render_area(nodes, now, Screen(columns, rows - 1, self.marks, self._frame))
        if not nodes and rest is not None:
            lines = [Text(f"{escape_unprintable(rest[0])}, last look {format_duration(now - rest[1])} ago", "dim")]
        for line in lines:
            line.no_wrap, line.overflow = True, "crop" if self._console.options.ascii_only else "ellipsis"
        return lines


_AREA_GAP = 2
_INDENT = "    "


class Screen(NamedTuple):
    """The size of the screen, the symbols that it can show, and the number of the frame, which turns the spinner."""

    columns: int
    rows: int
    marks: Marks
    frame: int


@dataclass(frozen=True, slots=True)
class PendingNode:
    """A node that has not reached its goal."""

    event: NodeEvent  # the last one
    at: timedelta  # its time, by the monotonic clock
    given: float | None = None  # the longest time to the deadline of all events, in seconds
    doing: str | None = None  # the action in progress

    @property
    def is_given_up(self) -> bool:
        """Return whether the node is only polled: such a node gets a single line."""
        return self.event.kind is EventKind.GAVE_UP


def render_area(nodes: Sequence[PendingNode], now: timedelta, screen: Screen) -> list[Text]:
    """Return a line for each node, with further lines below it if there is room; nodes that do not fit are counted.

    A line is wider than the screen only if there is no room for a second one.
    """
    if screen.rows < 1 or not nodes:
        return []
    fits = len(nodes) <= screen.rows
    shown = nodes if fits else nodes[: screen.rows - 1]
    heads = [_node_columns(node, now, screen) for node in shown]
    widths = [max(cell.cell_len for cell in column) for column in zip(*heads, strict=True)]
    # If the columns are wider than the screen, the last ones move to the text behind them, for all nodes alike.
    aligned = len(widths)
    while aligned > 1 and sum(widths[:aligned]) + _AREA_GAP * (aligned - 1) > screen.columns:
        aligned -= 1
    spare = screen.rows - len(shown) - (not fits)
    lines: list[Text] = []
    for node, cells in zip(shown, heads, strict=True):
        rest = [*filter(None, cells[aligned:]), *_rest(node, now)]
        room = 0 if node.is_given_up else spare
        joined = Text.assemble((screen.marks.between, "dim")).join(rest)
        head = _aligned(cells[:aligned], widths)
        if joined and room >= 1 and head.cell_len + joined.cell_len > screen.columns:
            head.rstrip()
            block = [head, *_folded(joined, screen.columns, room)]
        else:
            block = [head + joined]
            block[0].rstrip()
        block += _workers(node, screen, spare + 1 - len(block))
        spare -= len(block) - 1
        lines += block
    if fits:
        return lines
    others = nodes[len(shown) :]
    counted = Counter(str(node.event.data.get("state") or "not created yet") for node in others)
    states = ", ".join(f"{count} {escape_unprintable(state)}" for state, count in counted.most_common())
    return [*lines, Text(f"and {len(others)} more: {states}" if shown else f"{len(others)} nodes: {states}", "dim")]


def _workers(node: PendingNode, screen: Screen, spare: int) -> list[Text]:
    """Return the matrix of a slice's workers, or only the missing ones, or no line, depending on the room."""
    workers = node.event.data.get("workers") or ()
    if len(workers) < 2 or spare < 1 or node.is_given_up:
        return []
    named = missing_workers(workers)
    lacking = _folded(named, screen.columns, spare, first="  ") if named else []
    grid = worker_matrix(workers, width=screen.columns, marks=screen.marks)
    return [*grid, *lacking] if len(grid) + len(lacking) <= spare else lacking


def _folded(text: Text, columns: int, most: int, *, first: str = _INDENT) -> list[Text]:
    """Return the text on indented lines, broken between words; the last of `most` lines takes the rest."""
    lines: list[Text] = []
    line = Text(first)
    for word in text.split(" "):
        is_begun = not line.plain.isspace()
        if is_begun and line.cell_len + 1 + word.cell_len > columns and len(lines) + 1 < most:
            lines.append(line)
            line, is_begun = Text(_INDENT), False
        line.append(" " if is_begun else "").append_text(word)
    return [*lines, line]


def _node_columns(node: PendingNode, now: timedelta, screen: Screen) -> list[Text]:
    """Return the columns: spinner and name, state and health, time in it, progress against the usual time."""
    data, spinner = node.event.data, screen.marks.spinner
    state, health = data.get("state") or data.get("request"), data.get("health")
    what = Text(escape_unprintable(str(state)) if state else "", "bold")
    if state and health and health != "HEALTH_UNSPECIFIED":
        what = Text.assemble(what, (f" {escape_unprintable(str(health))}", "green" if health == "HEALTHY" else "red"))
    sign, style = (screen.marks.bad, "red") if node.is_given_up else (spinner[screen.frame % len(spinner)], "cyan")
    lasted = data.get("in_state")
    so_far = None if lasted is None or not state else timedelta(seconds=lasted) + now - node.at
    return [
        Text.assemble((sign, style), (f" {escape_unprintable(node.event.node.node_id)}", "bold")),
        what,
        Text(format_duration(so_far) if so_far is not None else ""),
        _expected(so_far, data.get("usual"), screen),
    ]


def _expected(so_far: timedelta | None, usual: float | None, screen: Screen) -> Text:
    if so_far is None or not usual:
        return Text()
    share = min(so_far / timedelta(seconds=usual), 1.0)
    in_words = format_duration(timedelta(seconds=usual))
    size = 20 if screen.columns >= 100 else 10 if screen.columns >= 80 else 0
    filled = int(share * size)
    if share >= 1:
        words, style = f"longer than usual ({in_words})", "yellow"
    else:
        words, style = f"usually {in_words}", ""
    bar = (screen.marks.filled * filled, style or "cyan"), (screen.marks.empty * (size - filled) + " ", "dim")
    return Text.assemble(*(bar if size else ()), (words, style))


def _rest(node: PendingNode, now: timedelta) -> Iterable[Text]:
    """Yield the reason for the wait, the next step, and the deadline if it is near."""
    data, passed = node.event.data, (now - node.at).total_seconds()
    reason = node.doing or node.event.wait_reason
    if node.is_given_up:
        yield Text(f"given up: {escape_unprintable(node.event.text)}", "red")
        return
    if node.event.kind is EventKind.SILENT:
        yield Text(escape_unprintable(node.event.text), "red")
    elif reason and (node.doing or not missing_workers(data.get("workers") or ()) or len(data["workers"]) == 1):
        yield Text(escape_unprintable(reason))
    if data.get("next") and not node.doing:
        yield Text(escape_unprintable(str(data["next"])) + _when(data.get("next_in"), passed), "cyan")
    left = data.get("deadline_in")
    if left is not None and node.given and left - passed < node.given / 4:
        yield Text(f"deadline{_when(left, passed)}", "yellow")


def _when(seconds: Any, passed: float) -> str:  # JSON
    if seconds is None:
        return ""
    left = seconds - passed
    return f" in {format_duration(timedelta(seconds=left))}" if left >= 1 else " now"


def _aligned(cells: Sequence[Text], widths: Sequence[int]) -> Text:
    """Return the cells in their columns, with the space up to the text that follows."""
    line, column = Text(), 0
    for cell, width in zip(cells, widths, strict=False):  # the last columns may have moved
        line.append_text(cell)
        column += width + _AREA_GAP if width else 0
        line.append(" " * (column - line.cell_len))
    return line


_MATRIX_LEVELS = ("ready", "healthy", "ssh", "startup", "devices")
_GRID_LIMIT = 16
_NAMED_LIMIT = 8


def worker_matrix(workers: Sequence[Mapping[str, Any]], *, width: int, marks: Marks) -> list[Text]:
    """Return the workers of a slice: a row for each level that was checked, or a cell for each worker of a large slice."""
    lines: list[Text] = []
    if len(workers) > _GRID_LIMIT:
        a_row = 64 if len(workers) > 64 and width > 80 else 32
        for start in range(0, len(workers), a_row):
            line = Text.assemble((f"  {workers[start]['worker']:>4} ", "dim"))
            for index, worker in enumerate(workers[start : start + a_row]):
                results = [worker[level] for level in _MATRIX_LEVELS if worker.get(level) is not None]
                sign, style = _sign(all(results) if results else None, marks)
                line.append(" " + sign if index % 8 == 0 else sign, style)
            lines.append(line)
        return lines
    checked = [level for level in _MATRIX_LEVELS if any(worker.get(level) is not None for worker in workers)]
    if checked:
        wide = len(str(workers[-1]["worker"])) + 1
        lines.append(Text(f"  {'worker':8}" + "".join(f"{worker['worker']:>{wide}}" for worker in workers), "dim"))
    for level in checked:
        signs = [_sign(worker.get(level), marks) for worker in workers]
        lines.append(Text.assemble(f"  {level:8}", *((f"{sign:>{wide}}", style) for sign, style in signs)))
    return lines


def missing_workers(workers: Sequence[Mapping[str, Any]]) -> Text:
    """Return a text that names the workers that have not passed a level, eight at most; empty if there are none."""
    lacking = [
        (worker, level)
        for worker in workers
        if (level := next((level for level in _MATRIX_LEVELS if worker.get(level) is False), None))
    ]
    if not lacking:
        return Text()
    groups: dict[str, list[str]] = {}
    for worker, level in lacking[:_NAMED_LIMIT]:
        why = worker.get("why")
        groups.setdefault(f"{level}: {escape_unprintable(str(why))}" if why else level, []).append(
            str(worker["worker"])
        )
    named = ", ".join(f"{', '.join(indices)} ({why})" for why, indices in groups.items())
    more = f" and {len(lacking) - _NAMED_LIMIT} more" if len(lacking) > _NAMED_LIMIT else ""
    return Text.assemble((f"{len(lacking)} of {len(workers)} workers missing: ", "red"), named + more)


def _sign(has: bool | None, marks: Marks) -> tuple[str, str]:  # noqa: FBT001  # a cell of the matrix
    if has is None:
        return marks.unknown, "dim"
    return (marks.good, "green") if has else (marks.bad, "red")


@dataclass(frozen=True, slots=True)
class Marks:
    """Symbols for terminals with an encoding of Unicode; `ASCII` has those for other terminals."""

    state: str = "•"
    action: str = "→"
    note: str = "!"
    good: str = "✓"
    bad: str = "✗"
    unknown: str = "·"
    filled: str = "━"
    empty: str = "─"
    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    between: str = " · "


ASCII_MARKS = Marks("*", ">", "!", "+", "x", ".", "#", "-", "|/-\\", "; ")


# Seconds between two frames. Real time, not the clock of the run: it is for the eye, and no decision depends on it.
_REDRAW_SECONDS = 0.2


class LiveArea:
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
        self._echo.enter_context(echo_disabled(stdin) if stdin else nullcontext())
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
        while not self._ended.wait(_REDRAW_SECONDS):
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


_LOCAL_MODES = 3  # of the attributes of a terminal, termios(3)


@contextmanager
def echo_disabled(stdin: TextIO) -> Iterator[None]:
    """Disable echo during a block: an Enter would move the cursor. What is typed stays in the input buffer.

    Does nothing if stdin is not a terminal in our control.
    """
    try:
        device = stdin.fileno()
        before = termios.tcgetattr(device)
        in_foreground = _in_foreground(device)
    except (OSError, ValueError, termios.error):
        in_foreground = False
    if not in_foreground:
        yield
        return
    meanwhile = before.copy()
    meanwhile[_LOCAL_MODES] &= ~termios.ECHO
    termios.tcsetattr(device, termios.TCSANOW, meanwhile)
    try:
        yield
    finally:
        # The terminal may be gone: the error that ends the run matters more.
        with suppress(OSError, termios.error):
            if _in_foreground(device):
                termios.tcsetattr(device, termios.TCSANOW, before)


def _in_foreground(device: int) -> bool:
    # A background job is stopped if it changes the terminal.
    return os.tcgetpgrp(device) == os.getpgrp()
