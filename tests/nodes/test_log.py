"""What `up`, `wait` and the like write to a log: the time before each line, and a line while nothing changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, put
from tests.nodes.test_progress import creating, err, event, terminal
from tpuctl.clock import ManualClock
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.output.progress import Progress


@pytest.mark.parametrize(
    ("setting", "arguments", "has_time"),
    [
        ("auto", (), True),
        ("on", (), True),
        ("off", (), False),
        ("off", ("--timestamps", "on"), True),
        ("auto", ("--timestamps", "off"), False),
    ],
    ids=["auto", "on", "off", "flag-on", "flag-off"],
)
def test_log_lines_have_the_time_of_day(
    tpuctl: Console, sandbox: Sandbox, setting: str, arguments: tuple[str, ...], has_time: bool
) -> None:
    put(sandbox)

    out, said, code = tpuctl("wait", "demo", *arguments, TPUCTL_TIMESTAMPS=setting)

    stamp = "00:00:00Z " if has_time else ""
    lines = ["demo: READY HEALTHY", "demo: usable (ssh) after 0s"]
    assert (out, said.splitlines(), code) == ("demo\tREADY\n", [stamp + line for line in lines], 0)


def test_unknown_setting_fails_before_a_change(tpuctl: Console, sandbox: Sandbox) -> None:
    _, said, code = tpuctl(*UP, "--no-wait", TPUCTL_TIMESTAMPS="maybe")

    message = "TPUCTL_TIMESTAMPS: `timestamps` is `maybe`: it must be one of auto, on, off"
    assert (said.splitlines()[0], code, sandbox.changes()) == (f"error: {message}", 2, [])


def test_log_has_no_time_on_the_error_that_ends_the_command(tpuctl: Console, sandbox: Sandbox) -> None:
    sandbox.fault("hang", state="CREATING")

    _, said, _ = tpuctl(*UP, "--timeout", "6m", "--timestamps", "auto")

    *lines, error, _ = said.splitlines()
    assert [line.split(" ", 2)[2] for line in lines][-2:] == ["CREATING", "still CREATING, 5m"]
    assert error == "error: `demo` is not usable by ssh after 6m: it is CREATING"


def test_wait_is_compared_with_earlier_durations(tpuctl: Console, sandbox: Sandbox) -> None:
    for name in ("first", "second"):
        assert tpuctl("up", name, *UP[2:], "--for", "ready")[2] == 0
    sandbox.fault("hang", state="CREATING")

    _, said, code = tpuctl(*UP, "--timeout", "6m")

    assert (code, [line for line in said.splitlines() if "still" in line]) == (
        5,
        ["demo: still CREATING, 5m, usually 4m"],
    )


def waited(*events: NodeEvent, minutes: int = 11, is_terminal: bool = False) -> list[str]:
    """Return the lines about nodes of which these events are reported every 15 seconds."""
    written, clock = terminal(is_terminal=is_terminal), ManualClock()
    with Progress(written, clock) as progress:
        for _ in range(4 * minutes):
            for each in events:
                progress(each)
            clock.sleep(timedelta(seconds=15))
    return err(written).splitlines()


def unhealthy(text: str) -> NodeEvent:
    return event(EventKind.WAIT, text, state="READY", health="UNHEALTHY_TENSORFLOW", in_state=90)


@pytest.mark.parametrize(
    ("waiting", "line"),
    [
        (creating(seconds=725, usual=250), "demo: still CREATING, 12m, usually 4m"),
        (creating(seconds=45), "demo: still CREATING, 45s"),
        (
            unhealthy("it is READY but UNHEALTHY_TENSORFLOW"),
            "demo: still READY but UNHEALTHY_TENSORFLOW, 2m",
        ),
        (unhealthy("ssh fails"), "demo: still READY (ssh fails), 2m"),
        (event(EventKind.WAIT, "delete requested", state="DELETING", in_state=60), "demo: still DELETING, 1m"),
        (
            event(EventKind.WAIT, "its queued resource is ACCEPTED", request="ACCEPTED", in_state=3600),
            "demo: still ACCEPTED, 1h",
        ),
        (event(EventKind.WAIT, "no zone has capacity"), "demo: still waiting (no zone has capacity)"),
    ],
    ids=["usual", "new", "health", "reason", "deletion", "request", "no-state"],
)
def test_wait_is_reported_every_five_minutes(waiting: NodeEvent, line: str) -> None:
    assert [one for one in waited(waiting) if "still" in one] == [line, line]


def test_news_postpone_the_report_of_a_wait() -> None:
    written, clock = terminal(), ManualClock()
    with Progress(written, clock) as progress:
        for minute in range(14):
            if minute == 4:
                progress(event(EventKind.NOTE, "maintenance is SCHEDULED"))
            progress(creating(seconds=60 * minute))
            clock.sleep(timedelta(minutes=1))

    assert err(written).splitlines() == ["demo: maintenance is SCHEDULED", "demo: still CREATING, 9m"]


@pytest.mark.parametrize(
    ("count", "lines"),
    [
        (3, ["n-0: still CREATING, 1m", "n-1: still CREATING, 2m", "n-2: still STOPPING, 3m"]),
        (4, ["4 nodes: still 2 CREATING, 2 STOPPING; the longest for 4m"]),
        (200, ["200 nodes: still 100 CREATING, 100 STOPPING; the longest for 3h20m"]),
    ],
    ids=["few", "many", "hundreds"],
)
def test_many_waiting_nodes_share_a_line(count: int, lines: list[str]) -> None:
    states = ["CREATING" if 2 * index < count else "STOPPING" for index in range(count)]
    events = [
        event(EventKind.WAIT, f"it is {state}", node=f"n-{index}", state=state, in_state=60 * (index + 1))
        for index, state in enumerate(states)
    ]

    assert waited(*events, minutes=6) == lines


def test_request_in_several_zones_is_one_node() -> None:
    waiting = event(EventKind.WAIT, "x", request="ACCEPTED", in_state=60)
    events = [replace(waiting, node=replace(waiting.node, zone=zone)) for zone in ("a", "b", "c", "d")]

    assert waited(*events, minutes=6)[-1] == "demo: still 4 ACCEPTED; the longest for 1m"


def test_time_has_the_date_after_midnight() -> None:
    written = terminal()
    clock = ManualClock(datetime(2026, 1, 1, 23, 59, 50, tzinfo=UTC))
    with Progress(written, clock, timestamps=True) as progress:
        for text in ("before", "after", "later"):
            progress(event(EventKind.NOTE, text))
            clock.sleep(timedelta(seconds=30))
    written.note("afterwards")

    assert err(written).splitlines() == [
        "23:59:50Z demo: before",
        "2026-01-02T00:00:20Z demo: after",
        "00:00:50Z demo: later",
        "afterwards",
    ]


def test_each_line_of_a_warning_has_the_time() -> None:
    written = terminal()
    with Progress(written, ManualClock(datetime(2026, 1, 1, tzinfo=UTC)), timestamps=True):
        written.warn("first", "second")

    assert err(written) == "00:00:00Z warning: first\n00:00:00Z second\n"


def test_live_display_shows_the_time_of_day_instead_of_the_elapsed_time() -> None:
    written = terminal(is_terminal=True)
    with Progress(written, ManualClock(datetime(2026, 1, 1, tzinfo=UTC)), timestamps=True) as progress:
        progress(event(EventKind.NOTE, "by the way"))

    assert err(written).endswith("00:00:00Z ! demo by the way\n")
