"""The lines of the live display: pure functions from the last event of each node to lines that fit a screen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from tpuctl.clock import format_duration
from tpuctl.escaping import visible
from tpuctl.events import Event, EventKind
from tpuctl.output.matrix import matrix, missing
from tpuctl.output.progress.changes import untold

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpuctl.output.marks import Marks

_GAP = 2
_INDENT = "    "


class Screen(NamedTuple):
    """The size of the screen, the symbols that it can show, and the number of the frame, which turns the spinner."""

    columns: int
    rows: int
    marks: Marks
    frame: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A node that has not reached its goal."""

    event: Event  # the last one
    at: timedelta  # its time, by the monotonic clock
    given: float | None = None  # the longest time to the deadline of all events, in seconds
    doing: str | None = None  # the action in progress

    @property
    def is_given_up(self) -> bool:
        """Return whether the node is only polled: such a node gets a single line."""
        return self.event.kind is EventKind.GAVE_UP


def area(nodes: Sequence[Waiting], now: timedelta, screen: Screen) -> list[Text]:
    """Return a line for each node, with further lines below it if there is room; nodes that do not fit are counted.

    A line is wider than the screen only if there is no room for a second one.
    """
    if screen.rows < 1 or not nodes:
        return []
    fits = len(nodes) <= screen.rows
    shown = nodes if fits else nodes[: screen.rows - 1]
    heads = [_cells(node, now, screen) for node in shown]
    widths = [max(cell.cell_len for cell in column) for column in zip(*heads, strict=True)]
    # If the columns are wider than the screen, the last ones move to the text behind them, for all nodes alike.
    aligned = len(widths)
    while aligned > 1 and sum(widths[:aligned]) + _GAP * (aligned - 1) > screen.columns:
        aligned -= 1
    spare = screen.rows - len(shown) - (not fits)
    lines: list[Text] = []
    for node, cells in zip(shown, heads, strict=True):
        rest = [*filter(None, cells[aligned:]), *_rest(node, now)]
        room = 0 if node.is_given_up else spare
        joined = Text.assemble((screen.marks.between, "dim")).join(rest)
        block = _block(_aligned(cells[:aligned], widths), joined, screen.columns, room)
        block += _workers(node, screen, spare + 1 - len(block))
        spare -= len(block) - 1
        lines += block
    if fits:
        return lines
    others = nodes[len(shown) :]
    counted = Counter(str(node.event.data.get("state") or "not created yet") for node in others)
    states = ", ".join(f"{count} {visible(state)}" for state, count in counted.most_common())
    return [*lines, Text(f"and {len(others)} more: {states}" if shown else f"{len(others)} nodes: {states}", "dim")]


def _block(head: Text, rest: Text, columns: int, spare: int) -> list[Text]:
    """Return the line of a node; text that does not fit goes to further lines if there is room for them."""
    whole = head + rest
    if not rest or whole.cell_len <= columns or spare < 1:
        whole.rstrip()
        return [whole]
    head.rstrip()
    return [head, *_folded(rest, columns, spare)]


def _workers(node: Waiting, screen: Screen, spare: int) -> list[Text]:
    """Return the matrix of a slice's workers, or only the missing ones, or no line, depending on the room."""
    workers = node.event.data.get("workers") or ()
    if len(workers) < 2 or spare < 1 or node.is_given_up:
        return []
    named = missing(workers)
    lacking = _folded(named, screen.columns, spare, first="  ") if named else []
    grid = matrix(workers, width=screen.columns, marks=screen.marks)
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


def _cells(node: Waiting, now: timedelta, screen: Screen) -> list[Text]:
    """Return the columns: spinner and name, state and health, time in it, progress against the usual time."""
    data, spinner = node.event.data, screen.marks.spinner
    state, health = data.get("state"), data.get("health")
    what = Text(visible(str(state)) if state else "", "bold")
    if state and health and health != "HEALTH_UNSPECIFIED":
        what = Text.assemble(what, (f" {visible(str(health))}", "green" if health == "HEALTHY" else "red"))
    sign, style = (screen.marks.bad, "red") if node.is_given_up else (spinner[screen.frame % len(spinner)], "cyan")
    lasted = data.get("in_state")
    so_far = None if lasted is None or not state else timedelta(seconds=lasted) + now - node.at
    return [
        Text.assemble((sign, style), (f" {visible(node.event.node.node_id)}", "bold")),
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


def _rest(node: Waiting, now: timedelta) -> Iterable[Text]:
    """Yield the reason for the wait, the next step, and the deadline if it is near."""
    data, passed = node.event.data, (now - node.at).total_seconds()
    reason = node.doing or untold(node.event)
    if node.is_given_up:
        yield Text(f"given up: {visible(node.event.text)}", "red")
        return
    if node.event.kind is EventKind.SILENT:
        yield Text(visible(node.event.text), "red")
    elif reason and (node.doing or not missing(data.get("workers") or ()) or len(data["workers"]) == 1):
        yield Text(visible(reason))
    if data.get("next") and not node.doing:
        yield Text(visible(str(data["next"])) + _when(data.get("next_in"), passed), "cyan")
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
        column += width + _GAP if width else 0
        line.append(" " * (column - line.cell_len))
    return line
