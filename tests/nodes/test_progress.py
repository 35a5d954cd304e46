"""Progress: the live display of a terminal, lines of a log, events for programs."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.output.screen import on_screen
from tpuctl.clock import ManualClock
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.names import NodeName
from tpuctl.output.live import Marks, PendingNode, Screen, render_area
from tpuctl.output.progress import EventFile, Progress
from tpuctl.output.terminal import StandardStreams, Terminal

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def event(kind: EventKind, text: str, *, node: str = "demo", **data: Any) -> NodeEvent:
    return NodeEvent(kind, NOW, NodeName("p", "us-central2-b", node), text, data)


def creating(node: str = "demo", *, seconds: float = 60, **data: Any) -> NodeEvent:
    return event(EventKind.WAIT, "it is CREATING", node=node, state="CREATING", in_state=seconds, **data)


def terminal(*, is_terminal: bool = False, quiet: bool = False, **environ: str) -> Terminal:
    streams = StandardStreams(io.StringIO(), io.StringIO(), io.StringIO(), stderr_is_terminal=is_terminal, width=100)
    return Terminal(streams, {"NO_COLOR": "1", **environ}, quiet=quiet)


def err(written: Terminal) -> str:
    assert isinstance(written.streams.stderr, io.StringIO)
    return written.streams.stderr.getvalue()


def workers(count: int, lacking: set[int]) -> list[dict[str, Any]]:
    return [
        {"worker": index, "ready": True, "healthy": None, "ssh": index not in lacking}
        | ({"why": "does not answer"} if index in lacking else {})
        for index in range(count)
    ]


def drawn(events: list[NodeEvent], *, passed: int = 0, columns: int = 100, rows: int = 20) -> list[str]:
    nodes = [PendingNode(each, timedelta(), 1800) for each in events]
    lines = render_area(nodes, timedelta(seconds=passed), Screen(columns, rows, Marks(), 0))
    return [line.plain for line in lines]


@pytest.mark.parametrize(
    ("waiting", "passed", "line"),
    [
        (creating(), 0, "⠋ demo  CREATING  1m"),
        (creating(usual=120), 0, "⠋ demo  CREATING  1m  ━━━━━━━━━━────────── usually 2m"),
        (creating(usual=120), 70, "⠋ demo  CREATING  2m10s  ━━━━━━━━━━━━━━━━━━━━ longer than usual (2m)"),
        (creating(next="restart it", next_in=130), 10, "⠋ demo  CREATING  1m10s  restart it in 2m"),
        (creating(next="restart it", next_in=5), 10, "⠋ demo  CREATING  1m10s  restart it now"),
        (creating(deadline_in=450), 0, "⠋ demo  CREATING  1m"),
        (creating(deadline_in=450), 10, "⠋ demo  CREATING  1m10s  deadline in 7m20s"),
        (event(EventKind.WAIT, "create requested"), 0, "⠋ demo  create requested"),
        (
            event(EventKind.SILENT, "API not answering for 40s", state="CREATING", in_state=9),
            0,
            "⠋ demo  CREATING  9s  API not answering for 40s",
        ),
    ],
)
def test_area_line_has_state_time_and_next_step(waiting: NodeEvent, passed: int, line: str) -> None:
    assert drawn([waiting], passed=passed) == [line]


def test_area_fits_the_screen_and_counts_other_nodes() -> None:
    nodes = [creating(f"n-{index}") for index in range(100)]

    assert drawn(nodes, rows=3) == ["⠋ n-0  CREATING  1m", "⠋ n-1  CREATING  1m", "and 98 more: 98 CREATING"]
    assert drawn(nodes, rows=1) == ["100 nodes: 100 CREATING"]


def test_area_of_a_slice_shows_workers_if_there_is_room() -> None:
    waiting = event(EventKind.WAIT, "x", state="READY", health="HEALTHY", workers=workers(4, {1, 3}))
    named = "  2 of 4 workers missing: 1, 3 (ssh: does not answer)"

    assert drawn([waiting]) == [
        "⠋ demo  READY HEALTHY",
        "  worker   0 1 2 3",
        "  ready    ✓ ✓ ✓ ✓",
        "  ssh      ✓ ✗ ✓ ✗",
        named,
    ]
    assert drawn([waiting], rows=3) == ["⠋ demo  READY HEALTHY", named]


def test_area_wraps_between_words() -> None:
    broken = creating("trainer", usual=150, health="UNHEALTHY_MAINTENANCE", next="restart it", next_in=60)
    short = event(EventKind.WAIT, "stop requested", state="STOPPING", in_state=5)

    assert drawn([broken, short], columns=50) == [
        "⠋ trainer  CREATING UNHEALTHY_MAINTENANCE  1m",
        "    usually 2m30s · restart it in 1m",
        "⠋ demo     STOPPING                        5s",
        "    stop requested",
    ]
    assert drawn([broken], columns=30, rows=3) == [
        "⠋ trainer",
        "    CREATING",
        "    UNHEALTHY_MAINTENANCE · 1m · usually 2m30s · restart it in 1m",
    ]
    assert drawn([broken], columns=50, rows=1) == [
        "⠋ trainer  CREATING UNHEALTHY_MAINTENANCE  1m  usually 2m30s · restart it in 1m"
    ]


def test_area_of_a_large_slice_has_cells_and_names_eight() -> None:
    waiting = event(EventKind.WAIT, "x", state="READY", workers=workers(40, set(range(32))))

    assert drawn([waiting], columns=60) == [
        "⠋ demo  READY",
        "     0  ✗✗✗✗✗✗✗✗ ✗✗✗✗✗✗✗✗ ✗✗✗✗✗✗✗✗ ✗✗✗✗✗✗✗✗",
        "    32  ✓✓✓✓✓✓✓✓",
        "  32 of 40 workers missing: 0, 1, 2, 3, 4, 5, 6, 7 (ssh:",
        "    does not answer) and 24 more",
    ]


@pytest.mark.parametrize("dumb", [False, True])
def test_log_has_one_line_for_each_change(dumb: bool) -> None:
    written, clock = terminal(is_terminal=dumb, TERM="dumb"), ManualClock()
    with Progress(written, clock) as progress:
        for _ in range(13):
            progress(creating(next="restart it", next_in=130))
        for _ in range(13):
            progress(event(EventKind.SILENT, f"API not answering for {clock.monotonic().seconds}s", state="CREATING"))
            clock.sleep(timedelta(seconds=5))
        progress(creating(next="recreate it", next_in=30))
        progress(event(EventKind.GAVE_UP, "too late"))

    assert err(written).splitlines() == [
        "demo: if nothing changes: restart it in 2m10s",
        "demo: API not answering for 0s",
        "demo: API not answering for 60s",
        "demo: the API answers again",
        "demo: if nothing changes: recreate it in 30s",
    ]


def test_outage_is_reported_once_for_a_zone() -> None:
    written = terminal()
    with Progress(written, ManualClock()) as progress:
        for kind in (EventKind.STATE, EventKind.SILENT):
            for node in ("a", "b"):
                progress(event(kind, str(kind), node=node))

    assert err(written).splitlines() == ["a: state", "b: state", "us-central2-b: silent"]


def test_messages_are_above_the_area_which_is_removed() -> None:
    written = terminal(is_terminal=True)
    with Progress(written, ManualClock()) as progress:
        progress(creating())
        written.warn("by the way")
        progress(event(EventKind.NOTE, "not much" + " of it" * 20))
        during = on_screen(err(written))

    said = ["warning: by the way", "     0s ! demo not much" + " of it" * 12 + " of", " " * 10 + "it" + " of it" * 7]
    assert (during, on_screen(err(written))) == ([*said, "⠼ demo  CREATING  1m"], said)


def test_state_is_shown_before_the_next_poll() -> None:
    written = terminal(is_terminal=True)
    with Progress(written, ManualClock()) as progress:
        progress(creating(usual=120, next="restart it"))
        progress(event(EventKind.STATE, "READY", state="READY"))
        during = on_screen(err(written))

    assert during[-1].endswith("demo  READY  0s")


def test_ascii_terminal_gets_ascii_marks() -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", newline="")
    with Progress(
        Terminal(StandardStreams(io.StringIO(), screen, screen, stderr_is_terminal=True), {}), ManualClock()
    ) as progress:
        progress(event(EventKind.NOTE, "by the way"))
        progress(creating(usual=120))

    assert isinstance(screen.buffer, io.BytesIO)
    assert b"demo  CREATING  1m  ##########---------- usually 2m" in re.sub(
        rb"\x1b\[[0-9]*m", b"", screen.buffer.getvalue()
    )


def test_quiet_watch_reports_nodes_that_were_given_up() -> None:
    written = terminal(quiet=True)
    with Progress(written, ManualClock(), lasting=True) as progress:
        progress(event(EventKind.STATE, "READY"))
        progress(event(EventKind.GAVE_UP, "broken"))

    assert err(written) == "warning: demo: broken\n"


def test_full_event_file_warns_once() -> None:
    written = terminal()
    with Progress(written, ManualClock(), events=EventFile(Path("/dev/full"), "/dev/full")) as progress:
        progress(creating())
        progress(creating())

    full = "warning: cannot write events to /dev/full: No space left on device; continuing without them"
    assert err(written).splitlines().count(full) == 1


def test_event_file_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with Progress(terminal(), ManualClock(), events=EventFile(path, "events")) as progress:
        progress(creating())
        assert json.loads(path.read_text())["in_state"] == 60
