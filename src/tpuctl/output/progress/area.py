"""What is shown of the nodes that are not done yet: pure, from what was last heard of each to lines that fit a screen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from tpuctl.clock import format_duration
from tpuctl.events import Event, EventKind
from tpuctl.output.matrix import matrix, missing
from tpuctl.output.painting import length
from tpuctl.output.progress.changes import untold
from tpuctl.output.tables import flat, text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.output.painting import Line, Marks, Part


class Screen(NamedTuple):
    """How much room there is, which marks can be shown, and the count of frames, which turns the spinner."""

    columns: int
    rows: int
    marks: Marks
    frame: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """What was last heard of a node, when by the monotonic clock, the most time that was ever left, what is done to it."""

    event: Event
    at: timedelta
    given: float | None = None
    doing: str | None = None


def area(nodes: Sequence[Waiting], now: timedelta, screen: Screen) -> list[Line]:
    """Return a line for each node, with the workers of slices where there is room; those that do not fit are counted."""
    if screen.rows < 1 or not nodes:
        return []
    fits = len(nodes) <= screen.rows
    shown = nodes if fits else nodes[: screen.rows - 1]
    heads = [_cells(node, now, screen) for node in shown]
    widths = [max(sum(text_width(text) for text, _ in cell) for cell in column) for column in zip(*heads, strict=True)]
    spare = screen.rows - len(shown) - (not fits)
    lines: list[Line] = []
    for node, cells in zip(shown, heads, strict=True):
        for line in _block(node, _aligned(cells, widths), _rest(node, now, screen), screen, spare):
            lines.append(line)
            spare -= 1
        spare += 1
    return lines if fits else [*lines, _others(nodes[len(shown) :], is_all=not shown)]


def _block(node: Waiting, head: list[Part], rest: list[Part], screen: Screen, spare: int) -> list[Line]:
    """Return the line of a node, and below it what else there is room for."""
    whole: Line = [*head, *rest] if rest else head[:-1]
    lines: list[Line] = [whole]
    if rest and length(whole) > screen.columns and spare > 0:
        lines = [head[:-1], [("    ", ""), *rest]]
        spare -= 1
    workers = node.event.data.get("workers") or ()
    if len(workers) > 1:
        full = matrix(workers, width=screen.columns, marks=screen.marks)
        lines += full if len(full) <= spare else missing(workers)[: max(spare, 0)]
    return lines


def _cells(node: Waiting, now: timedelta, screen: Screen) -> list[list[Part]]:
    """Return the columns: spinner and name, state and health, time in it, progress against the usual time."""
    data, spinner = node.event.data, screen.marks.spinner
    state, health = data.get("state"), data.get("health")
    what: list[Part] = [(flat(str(state)), "bold")] if state else []
    if state and health and health != "HEALTH_UNSPECIFIED":
        what.append((f" {flat(str(health))}", "green" if health == "HEALTHY" else "red"))
    lasted = data.get("in_state")
    so_far = None if lasted is None or not state else timedelta(seconds=lasted) + now - node.at
    return [
        [(spinner[screen.frame % len(spinner)], "cyan"), (f" {flat(node.event.node.node_id)}", "bold")],
        what,
        [(format_duration(so_far), "")] if so_far is not None else [],
        _expected(so_far, data.get("usual"), screen),
    ]


def _expected(so_far: timedelta | None, usual: float | None, screen: Screen) -> list[Part]:
    if so_far is None or not usual:
        return []
    share = min(so_far / timedelta(seconds=usual), 1.0)
    in_words = format_duration(timedelta(seconds=usual))
    size = 20 if screen.columns >= 100 else 10 if screen.columns >= 80 else 0
    filled = int(share * size)
    late = share >= 1
    words = f"longer than usual ({in_words})" if late else f"usually {in_words}"
    bar: list[Part] = [
        (screen.marks.filled * filled, "yellow" if late else "cyan"),
        (screen.marks.empty * (size - filled) + " ", "dim"),
    ]
    return [*(bar if size else []), (words, "yellow" if late else "")]


def _rest(node: Waiting, now: timedelta, screen: Screen) -> list[Part]:
    """Return why we wait, what comes next, and the deadline when it is near."""
    data, passed = node.event.data, (now - node.at).total_seconds()
    parts: list[Part] = []
    reason = node.doing or untold(node.event)
    if node.event.kind is EventKind.SILENT:
        parts.append((flat(node.event.text), "red"))
    elif reason and (node.doing or not missing(data.get("workers") or ()) or len(data["workers"]) == 1):
        parts.append((flat(reason), ""))
    if data.get("next") and not node.doing:
        parts.append((flat(str(data["next"])) + _when(data.get("next_in"), passed), "cyan"))
    left = data.get("deadline_in")
    if left is not None and node.given and left - passed < node.given / 4:
        parts.append((f"deadline{_when(left, passed)}", "yellow"))
    between: Part = (screen.marks.between, "dim")
    return [part for each in parts for part in (between, each)][1:]


def _when(seconds: Any, passed: float) -> str:  # JSON
    if seconds is None:
        return ""
    left = seconds - passed
    return f" in {format_duration(timedelta(seconds=left))}" if left >= 1 else " now"


def _aligned(cells: list[list[Part]], widths: list[int]) -> list[Part]:
    """Return the cells in their columns, and at the end the space up to what follows."""
    line: list[Part] = []
    gap = 0
    for cell, width in zip(cells, widths, strict=True):
        if cell:
            line += [(" " * gap, ""), *cell]
            gap = 0
        gap += width - length(cell) + 2 if width else 0
    return [*line, (" " * gap, "")]


def _others(nodes: Sequence[Waiting], *, is_all: bool) -> Line:
    counted = Counter(str(node.event.data.get("state") or "not there yet") for node in nodes)
    states = ", ".join(f"{count} {flat(state)}" for state, count in counted.most_common())
    return [(f"{len(nodes)} nodes: {states}" if is_all else f"and {len(nodes)} more: {states}", "dim")]
